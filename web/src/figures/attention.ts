// How much of its attention each head of each layer spends on the first tokens; the mean over the stream,
// or where one head looks.

import { average, type LaneState, type RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import { laneIndex, laneOptions } from "./choose.ts";
import type { Cell, Choices, Figure, Grid, Option, Table } from "./figure.ts";
import { laneStyle, shortNames } from "./lanes.ts";
import { cursor, curve, endLabels, type Frame, GUTTER, LINE, laneLabels, logTicks, marks, points, streamFrame, textWidth, within, xAxis, y } from "./plot.ts";
import { type Box, type Heat, line, type Point, type Rect, type Shape } from "./shapes.ts";
import { knownTokens } from "./slots.ts";

/** Height of the lower part, pixels. */
const LOWER = 48;
/** Room for the scale, pixels. */
const SCALE = 46;
const GAP = 14;
/** Least share that a logarithmic bar shows. */
const LEAST_SHARE = 1e-4;
/** Width of a sink's bar, pixels, and sinks that have one each. */
const RING = 10;
const MOST_RINGS = 16;
/** Slots at the front that are looked at where a lane has no sinks. */
const FIRST = 4;

export const attention: Figure = {
  id: "attention",
  hertz: 2,
  surface: "canvas",
  title: (run, choices) => say.attention.title(shown(run, choices).every((lane) => hasSinks(run.lanes[lane]))),
  caption: (run, choices) =>
    choices.head === null
      ? say.attention.caption(run.origin === "live" && !run.done)
      : run.lanes.some(({ probs }) => probs !== null)
        ? say.attention.headCaption
        : "",
  shapes,
  words,
  rows,
  options,
  keys: { kind: "grid", size, cell, hit } satisfies Grid,
};

const hasSinks = (lane: LaneState | undefined): boolean => (lane?.settings.sinks ?? 0) > 0;

/** The chosen lane, and beside it the next of another policy, so that the two can be compared. */
function shown(run: RunState, choices: Choices): number[] {
  const first = laneIndex(run, choices);
  if (first < 0) return [];
  const policy = run.lanes[first]?.settings.policy;
  const others = run.lanes.map((_, lane) => lane).filter((lane) => lane !== first);
  const second = others.find((lane) => run.lanes[lane]?.settings.policy !== policy) ?? others[0];
  return second === undefined ? [first] : [first, second].sort((a, b) => a - b);
}

/** Where the maps lie. */
interface Layout {
  lanes: number[];
  layers: number;
  heads: number;
  top: number;
  bottom: number;
  /** Of a map. */
  room: number;
  /** Sides of a cell. */
  width: number;
  height: number;
  lefts: number[];
}

function layout(run: RunState, box: Box, choices: Choices): Layout {
  const lanes = shown(run, choices);
  const { layers, heads } = shape(run, lanes);
  const top = lanes.length > 1 ? LINE + 4 : 6;
  const bottom = box.height - LOWER - 4 * LINE - 4;
  const room = (box.width - GUTTER - SCALE - GAP * (lanes.length - 1)) / Math.max(1, lanes.length);
  const height = Math.max(1, (bottom - top) / Math.max(1, layers));
  return {
    lanes,
    layers,
    heads,
    top,
    bottom: layers === 0 ? bottom : top + layers * height,
    room,
    width: room / Math.max(1, heads),
    height,
    lefts: lanes.map((_, map) => GUTTER + map * (room + GAP)),
  };
}

/** Layers and heads; none of them where they are not known. */
function shape({ model, lanes }: RunState, of: readonly number[]): { layers: number; heads: number } {
  if (model !== null) return { layers: model.layers, heads: model.n_heads };
  const layers = lanes[of[0] ?? 0]?.heads?.length ?? 0;
  return { layers, heads: Math.min(1, layers) };
}

const share = (lane: LaneState | undefined, heads: number, layer: number, head: number): number | null =>
  lane?.heads?.[layer * heads + head] ?? null;

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const maps = layout(run, box, choices);
  const { lanes, layers, heads, lefts, top, bottom, room, width, height } = maps;
  const names = shortNames(run);
  return [
    { kind: "text", at: [2, top + 9], text: say.attention.layer, anchor: "start", ink: "muted" },
    ...layerTicks(layers, height).map(
      (layer): Shape => ({
        kind: "text",
        at: [GUTTER - 6, top + (layer + 0.5) * height + 4],
        text: say.count(layer),
        anchor: "end",
        ink: "muted",
      }),
    ),
    ...lanes.flatMap((lane, map): Shape[] => {
      const left = lefts[map] ?? GUTTER;
      return [
        ...(lanes.length < 2
          ? []
          : [{ kind: "text" as const, at: [left, LINE - 4] as Point, text: names[lane] ?? "", anchor: "start" as const, ink: "ink" as const }]),
        ...heat(run.lanes[lane], maps, left),
        { kind: "rect", x: left, y: top, width: room, height: bottom - top, fill: null, stroke: "muted" },
        ...(run.at > 0 && run.lanes[lane]?.heads === null ? [unknown(run, [left + room / 2, (top + bottom) / 2], room)] : []),
        ...chosen(maps, choices, lane, left),
        ...Array.from(
          { length: heads },
          (_, head): Shape => ({
            kind: "text",
            at: [left + (head + 0.5) * width, bottom + LINE + 1],
            text: say.count(head),
            anchor: "middle",
            ink: "muted",
          }),
        ).filter((_, head) => width >= 14 || head === 0 || head === heads - 1),
      ];
    }),
    { kind: "text", at: [2, bottom + LINE + 1], text: say.attention.head, anchor: "start", ink: "muted" },
    ...scale(box.width - SCALE + 12, top, bottom),
    ...(choices.head === null ? overTime(run, box, choices, lanes) : slotsOf(run, box, choices)),
  ];
}

function unknown({ origin, maps_every, at: read }: RunState, at: Point, room: number): Shape {
  const first = maps_every !== null && maps_every > read ? maps_every : null;
  const text = say.attention.noHeads(origin === "recorded", first);
  return { kind: "text", at, text: textWidth(text) < room ? text : say.UNKNOWN, anchor: "middle", ink: "muted" };
}

/** Layers whose numbers have room: the first, the last, and round ones between. */
function layerTicks(layers: number, height: number): number[] {
  const step = [1, 5, 10, 20, 50].find((n) => n * height >= LINE) ?? 100;
  const last = layers - 1;
  return Array.from({ length: layers }, (_, layer) => layer).filter(
    (layer) => layer === last || (layer % step === 0 && (last - layer) * height >= LINE && layer * height >= (layer === 0 ? 0 : LINE)),
  ).filter((layer) => layer !== 0 || height >= LINE);
}

function heat(lane: LaneState | undefined, { layers, heads, top, width, height }: Layout, left: number): Shape[] {
  const cells: Shape[] = [];
  for (let layer = 0; layer < layers; layer += 1) {
    for (let head = 0; head < heads; head += 1) {
      const value = share(lane, heads, layer, head);
      if (value === null) continue;
      // A hair wider than the cell, so that no seam of the background shows between cells.
      cells.push({
        kind: "rect",
        x: left + head * width,
        y: top + layer * height,
        width: width + 0.3,
        height: height + 0.3,
        fill: { heat: value },
      });
    }
  }
  return cells;
}

function chosen({ width, height, top }: Layout, { head }: Choices, lane: number, left: number): Shape[] {
  if (head === null || head.lane !== lane) return [];
  return [
    { kind: "rect", x: left + head.head * width, y: top + head.layer * height, width, height, fill: null, stroke: "ink", thick: 2 },
  ];
}

/** What the colours mean: 0 below, 1 above. */
function scale(left: number, top: number, bottom: number): Shape[] {
  const parts = 24;
  const height = (bottom - top) / parts;
  return [
    ...Array.from({ length: parts }, (_, part): Shape => {
      const fill: Heat = { heat: 1 - part / (parts - 1) };
      return { kind: "rect", x: left, y: top + part * height, width: 10, height: height + 0.3, fill };
    }),
    { kind: "rect", x: left, y: top, width: 10, height: bottom - top, fill: null, stroke: "muted" },
    ...[1, 0.5, 0].map(
      (value): Shape => ({
        kind: "text",
        at: [left + 14, bottom - value * (bottom - top) + (value === 1 ? 10 : value === 0 ? 0 : 4)],
        text: say.shareTick(value),
        anchor: "start",
        ink: "muted",
      }),
    ),
  ];
}

function lower(run: RunState, box: Box, choices: Choices): Frame {
  return streamFrame(run, box, choices, box.height - LOWER - LINE - 6, box.height - LINE - 6);
}

function overTime(run: RunState, box: Box, choices: Choices, lanes: readonly number[]): Shape[] {
  const plot = lower(run, box, choices);
  const curves = run.lanes.map(({ attention: series }, lane) => (lanes.includes(lane) ? points(plot, within(plot, series)) : []));
  return [
    { kind: "text", at: [2, plot.top - 8], text: say.attention.overTime, anchor: "start", ink: "muted" },
    ...[0, 1].flatMap((value): Shape[] => [
      line([plot.left, y(plot, value)], [plot.right, y(plot, value)], "grid"),
      { kind: "text", at: [plot.left - 6, y(plot, value) + 4], text: say.shareTick(value), anchor: "end", ink: "muted" },
    ]),
    ...xAxis(plot),
    ...marks(plot, run, false),
    ...curves.flatMap((through, lane) => curve(through, laneStyle(run, lane))),
    ...endLabels(plot, laneLabels(run, box, curves.map((through) => through.at(-1)))),
    ...cursor(plot, run),
  ];
}

/** A bar for each slot; where there are more slots than pixels, the greatest of neighbours. */
function slotsOf(run: RunState, box: Box, { head: asked, logShare: log }: Choices): Shape[] {
  if (asked === null) return [];
  const lane = run.lanes[asked.lane];
  const [left, right, top, bottom] = [GUTTER, box.width - SCALE, box.height - LOWER - LINE - 6, box.height - LINE - 6];
  const title: Shape = {
    kind: "text",
    at: [2, top - 8],
    text: say.attention.looks(asked.layer, asked.head, run.lanes.length > 1 ? (shortNames(run)[asked.lane] ?? null) : null),
    anchor: "start",
    ink: "ink",
  };
  const values = probsOf(lane, asked);
  if (lane === undefined || values === null) {
    const { notRecorded, ended, waiting } = say.attention;
    const text = run.origin === "recorded" ? notRecorded : run.done ? ended : waiting;
    return [title, { kind: "text", at: [left, (top + bottom) / 2 + 4], text, anchor: "start", ink: "muted" }];
  }
  const part = (value: number): number => (log ? Math.max(0, 1 - Math.log(Math.max(value, LEAST_SHARE)) / Math.log(LEAST_SHARE)) : Math.min(1, value));
  // Sinks are told one by one, and wide enough for their rings.
  const sinks = lane.sinks <= MOST_RINGS ? lane.sinks : 0;
  const others = values.length - sinks;
  const least = sinks * RING;
  const each = Math.max(1, Math.ceil(others / Math.floor((right - left - least) / 2)));
  const width = Math.min(RING, (right - left - least) / Math.max(1, Math.ceil(others / each)));
  const ends = [
    ...Array.from({ length: sinks }, (_, slot): [number, number] => [slot, slot + 1]),
    ...Array.from({ length: Math.ceil(others / each) }, (_, n): [number, number] => [sinks + n * each, sinks + (n + 1) * each]),
  ];
  const start = (bar: number): number => left + Math.min(bar, sinks) * RING + Math.max(0, bar - sinks) * width;
  return [
    title,
    ...(log ? logTicks(LEAST_SHARE, 1) : [0, 1]).flatMap((value): Shape[] => {
      const at = bottom - part(value) * (bottom - top);
      const labelled = value === 0 || value === 1 || value === LEAST_SHARE;
      return [
        line([left, at], [right, at], "grid"),
        ...(labelled ? [{ kind: "text" as const, at: [left - 6, at + 4] as Point, text: say.shareTick(value), anchor: "end" as const, ink: "muted" as const }] : []),
      ];
    }),
    ...ends.map(([from, to], bar): Shape => {
      const height = part(Math.max(...values.subarray(from, to))) * (bottom - top);
      const room = bar < sinks ? RING : width;
      return {
        kind: "rect",
        x: start(bar),
        y: bottom - height,
        width: Math.max(1, room - (room > 3 ? 1 : 0)),
        height,
        fill: { ink: bar < sinks ? "sink" : "tail", style: "solid" },
      };
    }),
    line([left, bottom], [right, bottom], "muted"),
    ...Array.from(
      { length: sinks },
      (_, bar): Shape => ({ kind: "ring", at: [start(bar) + RING / 2, bottom + 7], radius: 3, ink: "sink", width: 1.5 }),
    ),
    { kind: "text", at: [start(sinks) + 4, bottom + LINE - 2], text: say.attention.slotAxis(values.length, each, sinks), anchor: "start", ink: "muted" },
  ];
}

function probsOf(lane: LaneState | undefined, asked: { layer: number; head: number }): Float32Array | null {
  const probs = lane?.probs ?? null;
  return probs !== null && probs.layer === asked.layer && probs.head === asked.head ? probs.values : null;
}

function words(run: RunState, choices: Choices): string {
  const lanes = shown(run, choices);
  const { layers, heads } = shape(run, lanes);
  const names = shortNames(run);
  const sentences = lanes.flatMap((lane) => {
    const state = run.lanes[lane];
    if (state === undefined || state.heads === null) return [];
    const byLayer = Array.from({ length: layers }, (_, layer): [number, number] => {
      const all = Array.from({ length: heads }, (_, head) => share(state, heads, layer, head) ?? 0);
      return [layer, all.reduce((sum, value) => sum + value, 0) / heads];
    }).sort((a, b) => a[1] - b[1]);
    const name = run.lanes.length > 1 ? (names[lane] ?? null) : null;
    const at = state.heads_at === state.at - 1 ? null : state.heads_at;
    return [say.attention.words(name, at, sinkCount(state), average(state.heads), byLayer[0] ?? [0, 0], byLayer.at(-1) ?? [0, 0])];
  });
  if (sentences.length === 0) return run.at === 0 ? say.noToken : say.attention.noMap;
  const { head } = choices;
  const values = head === null ? null : probsOf(run.lanes[head.lane], head);
  if (head !== null && values !== null) sentences.push(headWords(run.lanes[head.lane], head, values));
  return sentences.join(" ");
}

/** Sinks, or null where the first slots stand in for them. */
const sinkCount = (lane: LaneState): number | null => (hasSinks(lane) ? lane.sinks : null);

function headWords(lane: LaneState | undefined, { layer, head }: { layer: number; head: number }, values: Float32Array): string {
  const first = lane !== undefined && hasSinks(lane) ? lane.sinks : FIRST;
  const onFirst = values.slice(0, first).reduce((sum, value) => sum + value, 0);
  let most = first;
  for (let slot = first; slot < values.length; slot += 1) if ((values[slot] ?? 0) > (values[most] ?? 0)) most = slot;
  const position = lane === undefined ? most : lane.at - lane.held + most;
  const token = lane === undefined ? null : (knownTokens(lane).get(position) ?? null);
  return say.attention.headWords(layer, head, onFirst, most < values.length ? { slot: most, token, share: values[most] ?? 0 } : null);
}

function rows(run: RunState, choices: Choices): Table {
  const lanes = shown(run, choices);
  const { layers, heads } = shape(run, lanes);
  return {
    head: ["lane", "layer", ...Array.from({ length: heads }, (_, head) => `head_${head}`)],
    rows: lanes.flatMap((lane) =>
      Array.from({ length: layers }, (_, layer) => [
        run.lanes[lane]?.name ?? "",
        layer,
        ...Array.from({ length: heads }, (_, head) => {
          const value = share(run.lanes[lane], heads, layer, head);
          return value === null ? null : Number(value.toFixed(4));
        }),
      ]),
    ),
  };
}

function options(run: RunState, choices: Choices): Option[][] {
  const lanes = run.lanes.length > 2 ? laneOptions(run, choices) : [];
  if (choices.head === null) return lanes;
  return [
    ...lanes,
    [
      { text: say.linear, name: say.linearAxis, pressed: !choices.logShare, set: { logShare: false } },
      { text: say.log, name: say.logAxis, pressed: choices.logShare, set: { logShare: true } },
    ],
    [{ text: say.attention.back, pressed: false, set: { head: null } }],
  ];
}

function size(run: RunState, box: Box, choices: Choices): { rows: number; columns: number } {
  const { layers, heads, lanes } = layout(run, box, choices);
  return { rows: layers, columns: heads * lanes.length };
}

function cell(run: RunState, box: Box, choices: Choices, row: number, column: number): Cell | null {
  const { lanes, heads, layers, lefts, top, width, height } = layout(run, box, choices);
  const lane = lanes[Math.floor(column / heads)];
  const head = column % heads;
  if (lane === undefined || row >= layers) return null;
  const rect: Rect = { x: (lefts[Math.floor(column / heads)] ?? 0) + head * width, y: top + row * height, width, height };
  const name = run.lanes.length > 1 ? (run.lanes[lane]?.name ?? null) : null;
  return {
    rect,
    name: say.attention.cell(name, row, head, share(run.lanes[lane], heads, row, head)),
    opens: { lane, layer: row, head },
  };
}

function hit(run: RunState, box: Box, choices: Choices, [px, py]: Point): { row: number; column: number } | null {
  const { heads, layers, lefts, top, width, height } = layout(run, box, choices);
  const row = Math.floor((py - top) / height);
  const map = lefts.findIndex((left) => px >= left && px < left + heads * width);
  if (map < 0 || row < 0 || row >= layers) return null;
  return { row, column: map * heads + Math.floor((px - (lefts[map] ?? 0)) / width) };
}
