// A run: lanes over one stream, live or recorded. `RunStep`s are the only thing that changes it, whoever
// sends them: the worker, the player of a recorded run, or the chat, which is a run of one lane. What the
// figures show follows from this state alone, and it never takes more than a fixed room.

import type {
  AttentionHead,
  CacheParts,
  CacheSettings,
  CacheState,
  CompareStep,
  LaneSettings,
  LaneStep,
  ModelInfo,
  Step,
} from "../../crates/wasm/types";
import type { KeyRanges } from "../../crates/wasm/run";
import { EMPTY, mean, type Series } from "./series.ts";
import { laneName } from "./strings.en.ts";

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

/** What a lane held likeliest. */
export type Guess = NonNullable<LaneStep["best"]>;

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
  /** The first tokens, as many as there are sinks, and at least four. */
  first_tokens: readonly Token[];
  /** The last tokens, oldest first; those whose text is not known are left out. */
  tokens: readonly Token[];
  /**
   * -ln p by stream index, exact, for the first `EXACT` tokens; NaN where it is not known. Grows in place and is shared
   * by all states, so it is to be read up to `at` only.
   */
  losses: Float32Array;
  /** Ids by stream index, for the first `EXACT` tokens; -1 where one is not known. Grows and is read as `losses`. */
  ids: Int32Array;
  /** Loss, and loss beyond the reference's (NaN where there is none), of the last steps with a known loss, oldest first. */
  recent: readonly (readonly [loss: number, extra: number])[];
  /** The losses; their sum and number give the perplexity. */
  loss: Series;
  /** Mean loss of the last `roll` tokens, by stream index. */
  rolling: Series;
  /** Sum of the losses beyond the reference lane's; empty where there is none. */
  cost: Series;
  /** The same sum now, nats. */
  cost_now: number;
  /** Milliseconds of a token read by itself. */
  ms: Series;
  /** Bytes of the cache, of its parts, and of an f16 cache of everything; all at the same places. */
  memory: Series;
  parts: Record<Part, Series>;
  dense: Series;
  occupancy: Series;
  /** Mean over layers and heads of the attention on the sinks (on the first four slots where there are none). */
  attention: Series;
  /** The last `[layers * n_heads]` of the same, and the stream index that they are of; null before the first. */
  heads: Float32Array | null;
  heads_at: number;
  /** Attention of one head on each slot in use. */
  probs: { layer: number; head: number; values: Float32Array } | null;
  /** The likeliest next token as the lane saw it before the last one. */
  best: Guess | null;
  /** And as it sees it now. */
  next: Guess | null;
  /** How the lane does, by a rule whose numbers stand beside it. Once it is not steady it stays so. */
  health: { kind: "steady" | "repeating" | "losing"; since: number };
  /** Steps in a row in which it was too far behind the reference. */
  behind: number;
  ended: boolean;
}

/** A head of a lane. */
export type LaneHead = AttentionHead & { lane: number };

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
  /** Of some layers: how far key channels range. Empty where nobody measured it. */
  key_ranges: readonly KeyRanges[];
  /** Tokens between two recorded maps of attention by head; null where there are none. */
  maps_every: number | null;
  /** Tokens that there will be; null where that is open. */
  count: number | null;
  /** Tokens of the question, where lanes write their own. */
  prompt: number;
  /** Tokens of a step; losses and times are means of so many. Above 1 there is no text. */
  every: number;
  /** Stream position of the lane that is furthest. */
  at: number;
  /** Tokens of the rolling mean. */
  roll: number;
  /** Index of the lane that losses are compared with: dense, or else sinks; null where there is none, and in free lanes. */
  reference: number | null;
  lanes: readonly LaneState[];
  /** The text that first came with an id, of all ids in `LaneState.ids`. Grows in place. */
  vocab: Map<number, string>;
  /** In the order of the stream. */
  marks: readonly Mark[];
  /** A cursor that all figures share; null follows the end. */
  cursor: number | null;
  /** The head whose attention on each slot is asked for. */
  asked: LaneHead | null;
  /** Nothing is left to read. */
  done: boolean;
  /** The conversation was read again, and some of it left out. */
  left_out: boolean;
}

/** Tokens of which the losses are kept one by one. */
export const EXACT = 16_384;

/** What there is to say about a run before its first step. */
export type Beginning = Pick<RunState, "title" | "origin" | "mode" | "made" | "model" | "count"> &
  Partial<Pick<RunState, "prompt" | "every" | "key_ranges" | "maps_every">>;

type PromptTokens = Extract<Step, { kind: "prompt" }>["tokens"];

/** What changes a run. */
export type RunStep =
  /** `names`: of lanes that their settings do not tell apart. */
  | { kind: "begin"; run: Beginning; lanes: LaneSettings[]; names?: string[] }
  /**
   * `attention`: the head that the step's `probs` are of; the one that was asked for where it is left out. A `sink_mass` or
   * `first_mass` of one number is the mean of all heads. `before`: tokens of a prompt that each lane read in one piece with
   * the step's own, and before it.
   */
  | { kind: "step"; step: CompareStep; attention?: LaneHead | null; before?: PromptTokens }
  | { kind: "probs"; lane: number; layer: number; head: number }
  | { kind: "mark"; mark: Mark }
  | { kind: "left_out" }
  | { kind: "cursor"; at: number | null }
  | { kind: "roll"; tokens: number };

/** Most tokens of a lane that are kept with their text, and how many go when there are more. */
const TOKENS = { most: 600, drop: 100 };
/** In a chat what has just left is shown too: as many tokens more than the cache holds, and the most of them all. */
const CHAT_TOKENS = { more: 300, most: 2400 };
/** Losses kept for rolling means, and so the longest of these. */
const RECENT = 256;
/** Marks that are kept; an hour of changed settings has many. */
const MOST_MARKS = 100;
/** Tokens of the rolling mean until another number is asked for. */
const ROLL = 64;

/**
 * A free lane repeats itself where fewer than `distinct` of the groups of `group` tokens among its last `tokens` differ;
 * looked at every so many tokens.
 */
const REPEATING = {
  group: 4,
  within: [
    { tokens: 64, distinct: 0.5, every: 1 },
    { tokens: 224, distinct: 0.6, every: 16 },
  ],
};
/** It loses the thread at a run of `one` letters, or of two of `two` letters in `tokens` tokens. */
const NO_WORDS = { one: 18, two: 16, tokens: 128 };
/** And where fewer than `part` of the signs in its last `tokens` tokens are letters or digits, of `least` that are no spaces. */
const NO_LETTERS = { tokens: 64, least: 32, part: 0.4 };
/** The last tokens among which those of a chat that the model wrote are judged. */
const JUDGED = 512;
/**
 * A forced lane loses it where its mean loss of `tokens` is `nats` above the reference's, or that of the reference above
 * another lane's, for `running` tokens in a row. On our story, against everything kept, that is a window of 128 at token 238
 * and one of 16 at 127, and no lane with sinks that keeps 64 tokens or more; half a nat for 32 tokens would take those in
 * too, since they have forgotten things.
 */
const BEHIND = { tokens: 64, nats: 0.7, running: 64 };

/** The id of a token that is not known. */
const UNKNOWN_TOKEN = -1;

type Part = keyof CacheParts;

/** The parts of a cache, from what always stays to what is not in use. */
export const PARTS = ["sinks", "codes", "scales", "tail", "slack"] as const satisfies readonly Part[];

const ofParts = <T>(of: (part: Part) => T): Record<Part, T> => ({
  sinks: of("sinks"),
  codes: of("codes"),
  scales: of("scales"),
  tail: of("tail"),
  slack: of("slack"),
});

const NO_BYTES: CacheParts = ofParts(() => 0);

export function emptyRun(): RunState {
  return {
    title: null,
    origin: "recorded",
    mode: "forced",
    made: null,
    model: null,
    key_ranges: [],
    maps_every: null,
    count: null,
    prompt: 0,
    every: 1,
    at: 0,
    roll: ROLL,
    reference: null,
    lanes: [],
    vocab: new Map(),
    marks: [],
    cursor: null,
    asked: null,
    done: false,
    left_out: false,
  };
}

export function reduceRun(state: RunState, step: RunStep): RunState {
  switch (step.kind) {
    case "begin":
      return begun(state, step.run, step.lanes, step.names);
    case "step":
      return stepped(state, step.step, step.attention === undefined ? state.asked : step.attention, step.before ?? []);
    case "probs": {
      const { lane, layer, head } = step;
      const lanes = state.lanes.map((l) => (l.probs === null ? l : { ...l, probs: null }));
      return { ...state, lanes, asked: { lane, layer, head } };
    }
    case "mark":
      return { ...state, marks: marked(state.marks, step.mark) };
    case "left_out":
      return { ...state, left_out: true };
    case "cursor":
      return { ...state, cursor: step.at };
    case "roll": {
      const roll = Math.min(RECENT, Math.max(1, Math.round(step.tokens)));
      return { ...state, roll, lanes: state.lanes.map((lane) => ({ ...lane, rolling: rolled(lane, state.every, roll) })) };
    }
  }
}

/** The perplexity of all losses so far; null before the first. */
export function perplexity({ loss }: LaneState): number | null {
  let [sum, count] = [0, 0];
  for (const bin of loss.bins) {
    sum += bin.sum;
    count += bin.count;
  }
  return count === 0 ? null : Math.exp(sum / count);
}

/** The perplexity of the last `roll` tokens; null before the first loss. */
export function recentPerplexity({ rolling }: LaneState): number | null {
  const last = rolling.last;
  return last === undefined ? null : Math.exp(mean(last));
}

/** Bytes of all of a cache's parts. */
export const totalBytes = (bytes: CacheParts): number => PARTS.reduce((sum, part) => sum + bytes[part], 0);

/** Bytes that one token takes in an f16 cache, all layers. */
export const bytesPerToken = (model: RunState["model"]): number =>
  model === null ? 0 : model.layers * model.n_kv_heads * model.head_dim * 4;

// The chat as a run of one lane.

/** The beginning of a run that shows a conversation. */
export function chatBegins(model: ModelInfo | null, cache: CacheSettings): RunStep {
  return {
    kind: "begin",
    run: { title: null, origin: "live", mode: "chat", made: null, model, count: null },
    lanes: [cache],
  };
}

/** A step of a conversation as the step of a run; null where no token was read. `attention`: the head that its probs are of. */
export function chatStep(step: Step, attention: AttentionHead | null): RunStep | null {
  if (step.kind === "end") return null;
  const { cache, evicted, sink_mass } = step;
  const [last, before] = step.kind === "token" ? [step, []] : [step.tokens.at(-1), step.tokens.slice(0, -1)];
  const read: LaneStep = {
    i: cache.stream - 1,
    id: last?.id ?? UNKNOWN_TOKEN,
    text: last?.text ?? "",
    nll: step.kind === "token" ? step.nll : null,
    best: null,
    ended: false,
    ms: step.kind === "token" ? step.ms : null,
    ...chatCache(cache),
    evicted,
    sink_mass,
    first_mass: step.kind === "token" ? step.first_mass : new Float32Array(),
    ...(step.probs === undefined ? {} : { probs: step.probs }),
  };
  return {
    kind: "step",
    step: { ms: step.ms, lanes: [read], done: false },
    attention: attention === null ? null : { lane: 0, layer: attention.layer, head: attention.head },
    before,
  };
}

function chatCache({ held, capacity, sinks, tail, parts }: CacheState): Pick<
  LaneStep,
  "held" | "capacity" | "sinks" | "tail" | "bytes"
> {
  return { held, capacity, sinks: Math.min(sinks, held), tail, bytes: parts };
}

// The lanes.

function begun(state: RunState, run: Beginning, lanes: LaneSettings[], names: string[] = []): RunState {
  return {
    ...emptyRun(),
    ...run,
    roll: state.roll,
    reference: run.mode === "forced" ? referenceOf(lanes) : null,
    lanes: lanes.map((settings, i) => newLane(settings, names[i] ?? laneName(settings))),
  };
}

function referenceOf(lanes: readonly LaneSettings[]): number | null {
  for (const wanted of ["dense", "sinks"]) {
    const found = lanes.findIndex(({ policy }) => policy === wanted);
    if (found >= 0) return found;
  }
  return null;
}

function newLane(settings: LaneSettings, name: string): LaneState {
  return {
    name,
    settings,
    at: 0,
    held: 0,
    capacity: settings.policy === "dense" ? 0 : settings.sinks + settings.recent,
    sinks: 0,
    tail: 0,
    bytes: NO_BYTES,
    dense_bytes: 0,
    evicted: null,
    first_left: null,
    first_tokens: [],
    tokens: [],
    losses: new Float32Array(),
    ids: new Int32Array(),
    recent: [],
    loss: EMPTY,
    rolling: EMPTY,
    cost: EMPTY,
    cost_now: 0,
    ms: EMPTY,
    memory: EMPTY,
    parts: ofParts(() => EMPTY),
    dense: EMPTY,
    occupancy: EMPTY,
    attention: EMPTY,
    heads: null,
    heads_at: 0,
    probs: null,
    best: null,
    next: null,
    health: { kind: "steady", since: 0 },
    behind: 0,
    ended: false,
  };
}

function stepped(state: RunState, step: CompareStep, attention: LaneHead | null, piece: PromptTokens): RunState {
  const lanes = [...state.lanes];
  let { marks, at } = state;
  const take = (index: number): void => {
    const [before, read] = [lanes[index], step.lanes[index]];
    if (before === undefined || read === undefined || read === null) return;
    const reference = state.reference === null || state.reference === index ? null : (lanes[state.reference] ?? null);
    // Text that came with several tokens is not the last one's.
    const named = read.i === before.at + piece.length && read.id !== UNKNOWN_TOKEN ? [...piece, read] : [];
    for (const { id, text } of read.i < EXACT ? named : []) if (!state.vocab.has(id)) state.vocab.set(id, text);
    const head = attention !== null && (state.mode === "chat" || attention.lane === index) ? attention : null;
    const after = laneStepped(state, before, read, piece, index === state.reference ? before : reference, head);
    lanes[index] = after;
    at = Math.max(at, after.at);
    if (before.first_left === null && after.first_left !== null)
      marks = marked(marks, { i: after.first_left, lane: index, kind: "first_left" });
    const { kind, since } = after.health;
    if (kind !== before.health.kind && kind !== "steady") marks = marked(marks, { i: since, lane: index, kind });
  };
  // The others are compared with the reference on the same token.
  if (state.reference !== null) take(state.reference);
  for (let i = 0; i < lanes.length; i += 1) if (i !== state.reference) take(i);
  const trained = state.model?.trained_length ?? Number.POSITIVE_INFINITY;
  if (state.at <= trained && at > trained) marks = marked(marks, { i: trained, lane: null, kind: "trained" });
  return { ...state, lanes, marks, at, done: state.done || step.done };
}

/** With the mark at its place in the order of the stream, whenever it came: a lane may be behind the others. */
function marked(marks: readonly Mark[], mark: Mark): readonly Mark[] {
  const key = ({ lane }: Mark): number => lane ?? Number.POSITIVE_INFINITY;
  const place = marks.findIndex((other) => other.i > mark.i || (other.i === mark.i && key(other) > key(mark)));
  const kept = marks.toSpliced(place < 0 ? marks.length : place, 0, mark);
  if (kept.length <= MOST_MARKS) return kept;
  const oldest = kept.findIndex(({ kind }) => kind === "setting" || kind === "refilled");
  kept.splice(Math.max(0, oldest), 1);
  return kept;
}

/** `reference`: the lane that it is compared with, itself where it is the one. */
function laneStepped(
  run: RunState,
  lane: LaneState,
  read: LaneStep,
  piece: PromptTokens,
  reference: LaneState | null,
  head: LaneHead | null,
): LaneState {
  const { i, nll, held, capacity, sinks, tail, bytes, evicted } = read;
  const at = i + 1;
  // Tokens that this step stands for: more than one where steps are means, or positions were skipped.
  const weight = Math.max(1, at - lane.at);
  const compared = reference === lane ? nll : reference === null ? null : lossAt(reference, i);
  const extra = nll === null || compared === null ? null : nll - compared;
  const known = read.id !== UNKNOWN_TOKEN;
  const before = piece.map(({ id, text }, n): Token => ({ i: i - piece.length + n, id, text, nll: null, extra: null }));
  const tokens = known ? [...before, { i, id: read.id, text: read.text, nll, extra }] : [];
  // A system prompt that is pinned makes more sinks than were asked for.
  const wanted = Math.max(4, lane.settings.sinks, sinks);
  const recent = nll === null ? lane.recent : [...lane.recent, [nll, extra ?? Number.NaN] as const].slice(-RECENT);
  const dense_bytes = at * bytesPerToken(run.model);
  const mass = lane.settings.sinks > 0 ? read.sink_mass : read.first_mass;
  const next: LaneState = {
    ...lane,
    at,
    held,
    capacity,
    sinks,
    tail,
    bytes,
    dense_bytes,
    evicted,
    // Each token of a piece pushed at most one out, so the first to leave did so this many tokens ago.
    first_left:
      lane.first_left ?? (evicted === null ? null : Math.max(lane.at, at - Math.max(1, evicted[1] - evicted[0]))),
    first_tokens:
      lane.first_tokens.length < wanted ? [...lane.first_tokens, ...tokens].slice(0, wanted) : lane.first_tokens,
    tokens: shortened([...lane.tokens, ...tokens], mostTokens(run, capacity)),
    losses:
      nll === null || run.every > 1 ? lane.losses : written(lane.losses, i, nll, () => new Float32Array(room(i)).fill(Number.NaN)),
    ids: tokens.reduce(
      (ids, token) => written(ids, token.i, token.id, () => new Int32Array(room(i)).fill(UNKNOWN_TOKEN)),
      lane.ids,
    ),
    recent,
    loss: nll === null ? lane.loss : lane.loss.push(i, nll),
    rolling: nll === null ? lane.rolling : lane.rolling.push(i, lossOf(recent, run.roll / weight)),
    cost_now: extra === null ? lane.cost_now : lane.cost_now + extra * weight,
    ms: read.ms === null ? lane.ms : lane.ms.push(i, read.ms),
    memory: lane.memory.push(i, totalBytes(bytes)),
    parts: ofParts((part) => lane.parts[part].push(i, bytes[part])),
    dense: lane.dense.push(i, dense_bytes),
    occupancy: lane.occupancy.push(i, held),
    attention: mass.length === 0 ? lane.attention : lane.attention.push(i, average(mass)),
    ...(mass.length <= 1 ? {} : { heads: mass, heads_at: i }),
    probs:
      read.probs === undefined || head === null
        ? lane.probs
        : { layer: head.layer, head: head.head, values: read.probs },
    best: lane.next,
    next: read.best,
    ended: read.ended,
  };
  if (extra !== null) next.cost = lane.cost.push(i, next.cost_now);
  return judged(run, next, weight, reference === lane);
}

/** What the reference lost on the token at `i`; null where it does not know, or no longer. */
function lossAt({ at, losses, recent, tokens }: LaneState, i: number): number | null {
  if (i === at - 1) return recent.at(-1)?.[0] ?? null;
  const exact = i < at ? losses[i] : undefined;
  if (exact !== undefined) return Number.isNaN(exact) ? null : exact;
  return tokens.findLast((token) => token.i === i)?.nll ?? null;
}

function mostTokens({ mode }: RunState, capacity: number): number {
  if (mode !== "chat") return TOKENS.most;
  return Math.min(CHAT_TOKENS.most, Math.max(TOKENS.most, capacity + CHAT_TOKENS.more));
}

function shortened(tokens: Token[], most: number): Token[] {
  return tokens.length > most ? tokens.slice(TOKENS.drop) : tokens;
}

/** `values` with the one at `i`, in place while there is room; `more` makes a longer, empty array. */
export function written<T extends Float32Array | Int32Array>(values: T, i: number, value: number, more: () => T): T {
  if (i >= EXACT) return values;
  let longer = values;
  if (i >= values.length) {
    longer = more();
    longer.set(values);
  }
  longer[i] = value;
  return longer;
}

/** Length of an array that is to hold a value at `i` and will grow. */
export const room = (i: number): number => Math.min(EXACT, Math.max(64, 2 * i));

/** Mean of the last `steps` losses, rounded to whole steps. */
function lossOf(recent: LaneState["recent"], steps: number): number {
  const last = recent.slice(-Math.max(1, Math.round(steps)));
  return last.reduce((sum, [loss]) => sum + loss, 0) / last.length;
}

/** The rolling mean of the whole run so far, over another number of tokens. */
function rolled(lane: LaneState, every: number, roll: number): Series {
  let series = EMPTY;
  const values: number[] = [];
  let sum = 0;
  const take = (at: number, value: number, steps: number): void => {
    values.push(value);
    sum += value;
    while (values.length > Math.max(1, Math.round(steps))) sum -= values.shift() ?? 0;
    series = series.push(at, sum / values.length);
  };
  const exact = every > 1 ? 0 : Math.min(lane.at, lane.losses.length);
  for (let i = 0; i < exact; i += 1) {
    const loss = lane.losses[i] ?? Number.NaN;
    if (!Number.isNaN(loss)) take(i, loss, roll);
  }
  // What is not known one by one is known by its bins.
  for (const bin of lane.loss.bins) {
    if (bin.first >= exact) take(bin.last, mean(bin), roll / Math.max(every, bin.count));
  }
  return series;
}

/** The lane with how it does. `weight`: tokens of its last step; `isReference`: the others are compared with it. */
function judged({ mode, reference, lanes }: RunState, lane: LaneState, weight: number, isReference: boolean): LaneState {
  if (lane.health.kind !== "steady") return lane;
  const since = lane.at - 1;
  if (mode !== "forced") {
    // What a person says may repeat itself.
    const last = lane.tokens.slice(-JUDGED);
    const tokens = mode === "chat" ? last.filter(({ nll }) => nll !== null) : last;
    if (repeats(tokens, lane.at)) return { ...lane, health: { kind: "repeating", since } };
    if (babbles(tokens) || scrawls(tokens)) return { ...lane, health: { kind: "losing", since } };
    return lane;
  }
  // A lane that recomputes skips most positions: two losses make no mean.
  if (reference === null || lane.settings.policy === "recompute") return lane;
  const steps = Math.ceil(BEHIND.tokens / weight);
  const last = lane.recent.slice(-steps);
  // The reference itself may be the one that falls behind, past the length that it was trained on.
  const others = isReference ? lanes.filter((_, i) => i !== reference).map(({ recent }) => recent) : [];
  const best = Math.min(...others.filter(({ length }) => length >= steps).map((recent) => lossOf(recent, steps)));
  const extra = isReference ? lossOf(last, steps) - best : last.reduce((sum, [, more]) => sum + more, 0) / last.length;
  const behind = last.length === steps && extra >= BEHIND.nats ? lane.behind + weight : 0;
  return behind < BEHIND.running ? { ...lane, behind } : { ...lane, behind, health: { kind: "losing", since } };
}

/** Do the last tokens, up to `at`, say the same again and again. */
function repeats(tokens: readonly Token[], at: number): boolean {
  return REPEATING.within.some(({ tokens: wanted, distinct, every }) => {
    if (tokens.length < wanted || at % every > 0) return false;
    const last = tokens.slice(-wanted).map(({ id }) => id);
    const groups = last.slice(REPEATING.group - 1).map((_, i) => last.slice(i, i + REPEATING.group).join());
    return new Set(groups).size / groups.length < distinct;
  });
}

/** Are most signs neither letters nor digits, of any script. */
function scrawls(tokens: readonly Token[]): boolean {
  if (tokens.length < NO_LETTERS.tokens) return false;
  const last = tokens.slice(-NO_LETTERS.tokens);
  const signs = last.map(({ text }) => text).join("").replaceAll(/\s/gu, "");
  return signs.length >= NO_LETTERS.least && signs.replaceAll(/[^\p{L}\p{M}\p{N}]/gu, "").length < NO_LETTERS.part * signs.length;
}

/** Are there runs of letters that no word has. Of scripts with words between spaces only. */
function babbles(tokens: readonly Token[]): boolean {
  const newest = tokens.at(-1)?.text ?? "";
  // Only a token that goes on with a word can make it longer.
  if (!/^\p{Script=Latin}/u.test(newest)) return false;
  const text = tokens
    .slice(-NO_WORDS.tokens)
    .map((token) => token.text)
    .join("");
  const runs = (text.match(/\p{Script=Latin}+/gu) ?? []).map(({ length }) => length);
  return runs.some((n) => n >= NO_WORDS.one) || runs.filter((n) => n >= NO_WORDS.two).length >= 2;
}

/** Mean of some values. */
export function average(values: Float32Array): number {
  return values.reduce((sum, v) => sum + v, 0) / values.length;
}
