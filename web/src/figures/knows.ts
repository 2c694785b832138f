// What a lane still knows: of the stream, the sinks, what has left, and what is kept.

import type { LaneState, RunState, Token } from "../run.ts";
import * as say from "../strings.en.ts";
import { laneOf, laneOptions, ofLane } from "./choose.ts";
import type { Choices, Figure, Table } from "./figure.ts";
import { cursor, type Frame, LINE, marks, streamFrame, textWidth, x, xAxis } from "./plot.ts";
import type { Box, Fill, Shape } from "./shapes.ts";
import { oldestRecent, ownSinks } from "./slots.ts";

const BAR = 18;

export const knows: Figure = {
  id: "knows",
  hertz: 1,
  surface: "svg",
  title: () => say.knows.title,
  caption: (run) => (run.mode === "chat" ? say.knows.caption : say.knows.laneCaption),
  shapes,
  words,
  rows,
  options: laneOptions,
};

export type PieceKind = "sinks" | "left" | "kept";

/** A stretch of the stream. */
export interface Piece {
  kind: PieceKind;
  /** Stream indices `[from, to)`. */
  from: number;
  to: number;
}

/** Sinks, what has left, what is kept; stretches of no length are left out. */
export function pieces(lane: LaneState): Piece[] {
  const sinks = ownSinks(lane) ? lane.sinks : 0;
  const oldest = oldestRecent(lane);
  const all: Piece[] = [
    { kind: "sinks", from: 0, to: sinks },
    { kind: "left", from: sinks, to: oldest },
    { kind: "kept", from: Math.max(sinks, oldest), to: lane.at },
  ];
  return all.filter(({ from, to }) => to > from);
}

/** The text of a stretch, as far as it is still known here; `begins` where it does. */
export function textOf(lane: LaneState, { kind, from, to }: Piece): { text: string; begins: number } {
  const source: readonly Token[] = kind === "sinks" ? lane.first_tokens : lane.tokens;
  const inside = source.filter(({ i }) => i >= from && i < to);
  return { text: inside.map(({ text }) => text).join(""), begins: inside[0]?.i ?? to };
}

const FILLS: Record<PieceKind, Fill> = {
  sinks: { ink: "sink", style: "solid" },
  left: { ink: "gone", style: "hatch" },
  kept: { ink: "tail", style: "solid" },
};

function shapes(run: RunState, box: Box, choices: Choices): Shape[] {
  const lane = laneOf(run, choices);
  const plot: Frame = streamFrame(run, box, { ...choices, span: null }, LINE + 6, LINE + 6 + BAR);
  if (lane === null) return xAxis(plot);
  return [
    ...pieces(lane).flatMap(({ kind, from, to }): Shape[] => {
      const left = x(plot, from);
      const width = x(plot, to) - left;
      const text = `${say.knows.kinds[kind]} ${say.count(to - from)}`;
      // Four tokens of many thousands would be thinner than a line: sinks are always seen.
      const bar: Shape = { kind: "rect", x: left, y: plot.top, width: Math.max(kind === "sinks" ? 4 : 1, width), height: BAR, fill: FILLS[kind] };
      // Room that the sinks' name leaves, where the stretch lies next to it.
      const taken = plot.left + textWidth(`${say.knows.kinds.sinks} ${say.count(lane.sinks)}`) + 4;
      const named = kind !== "left" || textWidth(text) < Math.min(width, 2 * (left + width / 2 - taken));
      const at = kind === "left" ? left + width / 2 : kind === "kept" && lane.sinks > 0 ? Math.max(left, taken) : left;
      const anchor = kind === "left" ? "middle" : "start";
      return named ? [bar, { kind: "text", at: [at, plot.top - 5], text, anchor, ink: "muted" }] : [bar];
    }),
    ...xAxis(plot),
    ...marks(plot, run, false),
    ...cursor(plot, run),
  ];
}

function words(run: RunState, choices: Choices): string {
  const lane = laneOf(run, choices);
  if (lane === null || lane.at === 0) return say.cache.none;
  return ofLane(run, choices) + say.knows.words(lane.at, pieces(lane));
}

function rows(run: RunState, choices: Choices): Table {
  const lane = laneOf(run, choices);
  const head = ["lane", "what", "from", "to", "text"];
  if (lane === null) return { head, rows: [] };
  return { head, rows: pieces(lane).map((piece) => [lane.name, piece.kind, piece.from, piece.to, textOf(lane, piece).text]) };
}
