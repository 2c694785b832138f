// Lanes side by side with the real module and the real weights, called as the worker calls them. The server is named by
// SINKSTREAM_URL.

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import type { CompareInfo, CompareSource, CompareStep, Engine, LaneSettings, LaneStep } from "../../crates/wasm/types";
import { errors } from "./page.ts";

test.setTimeout(10 * 60_000);

const golden = (name: string): string => readFileSync(new URL(`../../tests/golden/${name}`, import.meta.url), "utf8");
const MODEL = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";

/** What a lane did, in numbers that cross to here. */
type Told = Omit<LaneStep, "sink_mass" | "first_mass" | "probs"> & { sinks_share: number; first_share: number };

interface Comparison {
  info: CompareInfo;
  lanes: Told[][];
  /** Reports of the lanes that recompute. */
  again: Told[][];
}

/** What is compared, and how far a lane that recomputes goes at a time. */
interface Asked {
  model: string;
  lanes: LaneSettings[];
  source: CompareSource;
  every: number;
}

/** Runs in the page: loads the module once, compares, and gives all of it back. */
async function run({ model, lanes, source, every }: Asked): Promise<Comparison> {
  type Module = typeof import("../../crates/wasm/types") & { default(init: { module_or_path: URL }): Promise<void> };
  const kept = globalThis as unknown as { engine?: Engine };
  if (kept.engine === undefined) {
    const url = new URL("/pkg/wasm.js", location.href).href;
    const module = (await import(/* @vite-ignore */ url)) as Module;
    await module.default({ module_or_path: new URL("/pkg/wasm_bg.wasm", location.href) });
    const engine = await module.Engine.create("cpu", false);
    engine.load_begin();
    const reader = (await fetch(model)).body?.getReader();
    for (let part = await reader?.read(); part?.value !== undefined; part = await reader?.read()) engine.load_push(part.value);
    await engine.load_end();
    kept.engine = engine;
  }
  const { engine } = kept;
  const mean = (mass: Float32Array): number => mass.reduce((sum, share) => sum + share, 0) / mass.length;
  const told = ({ sink_mass, first_mass, ...step }: LaneStep): Told => ({
    ...step,
    sinks_share: mean(sink_mass),
    first_share: mean(first_mass),
  });
  const info = engine.compare(lanes, source);
  const all = lanes.map((): Told[] => []);
  const again = lanes.map((): Told[] => []);
  const take = (to: Told[][], step: CompareStep): boolean => {
    step.lanes.forEach((lane, i) => lane && to[i]?.push(told(lane)));
    return step.done;
  };
  while (!take(all, await engine.compare_next(null)));
  for (let step = await engine.compare_again(every); step !== null; step = await engine.compare_again(every)) take(again, step);
  engine.compare_end();
  return { info, lanes: all, again };
}

const lane = (policy: LaneSettings["policy"], sinks: number, recent: number): LaneSettings => ({ policy, sinks, recent, kv: "f32" });

test("forced lanes lose what the independent program says, and free ones part where the first token is gone", async ({ page }) => {
  const found = errors(page);
  await page.goto("/");
  const { runs, tokens } = JSON.parse(golden("policies.json")) as {
    runs: Record<string, { nll: number[] }>;
    tokens: number[];
  };
  const lanes = [lane("window", 0, 128), lane("sinks", 4, 124), lane("dense", 0, 0), lane("recompute", 0, 128)];
  const n = 260;
  const forced = { mode: "forced", text: golden("story.txt"), from: 0, n } as const;
  const { info, lanes: reports, again } = await page.evaluate(run, { model: MODEL, lanes, source: forced, every: 64 });
  expect(info).toEqual({ tokens: n, shared: [true, true, true, false] });
  for (const [i, name] of ["window_128", "sinks_4_124", "dense"].entries()) {
    const steps = reports[i] ?? [];
    expect(steps.map(({ id }) => id)).toEqual(tokens.slice(0, n));
    const reference = runs[name]?.nll ?? [];
    const worst = Math.max(...steps.slice(1).map(({ nll, i }) => Math.abs((nll ?? 99) - (reference[i - 1] ?? 0))));
    console.log(`${name}: largest difference ${worst.toExponential(2)}`);
    expect(worst).toBeLessThan(2e-3);
    expect(steps.filter(({ ms }) => ms !== null).map(({ i }) => i)).toEqual(steps.map(({ i }) => i).filter((i) => i % 16 === 15));
    expect(golden("story.txt").startsWith(steps.map(({ text }) => text).join(""))).toBe(true);
  }
  const at = (i: number, token: number): Told | undefined => reports[i]?.[token];
  expect(at(0, 128)).toMatchObject({ held: 128, capacity: 128, sinks: 0, tail: 0, evicted: [0, 1], ended: false });
  expect(at(1, 128)).toMatchObject({ held: 128, sinks: 4, evicted: [4, 5] });
  expect(at(1, 128)?.bytes).toEqual({ sinks: 4 * 46_080, codes: 124 * 46_080, scales: 0, tail: 0, slack: 0 });
  expect(at(1, 200)?.sinks_share).toBeGreaterThan(0.2);
  expect(at(0, 200)?.first_share).toBeLessThan(0.05);
  // The token that is told, and its loss beside the dense one's: no worse than a window that was just read can be.
  expect(again[3]?.map(({ i, id }) => [i, id])).toEqual([64, 128, 192, 256].map((i) => [i, tokens[i]]));
  expect(again[3]?.[0]?.nll).toBeCloseTo(runs["dense"]?.nll[63] ?? 0, 2);

  // The same seed in caches of 128; what they choose is the same until the first token is gone.
  const sampler = { temperature: 0, top_k: 64, top_p: 1, min_p: 0, repetition_penalty: 1.2, seed: 1 };
  const prompt = "Tell me a very long story about a lighthouse keeper. Never stop.";
  const free = { mode: "free", prompt, sampler, max_tokens: 110 } as const;
  const written = await page.evaluate(run, { model: MODEL, lanes: lanes.slice(0, 2), source: free, every: 1 });
  const [window, sinks] = written.lanes.map((steps) => steps.map(({ id }) => id));
  const parts = window?.findIndex((id, i) => id !== sinks?.[i]) ?? -1;
  console.log(`the two texts part at token ${parts}; the prompt has ${written.info.tokens}`);
  expect(parts).toBeGreaterThanOrEqual(129);
  const words = written.lanes.map((steps) => steps.map(({ text }) => text).join(""));
  expect(words[0]).toContain("lighthouse keeper. Never stop.<|im_end|>");
  expect(words[0]?.slice(0, 300)).toBe(words[1]?.slice(0, 300));
  expect(written.lanes.every((steps) => steps.at(-1)?.ended === true)).toBe(true);

  // What cannot be is said in words.
  const bad = { ...lane("sinks", 4, 124), sink_text: "\n".repeat(200) };
  await expect(page.evaluate(run, { model: MODEL, lanes: [bad], source: forced, every: 1 })).rejects.toThrow(/200 tokens and the cache 128 slots/);
  const late = { ...forced, from: 5000 };
  await expect(page.evaluate(run, { model: MODEL, lanes, source: late, every: 1 })).rejects.toThrow(/5000 are to be left out/);
  expect(found).toEqual([]);
});
