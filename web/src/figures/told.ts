// The text of a lane: sinks ringed, what has left struck through, what is kept plain. In a chat, an exercise
// stands below it.

import { el } from "../dom.ts";
import type { RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import { laneOf } from "./choose.ts";
import { Exercise } from "./exercise.ts";
import type { Choices } from "./figure.ts";
import type { Extra } from "./frame.ts";
import type { FigureWishes } from "./index.ts";
import { type PieceKind, pieces, textOf } from "./knows.ts";

const KINDS: readonly PieceKind[] = ["sinks", "left", "kept"];

/** A stretch of the text with its heading. */
interface Part {
  element: HTMLElement;
  text: Text;
}

export class Told implements Extra {
  readonly element = el("div", { class: "told-all" });
  private readonly parts: Record<PieceKind, Part>;
  private readonly text: HTMLElement;
  private readonly exercise: Exercise;
  /** Where it was last scrolled to from here. */
  private scrolled = 0;

  constructor(wishes: FigureWishes) {
    const part = (kind: PieceKind): Part => {
      const text = document.createTextNode("");
      const body = kind === "left" ? el("s", {}) : el("span", {});
      body.append(text);
      return { text, element: el("p", { class: `told-${kind}` }, el("b", {}, say.knows.headings[kind]), body) };
    };
    this.parts = { sinks: part("sinks"), left: part("left"), kept: part("kept") };
    this.text = el(
      "div",
      { class: "told", tabindex: "0", role: "region", "aria-label": say.knows.title },
      ...KINDS.map((kind) => this.parts[kind].element),
    );
    this.exercise = new Exercise(wishes);
    this.element.append(this.text, this.exercise.element);
  }

  /** Keeps what left last in sight, until somebody scrolls. */
  private follow(): void {
    const { text } = this;
    if (Math.abs(text.scrollTop - this.scrolled) > 2) return;
    const kept = this.parts.kept.element.offsetTop - text.offsetTop;
    text.scrollTop = Math.max(0, kept - text.clientHeight / 2);
    this.scrolled = text.scrollTop;
  }

  draw(run: RunState, choices: Choices): void {
    const lane = laneOf(run, choices);
    const found = lane === null ? [] : pieces(lane);
    let changed = false;
    for (const kind of KINDS) {
      const piece = found.find((one) => one.kind === kind);
      const { element, text } = this.parts[kind];
      // Where no text is known, one heading says so.
      const out = kind === "left" && run.left_out;
      element.hidden = (piece === undefined && !out) || (run.every > 1 && kind !== "kept");
      if (lane === null || element.hidden) continue;
      const { text: known, begins } = piece === undefined ? { text: "", begins: 0 } : textOf(lane, piece);
      const earlier = out ? say.knows.leftOut : piece !== undefined && begins > piece.from ? say.knows.earlier : "";
      const now = run.every > 1 ? say.numbersOnly : earlier + known;
      if (text.data === now) continue;
      text.data = now;
      changed = true;
    }
    if (changed) this.follow();
    this.exercise.draw();
  }
}
