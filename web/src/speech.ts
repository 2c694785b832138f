// Speaks the answer by sentence to screen readers, through the page's one live region. The
// conversation itself is not live: read out token by token, it would drown everything else.

import * as say from "./strings.en.ts";

/** Least length of what is spoken at once, characters. */
const LEAST = 40;
/** Least time between two utterances, milliseconds. */
const GAP = 2000;
/** With more sentences waiting than this, they are dropped and a count is spoken. */
const MOST_WAITING = 3;

export class Speech {
  private spoken = 0;
  private last = Number.NEGATIVE_INFINITY;

  constructor(private readonly region: HTMLElement) {}

  /** A new answer begins. */
  begin(): void {
    this.spoken = 0;
  }

  /** `text` is the whole answer so far, `tokens` its length; `now` in milliseconds. */
  follow(text: string, tokens: number, now: number): void {
    if (now - this.last < GAP) return;
    const waiting = text.slice(this.spoken);
    const sentences = waiting.match(/[^.!?\n]*[.!?\n]+["”’)]*\s/g) ?? [];
    const ready = sentences.join("");
    if (ready.trim().length < LEAST) return;
    this.spoken += ready.length;
    this.speak(sentences.length > MOST_WAITING ? say.stillAtIt(tokens) : ready, now);
  }

  /** The answer is over: its unspoken rest. */
  end(text: string, now: number): void {
    const rest = text.slice(this.spoken).trim();
    this.spoken = text.length;
    if (rest !== "") this.speak(rest, now);
  }

  /** Something that happened, at once. */
  say(words: string): void {
    this.speak(words, performance.now());
  }

  private speak(words: string, now: number): void {
    this.last = now;
    this.region.textContent = words.trim();
  }
}
