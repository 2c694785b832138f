// What the comparison shows and how it goes on: a recorded run that is played, or lanes that run live. It holds the
// run's state; how it looks is `compare.ts`'s matter.

import type { CompareInfo, CompareSource, LaneSettings, SamplerSettings } from "../../crates/wasm/types";
import type { RecordedEntry, RecordedIndex, RecordedRun } from "../../crates/wasm/run";
import type { Request, Response } from "./protocol.ts";
import type { About, Recorder } from "./record.ts";
import { Player, readRun, Tape, textsOf } from "./replay.ts";
import { type Beginning, emptyRun, reduceRun, type RunState, type RunStep } from "./run.ts";
import { type Compare, defaults, MOST_LANES, type Settings } from "./settings.ts";
import * as say from "./strings.en.ts";

/** What plays before anything was chosen. */
export const FIRST = "lighthouse";
/** Where recorded runs lie, beside the page. */
const RUNS = "runs/";
/** Steps a second, by the name of the pace. */
export const PACES = { slow: 4, reading: 14, fast: 60, rush: 400 } as const;
export type Pace = keyof typeof PACES;
/** Milliseconds that a player rests where the first word has just left. */
const REST = { forced: 1500, free: 1000 };
/** Tokens before that place from which it is shown. */
const RUN_UP = 12;
/** Pulls on their way at once. */
const PULLS = 2;
/** Tokens that free lanes write where the address names no number. */
const FREE_TOKENS = 300;

/** What the comparison needs of the page around it. */
export interface Host {
  /** The model is loaded. */
  loaded(): boolean;
  /** And it waits. */
  ready(): boolean;
  /** `named`: what the address itself asks for. */
  sampler(): { wanted: SamplerSettings; named: Partial<SamplerSettings> };
  /** What a recording says of the model and the place; null while there is none. */
  about(): Pick<About, "made" | "model"> | null;
  /** Whether what moves by itself may do so. */
  moves(): boolean;
  post(request: Request): void;
  /** The model is taken from the conversation, or given back. */
  take(): void;
  giveBack(): void;
  hint(text: string): void;
  /** The address no longer says what is shown. */
  moved(): void;
  /** Something is to be drawn. */
  wake(): void;
}

export type Act = "sinks" | "start" | "live" | "pause" | "on" | "again";

/** The first token that was predicted without the first word. */
export interface Hero {
  i: number;
  text: string;
  /** How sure each lane was of it; null where it did not say. */
  sure: (number | null)[];
}

interface Live {
  running: boolean;
  done: boolean;
  /** Pulls that were not answered yet. */
  pulls: number;
  /** Null where what writes a run down could not be fetched. */
  recorder: Recorder | null;
  source: CompareSource;
  title: string;
}

export class Comparison {
  private state: RunState = emptyRun();
  private tape: RecordedRun | null = null;
  private player: Player | null = null;
  private live: Live | null = null;
  /** What waits for the engine to say what there is to read. */
  private waiting: { lanes: LaneSettings[]; source: CompareSource; record: typeof Recorder | null } | null = null;
  private index: RecordedIndex | null = null;
  private shown: number[] = [];
  private seen: Hero | null = null;
  /** Of the recordings that are asked for, the last one counts. */
  private asked = 0;
  own = "";
  pace: Pace = "reading";
  /** A sentence where there is nothing to play. */
  notice: string | null = null;

  constructor(
    private readonly settings: Settings,
    private readonly host: Host,
  ) {}

  get run(): RunState {
    return this.player === null || this.live !== null ? this.state : this.player.state;
  }

  /** Nothing is there yet, and something is on its way. */
  get isEmpty(): boolean {
    return this.run.lanes.length === 0 && this.notice === null;
  }

  /** Something is played or runs. */
  get moves(): boolean {
    return this.live === null ? this.player?.playing === true : this.live.running;
  }

  /** Lanes can run here. */
  get loaded(): boolean {
    return this.host.loaded();
  }

  get compare(): Compare {
    return this.settings.compare;
  }

  /** Name of what is shown, as in the address. */
  get name(): string {
    return this.compare.x ?? FIRST;
  }

  get recording(): RecordedRun | null {
    return this.tape;
  }

  get playing(): Player | null {
    return this.live === null ? this.player : null;
  }

  get running(): Live | null {
    return this.live;
  }

  get hero(): Hero | null {
    return this.seen;
  }

  /** The recording's lanes that have room, by their index: the last ones, which it is about. */
  private get most(): number[] {
    return (this.tape?.lanes ?? []).map((_, i) => i).slice(-MOST_LANES);
  }

  /** Lanes of the recording that wait to be asked for. */
  get hidden(): number[] {
    return this.most.filter((i) => !this.shown.includes(i));
  }

  /** Those among them that the one button brings. */
  private get withheld(): number[] {
    return this.hidden.filter((i) => this.tape?.lanes[i]?.settings.policy !== "recompute");
  }

  get entry(): RecordedEntry | null {
    return this.index?.runs.find(({ name }) => name === this.name) ?? null;
  }

  /** No cache of the page does what it shows, or its text cannot be given out. */
  get recordedOnly(): boolean {
    const { tape } = this;
    return tape !== null && !this.isOwn && (tape.every > 1 || tape.lanes.some(({ keys }) => keys !== null));
  }

  /** The address asks for something else than the recording. */
  get isOwn(): boolean {
    const { lanes, mode, text, from, n } = this.compare;
    return lanes.length > 0 || mode !== null || text === "own" || from > 0 || n > 0;
  }

  /** What the one button does next. */
  get act(): Act {
    const { live, player } = this;
    if (live !== null) return live.done ? "again" : live.running ? "pause" : "on";
    const withheld = this.withheld.length > 0;
    if (player?.playing === true && !withheld) return "pause";
    const sinks = withheld || this.name === "take-sinks-away";
    if (player === null || player.at <= (this.tape?.prompt ?? 0) || withheld) return sinks ? "sinks" : "start";
    if (!this.recordedOnly && this.mayRun) return "live";
    return player.atEnd ? "again" : "on";
  }

  // What is shown.

  /** Shows what the address asks for. */
  async open(): Promise<void> {
    const asked = ++this.asked;
    this.end();
    this.player = this.tape = this.seen = this.notice = null;
    this.state = { ...emptyRun(), roll: this.compare.roll };
    this.host.wake();
    try {
      const tape = await this.fetched();
      if (asked !== this.asked) return;
      this.load(tape);
    } catch (caught) {
      if (asked !== this.asked) return;
      this.notice = caught instanceof Error ? caught.message : String(caught);
      if (this.isOwn) this.lay();
      this.host.wake();
    }
  }

  private async fetched(): Promise<RecordedRun> {
    const { run } = this.compare;
    const name = run ?? `${this.name}.json`;
    const url = run === null ? new URL(`${RUNS}${name}`, document.baseURI) : new URL(run, document.baseURI);
    let answer: Awaited<ReturnType<typeof fetch>>;
    try {
      answer = await fetch(url);
    } catch {
      throw new Error(say.noRun(name));
    }
    if (!answer.ok) throw new Error(say.noRun(name));
    return readRun(await answer.text(), name);
  }

  /** Reads which runs there are, for the numbers beside the paper's. */
  async readIndex(): Promise<RecordedIndex | null> {
    if (this.index !== null) return this.index;
    try {
      const answer = await fetch(new URL(`${RUNS}index.json`, document.baseURI));
      const index = (await answer.json()) as RecordedIndex;
      if (answer.ok && index.format === "sinkstream-runs") this.index = index;
    } catch {
      // Then there are no numbers of ours to show.
    }
    this.host.wake();
    return this.index;
  }

  /** A file that somebody dropped or chose. */
  openFile(text: string, name: string): void {
    const tape = readRun(text, name);
    this.asked += 1;
    this.end();
    this.settings.compare = { ...defaults(0).compare, x: null, run: null };
    this.notice = this.seen = null;
    this.load(tape, true);
  }

  /** `whole`: all lanes at once. */
  private load(tape: RecordedRun, whole = false): void {
    this.tape = tape;
    if (this.isOwn) {
      this.player = null;
      return this.lay();
    }
    const lanes = this.most;
    const alone = !whole && this.compare.x === null && this.compare.run === null && tape.mode === "free";
    const kept = (i: number): boolean => {
      const policy = tape.lanes[i]?.settings.policy;
      // The first visit begins with the lane that goes on; one that recomputes comes when it is asked for.
      return alone ? policy === "sinks" : policy !== "recompute";
    };
    const some = lanes.filter(kept);
    // The question is there at once; what lanes write follows.
    this.show(some.length > 0 ? some : lanes, tape.prompt);
    const { t, play } = this.compare;
    if (t !== null) {
      this.seek(t + 1);
      this.change({ kind: "cursor", at: t });
    } else if (!play) this.host.wake();
    else if (this.host.moves()) this.player?.play();
    else this.seek(Number.POSITIVE_INFINITY);
    this.host.wake();
  }

  /** Plays these lanes of the recording, from where `at` steps were played. */
  private show(lanes: number[], at: number): void {
    const { tape } = this;
    if (tape === null) return;
    this.shown = lanes;
    this.seen = null;
    const left = firstLeft(tape);
    const rest = left === null ? [] : [[left + (tape.mode === "forced" ? 2 : 1), REST[tape.mode]] as const];
    this.player = new Player(new Tape(tape, lanes), PACES[this.pace], new Map(tape.every > 1 ? [] : rest));
    this.player.change({ kind: "roll", tokens: this.compare.roll });
    this.player.seek(at);
  }

  /** Lays out the lanes that were asked for, which only the model can fill. */
  private lay(): void {
    const lanes = this.lanes();
    if (lanes.length === 0) return;
    this.shown = [];
    this.player = null;
    this.state = reduceRun({ ...emptyRun(), roll: this.compare.roll }, { kind: "begin", run: this.beginning(null), lanes });
    if (!this.host.ready()) this.notice = say.lanesNeedModel;
    this.host.wake();
  }

  // What the person does.

  /** The one button. */
  press(): void {
    const { act, live } = this;
    if (live !== null && !live.done) return act === "pause" ? this.pause() : this.goOn();
    if (act === "pause") return this.pause();
    if (!this.recordedOnly) {
      if (this.mayRun) return void this.start();
      if (this.host.loaded() && act !== "on") return this.host.hint(say.modelBusy);
    }
    if (this.player === null) return this.host.hint(this.notice ?? say.lanesNeedModel);
    const { withheld } = this;
    if (withheld.length > 0) return this.reveal(withheld);
    this.player.play();
    this.host.wake();
  }

  /** Brings the lanes that were hidden, a little before the first word leaves. */
  private reveal(more: number[]): void {
    const { tape, player } = this;
    if (tape === null || player === null) return;
    const left = firstLeft(tape) ?? player.at;
    this.show([...this.shown, ...more].sort((a, b) => a - b), Math.max(0, Math.min(player.at, left - RUN_UP)));
    if (this.host.moves()) this.player?.play();
    else this.seek(Number.POSITIVE_INFINITY);
    this.host.wake();
  }

  /** Plays or pauses the recording, or pauses the lanes. */
  toggle(): void {
    const { live, player } = this;
    if (live !== null) return live.done ? undefined : live.running ? this.pause() : this.goOn();
    if (player?.playing === true) return this.pause();
    player?.play();
    this.host.wake();
  }

  pause(): void {
    this.player?.pause();
    if (this.live !== null) this.live.running = false;
    this.host.wake();
  }

  /** Goes to where so many steps of the recording were played. */
  seek(steps: number): void {
    this.playing?.pause();
    this.playing?.seek(steps);
    this.update();
    this.host.wake();
  }

  setPace(pace: Pace): void {
    this.pace = pace;
    if (this.player !== null) this.player.speed = PACES[pace];
  }

  /** Changes what is looked at, not what happened. */
  change(step: Extract<RunStep, { kind: "cursor" | "roll" | "probs" | "mark" }>): void {
    if (step.kind === "roll") this.compare.roll = step.tokens;
    if (this.playing !== null) this.playing.change(step);
    else this.state = reduceRun(this.state, step);
    this.host.wake();
  }

  /** The text that the lanes shall read, or the question that they shall answer. */
  useText(text: string, mode: "forced" | "free"): void {
    this.own = text;
    Object.assign(this.compare, { text: "own", mode, from: 0, n: 0, t: null });
    this.host.moved();
    if (this.mayRun) return void this.start();
    this.lay();
    this.host.hint(say.textNeedsModel);
  }

  /** Beside the lane another one that reads its last tokens again at every step. */
  readAgain(lane: number): void {
    const { settings } = this.run.lanes[lane] ?? {};
    if (settings === undefined) return;
    const waits = this.hidden.find((i) => this.tape?.lanes[i]?.settings.policy === "recompute");
    if (this.live === null && waits !== undefined && this.player !== null) {
      const { at, playing } = this.player;
      this.show([...this.shown, waits].sort((a, b) => a - b), at);
      if (playing) this.player.play();
      return this.host.wake();
    }
    // What is shown stays until there is something else to show.
    if (!this.mayRun) return this.host.hint(say.againNeedsModel);
    const again: LaneSettings = { policy: "recompute", sinks: 0, recent: settings.recent, kv: "f16" };
    const others = this.run.lanes.map((l) => l.settings).filter(({ policy }) => policy !== "recompute");
    // Where four are there already, it takes the last one's place.
    this.compare.lanes = [...others.slice(0, MOST_LANES - 1), again];
    this.host.moved();
    void this.start();
  }

  /** A frame at `now` milliseconds; true where another one is needed. */
  tick(now: number): boolean {
    const { playing } = this;
    if (playing === null || !playing.busy) return false;
    if (playing.tick(now)) this.update();
    return playing.busy;
  }

  private update(): void {
    const { run } = this;
    const i = Math.min(...run.lanes.map(({ first_left }) => first_left ?? Number.POSITIVE_INFINITY)) + 1;
    if (run.every > 1 || !Number.isFinite(i) || run.at <= i) {
      this.seen = null;
      return;
    }
    if (this.seen?.i === i && this.seen.sure.every((p) => p !== null)) return;
    const text = run.lanes.flatMap(({ tokens }) => tokens.find((token) => token.i === i)?.text ?? [])[0];
    const sure = run.lanes.map(({ losses, at }) => (at > i ? Math.exp(-(losses[i] ?? Number.NaN)) : Number.NaN));
    this.seen = { i, text: text ?? this.seen?.text ?? "", sure: sure.map((p) => (Number.isNaN(p) ? null : p)) };
  }

  // Lanes that run live.

  private lanes(): LaneSettings[] {
    const { lanes } = this.compare;
    if (lanes.length > 0) return lanes.slice(0, MOST_LANES);
    return this.most.flatMap((i) => {
      const settings = this.tape?.lanes[i]?.settings;
      return settings === undefined || settings.policy === "recompute" ? [] : [settings];
    });
  }

  private source(): CompareSource {
    const { compare, tape } = this;
    const mode = compare.mode ?? tape?.mode ?? "forced";
    const own = compare.text === "own" ? this.own : null;
    const { from } = compare;
    if (mode === "forced") {
      const text = own ?? (tape?.mode === "forced" ? textOf(tape) : "");
      return { mode, text, from, n: compare.n };
    }
    const prompt = own ?? (tape?.mode === "free" ? questionOf(tape) : (say.prompts[0] ?? ""));
    const { wanted, named } = this.host.sampler();
    const sampler = { ...(tape?.sampler ?? wanted), ...named };
    return { mode, prompt, sampler, max_tokens: compare.n > 0 ? compare.n : FREE_TOKENS };
  }

  private beginning(info: CompareInfo | null): Beginning {
    const source = this.waiting?.source ?? this.source();
    const { model } = this.host.about() ?? {};
    const free = source.mode === "free";
    return {
      title: this.title(),
      origin: "live",
      mode: source.mode,
      made: null,
      model: model ?? this.tape?.model ?? null,
      count: info === null ? null : info.tokens + (free ? source.max_tokens : 0),
      prompt: free ? (info?.tokens ?? 0) : 0,
      every: 1,
    };
  }

  private title(): string {
    return this.compare.text === "own" ? say.ownText : (this.tape?.title ?? this.name);
  }

  /** Lanes run or are about to. */
  private get isOpen(): boolean {
    return this.waiting !== null || (this.live !== null && !this.live.done);
  }

  private get mayRun(): boolean {
    return this.isOpen || this.host.ready();
  }

  private async start(): Promise<void> {
    const [lanes, source] = [this.lanes(), this.source()];
    const text = source.mode === "forced" ? source.text : source.prompt;
    if (text.trim() === "") return this.host.hint(say.noText);
    if (lanes.length === 0) return this.host.hint(say.noLanes);
    this.player?.pause();
    this.notice = this.seen = null;
    if (this.isOpen) this.host.post({ kind: "compare_end" });
    this.live = null;
    const waiting = (this.waiting = { lanes, source, record: null as typeof Recorder | null });
    this.host.take();
    waiting.record = await import("./record.ts").then(({ Recorder }) => Recorder).catch(() => null);
    if (this.waiting === waiting) this.host.post({ kind: "compare", lanes, source });
  }

  private goOn(): void {
    const { live } = this;
    if (live === null || live.done) return;
    live.running = true;
    while (live.pulls < PULLS) this.pull(live);
    this.host.wake();
  }

  private pull(live: Live): void {
    live.pulls += 1;
    this.host.post({ kind: "compare_pull", attention: this.state.asked });
  }

  receive(response: Extract<Response, { kind: "compared" | "compare_steps" }>): void {
    if (response.kind === "compared") {
      const { waiting } = this;
      if (waiting === null) return;
      const run = this.beginning(response.info);
      const { lanes, source, record } = waiting;
      this.state = reduceRun({ ...emptyRun(), roll: this.compare.roll }, { kind: "begin", run, lanes });
      const recorder = record === null ? null : new record(run, lanes);
      this.live = { running: true, done: false, pulls: 0, recorder, source, title: run.title ?? "" };
      this.waiting = null;
      return this.goOn();
    }
    const { live } = this;
    if (live === null || live.done) return;
    live.pulls -= 1;
    for (const step of response.steps) {
      this.state = reduceRun(this.state, { kind: "step", step, attention: response.attention });
      live.recorder?.step(step);
      live.done ||= step.done;
    }
    this.update();
    if (live.done) {
      live.running = false;
      this.host.giveBack();
    } else if (live.running) this.pull(live);
    this.host.wake();
  }

  /** The engine did not take the lanes, or is gone; what was read stays. */
  broke(): void {
    this.waiting = null;
    if (this.live !== null) Object.assign(this.live, { running: false, done: true, pulls: 0 });
    this.host.wake();
  }

  /** Ends lanes that run, and gives the model back to the conversation. */
  end(): void {
    const { isOpen } = this;
    this.waiting = null;
    this.live = null;
    if (!isOpen) return;
    this.host.post({ kind: "compare_end" });
    this.host.giveBack();
  }

  /** Stops them where they are, as `end`, but leaves what they read on the page. */
  leave(): void {
    this.player?.pause();
    if (!this.isOpen) return;
    this.broke();
    this.host.post({ kind: "compare_end" });
    this.host.giveBack();
  }

  /** The run as a file; null where there is none. */
  async file(): Promise<{ name: string; text: string } | null> {
    const { live, tape } = this;
    const about = this.host.about();
    if (live === null) return tape === null ? null : { name: fileName(tape.title), text: JSON.stringify(tape) };
    const { source, title, recorder } = live;
    if (about === null || recorder === null) return null;
    const forced = source.mode === "forced";
    const run = recorder.recorded({
      ...about,
      title,
      sampler: forced ? null : source.sampler,
      text: forced ? { name: title, sha256: await sha256(source.text) } : null,
      start: forced ? source.from : 0,
    });
    return run === null ? null : { name: fileName(title), text: JSON.stringify(run) };
  }
}

/** Token with which the first one left a cache of the recording. */
function firstLeft({ marks }: RecordedRun): number | null {
  return marks.find(({ kind }) => kind === "first_left")?.i ?? null;
}

/** The text that a forced recording read. */
export const textOf = ({ vocab, tokens }: RecordedRun): string => textsOf(vocab, tokens ?? []).join("");

/** What a free recording was asked. */
export const questionOf = ({ vocab, lanes, prompt }: RecordedRun): string =>
  say.question(textsOf(vocab, lanes[0]?.tokens?.slice(0, prompt) ?? []).join(""));

function fileName(title: string): string {
  const name = title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-|-$/g, "");
  return `sinkstream-${name.toLowerCase()}.json`;
}

async function sha256(text: string): Promise<string> {
  const bytes = new TextEncoder().encode(text);
  // Pages that came over an insecure connection cannot tell.
  if (crypto.subtle === undefined) return "";
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
