// A recorded run, as `sinkstream record` writes it, and as `sinkstream replay` and the page read it. A JSON file
// holds one `RecordedRun`.
//
// Readers ignore keys that they don't know, refuse a higher `version`, and check what is said here of lengths and order.
// There is no NaN: what was not measured is null.
//
// The CSV of a run's losses, which the page, `sinkstream replay --csv` and `sinkstream perplexity --csv` write alike. Row `i`
// is about loss `i`: the id and text of the token that it is of, which is token `i + 1`; what each lane lost on it; and what had
// left each lane with token `i`, `[from, to)`. The header is `i,token_id,token`, then `nll_NAME` of each lane, then
// `evicted_from,evicted_to`, with `_NAME` behind them where several lanes let go of something; names have `_` for spaces. Free
// lanes, if there are several, have `token_id_NAME,token_NAME` each. Losses have at most 4 decimals in recorded runs; what was
// not measured is empty; bytes that are no text are U+FFFD. Fields are in quotes where RFC 4180 asks for it, and where they
// begin or end with a space. Lines end with a line feed.

import type { Backend, CacheParts, LaneSettings, SamplerSettings } from "./types";

/**
 * A number of every token, by runs of even steps: `[i, value, step]` says that token `i` has `value`, and that it grows by
 * `step` a token until the next entry. Of token `j` it is `value + step * (j - i)` of the last entry with `i <= j`. The first
 * entry has `i` 0, and `i` rises. All whole.
 */
export type Ramp = [i: number, value: number, step: number][];

/** A number of every so many tokens: `values[k]` is of token `(k + 1) * every - 1`. Null where it was not measured. */
export interface Sampled {
  every: number;
  values: (number | null)[];
}

/** Shares from 0 to 1, of every so many tokens: row `k` is of token `(k + 1) * every - 1`. */
export interface SampledHeads {
  every: number;
  /** Layers, and query heads of each. */
  shape: [layers: number, heads: number];
  /** Bytes in base64, `[rows, layers, heads]`: each share times 255, rounded. */
  u8: string;
}

/** What a lane lost on a part of the stream. */
export interface RecordedRange {
  /** Losses `from` to `to - 1`, numbered as in `nll`. */
  from: number;
  to: number;
  /** The mean of those that were measured, nats, 4 decimals; null if none was. */
  mean_nll: number | null;
  /** e to the power of it, 4 decimals. */
  perplexity: number | null;
}

export interface RecordedLane {
  /**
   * What the settings say, in this order, with a space between: the policy with its numbers (`dense`, `window 256`,
   * `sinks 4+252`, `recompute 256`); `kv` unless f16, or `K int2 V f16` where keys and values differ; `group 64` and `tail 64`
   * unless 32; `stream`; `softmax1`; `zero sinks`; `text "\n\n"`, escaped as in JSON; and `keys by token` or `keys rotated`, which
   * `keys` says. Columns of tables have these names.
   */
  name: string;
  settings: LaneSettings;
  /** Keys shared their scales along the wrong axis, or were packed rotated: what no cache of the page does. Else null. */
  keys: "by_token" | "rotated" | null;
  /** Of a free lane: what it read, the prompt and then its own words. Null in a forced run, where `tokens` of the run are. */
  tokens: number[] | null;
  /** A free lane ended its answer; else it was cut. False in a forced run. */
  ended: boolean;
  /**
   * Loss `i` is -ln p of token `i + 1` as the lane saw it after token `i`, nats, 4 decimals: one less than the lane has
   * tokens. Null where it was not measured: a lane that recomputes skips. Where the run's `every` is above 1: means of so
   * many losses, the last of what is left.
   */
  nll: (number | null)[];
  /** Milliseconds of a token read by itself, 2 decimals; null where none was timed. */
  ms: Sampled | null;
  /** Slots in use once a token was read. Those of a sinks' text count. */
  held: Ramp;
  capacity: Ramp;
  /** Slots in use of tokens that are not packed yet; 0 where nothing is packed. Those of the sinks follow: all until there are
   * `settings.sinks`. */
  tail: Ramp;
  /**
   * The oldest token in the cache that is no sink, once a token was read: what lies between two neighbours' values left with
   * the later one. Before the first token it is the number of sinks, less the tokens of their own text, if they have one.
   */
  oldest: Ramp;
  /** Bytes by part, `[i, parts]`: from token `i` on, until the next entry. The first entry has `i` 0. */
  bytes: [i: number, parts: CacheParts][];
  /** Attention on the sinks, and on the first four slots: means over layers and heads, 3 decimals; null where not recorded. */
  sink_mass: Sampled | null;
  first_mass: Sampled | null;
  /** The same by layer and head: on the sinks, or on the first four slots where the lane has no sinks. */
  heads: SampledHeads | null;
  /** `[i, id, p]`: after token `i` the likeliest next was `id`, with probability `p`, 4 decimals. Around marks alone. */
  best: [i: number, id: number, p: number][];
  /** First of all losses, then of the ranges that the run is about, the same for each lane. */
  summary: RecordedRange[];
}

/** What happened at a place in the stream. */
export interface RecordedMark {
  /** The token with which it happened. */
  i: number;
  /** Index of the lane; of all where it is null. */
  lane: number | null;
  /** The first token left that lane's cache; the length that the model was trained on. */
  kind: "first_left" | "trained";
}

export interface RecordedRun {
  format: "sinkstream-run";
  version: 1;
  title: string;
  made: {
    /** Program and version. */
    by: string;
    commit: string;
    /** `2026-01-31`. */
    date: string;
    backend: Backend;
    /** The graphics adapter; null on the CPU. */
    adapter: string | null;
    /** What makes it again. */
    command: string;
  };
  model: {
    name: string;
    file: string;
    /** Of the file, in hex. */
    sha256: string;
    layers: number;
    n_heads: number;
    n_kv_heads: number;
    head_dim: number;
    trained_length: number;
  };
  /** All lanes read one text, or each what it wrote itself. */
  mode: "forced" | "free";
  /** How free lanes chose; null in a forced run. */
  sampler: SamplerSettings | null;
  /** The file that was read, by its last name; null in a free run. */
  text: { name: string; sha256: string } | null;
  /** Tokens of that file before the first that was read. */
  start: number;
  /** Tokens of the longest lane. */
  count: number;
  /** Tokens of a free lane that it did not write itself; 0 in a forced run. */
  prompt: number;
  /** Losses that each value of `nll` is the mean of. */
  every: number;
  /** Text of each id that occurs, by the id in decimal; bytes that are no text by themselves, in base64. */
  vocab: Record<string, string | { b64: string }>;
  /** Forced: what all lanes read, `count` of them. Null in a free run, and where the run carries numbers only. */
  tokens: number[] | null;
  lanes: RecordedLane[];
  /** In the order of `i`. */
  marks: RecordedMark[];
  /** Of some layers: how far key channels range, before they are rotated. Where it is left out nobody measured it. */
  key_ranges?: KeyRanges[];
}

/** Greatest value less least of each of a layer's key channels, over the keys of the first lane; 1 decimal. */
export interface KeyRanges {
  layer: number;
  /** `[n_kv_heads * head_dim]`. */
  ranges: number[];
}

/** `index.json` beside the recorded runs. */
export interface RecordedIndex {
  format: "sinkstream-runs";
  version: 1;
  runs: RecordedEntry[];
}

export interface RecordedEntry {
  /** As in `?x=`. */
  name: string;
  /** Beside the index. */
  file: string;
  title: string;
  /** Bytes of the file. */
  bytes: number;
  count: number;
  /** `name` and `summary` of each lane. */
  lanes: { name: string; summary: RecordedRange[] }[];
}
