// How long a token takes in each lane, and whether that grows with the stream.

import type { RunState } from "../run.ts";
import { mean, type Series } from "../series.ts";
import * as say from "../strings.en.ts";
import type { Choices, Figure, Stream, Table } from "./figure.ts";
import { laneStyle, shortNames } from "./lanes.ts";
import { cursor, curve, endLabels, type Frame, LINE, laneLabels, marks, streamFrame, ticks, valueAt, within, x, xAxis, y, yAxis } from "./plot.ts";
import type { Box, Point, Shape } from "./shapes.ts";

/** Columns that the stream is cut into; each has a median and a band. */
const COLUMNS = 64;
/** Values that "now" and "at the start" are the median of. */
const FEW = 16;
/** The axis reaches at least so far, milliseconds. */
const LEAST = 1;

export const time: Figure = {
  id: "time",
  hertz: 2,
  surface: "svg",
  title: () => say.time.title,
  caption: (run) => say.time.caption(run.lanes.some(({ settings }) => settings.policy === "recompute")),
  shapes,
  words,
  rows,
  keys: { kind: "stream", plot: frame, reading } satisfies Stream,
};

/** The middle of some neighbouring tokens' times, and what nine of ten lie between. */
interface Column {
  at: number;
  low: number;
  median: number;
  high: number;
}

function columns(plot: Frame, series: Series): Column[] {
  const width = (plot.last - plot.first) / COLUMNS;
  const groups = new Map<number, number[]>();
  for (const bin of within(plot, series)) {
    const column = Math.floor((bin.first - plot.first) / width);
    const group = groups.get(column) ?? [];
    group.push(mean(bin));
    groups.set(column, group);
  }
  return [...groups].map(([column, values]) => {
    values.sort((a, b) => a - b);
    return { at: plot.first + (column + 0.5) * width, low: part(values, 0.1), median: part(values, 0.5), high: part(values, 0.9) };
  });
}

/** The value below which a part of the sorted values lies. */
const part = (sorted: readonly number[], p: number): number => sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))] ?? Number.NaN;

function median(values: number[]): number | null {
  return values.length === 0 ? null : part(values.toSorted((a, b) => a - b), 0.5);
}

const room = (run: RunState, box: Box, choices: Choices): Frame => streamFrame(run, box, choices, 2 * LINE, box.height - LINE - 8);

function frame(run: RunState, box: Box, choices: Choices): Frame {
  const plot = room(run, box, choices);
  const tops = run.lanes.flatMap(({ ms }) => columns(plot, ms).map(({ high }) => high));
  return { ...plot, most: Math.max(LEAST, ...tops) * 1.1 };
}

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const plot = frame(run, box, choices);
  const found = run.lanes.map(({ ms }) => columns(plot, ms));
  const wanted = Math.max(2, Math.floor((plot.bottom - plot.top) / 40));
  const at = (column: Column, value: number): Point => [Math.min(plot.right, x(plot, column.at)), y(plot, value)];
  return [
    ...yAxis(plot, say.time.axis, ticks(0, plot.most, wanted, false), say.axisNumber),
    ...xAxis(plot),
    ...(found.some((line) => line.length > 0) || run.at === 0 ? [] : [untimed(plot)]),
    ...marks(plot, run, false),
    ...found.flatMap((line, lane): Shape[] => {
      if (line.length < 2) return [];
      const edge = [...line.map((c) => at(c, c.high)), ...line.toReversed().map((c) => at(c, c.low))];
      return [{ kind: "area", points: edge, fill: { ink: laneStyle(run, lane).ink, style: "faint" } }];
    }),
    ...found.flatMap((line, lane) => {
      const through = line.map((c) => at(c, c.median));
      const [only] = through;
      // A single point would be no line.
      return curve(through.length === 1 && only !== undefined ? [only, [only[0] + 2, only[1]]] : through, laneStyle(run, lane));
    }),
    ...endLabels(plot, laneLabels(run, box, found.map((line) => {
      const last = line.at(-1);
      return last === undefined ? undefined : at(last, last.median);
    }))),
    ...cursor(plot, run),
  ];
}

const untimed = ({ left, right, top, bottom }: Frame): Shape => ({
  kind: "text",
  at: [(left + right) / 2, (top + bottom) / 2],
  text: say.time.empty,
  anchor: "middle",
  ink: "muted",
});

const times = ({ bins }: Series): number[] => bins.map((bin) => mean(bin));

/** Medians of the last and of the first few tokens of each lane; null where there were none. */
function ends(run: RunState): { name: string; now: number | null; start: number | null }[] {
  const names = shortNames(run);
  return run.lanes.map(({ ms }, lane) => ({
    name: names[lane] ?? "",
    now: median(times(ms).slice(-FEW)),
    start: median(times(ms).slice(0, FEW)),
  }));
}

function words(run: RunState): string {
  const known = ends(run).flatMap(({ name, now, start }) => (now === null || start === null ? [] : [{ name, now, start }]));
  return known.length === 0 ? say.time.empty : say.time.words(known);
}

function reading(run: RunState, at: number): string {
  const names = shortNames(run);
  const known = run.lanes.flatMap(({ ms }, lane) => {
    const value = valueAt(ms, at);
    return value === null ? [] : [{ name: names[lane] ?? "", ms: value }];
  });
  return say.time.reading(at, known);
}

function rows(run: RunState): Table {
  return {
    head: ["lane", "from", "to", "tokens", "ms_mean", "ms_least", "ms_most"],
    rows: run.lanes.flatMap(({ name, ms }) =>
      ms.bins.map((bin) => [name, bin.first, bin.last, bin.count, round(mean(bin)), round(bin.min), round(bin.max)]),
    ),
  };
}

const round = (ms: number): number => Math.round(ms * 1000) / 1000;
