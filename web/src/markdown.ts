// An answer as it is written: Markdown, block by block. A block that is complete is put down once;
// only what may still change is made anew. Its parts are
// made one by one from a closed list of elements and never read as HTML, so that nothing the model
// writes can run, load or leave the page.

import type { Lexer, MarkedToken, Token, Tokens } from "marked";
import { button, el } from "./dom.ts";
import * as say from "./strings.en.ts";

/** Characters of complete blocks that stay on the page while more is written. */
const MOST = 12_000;

const OPTIONS = { gfm: true, breaks: true };

let lexer: typeof Lexer | null = null;

/** Fetches what reads Markdown, which only a conversation needs. Until it is here, text stays as it is. */
export async function prepare(): Promise<void> {
  lexer ??= (await import("marked")).Lexer;
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
    if (lexer === null) {
      this.tail.textContent = tail;
      return true;
    }
    const tokens: Token[] = lexer.lex(tail, OPTIONS);
    const last = tokens.findLastIndex(({ type }) => type !== "space");
    let open = 0;
    for (let at = 0; open < last; open += 1) {
      const token = tokens[open];
      // The reader may have changed the text on its way; then nothing is known of where a block ends.
      if (token === undefined || !tail.startsWith(token.raw, at)) break;
      at += token.raw.length;
      this.close(token);
    }
    this.tail.replaceChildren(...nodes(tokens.slice(open)));
    this.shorten();
    return true;
  }

  /** Marks what lies in the first characters as gone from the cache. */
  gone(characters: number): void {
    for (const { element, end } of this.blocks) element.classList.toggle("gone", end <= characters);
    this.tail.classList.toggle("gone", characters > 0 && characters >= this.text.length);
  }

  private close(token: Token): void {
    this.at += token.raw.length;
    if (token.type === "space") return;
    const element = el("div", { class: "block" });
    element.append(...nodes([token]));
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

const nodes = (tokens: readonly Token[] = []): (Node | string)[] => tokens.flatMap((token) => node(token));

/** A token as elements; what has no element of its own is text. */
function node(token: Token): (Node | string)[] {
  // The library's own kinds; it has no others without extensions.
  const known = token as MarkedToken;
  switch (known.type) {
    case "space":
    case "def":
      return [];
    case "paragraph":
      return [el("p", {}, ...nodes(known.tokens))];
    // Headings of an answer are none of the page's.
    case "heading":
      return [el("p", { class: "heading" }, ...nodes(known.tokens))];
    case "code":
      return [el("pre", { tabindex: "0" }, el("code", {}, known.text))];
    case "blockquote":
      return [el("blockquote", {}, ...nodes(known.tokens))];
    case "hr":
      return [el("hr", {})];
    case "list":
      return [list(known)];
    case "table":
      return [table(known)];
    case "strong":
    case "em":
    case "del":
      return [el(known.type, {}, ...nodes(known.tokens))];
    case "codespan":
      return [el("code", {}, plain(known.text))];
    case "br":
      return [el("br", {})];
    case "link":
      return link(known);
    case "text":
      return "tokens" in known && known.tokens !== undefined ? nodes(known.tokens) : [plain(known.text)];
    case "checkbox":
      return [known.checked ? "☑ " : "☐ "];
    case "escape":
      return [known.text];
    // Markup is text like any other, and a picture would be fetched from somewhere.
    default:
      return [known.raw];
  }
}

function list({ ordered, start, items }: Tokens.List): HTMLElement {
  const entries = items.map(({ tokens }) => el("li", {}, ...nodes(tokens)));
  return ordered ? el("ol", { start: String(start || 1) }, ...entries) : el("ul", {}, ...entries);
}

function table({ header, rows }: Tokens.Table): HTMLElement {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...header.map(({ tokens }) => el("th", {}, ...nodes(tokens))))),
    el(
      "tbody",
      {},
      ...rows.map((row) => el("tr", {}, ...row.map(({ tokens }) => el("td", {}, ...nodes(tokens))))),
    ),
  );
}

/** Only what leads to another page is a link. */
function link({ href, tokens, raw }: Tokens.Link): (Node | string)[] {
  if (!/^(?:https?|mailto):/i.test(href)) return [raw];
  return [el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...nodes(tokens))];
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" };

/** Text with the few names of characters that people write out. */
const plain = (text: string): string =>
  text.replaceAll(/&(amp|lt|gt|quot|#39);/g, (whole, name: string) => ENTITIES[name] ?? whole);
