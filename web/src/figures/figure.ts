// What a figure is: pure functions of a run and of what the person chose to look at. The drawing on the
// page, the exported files and the text alternative all come from these.

import type { RunState } from "../run.ts";
import type { Box, Point, Rect, Shape } from "./shapes.ts";

export const FIGURES = ["cost", "cache", "attention", "memory", "time", "knows"] as const;
export type FigureId = (typeof FIGURES)[number];

/** What a person chose in the figures; the same for all of them. */
export interface Choices {
  /** Which of the two views of the lead figure; where no cost can be told, it is the loss. */
  view: "cost" | "loss";
  /** Tokens at the end of the stream that curves show; null for all. */
  span: number | null;
  /** The lane of the figures that show one; null leaves it to them. */
  lane: number | null;
  /** Memory on a logarithmic axis. */
  logMemory: boolean;
  /** The layer whose key channels are shown; null leaves it to the figure. */
  keyLayer: number | null;
  /** Attention on slots on a logarithmic axis. */
  logShare: boolean;
  /** The head whose attention over the slots is shown. */
  head: { lane: number; layer: number; head: number } | null;
  /** Nothing may flash. */
  still: boolean;
}

export const CHOICES: Choices = { view: "cost", span: null, lane: null, logMemory: false, keyLayer: null, logShare: false, head: null, still: false };

/** A cell of a table: a number as it is, null where it is not known. */
export type Value = string | number | null;

/** What a figure shows, as numbers. */
export interface Table {
  head: string[];
  rows: Value[][];
  /** Said above the rows where they are not what one would expect. */
  note?: string;
}

export interface Figure {
  id: FigureId;
  /** Most drawings a second. */
  hertz: number;
  /** What it is drawn on: many small cells are quicker on a canvas. */
  surface: "svg" | "canvas";
  title(run: RunState, choices: Choices): string;
  /** What to look at. */
  caption(run: RunState, choices: Choices): string;
  shapes(run: RunState, box: Box, choices: Choices): Shape[];
  /** What the drawing shows, for people who do not see it. */
  words(run: RunState, choices: Choices): string;
  rows(run: RunState, choices: Choices): Table;
  /** The buttons above the drawing, in groups of which one is pressed. */
  options?(run: RunState, choices: Choices): Option[][];
  /** How the keys move in it: along the stream, or from cell to cell. */
  keys?: Stream | Grid;
}

export interface Option {
  text: string;
  /** Where `text` alone says too little. */
  name?: string;
  pressed: boolean;
  /** What pressing it changes: choices, or the tokens of the rolling mean. */
  set: Partial<Choices> & { roll?: number };
}

/** A figure over the stream has a cursor. */
export interface Stream {
  kind: "stream";
  /** Where the plot lies, and the stream positions at its ends. */
  plot(run: RunState, box: Box, choices: Choices): { left: number; right: number; first: number; last: number };
  /** What stands at a stream position. */
  reading(run: RunState, at: number, choices: Choices): string;
}

/** A figure of cells has one of them in focus. */
export interface Grid {
  kind: "grid";
  size(run: RunState, box: Box, choices: Choices): { rows: number; columns: number };
  /** Null where there is no cell. */
  cell(run: RunState, box: Box, choices: Choices, row: number, column: number): Cell | null;
  /** The cell at a point of the drawing. */
  hit(run: RunState, box: Box, choices: Choices, point: Point): { row: number; column: number } | null;
}

export interface Cell {
  rect: Rect;
  name: string;
  /** What opening it shows; null where there is nothing more to show. */
  opens: Choices["head"];
}
