// Markdown as elements. They are made one by one from a closed list and never read as HTML, so that nothing the
// model writes can run, load or leave the page.

import { Lexer, type MarkedToken, type Token, type Tokens } from "marked";
import { el } from "./dom.ts";

/** The blocks of a text. */
export const read = (text: string): Token[] => Lexer.lex(text, { gfm: true, breaks: true });

export const nodes = (tokens: readonly Token[] = []): (Node | string)[] => tokens.flatMap((token) => node(token));

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
