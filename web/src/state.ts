// All that the page knows, and the one function that changes it. What is on the screen follows from
// this alone.

import type {
  Backend,
  CacheSettings,
  CacheState,
  LoadProgress,
  ModelInfo,
  Step,
} from "../../crates/wasm/types";
import type { Fault } from "./protocol.ts";
import { EMPTY, push, type Series } from "./series.ts";
import * as say from "./strings.en.ts";

export type Phase =
  /** Looking at the browser and its adapter. */
  | "checking"
  /** Nothing is loaded and nothing runs. */
  | "idle"
  /** The worker starts and tests itself. */
  | "starting"
  | "loading"
  | "ready"
  | "writing"
  /** The worker is gone; `fault` says why. */
  | "failed";

/** Where the model runs, or will run. */
export interface Place {
  backend: Backend;
  adapter: string | null;
  /** A sentence where the page would rather have used WebGPU. */
  why: string | null;
  /** The adapter is a CPU in disguise; the kernels then spread their work in another way. */
  software: boolean;
}

export interface Turn {
  who: "you" | "model" | "page";
  text: string;
  /** A line below the text: progress, length, how it ended. */
  note: string;
  /** Ids of the answer's tokens, with commas between; text, because appending to it costs nothing. */
  ids: string;
  tokens: number;
  /** Stream indices `[from, to)` that left while the message was read. */
  left: [number, number] | null;
}

export interface Load {
  bytes: number;
  total: number | null;
  /** Bytes a second over the last few seconds; null until that is known. */
  speed: number | null;
  /** Where `speed` is counted from: milliseconds and bytes. */
  since: [at: number, bytes: number][];
}

export interface State {
  phase: Phase;
  place: Place | null;
  /** Sentences about the address; they stay. */
  complaints: readonly string[];
  /** One sentence about the last thing tried; it stays until something else was done or ended. */
  hint: string | null;
  /** Nothing has come from the model for too long. */
  silent: boolean;
  fault: Fault | null;
  /** Answers that broke off while WebGPU wrote them. */
  gpuFaults: number;
  load: Load | null;
  /** The cache that was asked for, which figures name before there is one. */
  wanted: CacheSettings;
  model: ModelInfo | null;
  cache: CacheState | null;
  turns: readonly Turn[];
  /** Text of a message that the engine did not take. */
  returned: string | null;
  /** Tokens a second over the last two seconds of writing. */
  speed: number | null;
  /** Arrival of the tokens that `speed` counts, milliseconds. */
  arrivals: readonly number[];
  /** Stream position at which the first token left; null while all are kept. */
  firstLeft: number | null;
  /** Mean over heads, by layer, at the last token. */
  layers: readonly number[];
  series: { held: Series; attention: Series; bytes: Series; dense: Series };
}

/** `at`: milliseconds of one clock that does not jump. */
export type Action =
  | { kind: "planned"; place: Place }
  | { kind: "starting" }
  | { kind: "started"; place: Place }
  | { kind: "progress"; progress: LoadProgress; at: number }
  | { kind: "loaded"; model: ModelInfo; cache: CacheState }
  | { kind: "cancelled" }
  | { kind: "asked"; text: string }
  | { kind: "step"; step: Step; at: number }
  | { kind: "refused"; fault: Fault }
  | { kind: "failed"; fault: Fault }
  | { kind: "silent" }
  | { kind: "hint"; text: string };

const NO_SERIES: State["series"] = { held: EMPTY, attention: EMPTY, bytes: EMPTY, dense: EMPTY };

/** Seconds without a step after which the page says so. */
export const SILENCE = 60;

/** Milliseconds over which a speed is taken. */
const SPEED_WINDOW = 2000;

export function initial(wanted: CacheSettings, complaints: readonly string[]): State {
  return {
    phase: "checking",
    place: null,
    complaints,
    hint: null,
    silent: false,
    fault: null,
    gpuFaults: 0,
    load: null,
    wanted,
    model: null,
    cache: null,
    turns: [],
    returned: null,
    speed: null,
    arrivals: [],
    firstLeft: null,
    layers: [],
    series: NO_SERIES,
  };
}

export function reduce(state: State, action: Action): State {
  switch (action.kind) {
    case "planned":
      return { ...state, phase: "idle", place: action.place };
    case "starting":
      return { ...state, phase: "starting", hint: null, fault: null, load: null };
    case "started":
      return {
        ...state,
        phase: "loading",
        place: action.place,
        load: { bytes: 0, total: null, speed: null, since: [] },
      };
    case "progress":
      return { ...state, load: progressed(state.load, action.progress, action.at) };
    case "loaded":
      return loaded(state, action.model, action.cache);
    case "cancelled":
      return { ...state, phase: "idle", load: null, hint: say.cancelled };
    case "asked":
      return {
        ...state,
        phase: "writing",
        hint: null,
        returned: null,
        arrivals: [],
        turns: [...state.turns, turn("you", action.text), turn("model", "")],
      };
    case "step":
      return stepped({ ...state, silent: false }, action.step, action.at);
    case "refused":
      return {
        ...state,
        phase: "ready",
        hint: action.fault.message,
        returned: state.turns.at(-2)?.text ?? null,
        turns: state.turns.slice(0, -2),
      };
    case "failed":
      return {
        ...(state.phase === "writing" ? noted(state, say.brokeOff) : state),
        phase: "failed",
        hint: null,
        silent: false,
        fault: action.fault,
        load: null,
        speed: null,
        ...demoted(state, action.fault),
      };
    case "silent":
      return { ...state, silent: true };
    case "hint":
      return { ...state, hint: action.text };
  }
}

/** The sentences of the status line, the newest matter first. */
export function sentences(state: State): string[] {
  const { phase, place, fault, hint } = state;
  const where = place === null ? say.UNKNOWN : say.where(place.backend, place.adapter);
  const now = (): string[] => {
    switch (phase) {
      case "checking":
        return [say.checking];
      case "idle":
        return [say.idle(where)];
      case "starting":
        return [say.starting(where)];
      case "loading":
        return [say.loading(quarters(state.load))];
      case "ready":
        return [say.ready(where)];
      case "writing":
        return [state.silent ? say.silent(SILENCE) : say.writing];
      case "failed":
        return fault === null ? [] : [fault.message, ...(fault.remedy === null ? [] : [fault.remedy])];
    }
  };
  return [
    ...(hint === null ? [] : [hint]),
    ...now(),
    ...(place?.why ? [place.why] : []),
    ...state.complaints,
  ];
}

/** Bytes that are here as a share of all, 0 to 1; null while the file's size is not known. */
export function portion(load: Load | null): number | null {
  if (load === null || load.total === null || load.total <= 0) return null;
  return Math.min(1, load.bytes / load.total);
}

// The status line speaks at quarters only, so that nobody has to listen to a counter.
function quarters(load: Load | null): number {
  return Math.floor((portion(load) ?? 0) * 4);
}

function turn(who: Turn["who"], text: string): Turn {
  return { who, text, note: "", ids: "", tokens: 0, left: null };
}

function progressed(load: Load | null, { bytes, total }: LoadProgress, at: number): Load {
  const since = [...(load?.since ?? []), [at, bytes] as [number, number]];
  // Keep one sample older than the window, so that the speed always spans it.
  while (since.length > 2 && at - (since[1]?.[0] ?? at) >= SPEED_WINDOW) since.shift();
  const [then, had] = since[0] ?? [at, bytes];
  const speed = at > then ? ((bytes - had) * 1000) / (at - then) : (load?.speed ?? null);
  return { bytes, total, speed, since };
}

function loaded(state: State, model: ModelInfo, cache: CacheState): State {
  const again = state.turns.length > 0;
  const empty: State = {
    ...state,
    phase: "ready",
    load: null,
    model,
    turns: again ? [...state.turns, turn("page", say.restarted)] : state.turns,
    speed: null,
    arrivals: [],
    firstLeft: null,
    layers: [],
    series: NO_SERIES,
  };
  return filled(empty, cache, null, new Float32Array());
}

function stepped(state: State, step: Step, at: number): State {
  const last = state.turns.at(-1);
  if (last === undefined) return state;
  switch (step.kind) {
    case "prompt": {
      const left = span(last.left, step.evicted);
      const note = [
        say.reading(step.done, step.total),
        ...(left === null ? [] : [say.leftWhileReading(...left)]),
      ];
      // Without sinks there is no mass on them to show; the first slots are reported from the first token on.
      const mass = step.cache.sinks > 0 ? step.sink_mass : new Float32Array();
      return filled(replaced(state, { ...last, left, note: note.join(" ") }), step.cache, step.evicted, mass);
    }
    case "token": {
      const answer = {
        ...last,
        text: last.text + step.text,
        ids: last.ids === "" ? String(step.id) : `${last.ids},${step.id}`,
        tokens: last.tokens + 1,
        note: last.left === null ? "" : say.leftWhileReading(...last.left),
      };
      const arrivals = [...state.arrivals.filter((then) => at - then < SPEED_WINDOW), at];
      const took = at - (arrivals[0] ?? at);
      const speed = took > 0 ? ((arrivals.length - 1) * 1000) / took : state.speed;
      const mass = step.cache.sinks > 0 ? step.sink_mass : step.first_mass;
      return filled({ ...replaced(state, answer), arrivals, speed }, step.cache, step.evicted, mass);
    }
    case "end": {
      const answer = replaced(state, { ...last, text: last.text + step.text });
      return { ...noted(answer, (tokens) => say.ended(tokens, step.reason)), phase: "ready", hint: null };
    }
  }
}

/** A device may be lost once, by sleep or an update; one that fails again is not asked a third time. */
function demoted({ phase, place, gpuFaults }: State, { message }: Fault): Pick<State, "place" | "gpuFaults"> {
  if (phase !== "writing" || place?.backend !== "webgpu") return { place, gpuFaults };
  if (gpuFaults === 0) return { place, gpuFaults: 1 };
  const why = say.gpuFailed(place.adapter ?? say.UNKNOWN, message);
  return { place: { backend: "cpu", adapter: null, software: false, why }, gpuFaults: 0 };
}

function replaced(state: State, last: Turn): State {
  return { ...state, turns: [...state.turns.slice(0, -1), last] };
}

/** The state with how the last answer ended in its note. */
function noted(state: State, ending: (tokens: number) => string): State {
  const last = state.turns.at(-1);
  if (last === undefined) return state;
  const left = last.left === null ? "" : ` ${say.leftWhileReading(...last.left)}`;
  return replaced(state, { ...last, note: `${ending(last.tokens)}.${left}` });
}

function span(a: [number, number] | null, b: [number, number] | null): [number, number] | null {
  if (a === null || b === null) return a ?? b;
  return [Math.min(a[0], b[0]), Math.max(a[1], b[1])];
}

/** `mass`: attention `[layers * n_heads]`, layer by layer; empty where none was measured. */
function filled(
  state: State,
  cache: CacheState,
  evicted: [number, number] | null,
  mass: Float32Array,
): State {
  const { series } = state;
  const at = cache.stream;
  const layers = mass.length === 0 ? state.layers : byLayer(mass, state.model?.n_heads ?? 1);
  return {
    ...state,
    cache,
    layers,
    // Each token of a piece pushed at most one out, so the first to leave did so this many tokens ago.
    firstLeft: state.firstLeft ?? (evicted === null ? null : at - (evicted[1] - evicted[0]) + 1),
    series: {
      held: push(series.held, at, cache.held),
      attention: mass.length === 0 ? series.attention : push(series.attention, at, average(mass)),
      bytes: push(series.bytes, at, cache.bytes),
      dense: push(series.dense, at, cache.dense_bytes),
    },
  };
}

function byLayer(mass: Float32Array, heads: number): number[] {
  const layers: number[] = [];
  for (let i = 0; i < mass.length; i += heads) layers.push(average(mass.subarray(i, i + heads)));
  return layers;
}

function average(values: Float32Array): number {
  return values.reduce((sum, v) => sum + v, 0) / values.length;
}
