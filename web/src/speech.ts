// Speaks to screen readers through the page's one live region: the answer by sentence, and what happens, in turn. The
// conversation itself is not live: read out token by token, it would drown everything else.

import * as say from "./strings.en.ts";

/** When answers are spoken. */
export type Spoken = keyof typeof say.spokenNames;

/** Least length of what is spoken at once, characters. */
const LEAST = 40;
/** Least time between two utterances, milliseconds: one that takes another's place too soon is never heard. */
const GAP = 2000;
/** With more sentences waiting than this, they are dropped and a count is spoken. */
const MOST_WAITING = 3;

export class Speech {
  spoken: Spoken = "sentences";
  private heard = 0;
  private last = Number.NEGATIVE_INFINITY;
  private readonly waiting: string[] = [];
  private timer = 0;

  constructor(private readonly region: HTMLElement) {}

  /** A new answer begins; of the one before nothing more is to be heard. */
  begin(): void {
    this.heard = 0;
    this.waiting.length = 0;
  }

  /** An answer is gone on with that has so many characters. */
  proceed(characters: number): void {
    this.heard = characters;
  }

  /** `text` is the whole answer so far, `tokens` its length. */
  follow(text: string, tokens: number): void {
    if (this.spoken !== "sentences" || this.waiting.length > 0 || performance.now() - this.last < GAP) return;
    const sentences = text.slice(this.heard).match(/[^.!?\n]*[.!?\n]+["”’)]*\s/g) ?? [];
    const ready = sentences.join("");
    if (ready.trim().length < LEAST) return;
    this.heard += ready.length;
    this.tell(sentences.length > MOST_WAITING ? say.stillAtIt(tokens) : ready);
  }

  /** The answer is over: its unspoken rest. */
  end(text: string): void {
    const rest = this.spoken === "never" ? "" : text.slice(this.heard);
    this.heard = text.length;
    // The status line changes now, and two that speak at once may both be lost.
    this.tell(rest, GAP / 2);
  }

  /** Speaks once it is its turn; `least`: not before so many milliseconds. */
  tell(words: string, least = 0): void {
    // The signs of Markdown would be read out by name.
    const plain = words.replaceAll(/[*`#|]+/g, "").trim();
    if (plain === "") return;
    this.waiting.push(plain);
    if (this.timer === 0) this.wait(least);
  }

  private wait(least: number): void {
    const pause = Math.max(least, this.last + GAP - performance.now());
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.last = performance.now();
      this.region.textContent = this.waiting.shift() ?? "";
      if (this.waiting.length > 0) this.wait(GAP);
    }, pause);
  }
}
