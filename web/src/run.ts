// A run: lanes over one stream, live or recorded. `RunStep`s are the only thing that changes it, whoever
// sends them: the worker, the player of a recorded run, or the chat, which is a run of one lane. What the
// figures show follows from this state alone, and it never takes more than a fixed room.

import type { CacheParts, CompareStep, LaneSettings } from "../../crates/wasm/types";
import type { Series } from "./series.ts";

export type Mode = "forced" | "free" | "chat";

/** What a mark says about a place in the stream. */
export type MarkKind =
  /** The first token left that lane's cache. */
  | "first_left"
  /** The length that the model was trained on. */
  | "trained"
  | "setting"
  | "refilled"
  /** The lane repeats itself. */
  | "repeating"
  /** The lane writes words that are none, or is far behind the reference. */
  | "losing";

export interface Mark {
  /** Stream index. */
  i: number;
  /** Of all lanes where it is null. */
  lane: number | null;
  kind: MarkKind;
}

/** A token as a lane read it. */
export interface Token {
  i: number;
  id: number;
  text: string;
  /** -ln p, nats; null where it is not known. */
  nll: number | null;
  /** Loss beyond the reference lane's on the same token; null where there is none. */
  extra: number | null;
}

export interface LaneState {
  /** As the page names it: "window 256", "sinks 4+252 int4". */
  name: string;
  settings: LaneSettings;
  /** Tokens read: the next one's stream index. */
  at: number;
  held: number;
  capacity: number;
  /** Slots in use of the sinks and of the tail. */
  sinks: number;
  tail: number;
  bytes: CacheParts;
  /** Bytes of an f16 cache of the whole stream. */
  dense_bytes: number;
  /** What left with the last token, `[from, to)`. */
  evicted: [number, number] | null;
  /** Stream index of the token that was the first to push another out; null while all are kept. */
  first_left: number | null;
  /** The last tokens, oldest first; as many as are shown, and at least the sinks (which stay at the front). */
  first_tokens: readonly Token[];
  tokens: readonly Token[];
  /** -ln p by stream index, exact, for the first `EXACT` tokens; NaN where it is not known. */
  losses: Float32Array;
  /** Ids by stream index, for the first `EXACT` tokens; -1 where one is not known. */
  ids: Int32Array;
  /** Sum of the losses and number of them, for the perplexity of all and of the last `roll`. */
  loss: Series;
  /** Mean loss of the last `roll` tokens, by stream index. */
  rolling: Series;
  /** Sum of the losses beyond the reference lane's; empty where there is none. */
  cost: Series;
  /** Milliseconds of a token read by itself. */
  ms: Series;
  /** Bytes of the cache and of an f16 cache of everything. */
  memory: Series;
  dense: Series;
  occupancy: Series;
  /** Mean over layers and heads of the attention on the sinks (on the first four slots where there are none). */
  attention: Series;
  /** The last `[layers * n_heads]` of the same; null before the first. */
  heads: Float32Array | null;
  /** Attention of one head on each slot in use. */
  probs: { layer: number; head: number; values: Float32Array } | null;
  /** The likeliest next token as the lane saw it before the last one. */
  best: { id: number; text: string; p: number } | null;
  /** How the lane does, by a rule whose numbers stand beside it. */
  health: { kind: "steady" | "repeating" | "losing"; since: number };
  ended: boolean;
}

export interface RunState {
  /** Null until there is one. */
  title: string | null;
  origin: "recorded" | "live";
  mode: Mode;
  /** By what a recorded run was made. */
  made: { by: string; commit: string; date: string; command: string } | null;
  model: {
    name: string;
    layers: number;
    n_heads: number;
    n_kv_heads: number;
    head_dim: number;
    trained_length: number;
  } | null;
  /** Tokens that there will be; null where that is open. */
  count: number | null;
  /** Stream position of the lane that is furthest. */
  at: number;
  /** Tokens of the rolling mean. */
  roll: number;
  /** Index of the lane that losses are compared with: dense, or else sinks; null where there is none, and in free lanes. */
  reference: number | null;
  lanes: readonly LaneState[];
  /** The text that came with an id, of all ids in `LaneState.ids`. */
  vocab: ReadonlyMap<number, string>;
  marks: readonly Mark[];
  /** A cursor that all figures share; null follows the end. */
  cursor: number | null;
}

/** Tokens of which the losses are kept one by one. */
export const EXACT = 16_384;

/** What changes a run. */
export type RunStep =
  | { kind: "begin"; run: Pick<RunState, "title" | "origin" | "mode" | "made" | "model" | "count">; lanes: LaneSettings[] }
  | { kind: "step"; step: CompareStep }
  | { kind: "probs"; lane: number; layer: number; head: number }
  | { kind: "mark"; mark: Mark }
  | { kind: "cursor"; at: number | null }
  | { kind: "roll"; tokens: number };
