// Which part of the stream the cache still holds, and how many slots are in use.

import type { CacheState } from "../../../crates/wasm/types";
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
  x,
  xAxis,
  y,
  yAxis,
} from "./plot.ts";
import type { Box, Figure, Shape } from "./shapes.ts";

const BAR = 16;

export function occupancy(state: State, box: Box): Figure {
  const { title, caption, empty, words } = say.occupancy;
  const { cache } = state;
  const stream = cache?.stream ?? 0;
  const { policy, sinks, recent } = state.wanted;
  const capacity = Math.max(1, cache?.capacity ?? (policy === "dense" ? 64 : sinks + recent));
  const frame: Frame = {
    left: GUTTER,
    right: box.width - MARGIN,
    top: 3 * LINE + BAR + 12,
    bottom: box.height - 2 * LINE - 6,
    most: { x: streamEnd(stream), y: capacity * 1.15 },
  };
  return {
    title,
    caption,
    words: cache === null || stream === 0 ? empty : words(cache.held, cache.capacity, cache.sinks, stream),
    shapes: [
      ...(cache === null || stream === 0 ? [] : kept(frame, cache)),
      ...yAxis(frame, say.occupancy.axis, ticks(capacity, 3, true), say.count),
      ...xAxis(frame, say.streamAxis),
      ...(cache === null ? [] : limit(frame, cache)),
      ...firstLeftMark(frame, state.firstLeft, "bottom"),
      ...curve(frame, state.series.held, "recent", 2.5),
    ],
  };
}

/** The stream as one bar: sinks, what has left, what is still held. */
function kept(frame: Frame, { held, sinks, stream }: CacheState): Shape[] {
  const first = Math.min(sinks, held);
  const from = stream - (held - first);
  const top = LINE + 6;
  const part = (a: number, b: number): { x: number; y: number; width: number; height: number } => ({
    x: x(frame, a),
    y: top,
    width: Math.max(0, x(frame, b) - x(frame, a)),
    height: BAR,
  });
  const label = (at: number, text: string, anchor: "start" | "middle" | "end"): Shape => ({
    kind: "text",
    at: [at, top - 5],
    text,
    anchor,
    ink: "muted",
  });
  const shapes: Shape[] = [];
  if (from > first) {
    shapes.push({ kind: "rect", ...part(first, from), fill: null, ink: "gone" });
    const gap = part(first, from);
    if (gap.width > 90) {
      shapes.push({
        kind: "text",
        at: [gap.x + gap.width / 2, top + BAR - 4],
        text: say.occupancy.gone,
        anchor: "middle",
        ink: "muted",
      });
    }
  }
  shapes.push({ kind: "rect", ...part(from, stream), fill: "recent" });
  shapes.push(label(x(frame, stream), `${say.occupancy.recent} ${say.count(held - first)}`, "end"));
  if (first > 0) {
    const sink = part(0, first);
    // Four tokens of many thousands would be thinner than a line: sinks are always seen.
    shapes.push({ kind: "rect", ...sink, width: Math.max(4, sink.width), fill: "sink" });
    shapes.push(label(frame.left, `${say.occupancy.sinks} ${say.count(first)}`, "start"));
  }
  return shapes;
}

function limit(frame: Frame, { capacity }: CacheState): Shape[] {
  const at = y(frame, capacity);
  return [
    { kind: "line", from: [frame.left, at], to: [frame.right, at], ink: "ink", dash: "2 3" },
    {
      kind: "text",
      at: [frame.right, at - 4],
      text: `${say.occupancy.capacity} ${say.count(capacity)}`,
      anchor: "end",
      ink: "ink",
    },
  ];
}
