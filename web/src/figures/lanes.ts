// How lanes look, and what they are called.

import type { LaneState, RunState } from "../run.ts";
import type { Ink } from "./shapes.ts";

export interface LaneStyle {
  ink: Ink;
  /** Null for a solid line. */
  dash: string | null;
}

type Kind = LaneState["settings"]["policy"];

const INK: Record<Kind, Ink> = { sinks: "sink", window: "window", dense: "dense", recompute: "recompute" };

/** Dashes by policy; a second lane of the same policy takes the next one. */
const DASHES: Record<Kind, readonly (string | null)[]> = {
  sinks: [null, "16 3", "16 3 3 3", "10 3 3 3 3 3"],
  window: ["6 3", "14 3", "3 3", "6 3 2 3"],
  dense: ["0 4.5", "0 9", "0 4.5 0 9", "0 3.5"],
  recompute: ["8 3 2 3", "8 3 2 3 2 3", "4 2", "12 2 2 2"],
};

export function laneStyle(run: RunState, lane: number): LaneStyle {
  const policy = run.lanes[lane]?.settings.policy ?? "sinks";
  const nth = run.lanes.slice(0, lane).filter(({ settings }) => settings.policy === policy).length;
  return { ink: INK[policy], dash: DASHES[policy][nth] ?? null };
}

/** The policies' names, and whole names where two lanes have the same policy. */
export function shortNames({ lanes }: RunState): string[] {
  return lanes.map(({ name, settings: { policy } }) => {
    const alone = lanes.filter(({ settings }) => settings.policy === policy).length === 1;
    return alone ? policy : name;
  });
}

/** What tells lanes apart in the least room: "window", "4+252", "4+252 int4". */
export function compactNames(run: RunState): string[] {
  return shortNames(run).map((name, lane) => {
    const policy = run.lanes[lane]?.settings.policy ?? "";
    return name === policy ? name : name.replace(`${policy} `, "");
  });
}
