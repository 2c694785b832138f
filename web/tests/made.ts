// Runs made by hand for the specs of the figures: caches as the policies have them, and losses from formulas,
// so that every number that a figure shows can be worked out on paper.

import type { CacheParts, CompareStep, LaneSettings, LaneStep } from "../../crates/wasm/types";
import { emptyRun, type Mode, type RunState, reduceRun } from "../src/run.ts";

export const MODEL = {
  name: "SmolLM2-135M-Instruct",
  layers: 30,
  n_heads: 9,
  n_kv_heads: 3,
  head_dim: 64,
  trained_length: 8192,
  vocab: 49_152,
  weight_bytes: 98_362_432,
};
/** Bytes of a token in f16: 2 x 3 x 64 values of 2 bytes, keys and values in 30 layers. */
const PER_TOKEN = 23_040;

const WORDS =
  "The lamp was lit each evening and the sea below it never slept . Hour after hour the keeper counted ships and wrote one line in his book ,".split(
    " ",
  );

export interface Plan {
  mode?: Mode;
  lanes: LaneSettings[];
  count?: number | null;
  title?: string;
}

/** A token of the made text; spaces and commas included, so that CSV has something to quote. */
export const word = (i: number): { id: number; text: string } => ({
  id: 100 + (i % WORDS.length),
  text: i === 0 ? "The" : ` ${WORDS[i % WORDS.length] ?? ""}`,
});

const capacityOf = ({ policy, sinks, recent }: LaneSettings, at: number): number =>
  policy === "dense" ? Math.max(64, 2 ** Math.ceil(Math.log2(at))) : sinks + recent;

/** Dense: 2 + (i mod 4) / 4. A window: one more from the token on that is the first predicted without token 0. */
export function lossOf(lane: LaneSettings, i: number): number {
  const base = 2 + (i % 4) / 4;
  const full = lane.sinks + lane.recent;
  if (lane.policy === "dense" || i <= full) return base;
  return lane.policy === "window" ? base + 1 : base + 1 / 16;
}

export function packedOf({ sinks, tail = 32 }: LaneSettings, at: number): number {
  return at > sinks ? Math.floor((at - sinks) / tail) * tail : 0;
}

function bytesOf(lane: LaneSettings, capacity: number): CacheParts {
  const { kv, sinks, recent, group = 32, tail = 32 } = lane;
  const bits = { int8: 8, int4: 4, int2: 2 }[kv as "int8" | "int4" | "int2"];
  if (bits === undefined) return { sinks: sinks * PER_TOKEN, codes: (capacity - sinks) * PER_TOKEN, scales: 0, tail: 0, slack: 0 };
  const whole = Math.ceil(recent / group) * group;
  return {
    sinks: sinks * PER_TOKEN,
    codes: (recent * PER_TOKEN * bits) / 16,
    scales: (recent * PER_TOKEN * 2) / group,
    tail: tail * PER_TOKEN,
    slack: (whole - recent) * PER_TOKEN * (bits / 16 + 2 / group),
  };
}

/** Layers 0 and 1 give 0; layer l, head h give l / 40 x (h / 8 + 1 / 2), at most 1. */
const MASS = Float32Array.from({ length: MODEL.layers * MODEL.n_heads }, (_, n) => {
  const [layer, head] = [Math.floor(n / MODEL.n_heads), n % MODEL.n_heads];
  return layer < 2 ? 0 : Math.min(1, (layer / 40) * (head / 8 + 0.5));
});
const LITTLE = new Float32Array(MASS.length).fill(0.005);

/** Half of it on the first slot, the rest even. */
const probsOf = (held: number): Float32Array =>
  Float32Array.from({ length: held }, (_, slot) => (slot === 0 ? 0.5 : 0.5 / (held - 1)));

function laneStep(lane: LaneSettings, i: number, mode: Mode, asked: { layer: number; head: number } | null): LaneStep {
  const at = i + 1;
  const capacity = capacityOf(lane, at);
  const held = Math.min(at, capacity);
  const sinks = Math.min(lane.sinks, held);
  const isPacked = lane.kv.startsWith("int");
  const oldest = at - (held - sinks);
  const packedTo = lane.sinks + packedOf(lane, at);
  const tail = isPacked ? Math.min(held - sinks, at - Math.max(oldest, packedTo)) : 0;
  const left = at > capacity && lane.policy !== "dense";
  const mass = lane.sinks === 0 && left ? LITTLE : MASS;
  return {
    i,
    ...word(i),
    nll: i === 0 ? null : lossOf(lane, i),
    best: null,
    ended: false,
    ms: i % 16 === 0 || mode === "chat" ? 30 + (i % 7) / 2 + (lane.policy === "recompute" ? 40 : 0) : null,
    held,
    capacity,
    sinks,
    tail,
    bytes: bytesOf(lane, capacity),
    evicted: left ? [oldest - 1, oldest] : null,
    sink_mass: mass,
    first_mass: mass,
    ...(asked === null ? {} : { probs: probsOf(held) }),
  };
}

/** A run of the plan, before its first step. */
export function begin({ mode = "forced", lanes, count = null, title = "The story" }: Plan): RunState {
  return reduceRun(emptyRun(), {
    kind: "begin",
    run: { title, origin: "live", mode, made: null, model: MODEL, count },
    lanes,
  });
}

/** The run after as many more tokens. */
export function read(run: RunState, tokens: number): RunState {
  let state = run;
  for (let n = 0; n < tokens; n += 1) {
    const i = state.at;
    const step: CompareStep = {
      ms: 30,
      done: state.count !== null && i + 1 >= state.count,
      lanes: state.lanes.map(({ settings }, lane) =>
        laneStep(settings, i, state.mode, state.asked?.lane === lane ? state.asked : null),
      ),
    };
    state = reduceRun(state, { kind: "step", step });
  }
  return state;
}

export const WINDOW: LaneSettings = { policy: "window", sinks: 0, recent: 128, kv: "f16" };
export const SINKS: LaneSettings = { policy: "sinks", sinks: 4, recent: 124, kv: "f16" };
export const DENSE: LaneSettings = { policy: "dense", sinks: 0, recent: 0, kv: "f16" };
export const PACKED: LaneSettings = { policy: "sinks", sinks: 4, recent: 124, kv: "int4" };
export const RECOMPUTE: LaneSettings = { policy: "recompute", sinks: 0, recent: 128, kv: "f16" };
