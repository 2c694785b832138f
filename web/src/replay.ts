// A recorded run: read, checked, and played as the steps that made it.

import type { CacheParts, CompareStep, LaneStep } from "../../crates/wasm/types";
import type { Ramp, RecordedLane, RecordedRun, Sampled } from "../../crates/wasm/run";
import { emptyRun, reduceRun, type RunState, type RunStep } from "./run.ts";
import { STORAGES } from "./settings.ts";
import * as say from "./strings.en.ts";

/** The newest format that is understood. */
const VERSION = 1;
/** Longest run that is taken. */
const MOST_TOKENS = 1_048_576;
/** Milliseconds of a frame that playing may take. */
const BUDGET = 6;
/** Most milliseconds between two frames that count: a tab that was hidden does not jump on. */
const LONGEST_FRAME = 250;

// Reading. Whatever is wrong is said with the name of the place; what is not known here is left alone.

/**
 * The run in a file's text.
 *
 * @throws an `Error` with a sentence for the person where it is none, or not one of this version.
 */
export function readRun(text: string, name: string): RecordedRun {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error(say.notARun(name, say.notJson));
  }
  const wrong = fault(found);
  if (wrong !== null) throw new Error(say.notARun(name, wrong));
  return found as RecordedRun;
}

/** What keeps `run` from being a `RecordedRun`; null where nothing does. */
function fault(run: unknown): string | null {
  if (!isObject(run) || run["format"] !== "sinkstream-run") return say.noRunFormat;
  const { version } = run;
  if (!isWhole(version) || version > VERSION) return say.newerRun(version, VERSION);
  try {
    checkRun(run);
    return null;
  } catch (caught) {
    return caught instanceof Wrong ? say.wrongPlace(caught.message) : String(caught);
  }
}

/** The place in the file that is not as it must be. */
class Wrong extends Error {}

type Objekt = Record<string, unknown>;

function need(holds: boolean, place: string): asserts holds {
  if (!holds) throw new Wrong(place);
}

const isObject = (value: unknown): value is Objekt =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value);
const isWhole = (value: unknown): value is number => isNumber(value) && Number.isInteger(value) && value >= 0;
const isText = (value: unknown): value is string => typeof value === "string";
const isList = (value: unknown, each: (item: unknown) => boolean): value is unknown[] =>
  Array.isArray(value) && value.every(each);
const orNull =
  (each: (item: unknown) => boolean) =>
  (value: unknown): boolean =>
    value === null || each(value);

function checkRun(run: Objekt): void {
  need(isText(run["title"]), "title");
  const { made, model, count, every, vocab, mode } = run;
  need(isObject(made) && ["by", "commit", "date", "command"].every((key) => isText(made[key])), "made");
  const shape = ["layers", "n_heads", "n_kv_heads", "head_dim", "trained_length"];
  need(isObject(model) && isText(model["name"]) && shape.every((key) => isWhole(model[key])), "model");
  need(mode === "forced" || mode === "free", "mode");
  need(isWhole(count) && count >= 1 && count <= MOST_TOKENS, "count");
  need(isWhole(every) && every >= 1, "every");
  need(isWhole(run["prompt"]), "prompt");
  need(isObject(vocab), "vocab");
  for (const [id, text] of Object.entries(vocab)) {
    need(isText(text) || (isObject(text) && isText(text["b64"])), `vocab.${id}`);
  }
  const { tokens, lanes } = run;
  const known = (id: unknown): boolean => isWhole(id) && String(id) in vocab;
  need(tokens === null || (isList(tokens, known) && tokens.length === count), "tokens");
  need(tokens !== null || mode === "free" || every > 1, "tokens");
  need(Array.isArray(lanes) && lanes.length >= 1, "lanes");
  lanes.forEach((lane, i) => {
    checkLane(lane, `lanes[${i}]`, { count, every, known, own: mode === "free" && every === 1 });
  });
  const { key_ranges: ranges = [] } = run;
  const channels = Number(model["n_kv_heads"]) * Number(model["head_dim"]);
  need(
    isList(
      ranges,
      (of) => isObject(of) && isWhole(of["layer"]) && isList(of["ranges"], isNumber) && of["ranges"].length === channels,
    ),
    "key_ranges",
  );
  need(isList(run["marks"], (mark) => isObject(mark) && isWhole(mark["i"]) && isText(mark["kind"])), "marks");
}

interface Frame {
  count: number;
  every: number;
  known: (id: unknown) => boolean;
  /** Lanes have tokens of their own. */
  own: boolean;
}

function checkLane(lane: unknown, place: string, { count, every, known, own }: Frame): void {
  need(isObject(lane) && isText(lane["name"]), `${place}.name`);
  checkSettings(lane["settings"], `${place}.settings`);
  const { tokens, nll, bytes } = lane;
  need(own ? isList(tokens, known) && tokens.length >= 1 && tokens.length <= count : tokens === null, `${place}.tokens`);
  const length = Array.isArray(tokens) ? tokens.length : count;
  const losses = Math.ceil((length - 1) / every);
  need(isList(nll, orNull(isNumber)) && nll.length === losses, `${place}.nll`);
  need(typeof lane["ended"] === "boolean", `${place}.ended`);
  for (const key of ["held", "capacity", "tail", "oldest"]) checkRamp(lane[key], `${place}.${key}`);
  for (const key of ["ms", "sink_mass", "first_mass"]) {
    const sampled = lane[key];
    need(
      sampled === null ||
        (isObject(sampled) &&
          isWhole(sampled["every"]) &&
          sampled["every"] >= 1 &&
          isList(sampled["values"], orNull(isNumber)) &&
          sampled["values"].length <= Math.ceil(length / sampled["every"])),
      `${place}.${key}`,
    );
  }
  const parts = ["sinks", "codes", "scales", "tail", "slack"];
  need(Array.isArray(bytes) && bytes.length >= 1, `${place}.bytes`);
  rising(bytes, `${place}.bytes`);
  for (const entry of bytes as unknown[][]) {
    const value = entry[1];
    need(isObject(value) && parts.every((key) => isWhole(value[key])), `${place}.bytes`);
  }
  const { heads, best } = lane;
  if (heads !== null) {
    need(isObject(heads) && isWhole(heads["every"]) && heads["every"] >= 1, `${place}.heads.every`);
    const { shape, u8 } = heads;
    need(isList(shape, isWhole) && shape.length === 2, `${place}.heads.shape`);
    need(isText(u8) && /^[A-Za-z0-9+/]*={0,2}$/.test(u8) && u8.length % 4 === 0, `${place}.heads.u8`);
  }
  need(
    isList(best, (entry) => Array.isArray(entry) && isWhole(entry[0]) && known(entry[1]) && isNumber(entry[2])),
    `${place}.best`,
  );
}

function checkSettings(settings: unknown, place: string): void {
  need(isObject(settings), place);
  need(["dense", "window", "sinks", "recompute"].includes(String(settings["policy"])), `${place}.policy`);
  need(isWhole(settings["sinks"]), `${place}.sinks`);
  need(isWhole(settings["recent"]), `${place}.recent`);
  for (const key of ["kv", "kv_k", "kv_v"]) {
    const kv = settings[key];
    need((key !== "kv" && kv == null) || STORAGES.some((known) => known === kv), `${place}.${key}`);
  }
}

/** Entries `[i, …]` from 0 on. */
function rising(entries: unknown[], place: string): void {
  let last = -1;
  for (const entry of entries) {
    need(Array.isArray(entry) && isWhole(entry[0]) && entry[0] > last, place);
    need(last >= 0 || entry[0] === 0, place);
    last = entry[0];
  }
}

function checkRamp(ramp: unknown, place: string): void {
  need(Array.isArray(ramp) && ramp.length >= 1, place);
  rising(ramp, place);
  for (const entry of ramp as unknown[][]) need(isNumber(entry[1]) && isNumber(entry[2]), place);
}

// Playing.

/** A recorded run as steps, each of which can be had by its number. */
export class Tape {
  /** Steps of the run. */
  readonly length: number;
  private readonly lanes: Track[];

  /** `shown`: the lanes that take part, by their index in `run`. */
  constructor(
    readonly run: RecordedRun,
    private readonly shown: readonly number[],
  ) {
    const { count, every } = run;
    this.length = every === 1 ? count : 1 + Math.ceil((count - 1) / every);
    this.lanes = shown.map((i) => new Track(run, run.lanes[i] as RecordedLane));
  }

  begin(): RunStep {
    const { title, mode, made, model, count, prompt, every, lanes, key_ranges = [] } = this.run;
    const taken = this.shown.flatMap((i) => lanes[i] ?? []);
    const maps_every = taken.find(({ heads }) => heads !== null)?.heads?.every ?? null;
    return {
      kind: "begin",
      run: { title, origin: "recorded", mode, made, model, key_ranges, maps_every, count, prompt, every },
      lanes: taken.map(({ settings }) => settings),
      names: taken.map(({ name }) => name),
    };
  }

  step(k: number): RunStep {
    const { every, count } = this.run;
    const index = (k: number): number => (every === 1 ? k : Math.min(k * every, count - 1));
    const lanes = this.lanes.map((track) => track.step(k, k === 0 ? -1 : index(k - 1), index(k)));
    const step: CompareStep = { ms: 0, lanes, done: k === this.length - 1 };
    return { kind: "step", step };
  }
}

/** A lane of a tape. */
class Track {
  private readonly tokens: readonly number[] | null;
  private readonly texts: string[];
  private readonly heads: Uint8Array | null;
  private readonly best: Map<number, [id: number, p: number]>;

  constructor(
    private readonly run: RecordedRun,
    private readonly lane: RecordedLane,
  ) {
    this.tokens = lane.tokens ?? run.tokens;
    this.texts = textsOf(run.vocab, this.tokens ?? []);
    this.heads = lane.heads === null ? null : fromBase64(lane.heads.u8);
    this.best = new Map(lane.best.map(([i, id, p]) => [i, [id, p]]));
  }

  /** Step `k`, with which the tokens behind `before` up to `i` were read; null where the lane did nothing. */
  step(k: number, before: number, i: number): LaneStep | null {
    const { lane, tokens, run } = this;
    const length = tokens?.length ?? run.count;
    if (i >= length) return null;
    const nll = k === 0 ? null : (lane.nll[k - 1] ?? null);
    let first = before;
    if (lane.settings.policy === "recompute") {
      // Positions that it skipped are no steps of it; their text comes with the next one that it read.
      if (nll === null) return null;
      while (first >= 0 && (first === 0 || lane.nll[first - 1] === null)) first -= 1;
    }
    const held = at(lane.held, i);
    const oldest = first < 0 ? (lane.oldest[0]?.[1] ?? 0) : at(lane.oldest, first);
    const now = at(lane.oldest, i);
    const best = this.best.get(i);
    return {
      i,
      id: tokens?.[i] ?? -1,
      text: this.texts.slice(first + 1, i + 1).join(""),
      nll,
      best: best === undefined ? null : { id: best[0], text: textOf(run.vocab[best[0]]), p: best[1] },
      ended: lane.ended && i === length - 1,
      ms: sampled(lane.ms, first, i),
      held,
      capacity: at(lane.capacity, i),
      sinks: Math.min(lane.settings.sinks, held),
      tail: at(lane.tail, i),
      bytes: partsAt(lane.bytes, i),
      evicted: now > oldest ? [oldest, now] : null,
      sink_mass: this.mass(lane.sink_mass, lane.settings.sinks > 0, first, i),
      first_mass: this.mass(lane.first_mass, lane.settings.sinks === 0, first, i),
    };
  }

  /** By head where that was recorded, or else their mean. `byHead`: the recorded heads are of this kind. */
  private mass(means: Sampled | null, byHead: boolean, before: number, i: number): Float32Array {
    const { heads } = this.lane;
    if (byHead && heads !== null && this.heads !== null) {
      const row = rowOf(heads.every, before, i);
      const size = heads.shape[0] * heads.shape[1];
      const bytes = row === null ? new Uint8Array() : this.heads.subarray(row * size, (row + 1) * size);
      if (bytes.length === size) return Float32Array.from(bytes, (share) => share / 255);
    }
    const mean = sampled(means, before, i);
    return mean === null ? new Float32Array() : Float32Array.of(mean);
  }
}

/** The last row of every `every` tokens whose token lies behind `before`, up to `i`; null where none does. */
function rowOf(every: number, before: number, i: number): number | null {
  const row = Math.floor((i + 1) / every) - 1;
  return row >= 0 && (row + 1) * every - 1 > before ? row : null;
}

function sampled(of: Sampled | null, before: number, i: number): number | null {
  const row = of === null ? null : rowOf(of.every, before, i);
  return row === null ? null : (of?.values[row] ?? null);
}

/** The last entry from `i` or before. */
function entryAt<T extends readonly [number, ...unknown[]]>(entries: readonly T[], i: number): T | undefined {
  let [low, high] = [0, entries.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((entries[middle]?.[0] ?? 0) <= i) low = middle;
    else high = middle;
  }
  return entries[low];
}

function at(ramp: Ramp, i: number): number {
  const [from, value, step] = entryAt(ramp, i) ?? [0, 0, 0];
  return value + step * (i - from);
}

function partsAt(bytes: RecordedLane["bytes"], i: number): CacheParts {
  return entryAt(bytes, i)?.[1] ?? { sinks: 0, codes: 0, scales: 0, tail: 0, slack: 0 };
}

/** What each token adds to the text: characters come with the token that completes them. */
export function textsOf(vocab: RecordedRun["vocab"], tokens: readonly number[]): string[] {
  const decoder = new TextDecoder();
  return tokens.map((id) => {
    const text = vocab[id] ?? "";
    if (typeof text !== "string") return decoder.decode(fromBase64(text.b64), { stream: true });
    // What was left of a character that never ended.
    return decoder.decode() + text;
  });
}

/** A token by itself. */
function textOf(text: RecordedRun["vocab"][string] | undefined): string {
  if (text === undefined || typeof text === "string") return text ?? "";
  return new TextDecoder().decode(fromBase64(text.b64));
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Plays a tape at the pace of a clock. What it has played so far is `state`. */
export class Player {
  state: RunState = emptyRun();
  /** Steps that were played. */
  at = 0;
  playing = false;
  /** Steps a second. */
  speed: number;
  /** Where it is on its way to, at once. */
  private target: number | null = null;
  /** Steps, and parts of one, that are due. */
  private due = 0;
  private last: number | null = null;
  private resting = 0;

  /** `holds`: milliseconds to rest once so many steps were played. */
  constructor(
    readonly tape: Tape,
    speed: number,
    private readonly holds: ReadonlyMap<number, number> = new Map(),
  ) {
    this.speed = speed;
    this.rewind();
  }

  get length(): number {
    return this.tape.length;
  }

  get atEnd(): boolean {
    return this.at >= this.length;
  }

  /** Is there something for the next frame to do. */
  get busy(): boolean {
    return this.playing || this.target !== null;
  }

  play(): void {
    if (this.atEnd) this.seek(0);
    this.playing = true;
    this.last = null;
    this.due = 1;
  }

  pause(): void {
    this.playing = false;
  }

  /** Goes to where `steps` steps were played; a long way takes more than one frame. */
  seek(steps: number): void {
    const target = Math.min(this.length, Math.max(0, Math.round(steps)));
    if (target < this.at) this.rewind();
    this.target = target;
    this.resting = 0;
    this.advance(performance.now());
  }

  /** Changes what is shown, not where it stands: the rolling mean, the cursor, a mark. */
  change(step: RunStep): void {
    this.state = reduceRun(this.state, step);
  }

  /** A frame at `now` milliseconds. True where the state changed. */
  tick(now: number): boolean {
    const before = this.state;
    if (this.target !== null) this.advance(now);
    else if (this.playing) this.goOn(now);
    return before !== this.state;
  }

  private goOn(now: number): void {
    const passed = Math.min(LONGEST_FRAME, now - (this.last ?? now));
    this.last = now;
    if (this.resting > 0) {
      this.resting -= passed;
      return;
    }
    this.due += (passed * this.speed) / 1000;
    const until = performance.now() + BUDGET;
    while (this.due >= 1 && !this.atEnd && performance.now() < until) {
      this.due -= 1;
      this.one();
      this.resting = this.holds.get(this.at) ?? 0;
      if (this.resting > 0) this.due = 0;
    }
    // What a slow machine did not manage is not made up for.
    this.due = Math.min(this.due, 1);
    if (this.atEnd) this.playing = false;
  }

  private advance(now: number): void {
    const until = performance.now() + BUDGET;
    while (this.target !== null && this.at < this.target && performance.now() < until) this.one();
    if (this.at >= (this.target ?? 0)) this.target = null;
    this.last = now;
  }

  private one(): void {
    this.state = reduceRun(this.state, this.tape.step(this.at));
    this.at += 1;
  }

  private rewind(): void {
    const { roll } = this.state;
    this.state = reduceRun({ ...emptyRun(), roll }, this.tape.begin());
    this.at = 0;
  }
}
