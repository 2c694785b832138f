// Axes and curves that the figures share.

import { mean, type Series } from "../series.ts";
import { count, firstLeft as firstLeftLabel } from "../strings.en.ts";
import type { Ink, Point, Shape } from "./shapes.ts";

/** A rectangle to plot in, with linear scales that both begin at 0. */
export interface Frame {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** Values at the right and at the top end. */
  most: { x: number; y: number };
}

/** Height of a line of axis text, pixels. */
export const LINE = 14;
/** Room right of a plot for half a number, pixels. */
export const MARGIN = 20;
/** Room left of a plot for its numbers, pixels. */
export const GUTTER = 48;

export const x = (frame: Frame, value: number): number =>
  frame.left + (value / frame.most.x) * (frame.right - frame.left);
export const y = (frame: Frame, value: number): number =>
  frame.bottom - (value / frame.most.y) * (frame.bottom - frame.top);

/** Round numbers from 0 to `most`, at most `wanted` + 1 of them, 1, 2 or 5 times a power of ten apart. */
export function ticks(most: number, wanted: number, whole: boolean): number[] {
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((f) => f * power >= rough) ?? 10;
  const step = whole ? Math.max(1, factor * power) : factor * power;
  const found: number[] = [];
  for (let i = 0; i * step <= most * (1 + 1e-9); i += 1) found.push(i * step);
  return found;
}

/** Grid lines and numbers at `at` on the y axis, with the axis' name above. */
export function yAxis(
  frame: Frame,
  name: string,
  at: readonly number[],
  label: (value: number) => string,
): Shape[] {
  return [
    { kind: "text", at: [frame.left - 6, frame.top - 10], text: name, anchor: "end", ink: "muted" },
    ...at.flatMap((value): Shape[] => [
      { kind: "line", from: [frame.left, y(frame, value)], to: [frame.right, y(frame, value)], ink: "grid" },
      {
        kind: "text",
        at: [frame.left - 6, y(frame, value) + 4],
        text: label(value),
        anchor: "end",
        ink: "muted",
      },
    ]),
  ];
}

/** Numbers below the frame, with the axis' name under them. */
export function xAxis(frame: Frame, name: string): Shape[] {
  const { left, right, bottom, most } = frame;
  const wanted = Math.max(2, Math.floor((right - left) / 90));
  return [
    { kind: "line", from: [left, bottom], to: [right, bottom], ink: "muted" },
    ...ticks(most.x, wanted, true).map((value): Shape => ({
      kind: "text",
      at: [x(frame, value), bottom + LINE],
      text: count(value),
      anchor: "middle",
      ink: "muted",
    })),
    { kind: "text", at: [(left + right) / 2, bottom + 2 * LINE], text: name, anchor: "middle", ink: "muted" },
  ];
}

/** The means of a series' bins as a line, cut at the top of the frame. */
export function curve(frame: Frame, series: Series, ink: Ink, width: number, dash?: string): Shape[] {
  const points = series.bins.map((bin): Point => [
    x(frame, (bin.first + bin.last) / 2),
    y(frame, Math.min(mean(bin), frame.most.y)),
  ]);
  if (points.length === 0) return [];
  return [{ kind: "path", points, ink, width, ...(dash === undefined ? {} : { dash }) }];
}

/**
 * A dashed line where the first word left the cache; the same in every figure over the stream. Its
 * name stands at the `end` of the line where the figure's curve does not run.
 */
export function firstLeftMark(frame: Frame, at: number | null, end: "top" | "bottom"): Shape[] {
  if (at === null) return [];
  const here = x(frame, at);
  const room = frame.right - here > 100;
  return [
    { kind: "line", from: [here, frame.top], to: [here, frame.bottom], ink: "gone", dash: "4 3" },
    {
      kind: "text",
      at: [room ? here + 4 : here - 4, end === "top" ? frame.top + 11 : frame.bottom - 5],
      text: firstLeftLabel,
      anchor: room ? "start" : "end",
      ink: "muted",
    },
  ];
}

/** The right end of the stream axis: never so short that a few tokens fill it. */
export const streamEnd = (stream: number): number => Math.max(64, stream);
