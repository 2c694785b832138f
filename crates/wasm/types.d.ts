// The boundary between the Rust module and the page. Plain objects only: no tensors, no callbacks, no HTML.
// `crates/wasm` returns these shapes, `web/src/protocol.ts` builds the worker's messages from them.

/** Where the model runs. */
export type Backend = "webgpu" | "cpu";

/** Which tokens stay in the cache. `window` is `sinks` with no sinks; `recompute` keeps none and reads the last `recent`
 * again at every token. */
export type Policy = "dense" | "window" | "sinks" | "recompute";

/** Which position a sink has as seen from a later token: its slot's, or the one that it had in the stream. */
export type Positions = "slot" | "stream";

/** The denominator of attention; `one` has one more logit, 0. */
export type Softmax = "plain" | "one";

/** How one cached value is kept. */
export type Storage = "f32" | "f16" | "bf16" | "int8" | "int4" | "int2";

export interface CacheSettings {
  policy: Policy;
  /** First tokens kept for ever; 0 unless the policy is `sinks`. */
  sinks: number;
  /** Last tokens kept, the current one included; ignored by `dense`. */
  recent: number;
  kv: Storage;
  /** Keys alone, where they differ from `kv`. */
  kv_k?: Storage;
  /** Values alone, where they differ from `kv`. */
  kv_v?: Storage;
  /** Tokens (K) or channels (V) that share a scale: a multiple of 8; 32 where it is left out. */
  group?: number;
  /** Last tokens that are not packed yet: a multiple of `group`; 32 where it is left out. */
  tail?: number;
  /** `slot` where it is left out. */
  positions?: Positions;
  /** `plain` where it is left out. */
  softmax?: Softmax;
  /** Sinks take attention but add nothing; false where it is left out. */
  zero_sinks?: boolean;
  /** Room is made by whole turns, and the system prompt is pinned; false where it is left out. */
  turns?: boolean;
}

export interface SamplerSettings {
  /** 0 takes the best token every time. */
  temperature: number;
  /** 1 to 64 best tokens are considered. */
  top_k: number;
  top_p: number;
  min_p: number;
  /** 1 is no penalty. Over the last 64 tokens. */
  repetition_penalty: number;
  seed: number;
}

/** One kernel run on stored inputs and compared with stored outputs. */
export interface KernelCheck {
  name: string;
  ok: boolean;
  /** Largest absolute difference. */
  error: number;
  tolerance: number;
}

export interface SelfTest {
  ok: boolean;
  checks: KernelCheck[];
}

export interface LoadProgress {
  bytes: number;
  /** The file's size by its own header; null until that is complete. */
  total: number | null;
  tensors: number;
  tensors_total: number | null;
}

export interface ModelInfo {
  name: string;
  layers: number;
  n_heads: number;
  n_kv_heads: number;
  head_dim: number;
  vocab: number;
  trained_length: number;
  weight_bytes: number;
}

export interface CacheState {
  /** Slots in use. */
  held: number;
  /** sinks + recent; for `dense` the slots allocated so far. */
  capacity: number;
  sinks: number;
  /** Tokens fed since the last reset. */
  stream: number;
  /** Bytes of the cache's buffers, all layers. */
  bytes: number;
  /** The same by part. */
  parts: CacheParts;
  /** Slots of tokens that are not packed yet, of those in use. */
  tail: number;
  /** What an f16 cache of the whole stream would take. */
  dense_bytes: number;
}

/** A query head of a layer; the first of each is 0. */
export interface AttentionHead {
  layer: number;
  head: number;
}

/** Bytes of a cache's parts, all layers; their sum is what its buffers take. */
export interface CacheParts {
  /** The sinks. */
  sinks: number;
  /** The recent tokens: codes, or floats where nothing is packed. */
  codes: number;
  /** Scales and zeros of the codes. */
  scales: number;
  /** Places of tokens that are not packed yet. */
  tail: number;
  /** What the last group is longer than the recent tokens need. */
  slack: number;
}

/** A lane of a comparison. */
export interface LaneSettings extends CacheSettings {
  /** Read before the stream, a token a character, and kept as the sinks; for the policy `sinks`. */
  sink_text?: string | null;
}

/** What the lanes of a comparison read. */
export type CompareSource =
  /** The same text in all lanes: `n` tokens of it from token `from` on; 0 for all. */
  | { mode: "forced"; text: string; from: number; n: number }
  /** The same question, then what each lane itself writes, at most `max_tokens` of it. */
  | { mode: "free"; prompt: string; sampler: SamplerSettings; max_tokens: number };

/** What is to be read. */
export interface CompareInfo {
  /** Tokens of the text, or of the prompt. */
  tokens: number;
  /** Whether a lane's tokens are read in the others' forward; a lane that recomputes has its own. */
  shared: boolean[];
}

/** What a lane did in a step. Indices count tokens of the stream; the first is 0, and tokens of a sinks' text do not count. */
export interface LaneStep {
  /** The token that it read: its index, id and text. */
  i: number;
  id: number;
  /** Text that became complete with it; may be empty. */
  text: string;
  /** -ln p of that token, as the lane saw it before, nats; null for the first, and where a lane that recomputes skipped. */
  nll: number | null;
  /** The likeliest next token as the lane sees it, its text and its probability; null where that is not known. */
  best: { id: number; text: string; p: number } | null;
  /** Free lanes: it has written its last token. */
  ended: boolean;
  /** Milliseconds of this lane's token read by itself; null in steps in which lanes shared a forward. */
  ms: number | null;
  held: number;
  capacity: number;
  /** Slots of the sinks and, behind the packed ones, of the tail that are in use. */
  sinks: number;
  tail: number;
  bytes: CacheParts;
  /** Stream indices that left the cache, `[from, to)`; null if none. */
  evicted: [number, number] | null;
  /** Attention on the sinks, `[layers * n_heads]`; empty where it was not measured. */
  sink_mass: Float32Array;
  /** Attention on the first four slots, same order. */
  first_mass: Float32Array;
  /** Attention of the head that was asked for on each slot in use: sinks, then recent tokens, oldest first. */
  probs?: Float32Array;
}

/** What one call of `Engine.compare_next` did. */
export interface CompareStep {
  /** Milliseconds of the forward that the lanes shared; of all of them where they were timed apart. */
  ms: number;
  /** A lane each; null where it did nothing. */
  lanes: (LaneStep | null)[];
  /** Nothing is left to read. */
  done: boolean;
}

/** What one call of `Engine.next` did. */
export type Step =
  | {
      /** A piece of the prompt went through the model. */
      kind: "prompt";
      done: number;
      total: number;
      /** Its tokens, with the text that became complete with each. */
      tokens: { id: number; text: string }[];
      ms: number;
      cache: CacheState;
      /** Stream indices that left the cache, `[from, to)`; null if none. */
      evicted: [number, number] | null;
      /** Numbers of the turns that ended with it, `[from, to)`; null where none did, or turns do not count. */
      evicted_turns?: [number, number] | null;
      sink_mass: Float32Array;
      /** Of the piece's last token; there if it was asked for. */
      probs?: Float32Array;
    }
  | {
      kind: "token";
      id: number;
      /** Its slot: the last of those in use. */
      slot: number;
      /** Text that became complete with this token; may be empty. */
      text: string;
      /** -ln p of the chosen token, in nats, before any filter of the sampler. */
      nll: number;
      ms: number;
      cache: CacheState;
      evicted: [number, number] | null;
      /** Numbers of the turns that ended with it, `[from, to)`; null where none did, or turns do not count. */
      evicted_turns?: [number, number] | null;
      /** Attention on the sinks, `[layers * n_heads]`, layer by layer. */
      sink_mass: Float32Array;
      /** Attention on the first four slots, same order. */
      first_mass: Float32Array;
      /** Attention of the head that was asked for on each slot in use: sinks, then recent tokens, oldest first. */
      probs?: Float32Array;
    }
  | {
      kind: "end";
      /** `end`: the model closed its turn; `length`: `max_tokens` were written; `stopped`: `Engine.stop`. */
      reason: "end" | "length" | "stopped";
      /** What was left in the detokenizer. */
      text: string;
    };

export interface SendOptions {
  sampler: SamplerSettings;
  /** Most tokens of one answer; 0 = no limit. */
  max_tokens: number;
}

/** One turn of a conversation. A system prompt comes first, or not at all. */
export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** The state of one engine. Methods reject with an `Error` whose message names the thing and the remedy. */
export class Engine {
  private constructor();
  /** Starts the device. Once per worker. `software`: the adapter is a CPU in disguise, which the browser alone knows. */
  static create(backend: Backend, software: boolean): Promise<Engine>;
  /** Runs each kernel on stored inputs. */
  self_test(): Promise<SelfTest>;
  /** Begins to read a weight file; drops a model that is there. */
  load_begin(): void;
  /** Takes the next bytes of the file, in order, in pieces of any size. */
  load_push(bytes: Uint8Array): LoadProgress;
  /** Checks that the file was complete and builds the model. */
  load_end(): Promise<ModelInfo>;
  /** Empties the cache and the conversation, and builds the cache that `settings` asks for. */
  reset(settings: CacheSettings): CacheState;
  /** Takes a message of the user; `next` then feeds it and writes the answer. */
  send(text: string, options: SendOptions): void;
  /**
   * Goes on with the last answer, where it was stopped or cut at its limit; `next` then writes it. Throws where the
   * model had closed it.
   */
  proceed(options: SendOptions): void;
  /**
   * Takes a conversation into a cache that was just emptied; `next` then reads as much of it as the cache will hold: the
   * first tokens for the sinks, and the last turns. With `write` an answer follows: to the last message or, where that is
   * an answer, as its continuation. Without, `next` ends with `stopped` when all is read; the last message must then be
   * an answer. Returns the stream indices `[from, to)` of each message, null for one that was left out.
   */
  resume(messages: Message[], options: SendOptions, write: boolean): ([number, number] | null)[];
  /** Feeds one piece of the prompt or writes one token; with the `probs` of a head, if one is named. */
  next(attention?: AttentionHead | null): Promise<Step>;
  /**
   * Ends the answer that is being written: call it between two `next`; the turn is closed in the cache by the next `send`.
   * One without a word would stay there as an empty turn, which models take for an example: `resume` then, without it.
   */
  stop(): Step;
  /**
   * Begins a comparison: each lane has a cache of its own. The conversation's cache is dropped; `resume` brings it back.
   */
  compare(lanes: LaneSettings[], source: CompareSource): CompareInfo;
  /**
   * One token of each lane, in one forward; of lanes that do not recompute. Every sixteenth time each lane's token is read
   * by itself, so that each has a time of its own. With the `probs` of a head of a lane, if one is named.
   */
  compare_next(attention?: (AttentionHead & { lane: number }) | null): Promise<CompareStep>;
  /**
   * The next position of a lane that recomputes: it is behind the others and skips `every` - 1 positions, or writes its
   * next token where lanes are free. Null where it has caught up, or no lane recomputes.
   */
  compare_again(every: number): Promise<CompareStep | null>;
  /** Ends the comparison and gives its memory back. */
  compare_end(): void;
  free(): void;
}

/** Bytes of the module's linear memory. */
export function memory_bytes(): number;
/** `{ sinkstream, burn, cubecl, wgpu }`. */
export function versions(): Record<string, string>;
