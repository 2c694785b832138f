// The bytes of a cache by part, against those of keeping everything.

import type { KeyRanges } from "../../../crates/wasm/run";
import { type LaneState, PARTS, type RunState, totalBytes } from "../run.ts";
import { type Bin, mean } from "../series.ts";
import * as say from "../strings.en.ts";
import { laneOf, laneOptions, ofLane } from "./choose.ts";
import type { Choices, Figure, Option, Stream, Table } from "./figure.ts";
import { cursor, curve, type EndLabel, endLabels, type Frame, GUTTER, LINE, logTicks, marks, points, steps, streamFrame, textWidth, ticks, valueAt, within, xAxis, y, yAxis } from "./plot.ts";
import { type Box, type Fill, line, type Point, type Shape } from "./shapes.ts";
import { isPacked } from "./slots.ts";

/** The line of everything kept leaves the plot at this many times the cache. */
const LEAVES_AT = 4;
const MEGA = 1e6;
/** The axis reaches at least so far, bytes. */
const LEAST = 0.5 * MEGA;
/** Height of the strip of key channels below the plot, its line of text included, pixels. */
const STRIP = 46;
/** A part that is a smaller share of the cache has no name in the plot. */
const NAMED = 0.04;

export const memory: Figure = {
  id: "memory",
  hertz: 1,
  surface: "svg",
  title: () => say.memory.title,
  caption: (run, choices) => say.memory.caption(laneOf(run, choices)?.settings.policy === "dense", run.key_ranges.length > 0),
  shapes,
  words,
  rows,
  options,
  keys: { kind: "stream", plot: frame, reading } satisfies Stream,
};

const total = ({ bytes }: LaneState): number => totalBytes(bytes);

/** Bytes of a token in f16, all layers; null before there is one. */
function perToken({ model }: RunState, lane: LaneState): number | null {
  if (model !== null) return model.layers * 2 * model.n_kv_heads * model.head_dim * 2;
  return lane.at > 0 ? lane.dense_bytes / lane.at : null;
}

function frame(run: RunState, box: Box, choices: Choices): Frame {
  const below = run.key_ranges.length > 0 ? STRIP : 0;
  const plot = streamFrame(run, box, choices, 3 * LINE, box.height - LINE - 8 - below);
  const lane = laneOf(run, choices);
  const bytes = lane === null ? 0 : total(lane);
  const dense = lane?.dense_bytes ?? 0;
  if (!choices.logMemory) return { ...plot, most: Math.max(LEAST, bytes * 1.3, Math.min(dense * 1.1, bytes * LEAVES_AT)) };
  const least = 10 ** Math.floor(Math.log10(Math.max(1, lane === null ? LEAST : (perToken(run, lane) ?? LEAST))));
  return { ...plot, least, most: Math.max(LEAST, bytes, dense) * 2, log: true };
}

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const plot = frame(run, box, choices);
  const lane = laneOf(run, choices);
  const wanted = Math.max(2, Math.floor((plot.bottom - plot.top) / 36));
  const at = plot.log ? logTicks(plot.least, plot.most) : ticks(0, plot.most / MEGA, wanted, false).map((mb) => mb * MEGA);
  const axes = [
    ...yAxis(plot, say.memory.axis, at, (bytes) => say.axisNumber(bytes / MEGA)),
    ...xAxis(plot),
    ...strip(run, box, choices),
  ];
  if (lane === null || lane.at === 0) return axes;
  const bytes = total(lane);
  const { dense_bytes: dense } = lane;
  const labels: EndLabel[] = [];
  // Where the line has left the plot it is cut, not drawn along the edge.
  const growing = points(plot, within(plot, lane.dense).filter((bin) => mean(bin) <= plot.most));
  const gone = dense > plot.most;
  const leaves = growing.at(-1);
  if (!gone && leaves !== undefined) labels.push({ text: say.memory.everything, at: leaves, ink: "dense" });
  const [stack, named] = plot.log ? whole(plot, lane) : stacked(plot, lane);
  labels.push(...named);
  const window = windowBytes(run, lane);
  const saved = dense > bytes ? say.memory.saved(dense - bytes, (dense - bytes) / dense) : say.memory.nothingSaved;
  return [
    ...axes,
    ...stack,
    ...(window === null || window > plot.most ? [] : windowLine(plot, window, labels)),
    ...marks(plot, run, false),
    ...curve(growing, { ink: "dense", dash: "0 4.5" }),
    ...(gone ? arrow(plot, leaves, dense) : []),
    ...endLabels(plot, labels),
    { kind: "text", at: [2, LINE - 3], text: saved, anchor: "start", ink: "ink", bold: true },
    ...cursor(plot, run),
  ];
}

/** What an f16 cache of as many slots would take; null where this one is that. */
function windowBytes(run: RunState, lane: LaneState): number | null {
  const one = perToken(run, lane);
  if (one === null || lane.settings.policy === "dense" || !isPacked(lane)) return null;
  return one * lane.capacity;
}

function windowLine(plot: Frame, bytes: number, labels: EndLabel[]): Shape[] {
  const at = y(plot, bytes);
  labels.push({ text: say.memory.window, at: [plot.right, at], ink: "window" });
  return curve([[plot.left, at], [plot.right, at]], { ink: "window", dash: "6 3" });
}

/** What leaves the plot says where it has got to. */
function arrow(plot: Frame, leaves: Point | undefined, dense: number): Shape[] {
  const text = say.memory.arrow(dense);
  const here = leaves?.[0] ?? plot.left;
  const fits = here + textWidth(text) + 8 < plot.right;
  return [
    {
      kind: "text",
      at: [fits ? here + 8 : here - 8, plot.top + 10],
      text,
      anchor: fits ? "start" : "end",
      ink: "ink",
    },
  ];
}

const FILLS: Record<(typeof PARTS)[number], Fill> = {
  sinks: { ink: "sink", style: "solid" },
  codes: { ink: "packed", style: "hatch" },
  scales: { ink: "packed", style: "faint" },
  tail: { ink: "tail", style: "solid" },
  slack: { ink: "gone", style: "faint" },
};

const fillOf = (lane: LaneState, part: (typeof PARTS)[number]): Fill =>
  part === "codes" && !isPacked(lane) ? { ink: "tail", style: "hatch" } : FILLS[part];

/** The parts on each other. */
function stacked(plot: Frame, lane: LaneState): [Shape[], EndLabel[]] {
  const bytes = total(lane);
  const shapes: Shape[] = [];
  const labels: EndLabel[] = [];
  // All parts are known at the same places.
  let level = within(plot, lane.memory).map((bin): Bin => ({ ...bin, sum: 0 }));
  let lower = points(plot, level);
  for (const part of PARTS) {
    const bins = within(plot, lane.parts[part]);
    if (bins.every(({ sum }) => sum === 0)) continue;
    level = level.map((bin, k) => ({ ...bin, sum: bin.sum + (bins[k]?.sum ?? 0) }));
    const upper = points(plot, level);
    shapes.push({ kind: "area", points: [...steps(upper), ...steps(lower).toReversed()], fill: fillOf(lane, part) });
    const [above, below] = [upper.at(-1), lower.at(-1)];
    const one = part === "codes" && !isPacked(lane) ? say.memory.cache : say.memory.parts[part];
    if (lane.bytes[part] >= NAMED * bytes && above !== undefined && below !== undefined) {
      const ink = fillOf(lane, part);
      labels.push({ text: one, at: [above[0], (above[1] + below[1]) / 2], ink: "ink" in ink ? ink.ink : "ink" });
    }
    lower = upper;
  }
  return [[...shapes, { kind: "path", points: steps(lower), ink: "ink", width: 1 }], labels];
}

/** On a logarithmic axis parts cannot lie on each other. */
function whole(plot: Frame, lane: LaneState): [Shape[], EndLabel[]] {
  const through = steps(points(plot, within(plot, lane.memory)));
  const last = through.at(-1);
  return [curve(through, { ink: "sink", dash: null }), last === undefined ? [] : [{ text: say.memory.cache, at: last, ink: "sink" }]];
}

/** The layer whose key channels are shown: the one that was chosen, or that with the widest; null where none was measured. */
function keysOf({ key_ranges }: RunState, { keyLayer }: Choices): KeyRanges | null {
  const chosen = key_ranges.find(({ layer }) => layer === keyLayer);
  const widest = (of: KeyRanges): number => Math.max(...of.ranges);
  return chosen ?? key_ranges.toSorted((a, b) => widest(b) - widest(a))[0] ?? null;
}

/** The widest range and the middle one. */
function spread({ ranges }: KeyRanges): { widest: number; median: number } {
  const sorted = ranges.toSorted((a, b) => a - b);
  return { widest: sorted.at(-1) ?? 0, median: sorted[sorted.length >> 1] ?? 0 };
}

/** How far each key channel of a layer ranges, channel by channel; a line between two heads. */
function strip(run: RunState, box: Box, choices: Choices): Shape[] {
  const keys = keysOf(run, choices);
  if (keys === null) return [];
  const { widest, median } = spread(keys);
  const [left, right, bottom] = [GUTTER, box.width - 2, box.height - 1];
  const top = box.height - STRIP + LINE + 6;
  const step = (right - left) / keys.ranges.length;
  const outline = keys.ranges.flatMap((range, k): Point[] => {
    const height = widest === 0 ? 0 : ((bottom - top) * range) / widest;
    return [[left + k * step, bottom - height], [left + (k + 1) * step, bottom - height]];
  });
  const heads = Array.from({ length: (run.model?.n_kv_heads ?? 1) - 1 }, (_, k) => left + (k + 1) * (run.model?.head_dim ?? 0) * step);
  const whole = say.memory.keys(keys.layer, widest, median);
  const text = textWidth(whole) <= box.width - 2 ? whole : say.memory.keysOf(keys.layer);
  return [
    { kind: "text", at: [2, box.height - STRIP + LINE - 1], text, anchor: "start", ink: "muted" },
    { kind: "area", points: [[left, bottom], ...outline, [right, bottom]], fill: { ink: "packed", style: "solid" } },
    ...heads.map((at) => line([at, top], [at, bottom], "grid")),
    line([left, bottom], [right, bottom], "muted"),
  ];
}

function words(run: RunState, choices: Choices): string {
  const lane = laneOf(run, choices);
  if (lane === null || total(lane) === 0) return say.memory.empty;
  const parts = PARTS.filter((part) => lane.bytes[part] > 0).map((part) => ({
    name: part === "codes" && !isPacked(lane) ? say.memory.floats : say.memory.parts[part],
    bytes: lane.bytes[part],
  }));
  const keys = keysOf(run, choices);
  const channels = keys === null ? "" : ` ${say.memory.channels(keys.layer, keys.ranges.length, spread(keys))}`;
  return ofLane(run, choices) + say.memory.words(total(lane), lane.dense_bytes, lane.at, parts) + channels;
}

function reading(run: RunState, at: number, choices: Choices): string {
  const lane = laneOf(run, choices);
  return ofLane(run, choices) + say.memory.reading(at, lane === null ? null : valueAt(lane.memory, at), lane === null ? null : valueAt(lane.dense, at));
}

function rows(run: RunState, choices: Choices): Table {
  const lane = laneOf(run, choices);
  const column = { sinks: "sinks", codes: "recent", scales: "scales", tail: "tail", slack: "slack" } as const;
  const head = ["lane", "stream", "cache_bytes", "dense_f16_bytes", ...PARTS.map((part) => `${column[part]}_bytes`)];
  if (lane === null) return { head, rows: [] };
  return {
    head,
    rows: lane.memory.bins.map((bin, k) => {
      const known = [bin, lane.dense.at(k), ...PARTS.map((part) => lane.parts[part].at(k))];
      return [lane.name, bin.last, ...known.map((one) => (one === undefined ? null : Math.round(mean(one))))];
    }),
  };
}

function options(run: RunState, choices: Choices): Option[][] {
  return [
    ...laneOptions(run, choices),
    [
      { text: say.linear, name: say.linearAxis, pressed: !choices.logMemory, set: { logMemory: false } },
      { text: say.log, name: say.logAxis, pressed: choices.logMemory, set: { logMemory: true } },
    ],
    ...(run.key_ranges.length === 0
      ? []
      : [
          run.key_ranges.map(({ layer }) => ({
            text: say.count(layer),
            name: say.memory.keysOf(layer),
            pressed: keysOf(run, choices)?.layer === layer,
            set: { keyLayer: layer },
          })),
        ]),
  ];
}
