// How much of its attention each layer spends on the first tokens, and the mean over the stream.

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
  x,
  xAxis,
  y,
  yAxis,
} from "./plot.ts";
import type { Box, Figure, Shape } from "./shapes.ts";

export function attention(state: State, box: Box): Figure {
  const { layers, cache } = state;
  const onSinks = (cache?.sinks ?? 0) > 0 || state.wanted.policy === "sinks";
  const half = box.height / 2;
  const bars: Frame = {
    left: GUTTER,
    right: box.width - MARGIN,
    top: LINE + 6,
    bottom: half - 2 * LINE + 4,
    most: { x: Math.max(1, layers.length), y: 1 },
  };
  const time: Frame = {
    left: GUTTER,
    right: box.width - MARGIN,
    top: half + 2 * LINE + 6,
    bottom: box.height - 2 * LINE - 6,
    most: { x: streamEnd(cache?.stream ?? 0), y: 1 },
  };
  return {
    title: say.attention.title(onSinks),
    caption: say.attention.caption,
    words: inWords(layers, onSinks),
    shapes: [
      ...yAxis(bars, say.attention.axis, [0, 0.5, 1], say.percent),
      ...layers.flatMap((share, layer) => bar(bars, share, layer, onSinks)),
      { kind: "line", from: [bars.left, bars.bottom], to: [bars.right, bars.bottom], ink: "muted" },
      {
        kind: "text",
        at: [(bars.left + bars.right) / 2, bars.bottom + 2 * LINE],
        text: say.attention.layers,
        anchor: "middle",
        ink: "muted",
      },
      ...yAxis(time, say.attention.axis, [0, 0.5, 1], say.percent),
      ...xAxis(time, say.streamAxis),
      ...firstLeftMark(time, state.firstLeft, "top"),
      ...curve(time, state.series.attention, onSinks ? "sink" : "window", 2.5),
    ],
  };
}

function bar(frame: Frame, share: number, layer: number, onSinks: boolean): Shape[] {
  const left = x(frame, layer);
  const width = x(frame, layer + 1) - left;
  const top = y(frame, Math.min(1, share));
  const shapes: Shape[] = [
    {
      kind: "rect",
      x: left + width * 0.1,
      y: top,
      width: width * 0.8,
      height: frame.bottom - top,
      fill: onSinks ? "sink" : "window",
    },
  ];
  const named = layer === 0 || layer === frame.most.x - 1 || (layer % 5 === 0 && layer < frame.most.x - 3);
  if (named) {
    shapes.push({
      kind: "text",
      at: [left + width / 2, frame.bottom + LINE],
      text: say.count(layer),
      anchor: "middle",
      ink: "muted",
    });
  }
  return shapes;
}

function inWords(layers: readonly number[], onSinks: boolean): string {
  if (layers.length === 0) return say.attention.empty;
  const mean = layers.reduce((sum, share) => sum + share, 0) / layers.length;
  const byShare = layers.map((share, layer): [number, number] => [layer, share]).sort((a, b) => a[1] - b[1]);
  const least = byShare[0] ?? [0, 0];
  const most = byShare.at(-1) ?? [0, 0];
  return say.attention.words(onSinks, mean, least, most);
}
