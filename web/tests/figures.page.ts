// The figures alone on a page, over a run made by hand; the specs drive it through `window.figures`.

import type { LaneSettings } from "../../crates/wasm/types";
import { mountFigures } from "../src/figures/index.ts";
import { type RunState, reduceRun } from "../src/run.ts";
import { begin, type Plan, read } from "./made.ts";

let run: RunState = begin({ lanes: [] });
let frame = 0;
const said: string[] = [];

const container = document.querySelector<HTMLElement>("#figures");
if (container === null) throw new Error("there is no place for the figures");

const figures = mountFigures(container, {
  run: () => run,
  ask: (lane, layer, head) => show(reduceRun(run, { kind: "probs", lane, layer, head })),
  cursor: (at) => show(reduceRun(run, { kind: "cursor", at })),
  roll: (tokens) => show(reduceRun(run, { kind: "roll", tokens })),
  lead: (id) => said.push(`lead ${id}`),
  link: (id) => `https://example.org/?fig=${id}`,
  wake,
  say: (text) => said.push(text),
  send: async (text) => {
    said.push(`sent ${text}`);
    if (text === window.figures.stopAt) return null;
    show(read(run, 40));
    return text.includes("?") ? "It is Heron." : "Yes.";
  },
});

function show(next: RunState): void {
  run = next;
  wake();
}

function wake(): void {
  if (frame === 0) frame = requestAnimationFrame(paint);
}

function paint(now: number): void {
  frame = 0;
  const before = performance.now();
  const waiting = figures.draw(run, now);
  window.figures.took.push(performance.now() - before);
  if (waiting) wake();
}

declare global {
  interface Window {
    figures: {
      begin(plan: Plan, tokens: number): void;
      read(tokens: number): void;
      said: string[];
      /** Milliseconds of each call of `draw`. */
      took: number[];
      stopAt: string | null;
      run(): RunState;
      settings(): LaneSettings[];
    };
  }
}

window.figures = {
  begin: (plan, tokens) => show(read(begin(plan), tokens)),
  read: (tokens) => show(read(run, tokens)),
  said,
  took: [],
  stopAt: null,
  run: () => run,
  settings: () => run.lanes.map(({ settings }) => settings),
};
