// The figures on the page: which there are, and when each is drawn.

import type { RunState } from "../run.ts";
import type { FigureId } from "./figure.ts";

/** What a person can ask for in a figure. Nothing here changes a run by itself. */
export interface FigureWishes {
  /** With the next token, the attention of that head on every slot. */
  ask(lane: number, layer: number, head: number): void;
  /** Moves the cursor that all figures share; null lets it follow the end. */
  cursor(at: number | null): void;
  /** Tokens of the rolling mean. */
  roll(tokens: number): void;
  /** A figure was made the lead one. */
  lead(id: FigureId): void;
  /** An address that shows this again. */
  link(id: FigureId): string;
  /** Something is to be drawn though the run did not change: calls `draw` with the next frame. */
  wake(): void;
  /** Said by the page's one live region. */
  say(text: string): void;
  /** Sends a message in the chat; its answer, or null where there was none or somebody stopped it. */
  send(text: string): Promise<string | null>;
}

export interface Figures {
  /** Draws what changed and may be drawn now; true where a figure waits for its turn. `now` in milliseconds. */
  draw(run: RunState, now: number): boolean;
  /** Makes a figure the lead one. */
  lead(id: FigureId): void;
}
