// The lane that a figure of one lane shows.

import type { LaneState, RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import type { Choices, Option } from "./figure.ts";
import { compactNames } from "./lanes.ts";
import { isPacked } from "./slots.ts";

/** Its index, -1 where there is none. What this page is about comes first: a lane with sinks, the last one that packs. */
export function laneIndex({ lanes }: RunState, { lane }: Choices): number {
  if (lane !== null && lane < lanes.length) return lane;
  const packs = lanes.findLastIndex((one) => one.settings.policy === "sinks" && isPacked(one));
  if (packs >= 0) return packs;
  const sinks = lanes.findIndex(({ settings }) => settings.policy === "sinks");
  return sinks < 0 ? Math.min(0, lanes.length - 1) : sinks;
}

export const laneOf = (run: RunState, choices: Choices): LaneState | null => run.lanes[laneIndex(run, choices)] ?? null;

/** What is said before the words of a figure of one lane, where there are several. */
export function ofLane(run: RunState, choices: Choices): string {
  return run.lanes.length < 2 ? "" : say.ofLane(laneOf(run, choices)?.name ?? "");
}

/** A button for each lane, where there are several. */
export function laneOptions(run: RunState, choices: Choices): Option[][] {
  if (run.lanes.length < 2) return [];
  const chosen = laneIndex(run, choices);
  const short = compactNames(run);
  return [
    run.lanes.map(({ name }, lane) => ({
      text: short[lane] ?? name,
      name: say.showLane(name),
      pressed: lane === chosen,
      set: { lane },
    })),
  ];
}
