// Every slot of a cache as a cell in reading order; a cell is as high as its values take bits, so that the
// coloured area is the memory. Beneath it, slots in use over the stream.

import type { LaneState, RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import type { Cell, Choices, Figure, Grid, Table } from "./figure.ts";
import { laneOf, laneOptions, ofLane } from "./choose.ts";
import { laneStyle } from "./lanes.ts";
import { cursor, curve, type Frame, LINE, marks, points, steps, streamFrame, textWidth, within, xAxis, y } from "./plot.ts";
import { type Box, type Fill, line, type Point, type Rect, type Shape } from "./shapes.ts";
import { isPacked, packedGroup, placeAt, type Places, places, slotBytes, type Slot, storedBits } from "./slots.ts";

/** Height of the curve of slots in use, pixels. */
const CURVE = 40;
/** Sides of a cell with the gap beside it, pixels. */
const LARGEST = 22;
const SMALLEST = 6;
/** Bits of a value whose cell is as high as its row. */
const FULL = 16;
/** Rows of the table at most: a cache may have a million slots. */
const MOST_ROWS = 4096;

export const cache: Figure = {
  id: "cache",
  hertz: 4,
  surface: "canvas",
  title: () => say.cache.title,
  caption: (run, choices) => {
    const lane = laneOf(run, choices);
    return say.cache.caption(lane !== null && isPacked(lane), (lane?.settings.sinks ?? 0) > 0);
  },
  shapes,
  words,
  rows,
  options: laneOptions,
  keys: { kind: "grid", size, cell, hit } satisfies Grid,
};

/** Where the cells lie. */
interface Layout {
  columns: number;
  rows: number;
  /** Sides of a cell with its gap. */
  side: number;
  /** Slots that a cell stands for. */
  each: number;
  top: number;
}

const stillPlaces = (lane: LaneState, choices: Choices): Places => places(lane, !choices.still);

function layout(total: number, run: RunState, box: Box, choices: Choices): Layout {
  const top = legendRows(run, box, choices) * LINE + 8;
  const room = Math.max(20, box.height - top - CURVE - 2 * LINE - 14);
  for (let each = 1; ; each *= 4) {
    const cells = Math.max(1, Math.ceil(total / each));
    for (let side = LARGEST; side >= SMALLEST; side -= 1) {
      const columns = Math.max(1, Math.floor(box.width / side));
      const rows = Math.ceil(cells / columns);
      if (rows * (side + 2) <= room) return { columns, rows, side, each, top };
    }
  }
}

function rect({ columns, side, top }: Layout, index: number, part: number): Rect {
  const height = Math.max(2, side * Math.min(1, part));
  const bottom = top + Math.floor(index / columns) * (side + 2) + side;
  return { x: (index % columns) * side + 0.5, y: bottom - height + 0.5, width: side - 2, height: height - 1 };
}

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const lane = laneOf(run, choices);
  const plot: Frame = { ...streamFrame(run, box, choices, box.height - CURVE - LINE - 6, box.height - LINE - 6) };
  if (lane === null) return [...xAxis(plot)];
  const found = stillPlaces(lane, choices);
  const grid = layout(found.total, run, box, choices);
  const cells: Shape[] = [];
  for (let index = 0; index * grid.each < found.total; index += 1) {
    const slot = placeAt(found, index * grid.each);
    cells.push(...drawn(slot, grid, index, lane));
    const group = packedGroup(lane, slot);
    if (group !== null && group !== packedGroup(lane, placeAt(found, (index + 1) * grid.each))) cells.push(edge(rect(grid, index, 1)));
  }
  const most = Math.max(1, lane.capacity, lane.held) * 1.15;
  const over: Frame = { ...plot, most };
  return [
    ...legend(run, box, choices),
    ...cells,
    ...(grid.each === 1 ? [] : [{ kind: "text" as const, at: [2, plot.top - 8] as Point, text: say.cache.each(grid.each), anchor: "start" as const, ink: "muted" as const }]),
    ...xAxis(over),
    ...[0, lane.capacity].map(
      (value): Shape => ({ kind: "text", at: [over.left - 6, y(over, value) + 4], text: say.count(value), anchor: "end", ink: "muted" }),
    ),
    line([over.left, y(over, lane.capacity)], [over.right, y(over, lane.capacity)], "grid"),
    { kind: "text", at: [over.right + 9, y(over, lane.held) + 4], text: say.cache.inUse, anchor: "start", ink: "ink" },
    ...marks(over, run, false),
    ...curve(steps(points(over, within(over, lane.occupancy))), laneStyle(run, run.lanes.indexOf(lane))),
    ...cursor(over, run),
  ];
}

const FILLS: Record<Exclude<Slot["kind"], "evicted" | "empty">, Fill> = {
  sink: { ink: "sink", style: "faint" },
  packed: { ink: "packed", style: "solid" },
  tail: { ink: "tail", style: "solid" },
  exact: { ink: "tail", style: "solid" },
  masked: { ink: "gone", style: "hatch" },
};

function drawn(slot: Slot, grid: Layout, index: number, lane: LaneState): Shape[] {
  const whole = rect(grid, index, 1);
  if (slot.kind === "empty") return [{ kind: "rect", ...inset(whole, 0.5), fill: null, stroke: "grid" }];
  if (slot.kind === "evicted") return cross(inset(whole, grid.side > 9 ? 2 : 0.5));
  const own = rect(grid, index, storedBits(lane, slot.kind) / FULL);
  if (slot.kind === "sink") return ring(own);
  if (slot.kind === "masked") return [{ kind: "rect", ...own, fill: FILLS.masked, stroke: "gone" }];
  return [{ kind: "rect", ...own, fill: FILLS[slot.kind] }];
}

/** In the gap behind a cell, as high as its row. */
const edge = ({ x: left, y: top, width, height }: Rect): Shape => line([left + width + 1, top - 1], [left + width + 1, top + height + 1], "ink");

const inset = (r: Rect, by: number): Rect => ({ x: r.x + by, y: r.y + by, width: r.width - 2 * by, height: r.height - 2 * by });

function cross({ x: left, y: top, width, height }: Rect): Shape[] {
  const [right, bottom] = [left + width, top + height];
  const stroke = (from: Point, to: Point): Shape => ({ kind: "path", points: [from, to], ink: "window", width: 2 });
  return [stroke([left, top], [right, bottom]), stroke([left, bottom], [right, top])];
}

function ring(r: Rect): Shape[] {
  const shapes: Shape[] = [{ kind: "rect", ...inset(r, 1), fill: FILLS.sink, stroke: "sink", thick: 2 }];
  if (r.width >= 9) {
    const dot = Math.max(2, r.width / 3);
    shapes.push({
      kind: "rect",
      x: r.x + (r.width - dot) / 2,
      y: r.y + (r.height - dot) / 2,
      width: dot,
      height: dot,
      fill: { ink: "sink", style: "solid" },
    });
  }
  return shapes;
}

/** What the cells' looks mean, as far as this cache has them. */
function legendEntries(run: RunState, choices: Choices): { text: string; kind: Slot["kind"] }[] {
  const lane = laneOf(run, choices);
  if (lane === null) return [];
  const kinds: Slot["kind"][] = [
    ...(lane.settings.policy === "sinks" ? (["sink"] as const) : []),
    ...(isPacked(lane) ? (["packed", "tail", "masked"] as const) : (["exact"] as const)),
    ...(choices.still || lane.settings.policy === "dense" ? [] : (["evicted"] as const)),
    ...(lane.held < lane.capacity ? (["empty"] as const) : []),
  ];
  return kinds.map((kind) => ({ kind, text: say.cache.kinds[kind] }));
}

const GLYPH = 12;
const entryWidth = (text: string): number => GLYPH + 6 + textWidth(text) + 10;

function legendRows(run: RunState, box: Box, choices: Choices): number {
  let [rows, left] = [1, 0];
  for (const { text } of legendEntries(run, choices)) {
    if (left > 0 && left + entryWidth(text) > box.width) [rows, left] = [rows + 1, 0];
    left += entryWidth(text);
  }
  return rows;
}

function legend(run: RunState, box: Box, choices: Choices): Shape[] {
  const lane = laneOf(run, choices);
  if (lane === null) return [];
  let [row, left] = [0, 0];
  return legendEntries(run, choices).flatMap(({ kind, text }): Shape[] => {
    if (left > 0 && left + entryWidth(text) > box.width) [row, left] = [row + 1, 0];
    const sample: Slot = kind === "empty" ? { kind, slot: 0 } : kind === "masked" || kind === "evicted" ? { kind, position: 0 } : { kind, slot: 0, position: null, token: null };
    const grid: Layout = { columns: 1, rows: 1, side: GLYPH + 1, each: 1, top: 0 };
    const moved = drawn(sample, grid, 0, lane).map((shape) => shift(shape, left, row * LINE));
    const at: Point = [left + GLYPH + 6, row * LINE + 11];
    left += entryWidth(text);
    return [...moved, { kind: "text", at, text, anchor: "start", ink: "ink" }];
  });
}

function shift(shape: Shape, dx: number, dy: number): Shape {
  const move = ([px, py]: Point): Point => [px + dx, py + dy];
  switch (shape.kind) {
    case "rect":
      return { ...shape, x: shape.x + dx, y: shape.y + dy };
    case "path":
    case "area":
      return { ...shape, points: shape.points.map(move) };
    case "ring":
    case "text":
      return { ...shape, at: move(shape.at) };
  }
}

function size(run: RunState, box: Box, choices: Choices): { rows: number; columns: number } {
  const lane = laneOf(run, choices);
  if (lane === null) return { rows: 0, columns: 0 };
  const { rows, columns } = layout(stillPlaces(lane, choices).total, run, box, choices);
  return { rows, columns };
}

function cell(run: RunState, box: Box, choices: Choices, row: number, column: number): Cell | null {
  const lane = laneOf(run, choices);
  if (lane === null) return null;
  const found = stillPlaces(lane, choices);
  const grid = layout(found.total, run, box, choices);
  const index = row * grid.columns + column;
  const first = index * grid.each;
  if (column >= grid.columns || first >= found.total) return null;
  const name = nameOf(run, lane, placeAt(found, first));
  const last = Math.min(found.total, first + grid.each) - 1;
  return {
    rect: rect(grid, index, 1),
    name: last === first ? name : say.cache.several(name, nameOf(run, lane, placeAt(found, last))),
    opens: null,
  };
}

function hit(run: RunState, box: Box, choices: Choices, [px, py]: Point): { row: number; column: number } | null {
  const lane = laneOf(run, choices);
  if (lane === null) return null;
  const { top, side, rows, columns } = layout(stillPlaces(lane, choices).total, run, box, choices);
  const [row, column] = [Math.floor((py - top) / (side + 2)), Math.floor(px / side)];
  return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
}

function nameOf(run: RunState, lane: LaneState, slot: Slot): string {
  const { capacity, settings } = lane;
  switch (slot.kind) {
    case "empty":
      return say.cache.emptySlot(slot.slot, capacity);
    case "evicted":
    case "masked":
      return say.cache.leftSlot(slot.position, slot.kind === "masked");
    default: {
      const kind = slot.kind === "packed" ? say.cache.packedAs(storedAs(settings)) : say.cache.kinds[slot.kind];
      return say.cache.slot(slot.slot, capacity, slot.token, slot.position, kind, slotBytes(run, lane, slot.kind));
    }
  }
}

const storedAs = ({ kv, kv_k, kv_v }: LaneState["settings"]): string =>
  kv_k === undefined && kv_v === undefined ? kv : `${kv_k ?? kv}/${kv_v ?? kv}`;

function words(run: RunState, choices: Choices): string {
  const lane = laneOf(run, choices);
  if (lane === null || lane.at === 0) return say.cache.none;
  const { held, capacity, sinks, tail, evicted, at, bytes } = lane;
  const packed = isPacked(lane) ? held - sinks - tail : 0;
  const total = Object.values(bytes).reduce((sum: number, part: number) => sum + part, 0);
  return ofLane(run, choices) + say.cache.words({
    held,
    capacity,
    sinks,
    packed,
    as: storedAs(lane.settings),
    exact: held - sinks - packed,
    came: at - 1,
    left: evicted,
    bytes: total,
  });
}

function rows(run: RunState, choices: Choices): Table {
  const lane = laneOf(run, choices);
  const head = ["lane", "slot", "stream", "token", "kept_as", "bytes"];
  if (lane === null) return { head, rows: [] };
  const found = places(lane, false);
  const kept = Array.from({ length: Math.min(found.total, MOST_ROWS) }, (_, index) => placeAt(found, index)).filter(
    (slot) => slot.kind !== "masked" && slot.kind !== "empty" && slot.kind !== "evicted",
  );
  return {
    head,
    rows: kept.map(({ kind, slot, position, token }) => [lane.name, slot, position, token, kind, slotBytes(run, lane, kind)]),
  };
}
