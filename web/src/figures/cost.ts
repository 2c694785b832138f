// What each lane's cache costs in prediction: beyond the reference lane's loss, and as a rolling mean.

import { EXACT, type RunState } from "../run.ts";
import { mean, type Series } from "../series.ts";
import * as say from "../strings.en.ts";
import type { Choices, Figure, Option, Stream, Table, Value } from "./figure.ts";
import { laneStyle, shortNames } from "./lanes.ts";
import { cursor, curve, endLabels, type Frame, LINE, laneLabels, marks, points, streamFrame, ticks, valueAt, within, x, xAxis, y, yAxis } from "./plot.ts";
import type { Box, Point, Shape } from "./shapes.ts";
import { isPacked } from "./slots.ts";

/** Lengths of the rolling mean that are offered. */
const ROLLS = [16, 64, 256];
/** The loss axis reaches at least so far, nats. */
const LEAST_LOSS = 6;
/** The cost axis reaches at least so far to both sides, nats. */
const LEAST_COST = 4;

export const cost: Figure = {
  id: "cost",
  hertz: 4,
  surface: "svg",
  title: (run, choices) => (isCost(run, choices) ? say.cost.title(evicts(run)) : run.mode === "forced" ? say.loss.title(run.roll) : say.loss.freeTitle),
  caption: (run, choices) => (isCost(run, choices) ? costCaption(run) : run.mode === "forced" ? say.loss.caption : say.loss.freeCaption),
  shapes,
  words,
  rows,
  options,
  keys: { kind: "stream", plot: (run, box, choices) => frame(run, box, choices), reading } satisfies Stream,
};

/** Lanes that wrote different texts cannot be compared token by token. */
const isCost = (run: RunState, { view }: Choices): boolean => view === "cost" && canCost(run);

/** Whether the first word will leave a lane, which is what the others are then looked at for. */
const evicts = ({ lanes }: RunState): boolean => lanes.some(({ settings }) => settings.policy === "window");

function costCaption(run: RunState): string {
  const lane = run.reference === null ? undefined : run.lanes[run.reference];
  const keepsAll = lane === undefined || (lane.settings.policy === "dense" && !isPacked(lane));
  return say.cost.caption(keepsAll ? null : lane.name, evicts(run));
}

const canCost = (run: RunState): boolean => run.mode === "forced" && run.reference !== null && run.lanes.length > 1;

const seriesOf = (run: RunState, choices: Choices): Series[] => run.lanes.map((lane) => (isCost(run, choices) ? lane.cost : lane.rolling));

function frame(run: RunState, box: Box, choices: Choices): Frame {
  const room = streamFrame(run, box, choices, 2 * LINE, box.height - LINE - 8);
  const ends = seriesOf(run, choices).flatMap((series) => within(room, series).map((bin) => mean(bin)));
  if (isCost(run, choices)) {
    const [least, most] = [Math.min(0, ...ends), Math.max(LEAST_COST, ...ends)];
    return { ...room, least: least < 0 ? least - (most - least) * 0.08 : -most * 0.08, most: most * 1.08 };
  }
  return { ...room, least: 0, most: Math.max(LEAST_LOSS, quantile(ends, 0.99)) };
}

function quantile(values: number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const plot = frame(run, box, choices);
  const wanted = Math.max(2, Math.floor((plot.bottom - plot.top) / 36));
  const drawn = seriesOf(run, choices).map((series) => points(plot, within(plot, series)));
  const isReference = (lane: number): boolean => isCost(run, choices) && lane === run.reference;
  const zero = y(plot, 0);
  return [
    ...yAxis(plot, say.nats, ticks(plot.least, plot.most, wanted, false), say.axisNumber),
    ...xAxis(plot),
    ...(isCost(run, choices) ? [{ kind: "path" as const, points: [[plot.left, zero], [plot.right, zero]] as Point[], ink: "muted" as const, width: 1.5 }] : []),
    ...marks(plot, run, true),
    // The reference first, so that lanes which lie on it are seen.
    ...drawn.flatMap((through, lane) => (isReference(lane) ? curve(through, laneStyle(run, lane)) : [])),
    ...drawn.flatMap((through, lane) => (isReference(lane) ? [] : curve(through, laneStyle(run, lane)))),
    ...endLabels(plot, laneLabels(run, box, drawn.map((through) => through.at(-1)))),
    ...cursor(plot, run),
    ...dots(plot, run, choices),
  ];
}

/** Where the cursor cuts the curves. */
function dots(plot: Frame, run: RunState, choices: Choices): Shape[] {
  const { cursor: at } = run;
  if (at === null || at < plot.first || at > plot.last) return [];
  return seriesOf(run, choices).flatMap((series, lane): Shape[] => {
    const value = valueAt(series, at);
    if (value === null) return [];
    const here: Point = [x(plot, at), Math.max(plot.top, y(plot, value))];
    return [{ kind: "ring", at: here, radius: 4, ink: laneStyle(run, lane).ink, width: 2 }];
  });
}

function words(run: RunState, choices: Choices): string {
  const { lanes, reference, at } = run;
  if (at < 2 || lanes.length === 0) return say.noToken;
  const names = shortNames(run);
  const left = lanes.flatMap(({ first_left }, lane) => (first_left === null ? [] : [{ name: names[lane] ?? "", at: first_left }]));
  const sentences: string[] = [];
  if (isCost(run, choices)) {
    const behind = lanes.flatMap(({ cost }, lane) => {
      const bin = cost.last;
      return lane === reference || bin === undefined ? [] : [{ name: names[lane] ?? "", nats: mean(bin) }];
    });
    sentences.push(say.cost.words(at, names[reference ?? 0] ?? "", behind));
  } else {
    const now = lanes.flatMap(({ rolling }, lane) => {
      const bin = rolling.last;
      return bin === undefined ? [] : [{ name: names[lane] ?? "", nats: mean(bin) }];
    });
    sentences.push(say.loss.words(at, run.roll, now, run.mode === "forced"));
  }
  sentences.push(say.leftSentence(left));
  return sentences.join(" ");
}

function reading(run: RunState, at: number, choices: Choices): string {
  const names = shortNames(run);
  const token = textAt(run, at);
  const nats = seriesOf(run, choices).flatMap((series, lane) => {
    const [own, value] = [lossAt(run, lane, at), valueAt(series, at)];
    return own === null && value === null ? [] : [{ name: names[lane] ?? "", own, value }];
  });
  return say.cost.reading(at, token, nats, isCost(run, choices), run.roll);
}

/** Text of a token that all lanes read; null where each has its own, or it is not known. */
function textAt(run: RunState, at: number): string | null {
  const ids = run.lanes.map((lane) => lane.ids[at] ?? -1).filter((id) => id >= 0);
  return ids.length > 0 && ids.every((id) => id === ids[0]) ? (run.vocab.get(ids[0] ?? -1) ?? null) : null;
}

function lossAt({ lanes }: RunState, lane: number, at: number): number | null {
  const loss = lanes[lane]?.losses[at] ?? Number.NaN;
  return Number.isNaN(loss) ? null : loss;
}

/**
 * Row i is about the prediction after token i: the next token, what each lane lost on it, and what had left by then. So
 * i and the losses are those of `sinkstream perplexity --per-token`.
 */
function rows(run: RunState): Table {
  const { lanes, mode } = run;
  const forced = mode === "forced";
  const slug = (name: string): string => name.replaceAll(/\s+/g, "_");
  const head = [
    "i",
    ...(forced || lanes.length < 2 ? ["token_id", "token"] : lanes.flatMap(({ name }) => [`token_id_${slug(name)}`, `token_${slug(name)}`])),
    ...lanes.map(({ name }) => `nll_${slug(name)}`),
  ];
  const evicting = lanes.filter(({ first_left }) => first_left !== null);
  const single = evicting.length < 2;
  head.push(
    ...(single
      ? ["evicted_from", "evicted_to"]
      : evicting.flatMap(({ name }) => [`evicted_from_${slug(name)}`, `evicted_to_${slug(name)}`])),
  );
  const exact = run.every > 1 ? 0 : Math.min(EXACT, run.at);
  const found: Value[][] = [];
  for (let i = 0; i + 1 < exact; i += 1) {
    const ids = (forced || lanes.length < 2 ? lanes.slice(0, 1) : lanes).map((_, lane) => idAt(run, i + 1, forced ? null : lane));
    found.push([
      i,
      ...ids.flatMap((id): Value[] => [id, id === null ? null : (run.vocab.get(id) ?? null)]),
      ...lanes.map((_, lane) => precise(lossAt(run, lane, i + 1))),
      ...(single && evicting.length === 0 ? [null, null] : evicting.flatMap((lane) => evictedBy(lane, i))),
    ]);
  }
  if (run.at <= exact) return { head, rows: found };
  // What is not known one by one is known as means of neighbours; they stand at the first of them.
  const later = new Map<number, Value[]>();
  for (const { name, loss } of lanes) {
    for (const bin of loss.bins) {
      if (bin.first < exact) continue;
      // A recorded mean arrives with its last token.
      const i = Math.floor((bin.first - 1) / run.every) * run.every;
      const row = later.get(i) ?? head.map((_, column): Value => (column === 0 ? i : null));
      row[head.indexOf(`nll_${slug(name)}`)] = precise(mean(bin));
      later.set(i, row);
    }
  }
  found.push(...[...later.values()].sort((a, b) => Number(a[0]) - Number(b[0])));
  const width = Math.max(run.every, ...lanes.map(({ loss }) => loss.width));
  return { head, rows: found, note: say.binned(Math.max(0, exact - 1), width) };
}

function idAt({ lanes }: RunState, at: number, lane: number | null): number | null {
  const ids = lane === null ? lanes.map((one) => one.ids[at] ?? -1) : [lanes[lane]?.ids[at] ?? -1];
  return ids.find((id) => id >= 0) ?? null;
}

/** Seven digits, which is what a single-precision number has. */
const precise = (value: number | null): number | null => (value === null ? null : Number(value.toPrecision(7)));

/** What left when a lane read token `i`; only turns leave by more than one. */
function evictedBy({ settings, first_left }: RunState["lanes"][number], i: number): [Value, Value] {
  if (first_left === null || i < first_left || settings.turns === true) return [null, null];
  const gone = i - first_left;
  const first = settings.policy === "sinks" && (settings.sink_text ?? "") === "" ? settings.sinks : 0;
  return [first + gone, first + gone + 1];
}

function options(run: RunState, choices: Choices): Option[][] {
  const groups: Option[][] = [];
  if (canCost(run)) {
    groups.push([
      { text: say.cost.option, pressed: isCost(run, choices), set: { view: "cost" } },
      { text: say.loss.option, pressed: !isCost(run, choices), set: { view: "loss" } },
    ]);
  }
  if (!isCost(run, choices)) {
    groups.push(ROLLS.map((roll) => ({ text: say.count(roll), name: say.loss.roll(roll), pressed: run.roll === roll, set: { roll } })));
  }
  return groups;
}
