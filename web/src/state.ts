// All that the page knows, and the one function that changes it. What is on the screen follows from
// this alone.

import type {
  AttentionHead,
  Backend,
  CacheSettings,
  CacheState,
  LoadProgress,
  Message,
  ModelInfo,
  SelfTest,
  SendOptions,
  Step,
} from "../../crates/wasm/types";
import type { Fault } from "./protocol.ts";
import type { Settings } from "./settings.ts";
import type { Card } from "./shelf.ts";
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
  /** The conversation is read again into an empty cache; no answer follows. */
  | "refilling"
  | "writing"
  /** The model has another cache for a while: lanes are compared. */
  | "comparing"
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
  /** What the adapter offers, for a report; null on the CPU. */
  offers: { features: string[]; limits: Record<string, number> } | null;
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
  /** Where it lies in the stream, `[from, to)`; null where it is not in it. */
  place: [number, number] | null;
  /** Length of the text after each token of `place`; only grows, so that all states share it. Empty where that is not known. */
  ends: number[];
  /** Characters at its beginning that were not read again. */
  cut: number;
  /** An answer that the model did not close: it can be gone on with. */
  open: boolean;
  /** Tokens after which its conversation was read again, while it was being written. */
  refilled: number | null;
}

/** A conversation, as it is kept. */
export interface Chat {
  id: string;
  /** ISO 8601. */
  created: string;
  /** Empty for the model's own. */
  system: string;
  turns: readonly Turn[];
}

export interface Load {
  bytes: number;
  total: number | null;
  /** Bytes a second over the last few seconds; null until that is known. */
  speed: number | null;
  /** Where `speed` is counted from: milliseconds and bytes. */
  since: [at: number, bytes: number][];
}

/** What the start-up found out, for a report. */
export interface Findings {
  versions: Record<string, string>;
  test: SelfTest;
  /** Milliseconds that each stage took. */
  took: Record<string, number>;
}

export interface State {
  phase: Phase;
  place: Place | null;
  /** Sentences about the address; they stay. */
  complaints: readonly string[];
  /** One sentence about the last thing tried; it stays until something else was done or ended. */
  hint: string | null;
  /** It has nothing to do with the model's start, so it stays when that is over. */
  hintStays: boolean;
  /** Nothing has come from the model for too long. */
  silent: boolean;
  fault: Fault | null;
  /** Answers that broke off while WebGPU wrote them. */
  gpuFaults: number;
  load: Load | null;
  /** A failed connection, while its next try is waited for. */
  retrying: string | null;
  /** Why the weights are not kept in this browser. */
  notice: string | null;
  /** The cache that was asked for, which figures name before there is one. */
  wanted: CacheSettings;
  /** How answers are sampled. */
  options: SendOptions;
  model: ModelInfo | null;
  /** The file that the model came from. */
  modelName: string | null;
  cache: CacheState | null;
  chat: Omit<Chat, "turns">;
  turns: readonly Turn[];
  /** The cache has read exactly these turns, or what it was built to keep of them. */
  synced: boolean;
  /** The conversation is read again before the answer that is being written. */
  rereading: boolean;
  /** What was read since an answer was last written: where it begins in the stream, and its tokens' text. */
  read: { from: number; texts: readonly string[] };
  /** Bytes of the module. */
  memory: number | null;
  findings: Findings | null;
  /** Files that are kept in this browser. */
  cards: readonly Card[];
  /** Text of a message that the engine did not take. */
  returned: string | null;
  /** Tokens a second over the last two seconds of writing. */
  speed: number | null;
  /** Arrival of the tokens that `speed` counts, milliseconds. */
  arrivals: readonly number[];
}

/** `at`: milliseconds of one clock that does not jump. */
export type Action =
  | { kind: "planned"; place: Place }
  | { kind: "starting" }
  | { kind: "started"; place: Place }
  | { kind: "progress"; progress: LoadProgress; at: number }
  | { kind: "retrying"; fault: Fault }
  | { kind: "loaded"; model: ModelInfo; cache: CacheState; name: string; notice: string | null }
  | { kind: "cancelled" }
  /** `why`: the conversation is read again first, and a line in it says why. */
  | { kind: "asked"; text: string; why: string | null }
  /** The last answer is gone on with. `reread`: after the conversation was read again. */
  | { kind: "proceeding"; reread: boolean }
  /** Only the first turns stay. */
  | { kind: "kept"; turns: number }
  | { kind: "opened"; chat: Chat }
  | { kind: "system"; text: string }
  | { kind: "settings"; cache: CacheSettings; options: SendOptions }
  | { kind: "emptied"; cache: CacheState }
  /** The conversation is read again; a line in it says why, where there is something to say. */
  | { kind: "refilling"; why: string }
  | { kind: "resumed"; places: readonly ([number, number] | null)[]; cache: CacheState }
  /** The model is gone and comes back by itself. */
  | { kind: "recovering"; sentence: string }
  /** The conversation's cache makes room for lanes. */
  | { kind: "comparing" }
  | { kind: "found"; findings: Findings }
  | { kind: "cards"; cards: readonly Card[] }
  | { kind: "step"; step: Step; attention: AttentionHead | null; memory: number; at: number }
  | { kind: "refused"; fault: Fault }
  | { kind: "failed"; fault: Fault }
  | { kind: "silent" }
  | { kind: "hint"; text: string; stays?: boolean };

/** Seconds without a step after which the page says so. */
export const SILENCE = 10;

/** Milliseconds over which a speed is taken. */
const SPEED_WINDOW = 2000;

export function initial(settings: Pick<Settings, "cache" | "send" | "complaints">): State {
  return {
    phase: "checking",
    place: null,
    complaints: settings.complaints,
    hint: null,
    hintStays: false,
    silent: false,
    fault: null,
    gpuFaults: 0,
    load: null,
    retrying: null,
    notice: null,
    wanted: settings.cache,
    options: settings.send,
    model: null,
    modelName: null,
    cache: null,
    chat: { id: "", created: "", system: "" },
    turns: [],
    synced: false,
    rereading: false,
    read: { from: 0, texts: [] },
    memory: null,
    findings: null,
    cards: [],
    returned: null,
    speed: null,
    arrivals: [],
  };
}

export function reduce(state: State, action: Action): State {
  switch (action.kind) {
    case "planned":
      return { ...state, phase: "idle", place: action.place };
    case "starting":
      return { ...state, phase: "starting", hint: null, fault: null, load: null, retrying: null };
    case "recovering":
      return { ...state, phase: "starting", hint: action.sentence, hintStays: false, fault: null, load: null, retrying: null };
    case "comparing":
      return { ...state, phase: "comparing", hint: null, silent: false, synced: false, speed: null };
    case "found":
      return { ...state, findings: action.findings };
    case "cards":
      return { ...state, cards: action.cards };
    case "started":
      return {
        ...state,
        phase: "loading",
        place: action.place,
        load: { bytes: 0, total: null, speed: null, since: [] },
      };
    case "progress":
      return { ...state, retrying: null, load: progressed(state.load, action.progress, action.at) };
    case "retrying":
      return { ...state, retrying: say.retrying(action.fault.message) };
    case "loaded":
      return {
        ...emptied(state, action.cache),
        phase: "ready",
        hint: state.hintStays ? state.hint : null,
        load: null,
        retrying: null,
        notice: action.notice,
        model: action.model,
        modelName: action.name,
      };
    case "emptied":
      return { ...emptied(state, action.cache), phase: "ready", synced: state.turns.length === 0 };
    case "cancelled":
      return { ...state, phase: "idle", load: null, retrying: null, hint: say.cancelled };
    case "asked":
      return {
        ...state,
        phase: "writing",
        hint: null,
        returned: null,
        arrivals: [],
        read: { from: here(state)[0], texts: [] },
        turns: [
          ...(action.why === null ? state : marked(state, action.why)).turns,
          { ...turn("you", action.text), place: state.synced ? here(state) : null },
          { ...turn("model", ""), open: true },
        ],
      };
    case "proceeding":
      return proceeding(state, action.reread);
    case "kept":
      return { ...state, turns: state.turns.slice(0, action.turns), synced: false, hint: null };
    case "opened": {
      const { turns, ...chat } = action.chat;
      return { ...state, chat, turns, synced: false, hint: null, returned: null };
    }
    case "system":
      return { ...state, chat: { ...state.chat, system: action.text }, synced: false };
    case "settings":
      return { ...state, wanted: action.cache, options: action.options };
    case "refilling":
      return { ...marked(state, action.why), phase: "refilling", hint: null, arrivals: [] };
    case "resumed":
      return resumed(emptied(state, action.cache), action.places);
    case "step":
      return { ...stepped({ ...state, silent: false }, action.step, action.at), memory: action.memory };
    case "refused":
      return refused(state, action.fault);
    case "failed":
      return {
        ...(state.phase === "writing" ? brokenOff(state) : state),
        phase: "failed",
        hint: null,
        silent: false,
        fault: action.fault,
        load: null,
        retrying: null,
        speed: null,
        synced: false,
        rereading: false,
        ...demoted(state),
      };
    case "silent":
      return { ...state, silent: true };
    case "hint":
      return { ...state, hint: action.text, hintStays: action.stays ?? false };
  }
}

/** The conversation in the boundary's words. A question without an answer is left out, unless it is the last turn. */
export function messages(state: State): Message[] {
  const { system } = state.chat;
  return [
    ...(system === "" ? [] : [{ role: "system", content: system } satisfies Message]),
    ...spoken(state.turns).map(({ who, text }): Message => ({
      role: who === "you" ? "user" : "assistant",
      content: text,
    })),
  ];
}

/** The last turn that somebody said. */
export const lastSaid = (turns: readonly Turn[]): number => turns.findLastIndex(({ who }) => who !== "page");

/** Turns that the model sees: not the page's own lines, nor an answer without a word and, unless it is the last, its question. */
function spoken(turns: readonly Turn[]): Turn[] {
  const said = turns.filter(({ who, text }) => who === "you" || (who === "model" && text !== ""));
  return said.filter(({ who }, i) => who === "model" || said[i + 1]?.who !== "you");
}

/** How much of a turn has left the cache: tokens, and characters where that is known; all or nothing otherwise. */
export function departed(state: State, { place, ends, text, cut }: Turn): { tokens: number; characters: number } {
  const { cache, model } = state;
  if (cache === null || model === null || !(state.synced || state.phase === "writing")) {
    return { tokens: 0, characters: 0 };
  }
  if (place === null) return { tokens: 0, characters: state.synced ? text.length : 0 };
  const edge = cache.stream - cache.held + Math.min(cache.sinks, cache.held);
  const [from, to] = [Math.max(place[0], cache.sinks), Math.min(place[1], edge)];
  const tokens = Math.max(0, to - from);
  // What was not read again is gone too.
  if (tokens === 0) return { tokens, characters: cut };
  if (to === place[1] && ends.length === 0) return { tokens, characters: text.length };
  return { tokens, characters: Math.max(cut, ends[to - (place[1] - ends.length) - 1] ?? 0) };
}

/** The state with the answer that is being written as it is when nothing more comes. */
export const brokenOff = (state: State): State => noted(state, say.brokeOff);

/** Is the model loaded and waiting. */
export const isReady = ({ phase }: State): boolean => phase === "ready";

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
      case "refilling":
        return [state.silent ? say.silent(SILENCE) : say.refilling];
      case "writing":
        return [state.silent ? say.silent(SILENCE) : say.writing];
      case "comparing":
        return [state.silent ? say.silent(SILENCE) : say.comparing];
      case "failed":
        return fault === null ? [] : [fault.message, ...(fault.remedy === null ? [] : [fault.remedy])];
    }
  };
  return [
    ...(hint === null ? [] : [hint]),
    ...now(),
    ...(state.retrying === null ? [] : [state.retrying]),
    ...(state.notice === null ? [] : [state.notice]),
    // Where the fault is on the screen already, its name once is enough.
    ...(place?.why && !(fault !== null && place.why.includes(fault.message)) ? [place.why] : []),
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

/** A turn that nobody has read yet. */
export function turn(who: Turn["who"], text: string): Turn {
  return {
    who,
    text,
    note: "",
    ids: "",
    tokens: 0,
    left: null,
    place: null,
    ends: [],
    cut: 0,
    open: false,
    refilled: null,
  };
}

/** The empty place at the end of the stream. */
function here({ cache }: State): [number, number] {
  const at = cache?.stream ?? 0;
  return [at, at];
}

function progressed(load: Load | null, { bytes, total }: LoadProgress, at: number): Load {
  const since = [...(load?.since ?? []), [at, bytes] as [number, number]];
  // Keep one sample older than the window, so that the speed always spans it.
  while (since.length > 2 && at - (since[1]?.[0] ?? at) >= SPEED_WINDOW) since.shift();
  const [then, had] = since[0] ?? [at, bytes];
  const speed = at > then ? ((bytes - had) * 1000) / (at - then) : (load?.speed ?? null);
  return { bytes, total, speed, since };
}

/** The state with a cache that has read nothing. */
function emptied(state: State, cache: CacheState): State {
  return {
    ...state,
    cache,
    synced: false,
    speed: null,
    arrivals: [],
    read: { from: 0, texts: [] },
    turns: state.turns.map((turn) => ({ ...turn, place: null, ends: [], cut: 0 })),
  };
}

function proceeding(state: State, reread: boolean): State {
  // A line that says that the conversation was read again would stand between the answer and its end.
  const marked = state.turns.at(-1)?.who === "page";
  const turns = marked ? state.turns.slice(0, -1) : state.turns;
  const last = turns.at(-1);
  if (last === undefined) return state;
  const refilled = reread || marked ? last.tokens : last.refilled;
  return {
    ...replaced({ ...state, turns }, { ...last, note: "", open: true, refilled }),
    phase: "writing",
    hint: null,
    arrivals: [],
  };
}

/** A line in the conversation; one after the other would say the same twice. */
function marked(state: State, why: string): State {
  const turns = state.turns.at(-1)?.who === "page" ? state.turns.slice(0, -1) : state.turns;
  return { ...state, turns: [...turns, turn("page", why)] };
}

function resumed(state: State, places: readonly ([number, number] | null)[]): State {
  let i = state.chat.system === "" ? 0 : 1;
  const seen = new Set(spoken(state.turns));
  const turns = state.turns.map((turn) => {
    if (!seen.has(turn)) return turn;
    const place = places[i] ?? null;
    i += 1;
    return { ...turn, place };
  });
  return { ...state, turns, synced: true, rereading: true };
}

/** What was asked comes back, and the conversation is as it was. */
function refused(state: State, { message }: Fault): State {
  const ready: State = { ...state, phase: "ready", hint: message, rereading: false };
  const last = state.turns.at(-1);
  if (state.phase === "writing" && last?.text !== "") return { ...brokenOff(ready), synced: false };
  if (state.phase !== "writing") return { ...ready, synced: false };
  const asked = state.turns.at(-2);
  return { ...ready, returned: asked?.text ?? null, turns: state.turns.slice(0, -2) };
}

function stepped(before: State, step: Step, at: number): State {
  const state = step.kind === "prompt" ? told(before, step) : before;
  if (state.phase === "refilling") return reread(state, step);
  const last = state.turns.at(-1);
  if (last === undefined) return state;
  switch (step.kind) {
    case "prompt": {
      const left = span(last.left, step.evicted);
      const { done, total } = step;
      const note = [
        state.rereading ? say.rereading(done, total) : say.reading(done, total),
        ...(left === null || state.rereading ? [] : [say.leftWhileReading(...left)]),
      ].join(" ");
      return { ...replaced(state, { ...last, left, note }), cache: step.cache };
    }
    case "token": {
      const { stream } = step.cache;
      const text = last.text + step.text;
      last.ends.push(text.length);
      const answer: Turn = {
        ...last,
        text,
        ids: last.ids === "" ? String(step.id) : `${last.ids},${step.id}`,
        tokens: last.tokens + 1,
        note: last.left === null ? "" : say.leftWhileReading(...last.left),
        place: [last.place?.[0] ?? stream - 1, stream],
      };
      const arrivals = [...state.arrivals.filter((then) => at - then < SPEED_WINDOW), at];
      const took = at - (arrivals[0] ?? at);
      const speed = took > 0 ? ((arrivals.length - 1) * 1000) / took : state.speed;
      return { ...replaced(state, answer), arrivals, speed, rereading: false, cache: step.cache };
    }
    case "end": {
      const open = step.reason !== "end";
      const answer = replaced(state, { ...last, text: last.text + step.text, open });
      const ended = noted(answer, (tokens) => say.ended(tokens, step.reason));
      return { ...ended, phase: "ready", hint: null, synced: true, rereading: false };
    }
  }
}

/** The state with what a piece of a prompt said, and where its tokens end in the turns, once all of it is read. */
function told(state: State, { tokens, done, total, cache }: Extract<Step, { kind: "prompt" }>): State {
  const { from } = state.read;
  const texts = [...state.read.texts, ...tokens.map(({ text }) => text)];
  const read = { ...state, read: { from, texts } };
  if (done < total) return read;
  const begins = state.phase === "writing" && state.turns.at(-1)?.place === null;
  const { turns } = begins ? placed(read, cache.stream) : read;
  const known = (turn: Turn): Turn => {
    const { place, text } = turn;
    if (place === null || place[0] < from || place[1] > from + texts.length) return turn;
    return { ...turn, ...endsIn(text, texts.slice(place[0] - from, place[1] - from)) };
  };
  return { ...read, read: { from: cache.stream, texts: [] }, turns: turns.map(known) };
}

/** Where each of `pieces`, which hold a text or the end of one between marks of turns, ends in it. */
function endsIn(text: string, pieces: readonly string[]): Pick<Turn, "ends" | "cut"> {
  const whole = pieces.join("");
  let begins = whole.indexOf(text);
  if (begins < 0) {
    let length = Math.min(text.length, whole.length);
    while (length > 0 && !text.endsWith(whole.slice(0, length))) length -= 1;
    // A template may write a text otherwise than it was said: then it is only known as a whole.
    if (length === 0) return { ends: [], cut: 0 };
    begins = length - text.length;
  }
  let end = -begins;
  const ends = pieces.map((piece) => Math.min(Math.max((end += piece.length), 0), text.length));
  return { ends, cut: Math.max(0, -begins) };
}

/** Some of the conversation was not read again. */
export const leftOut = ({ turns }: State): boolean =>
  turns.some(({ who, text, place, cut }) => who !== "page" && text !== "" && (place === null || cut > 0));

/** The question ends where its answer begins. */
function placed(state: State, to: number): State {
  const asked = state.turns.at(-2);
  if (asked?.place == null) return state;
  const turns = [...state.turns];
  turns[turns.length - 2] = { ...asked, place: [asked.place[0], to] };
  return { ...state, turns };
}

function reread(state: State, step: Step): State {
  if (step.kind === "end") return { ...state, phase: "ready", rereading: false };
  return { ...state, cache: step.cache };
}

/** A device may be lost once, by sleep or an update; one that fails again is not asked a third time. */
function demoted({ phase, place, gpuFaults }: State): Pick<State, "place" | "gpuFaults"> {
  if ((phase !== "writing" && phase !== "comparing") || place?.backend !== "webgpu") return { place, gpuFaults };
  if (gpuFaults === 0) return { place, gpuFaults: 1 };
  const why = say.gpuBroke(place.adapter ?? say.UNKNOWN);
  return { place: { backend: "cpu", adapter: null, software: false, offers: null, why }, gpuFaults: 0 };
}

function replaced(state: State, last: Turn): State {
  return { ...state, turns: [...state.turns.slice(0, -1), last] };
}

/** The state with how the last answer ended in its note. */
function noted(state: State, ending: (tokens: number) => string): State {
  const last = state.turns.at(-1);
  if (last === undefined) return state;
  const left = last.left === null ? "" : ` ${say.leftWhileReading(...last.left)}`;
  const refilled = last.refilled === null ? "" : ` ${say.refilledAt(last.refilled)}`;
  return replaced(state, { ...last, note: `${ending(last.tokens)}.${left}${refilled}` });
}

function span(a: [number, number] | null, b: [number, number] | null): [number, number] | null {
  if (a === null || b === null) return a ?? b;
  return [Math.min(a[0], b[0]), Math.max(a[1], b[1])];
}
