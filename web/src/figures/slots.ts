// Which token lies in which slot of a lane's cache, and what a slot takes.

import type { LaneState, RunState } from "../run.ts";

/** Bits of a stored value. */
const BITS = { f32: 32, f16: 16, bf16: 16, int8: 8, int4: 4, int2: 2 } as const;
const DEFAULT_GROUP = 32;

export const isPacked = (lane: LaneState): boolean => bitsOf(lane).some((bits) => bits < 16);

function bitsOf({ settings: { kv, kv_k, kv_v } }: LaneState): [number, number] {
  return [BITS[kv_k ?? kv], BITS[kv_v ?? kv]];
}

const groupOf = ({ settings }: LaneState): number => settings.group ?? DEFAULT_GROUP;

/** Tokens before the first packed group. */
const beforeGroups = (lane: LaneState): number => (ownSinks(lane) ? lane.sinks : 0);

/** Which of the stream's groups a packed slot belongs to; null where it is not packed. */
export function packedGroup(lane: LaneState, slot: Slot): number | null {
  if (slot.kind !== "packed" || slot.position === null) return null;
  return Math.floor((slot.position - beforeGroups(lane)) / groupOf(lane));
}

/** What a slot keeps. */
export type Slot =
  | { kind: "sink" | "packed" | "tail" | "exact"; slot: number; position: number | null; token: string | null }
  | { kind: "empty"; slot: number }
  /** Left already, but its group is still there. */
  | { kind: "masked"; position: number }
  /** Left with the last token. */
  | { kind: "evicted"; position: number };

/** Stored bits of a slot's values, scales included, on average. */
export function storedBits(lane: LaneState, kind: Slot["kind"]): number {
  const bits = bitsOf(lane);
  const stored = kind === "packed" || kind === "masked" ? bits.map((b) => (b < 16 ? b + 32 / groupOf(lane) : b)) : bits.map((b) => Math.max(16, b));
  return (stored[0] ?? 0) / 2 + (stored[1] ?? 0) / 2;
}

/** Bytes of a slot in all layers; null where the model is not known. */
export function slotBytes({ model }: RunState, lane: LaneState, kind: Slot["kind"]): number | null {
  if (model === null) return null;
  return (model.layers * 2 * model.n_kv_heads * model.head_dim * storedBits(lane, kind)) / 8;
}

/** Stream index of the oldest token that is kept besides the sinks. */
export const oldestRecent = (lane: LaneState): number => lane.at - (lane.held - lane.sinks);

/** Whether the sinks are tokens of the stream, and not of a text of their own. */
export const ownSinks = ({ settings: { sink_text } }: LaneState): boolean => sink_text === undefined || sink_text === null || sink_text === "";

/** The tokens that a lane's state still knows, by stream index. */
export function knownTokens(lane: LaneState): Map<number, string> {
  return new Map([...lane.first_tokens, ...lane.tokens].map(({ i, text }) => [i, text]));
}

/** The places of a cache in reading order: sinks, what is there of tokens that left, what is kept, what is free. */
export interface Places {
  lane: LaneState;
  tokens: ReadonlyMap<number, string>;
  sinks: number;
  /** Stream indices `[from, to)` of tokens that left, while their group is still there. */
  masked: [number, number];
  /** Those that left with the last token. */
  evicted: [number, number];
  total: number;
}

/** A turn may be hundreds of tokens; the last of them stand for all. */
const MOST_EVICTED = 8;

export function places(lane: LaneState, showEvicted: boolean): Places {
  const { held, sinks, tail, capacity } = lane;
  const from = oldestRecent(lane);
  const left = showEvicted && lane.evicted !== null ? lane.evicted : null;
  const evicted: [number, number] = left === null ? [from, from] : [Math.max(left[0], left[1] - MOST_EVICTED), left[1]];
  let masked: [number, number] = [from, from];
  if (isPacked(lane) && held - sinks > tail) {
    const begin = from - ((from - beforeGroups(lane)) % groupOf(lane));
    masked = [begin, Math.max(begin, Math.min(from, left?.[0] ?? from))];
  }
  const extra = masked[1] - masked[0] + evicted[1] - evicted[0];
  return { lane, tokens: knownTokens(lane), sinks, masked, evicted, total: Math.max(capacity, held) + extra };
}

/** What lies in a place; `index` from 0 to `total`. */
export function placeAt({ lane, tokens, sinks, masked, evicted }: Places, index: number): Slot {
  if (index < sinks) {
    const position = ownSinks(lane) ? index : null;
    const token = position === null ? [...(lane.settings.sink_text ?? "")][index] : tokens.get(index);
    return { kind: "sink", slot: index, position, token: token ?? null };
  }
  let past = index - sinks;
  for (const [kind, [from, to]] of [["masked", masked], ["evicted", evicted]] as const) {
    if (past < to - from) return { kind, position: from + past };
    past -= to - from;
  }
  const slot = sinks + past;
  if (slot >= lane.held) return { kind: "empty", slot };
  const position = oldestRecent(lane) + past;
  const kind = !isPacked(lane) ? "exact" : slot >= lane.held - lane.tail ? "tail" : "packed";
  return { kind, slot, position, token: tokens.get(position) ?? null };
}
