// A live run written down as the program writes its own, so that `sinkstream replay` and the page both read it.

import type { CacheParts, CompareStep, LaneSettings, LaneStep } from "../../crates/wasm/types";
import type { Ramp, RecordedLane, RecordedMark, RecordedRun, Sampled } from "../../crates/wasm/run";
import { type Beginning, EXACT, room, written } from "./run.ts";
import { laneName } from "./strings.en.ts";

/** Tokens between two rows of attention by head. */
const HEADS_EVERY = 16;

/** What a recording says about itself. */
export type About = Pick<RecordedRun, "title" | "sampler" | "text" | "start"> & {
  made: RecordedRun["made"];
  model: RecordedRun["model"];
};

/** Takes down the steps of a run, up to as many tokens as are kept exactly. */
export class Recorder {
  private readonly lanes: Column[];
  private readonly marks: RecordedMark[] = [];
  private readonly vocab: Record<string, string> = {};

  constructor(
    private readonly run: Beginning,
    lanes: readonly LaneSettings[],
  ) {
    const heads: [number, number] = [run.model?.layers ?? 0, run.model?.n_heads ?? 0];
    this.lanes = lanes.map((settings) => new Column(settings, heads));
  }

  step({ lanes }: CompareStep): void {
    lanes.forEach((read, lane) => {
      const column = this.lanes[lane];
      if (read === null || column === undefined || read.i >= EXACT) return;
      // Text that came with several tokens is not the last one's.
      if (read.i === column.length) this.vocab[read.id] ??= read.text;
      const left = column.take(read);
      if (!left) return;
      this.marks.push({ i: read.i, lane, kind: "first_left" });
      if (read.best !== null) this.vocab[read.best.id] ??= read.best.text;
    });
  }

  /** The recording so far; null where no lane read every token. */
  recorded(about: About): RecordedRun | null {
    const { mode, prompt = 0 } = this.run;
    const whole = this.lanes.find((column) => column.whole)?.ids.flatMap((id) => id ?? []);
    if (whole === undefined || mode === "chat") return null;
    const forced = mode === "forced";
    const count = Math.max(...this.lanes.map(({ length }) => length));
    const trained = about.model.trained_length;
    const past: RecordedMark[] = count > trained ? [{ i: trained, lane: null, kind: "trained" }] : [];
    return {
      format: "sinkstream-run",
      version: 1,
      ...about,
      mode,
      count,
      prompt,
      every: 1,
      vocab: this.vocab,
      tokens: forced ? whole : null,
      lanes: this.lanes.map((column) => column.recorded(forced ? count : null, whole.slice(0, prompt))),
      marks: [...this.marks, ...past].sort((a, b) => a.i - b.i),
    };
  }
}

/** One lane. */
class Column {
  private readonly read = new Values(0);
  /** It read one token after the other. */
  whole = true;
  private readonly nll = new Values(4);
  private readonly ms = new Values(2);
  private readonly masses = { sinks: new Values(3), first: new Values(3) };
  private readonly rows: Uint8Array[] = [];
  private readonly held = new RampWriter();
  private readonly capacity = new RampWriter();
  private readonly tail = new RampWriter();
  private readonly oldest = new RampWriter();
  private readonly bytes: [number, CacheParts][] = [];
  private readonly best: [number, number, number][] = [];
  private next: number;
  private left = false;
  private ended = false;

  constructor(
    private readonly settings: LaneSettings,
    private readonly shape: [number, number],
  ) {
    this.next = Math.max(0, settings.sinks - [...(settings.sink_text ?? "")].length);
  }

  get length(): number {
    return this.read.length;
  }

  /** Null where tokens were skipped. */
  get ids(): (number | null)[] {
    return this.read.values;
  }

  /** True where the first token left with it. */
  take(read: LaneStep): boolean {
    const { i, nll, ms, evicted, sink_mass, first_mass } = read;
    if (i !== this.length) this.whole = false;
    this.read.put(i, read.id);
    if (i > 0) this.nll.put(i - 1, nll);
    this.ms.put(i, ms);
    this.masses.sinks.put(i, average(sink_mass));
    this.masses.first.put(i, average(first_mass));
    const mass = this.settings.sinks > 0 ? sink_mass : first_mass;
    if ((i + 1) % HEADS_EVERY === 0) this.rows[(i + 1) / HEADS_EVERY - 1] = Uint8Array.from(mass, (v) => Math.round(v * 255));
    this.next = evicted?.[1] ?? this.next;
    this.held.put(i, read.held);
    this.capacity.put(i, read.capacity);
    this.tail.put(i, read.tail);
    this.oldest.put(i, this.next);
    if (JSON.stringify(this.bytes.at(-1)?.[1]) !== JSON.stringify(read.bytes))
      this.bytes.push([this.bytes.length === 0 ? 0 : i, read.bytes]);
    // What it held likeliest is worth a line where the first word leaves.
    const first = evicted !== null && !this.left;
    this.left ||= first;
    if (first && read.best !== null) this.best.push([i, read.best.id, rounded(read.best.p, 4)]);
    this.ended = read.ended;
    return first;
  }

  recorded(count: number | null, prompt: readonly number[]): RecordedLane {
    const length = count ?? this.length;
    const [ids, nll] = [this.ids, this.nll.values];
    const tokens = Array.from({ length }, (_, i) => ids[i] ?? prompt[i] ?? 0);
    const known = nll.filter((loss): loss is number => loss !== null);
    const mean = known.length === 0 ? null : known.reduce((sum, loss) => sum + loss, 0) / known.length;
    const size = this.shape[0] * this.shape[1];
    const complete = size > 0 && this.rows.length > 0 && [...this.rows].every((row) => row?.length === size);
    return {
      name: laneName(this.settings),
      settings: this.settings,
      keys: null,
      tokens: count === null ? tokens : null,
      ended: count === null && this.ended,
      nll: Array.from({ length: length - 1 }, (_, i) => nll[i] ?? null),
      ms: this.ms.sampled,
      held: this.held.entries,
      capacity: this.capacity.entries,
      tail: this.tail.entries,
      oldest: this.oldest.entries,
      bytes: this.bytes,
      sink_mass: this.masses.sinks.sampled,
      first_mass: this.masses.first.sampled,
      heads: complete ? { every: HEADS_EVERY, shape: this.shape, u8: toBase64(this.rows) } : null,
      best: this.best,
      summary: [
        {
          from: 0,
          to: length - 1,
          mean_nll: mean === null ? null : rounded(mean, 4),
          perplexity: mean === null ? null : rounded(Math.exp(mean), 4),
        },
      ],
    };
  }
}

/** Writes a number of every token as runs of even steps. */
class RampWriter {
  readonly entries: Ramp = [];
  private last = -1;

  put(i: number, value: number): void {
    const entry = this.entries.at(-1);
    if (entry === undefined) this.entries.push([0, value, 0]);
    else if (entry[1] + entry[2] * (i - entry[0]) !== value) {
      // The second value of a run says how it grows.
      if (this.last === entry[0] && i === entry[0] + 1) entry[2] = value - entry[1];
      else this.entries.push([i, value, 0]);
    }
    this.last = i;
  }
}

/** A number of every token, in a typed array: a run has thousands of them, and a page may stay open for hours. */
class Values {
  length = 0;
  private kept = new Float32Array();

  constructor(private readonly decimals: number) {}

  /** What lies before `i` and was never put there is not known. */
  put(i: number, value: number | null): void {
    this.kept = written(this.kept, i, value ?? Number.NaN, () => new Float32Array(room(i)).fill(Number.NaN));
    this.length = Math.max(this.length, i + 1);
  }

  /** Null where one is not known. */
  get values(): (number | null)[] {
    return Array.from(this.kept.subarray(0, this.length), (value) => (Number.isNaN(value) ? null : rounded(value, this.decimals)));
  }

  /** Null where none is known. */
  get sampled(): Sampled | null {
    const { values } = this;
    return values.every((value) => value === null) ? null : { every: 1, values };
  }
}

function average(mass: Float32Array): number | null {
  if (mass.length === 0) return null;
  return mass.reduce((sum, v) => sum + v, 0) / mass.length;
}

function rounded(value: number, decimals: number): number {
  return Math.round(value * 10 ** decimals) / 10 ** decimals;
}

function toBase64(rows: readonly Uint8Array[]): string {
  let bytes = "";
  for (const row of rows) for (const byte of row) bytes += String.fromCharCode(byte);
  return btoa(bytes);
}
