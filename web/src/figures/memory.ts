// The bytes of the cache against those of keeping everything.

import { mean } from "../series.ts";
import type { State } from "../state.ts";
import * as say from "../strings.en.ts";
import {
  curve,
  firstLeftMark,
  type Frame,
  GUTTER,
  LINE,
  MARGIN,
  streamEnd,
  ticks,
  xAxis,
  yAxis,
} from "./plot.ts";
import type { Box, Figure, Ink, Point, Shape } from "./shapes.ts";

/** The line of everything kept leaves the plot at this many times the cache. */
const LEAVES_AT = 4;

interface Lane {
  ink: Ink;
  dash?: string;
}

const LANES: Record<State["wanted"]["policy"], Lane> = {
  sinks: { ink: "sink" },
  window: { ink: "window", dash: "6 3" },
  dense: { ink: "ink" },
  recompute: { ink: "ink", dash: "2 3" },
};
const DENSE: Lane = { ink: "dense", dash: "1 4" };
/** Width below which the two names stand below each other, pixels. */
const NARROW = 420;

export function memory(state: State, box: Box): Figure {
  const { cache, series } = state;
  const bytes = cache?.bytes ?? 0;
  const dense = cache?.dense_bytes ?? 0;
  const most = Math.max(1e6, bytes * 1.3, Math.min(dense * 1.1, bytes * LEAVES_AT));
  const frame: Frame = {
    left: GUTTER,
    right: box.width - MARGIN,
    top: (box.width < NARROW ? 4 : 3) * LINE + 4,
    bottom: box.height - 2 * LINE - 6,
    most: { x: streamEnd(cache?.stream ?? 0), y: most / 1e6 },
  };
  const inMegabytes = (kept: typeof series.bytes): typeof series.bytes => ({
    ...kept,
    bins: kept.bins.map((bin) => ({ ...bin, sum: bin.sum / 1e6 })),
  });
  // Where the line has left the plot it is cut, not drawn along the edge.
  const inside = {
    ...series.dense,
    bins: series.dense.bins.filter((bin) => mean(bin) <= most),
  };
  const lane = LANES[state.wanted.policy];
  return {
    title: say.memory.title,
    caption: say.memory.caption(state.wanted.policy),
    words: cache === null ? say.memory.empty : say.memory.words(bytes, dense, cache.stream),
    shapes: [
      ...yAxis(frame, say.memory.axis, ticks(frame.most.y, 4, false), (v) =>
        String(Math.round(v * 100) / 100),
      ),
      ...xAxis(frame, say.streamAxis),
      ...firstLeftMark(frame, state.firstLeft, "bottom"),
      ...curve(frame, inMegabytes(inside), DENSE.ink, 2.5, DENSE.dash),
      ...curve(frame, inMegabytes(series.bytes), lane.ink, 2.5, lane.dash),
      ...(cache === null ? [] : legend(box, lane, bytes, dense, dense > most)),
    ],
  };
}

/** The two lines by name, with what they stand at; `gone` where the dense line has left the plot. */
function legend(box: Box, cache: Lane, bytes: number, dense: number, gone: boolean): Shape[] {
  const second: Point = box.width < NARROW ? [0, 2 * LINE] : [box.width / 2, LINE];
  return [
    ...entry([0, LINE], cache, `${say.memory.cache}: ${say.megabytes(bytes)}`),
    ...entry(second, DENSE, `${say.memory.dense}: ${say.megabytes(dense)}${gone ? " ↗" : ""}`),
  ];
}

function entry([x, y]: Point, { ink, dash }: Lane, text: string): Shape[] {
  const points: Point[] = [
    [x + 2, y - 4],
    [x + 26, y - 4],
  ];
  return [
    { kind: "path", points, ink, width: 2.5, ...(dash === undefined ? {} : { dash }) },
    { kind: "text", at: [x + 34, y], text, anchor: "start", ink: "ink" },
  ];
}
