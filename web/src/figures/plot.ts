// Axes, curves, marks and names of lines, which the figures over the stream share.

import type { Mark, RunState } from "../run.ts";
import { add, type Bin, mean, type Series } from "../series.ts";
import * as say from "../strings.en.ts";
import type { Choices } from "./figure.ts";
import { compactNames, type LaneStyle, laneStyle } from "./lanes.ts";
import { type Box, type Ink, line, type Point, type Shape } from "./shapes.ts";

/** A rectangle to plot in, and the values at its edges. */
export interface Frame {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** Stream positions. */
  first: number;
  last: number;
  least: number;
  most: number;
  /** Powers of ten are evenly apart; `least` is then above 0. */
  log: boolean;
}

/** Height of a line of axis text, pixels. */
export const LINE = 15;
/** Room left of a plot for its numbers, pixels. */
export const GUTTER = 50;
/** A character of 12 px text, about, pixels. */
const LETTER = 6.7;
/** Boxes from this width on name lines with their whole names. */
const WIDE = 460;
/** Points of a curve, at most: more cannot be told apart, and take time. */
const MOST_POINTS = 400;

export const textWidth = (text: string): number => text.length * LETTER;

export const x = (frame: Frame, at: number): number =>
  frame.left + ((at - frame.first) / (frame.last - frame.first)) * (frame.right - frame.left);

export function y(frame: Frame, value: number): number {
  const { least, most, top, bottom, log } = frame;
  const part = log ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
  return bottom - part * (bottom - top);
}

/** Part of a drawing that the names at the ends of lines may take. */
const NAMES = 0.3;

/** The names at the ends of lines: whole ones where there is room, else what tells lanes apart. */
export function endNames(run: RunState, box: Box): string[] {
  const room = Math.floor((box.width * NAMES - 12) / LETTER);
  const wide = run.lanes.map(({ name }) => name);
  if (box.width >= WIDE && wide.every((name) => name.length <= room)) return wide;
  return compactNames(run).map((name) => (name.length <= room ? name : `${name.slice(0, room - 1)}…`));
}

/** The part of the stream that curves show, and where: the same in all figures of one width. */
export function streamFrame(run: RunState, box: Box, choices: Choices, top: number, bottom: number): Frame {
  const longest = Math.max(8, ...endNames(run, box).map((name) => name.length));
  const names = Math.min(box.width * NAMES, longest * LETTER + 12);
  const [first, last] = choices.span === null ? [0, streamEnd(run)] : lastOf(run, choices.span);
  return { left: GUTTER, right: box.width - names, top, bottom, first, last, least: 0, most: 1, log: false };
}

/** So many tokens, up to the end in steps; all where there are fewer. */
function lastOf(run: RunState, span: number): [number, number] {
  const end = Math.ceil(run.at / 64) * 64;
  return end <= span ? [0, span] : [end - span, end];
}

/** The right end of the stream axis. It moves in steps, so that the axis is not drawn anew with every token. */
export function streamEnd({ count, at }: RunState): number {
  if (count !== null && count >= at && count > 0) return count;
  const step = Math.max(64, 2 ** (Math.floor(Math.log2(Math.max(1, at))) - 2));
  return Math.max(1, Math.ceil(at / step)) * step;
}

/** Round numbers from `least` to `most`, 1, 2 or 5 times a power of ten apart, about `wanted` of them. */
export function ticks(least: number, most: number, wanted: number, whole: boolean): number[] {
  const rough = (most - least) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((f) => f * power >= rough * (1 - 1e-9)) ?? 10;
  const step = whole ? Math.max(1, factor * power) : factor * power;
  const found: number[] = [];
  for (let i = Math.ceil(least / step - 1e-9); i * step <= most + step * 1e-9; i += 1) found.push(i * step || 0);
  return found;
}

/** Powers of ten, and where they are few, twice and five times them. */
export function logTicks(least: number, most: number): number[] {
  const factors = most / least > 100 ? [1] : [1, 2, 5];
  const found: number[] = [];
  for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) {
    for (const f of factors) if (f * power >= least * (1 - 1e-9) && f * power <= most * (1 + 1e-9)) found.push(f * power);
  }
  return found;
}

/** Grid lines and numbers at `at` on the y axis, with the axis' name above. */
export function yAxis(frame: Frame, name: string, at: readonly number[], label: (value: number) => string): Shape[] {
  const { left, right, top } = frame;
  return [
    { kind: "text", at: [2, top - 9], text: name, anchor: "start", ink: "muted" },
    ...at.flatMap((value): Shape[] => [
      line([left, y(frame, value)], [right, y(frame, value)], "grid"),
      { kind: "text", at: [left - 6, y(frame, value) + 4], text: label(value), anchor: "end", ink: "muted" },
    ]),
  ];
}

/** Numbers below the frame; the axis' name stands right of them, where the names of lines are. */
export function xAxis(frame: Frame): Shape[] {
  const { left, right, bottom, first, last } = frame;
  const wanted = Math.max(2, Math.floor((right - left) / 90));
  return [
    line([left, bottom], [right, bottom], "muted"),
    ...ticks(first, last, wanted, true).map(
      (value): Shape => ({
        kind: "text",
        at: [x(frame, value), bottom + LINE],
        text: say.count(value),
        anchor: "middle",
        ink: "muted",
      }),
    ),
    { kind: "text", at: [right + 22, bottom + LINE], text: say.tokensAxis, anchor: "start", ink: "muted" },
  ];
}

/** The bins of a series within a frame, few enough to draw. */
export function within(frame: Frame, series: Series): Bin[] {
  const bins = series.bins.filter(({ first, last }) => last >= frame.first && first <= frame.last);
  const width = Math.ceil(bins.length / MOST_POINTS);
  if (width <= 1) return bins;
  const fewer: Bin[] = [];
  // The ends of a group are those of the stream, so that a point does not move when tokens come.
  for (const bin of bins) add(fewer, bin, series.width * width);
  return fewer;
}

/** The means of bins as points; what lies above the frame is cut along its top. */
export function points(frame: Frame, bins: readonly Bin[]): Point[] {
  return bins.map((bin): Point => [
    Math.max(frame.left, x(frame, (bin.first + bin.last) / 2)),
    Math.min(frame.bottom, Math.max(frame.top, y(frame, mean(bin)))),
  ]);
}

/** A curve in a lane's colour and dash. */
export function curve(through: Point[], { ink, dash }: Pick<LaneStyle, "ink" | "dash">): Shape[] {
  if (through.length === 0) return [];
  return [{ kind: "path", points: through, ink, width: 2.5, ...(dash === null ? {} : { dash }) }];
}

/** Corners of a series that only changes in steps. */
export function steps(through: readonly Point[]): Point[] {
  return through.flatMap((point, i): Point[] => {
    const [before, after] = [through[i - 1], through[i + 1]];
    if (before === undefined) return [point];
    if (before[1] !== point[1]) return [[point[0], before[1]], point];
    return after?.[1] === point[1] ? [] : [point];
  });
}

/** A line's name, to stand at its end. */
export interface EndLabel {
  text: string;
  /** Where the line ends. */
  at: Point;
  ink: Ink;
}

/** Names behind the lines, pushed apart where lines end close to each other; a thin line leads to each. */
export function endLabels(frame: Frame, labels: readonly EndLabel[]): Shape[] {
  const sorted = labels.map((label) => ({ ...label, to: label.at[1] })).sort((a, b) => a.to - b.to);
  // Down from the top, then up again from the bottom where they ran out of it.
  let free = frame.top - 4;
  for (const label of sorted) free = (label.to = Math.max(label.to, free)) + LINE;
  let room = frame.bottom - 5;
  for (const label of sorted.toReversed()) room = (label.to = Math.min(label.to, room)) - LINE;
  const right = Math.max(frame.left, ...sorted.map(({ at }) => at[0]));
  return sorted.flatMap(({ text, at, ink, to }): Shape[] => [
    { kind: "path", points: [[at[0] + 3, at[1]], [right + 8, to]], ink, width: 1 },
    { kind: "text", at: [right + 11, to + 4], text, anchor: "start", ink: "ink", halo: true },
  ]);
}

/** A place in the stream that all figures mark. */
interface Flag {
  i: number;
  text: string;
  /** What stands at its line: of a lane's state the sign alone, which the lane explains. */
  name: string;
  ink: Ink;
  /** It stands in every figure over the stream, and not only where marks are named. */
  everywhere: boolean;
}

/** What is marked, in the order of the stream; marks of lanes that have theirs at the same place are one. */
export function flags(run: RunState): Flag[] {
  const found = new Map<string, Flag>();
  const put = (i: number, text: string, ink: Ink, everywhere: boolean, name = text): void =>
    void found.set(`${i} ${text}`, { i, text, name, ink, everywhere });
  for (const { first_left } of run.lanes) if (first_left !== null) put(first_left, say.marks.first_left, "window", true);
  for (const mark of run.marks) {
    if (mark.kind === "first_left" || mark.kind === "trained") continue;
    const text = markText(run, mark);
    if (mark.kind === "repeating" || mark.kind === "losing") put(mark.i, text, "window", false, say.marks.state);
    else put(mark.i, text, "gone", false);
  }
  const trained = run.model?.trained_length ?? null;
  if (trained !== null) put(trained, say.trainedLength(trained), "ink", true);
  return [...found.values()].sort((a, b) => a.i - b.i);
}

function markText(run: RunState, { lane, kind }: Mark): string {
  const name = lane === null || run.lanes.length < 2 ? "" : `${compactNames(run)[lane] ?? ""} `;
  return `${name}${say.marks[kind]}`;
}

/** Dashed lines at the marks, with their names at the top where they have room. */
export function marks(frame: Frame, run: RunState, named: boolean): Shape[] {
  const lines: Shape[] = [];
  const names: Shape[] = [];
  const taken: [from: number, to: number, row: number][] = [];
  for (const { i, name, ink, everywhere } of flags(run)) {
    if (i < frame.first || i > frame.last || !(named || everywhere)) continue;
    const here = x(frame, i);
    lines.push(line([here, frame.top], [here, frame.bottom], ink, everywhere ? "4 3" : "1 3"));
    if (!named) continue;
    const width = textWidth(name) + 8;
    const after = here + width <= frame.right + 6;
    const [from, to] = after ? [here, here + width] : [here - width, here];
    const row = [0, 1, 2].find((r) => !taken.some(([a, b, other]) => other === r && a < to && b > from));
    if (row === undefined || from < frame.left) continue;
    taken.push([from, to, row]);
    names.push({
      kind: "text",
      at: [after ? here + 4 : here - 4, frame.top + 10 + row * LINE],
      text: name,
      anchor: after ? "start" : "end",
      ink: "muted",
      halo: true,
    });
  }
  return [...lines, ...names];
}

/** The cursor that all figures share. */
export function cursor(frame: Frame, { cursor: at }: RunState): Shape[] {
  if (at === null || at < frame.first || at > frame.last) return [];
  return [line([x(frame, at), frame.top - 4], [x(frame, at), frame.bottom + 4], "accent")];
}

/** The value of a series at a stream position, the mean of its bin; null where there is none. */
export function valueAt(series: Series, at: number): number | null {
  let [low, high] = [0, series.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((series.at(middle)?.first ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  const bin = series.at(low - 1);
  return bin === undefined || at - bin.last > 2 * (bin.last - bin.first + 1) ? null : mean(bin);
}

/** Ends of the lanes' lines with their names. */
export function laneLabels(run: RunState, box: Box, ends: readonly (Point | undefined)[]): EndLabel[] {
  const names = endNames(run, box);
  return ends.flatMap((at, lane) => (at === undefined ? [] : [{ text: names[lane] ?? "", at, ink: laneStyle(run, lane).ink }]));
}
