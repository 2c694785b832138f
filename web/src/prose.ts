// An answer as it is written, block by block. A block that is complete is put down once; only what may still
// change is made anew.

import type { Token } from "marked";
import { button, el } from "./dom.ts";
import * as say from "./strings.en.ts";

/** Characters of complete blocks that stay on the page while more is written. */
const MOST = 12_000;

let reader: typeof import("./markdown.ts") | null = null;

/** Fetches what reads Markdown, which only a conversation needs. Until it is here, text stays as it is. */
export async function prepare(): Promise<void> {
  reader ??= await import("./markdown.ts");
}

interface Block {
  element: HTMLElement;
  /** Where it ends in the text. */
  end: number;
}

export class Prose {
  readonly element = el("div", { class: "prose" });
  private readonly tail = el("div", { class: "block" });
  private blocks: Block[] = [];
  private text = "";
  /** Where what may still change begins. */
  private at = 0;
  private all = false;
  private readonly more = button(say.showBeginning, () => {
    this.all = true;
    const { text } = this;
    this.reset();
    this.draw(text);
  });

  constructor() {
    this.element.append(this.tail);
  }

  /** True where something changed. */
  draw(text: string): boolean {
    if (text === this.text) return false;
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    const tail = text.slice(this.at);
    if (reader === null) {
      this.tail.textContent = tail;
      return true;
    }
    const tokens = reader.read(tail);
    const last = tokens.findLastIndex(({ type }) => type !== "space");
    let open = 0;
    for (let at = 0; open < last; open += 1) {
      const token = tokens[open];
      // The reader may have changed the text on its way; then nothing is known of where a block ends.
      if (token === undefined || !tail.startsWith(token.raw, at)) break;
      at += token.raw.length;
      this.close(token, reader.nodes([token]));
    }
    this.tail.replaceChildren(...reader.nodes(tokens.slice(open)));
    this.shorten();
    return true;
  }

  /** Marks what lies in the first characters as gone from the cache. */
  gone(characters: number): void {
    for (const { element, end } of this.blocks) element.classList.toggle("gone", end <= characters);
    this.tail.classList.toggle("gone", characters > 0 && characters >= this.text.length);
  }

  private close(token: Token, parts: (Node | string)[]): void {
    this.at += token.raw.length;
    if (token.type === "space") return;
    const element = el("div", { class: "block" }, ...parts);
    this.tail.before(element);
    this.blocks.push({ element, end: this.at });
  }

  private shorten(): void {
    if (this.all) return;
    let first = this.blocks.findIndex(({ end }) => end > this.at - MOST);
    // The last block stays, however long it is.
    if (first === -1) first = Math.max(0, this.blocks.length - 1);
    if (first === 0) return;
    for (const { element } of this.blocks.splice(0, first)) element.remove();
    this.element.prepend(this.more);
  }

  private reset(): void {
    for (const { element } of this.blocks) element.remove();
    this.more.remove();
    this.tail.replaceChildren();
    [this.blocks, this.text, this.at] = [[], "", 0];
  }
}
