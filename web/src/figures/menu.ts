// What a person takes away of a figure: SVG, PNG, CSV, a link, its text, its numbers as a table. Fetched when it
// is first asked for.

import { button, download, el } from "../dom.ts";
import type { RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import { laneOptions, ofLane } from "./choose.ts";
import type { Choices, Figure, Option, Table, Value } from "./figure.ts";
import type { FigureWishes } from "./index.ts";
import { LINE, textWidth } from "./plot.ts";
import { type Box, type Colours, escaped, markup, TEXT } from "./shapes.ts";

/** Rows of a table on the page. */
const MOST_ROWS = 32;
/** Tokens that curves show when they do not show all. */
const SPAN = 512;
/** Room around a drawing in a file, pixels. */
const EDGE = 16;
const TITLE = 16;
/** How much wider bold letters are. */
const BOLD = 1.1;
/** Pixels of a PNG for each of the drawing's. */
const PNG_SCALE = 2;

/** A figure as it is seen now. */
export interface Seen {
  figure: Figure;
  run: RunState;
  box: Box;
  choices: Choices;
  colours: Colours;
}

export interface Opening extends Seen {
  wishes: FigureWishes;
  opener: HTMLElement;
  choose(set: Option["set"]): void;
}

/** Opens the menu below its button. */
export function openMenu(opening: Opening): void {
  const { figure, run, choices, wishes, opener, choose } = opening;
  const name = fileName(figure, run);
  const close = (): void => {
    menu.hidePopover();
    opener.focus();
  };
  const item = (text: string, act: () => void): HTMLButtonElement =>
    button(
      text,
      () => {
        close();
        act();
      },
      { role: "menuitem", tabindex: "-1" },
    );
  const copy = (text: string): void =>
    void navigator.clipboard.writeText(text).then(
      () => wishes.say(say.copied),
      () => wishes.say(say.copyFailed),
    );
  const last = button(
    say.frame.last(SPAN),
    () => {
      close();
      choose({ span: choices.span === null ? SPAN : null });
    },
    { role: "menuitemcheckbox", "aria-checked": String(choices.span !== null), tabindex: "-1" },
  );
  const items = [
    item(say.frame.svg, () => download(`${name}.svg`, "image/svg+xml", svgOf(opening))),
    item(say.frame.png, () => void pngOf(opening).then((png) => download(`${name}.png`, "image/png", png))),
    item(say.frame.csv, () => download(`${name}.csv`, "text/csv", csvOf(figure.rows(run, choices)))),
    item(say.frame.link, () => copy(wishes.link(figure.id))),
    item(say.frame.text, () => copy(textOf(opening))),
    ...(figure.keys?.kind === "stream" || figure.id === "attention" || figure.id === "cache" ? [last] : []),
  ];
  const menu = el("div", { class: "popup", role: "menu", popover: "auto", "aria-label": say.frame.menu }, ...items);
  menu.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target as HTMLButtonElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") close();
    else if (to === undefined) return;
    else items[(to + items.length) % items.length]?.focus();
    event.preventDefault();
    // What is open is closed, and no answer is stopped by the same key.
    event.stopPropagation();
  });
  menu.addEventListener("toggle", (event) => {
    if ((event as ToggleEvent).newState === "closed") menu.remove();
  });
  opener.after(menu);
  menu.showPopover();
  const { right, bottom, top } = opener.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  menu.style.left = `${Math.max(4, right - width)}px`;
  menu.style.top = `${bottom + height < innerHeight ? bottom + 4 : Math.max(4, top - height - 4)}px`;
  items[0]?.focus();
}

/** `sinkstream-cost-take-sinks-away-512`. */
export function fileName(figure: Figure, run: RunState): string {
  const slug = (run.title ?? run.mode).toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").replaceAll(/^-|-$/g, "");
  return `sinkstream-${figure.id}-${slug}-${run.at}`;
}

/** A drawing that needs nothing around it: its colours, title, words and settings are in it. */
export function svgOf({ figure, run, box, choices, colours }: Seen): string {
  const width = box.width + 2 * EDGE;
  const inside = figure.shapes(run, box, choices);
  const title = figure.title(run, choices);
  const below = [figure.caption(run, choices), settingsOf(figure, run, choices)].flatMap((text) => wrapped(text, box.width));
  const headings = wrapped(title, (box.width * TEXT) / (TITLE * BOLD));
  const top = EDGE + headings.length * (TITLE + 4) + 6;
  const height = top + box.height + 6 + below.length * LINE + EDGE;
  const text = (line: string, y: number, rest: string): string => `<text x="${EDGE}" y="${y}" ${rest}>${escaped(line)}</text>`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="${TEXT}" role="img" aria-labelledby="title desc">` +
    `<title id="title">${escaped(title)}</title><desc id="desc">${escaped(figure.words(run, choices))}</desc>` +
    `<rect width="${width}" height="${height}" fill="${colours("card")}"/>` +
    headings
      .map((line, i) => text(line, EDGE + (i + 1) * (TITLE + 4) - 6, `font-size="${TITLE}" font-weight="600" fill="${colours("ink")}"`))
      .join("") +
    `<g transform="translate(${EDGE} ${top})">${markup(inside, colours, "fill")}</g>` +
    below.map((line, i) => text(line, top + box.height + 6 + (i + 1) * LINE, `fill="${colours("muted")}"`)).join("") +
    "</svg>"
  );
}

/** What made the run, its lanes, and which of them is shown where a figure shows one. */
function settingsOf(figure: Figure, run: RunState, choices: Choices): string {
  const { title, made, model, lanes, at } = run;
  const one = figure.options === laneOptions || figure.id === "memory" ? ofLane(run, choices) : "";
  return one + say.frame.settings(
    title,
    model?.name ?? null,
    lanes.map(({ name }) => name),
    at,
    made,
  );
}

function wrapped(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const line = lines.at(-1);
    if (line !== undefined && textWidth(`${line} ${word}`) <= width) lines[lines.length - 1] = `${line} ${word}`;
    else lines.push(word);
  }
  return lines;
}

async function pngOf(seen: Seen): Promise<Blob> {
  const url = URL.createObjectURL(new Blob([svgOf(seen)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width * PNG_SCALE, image.height * PNG_SCALE);
    const context = canvas.getContext("2d");
    context?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await canvas.convertToBlob({ type: "image/png" });
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Comma-separated values as RFC 4180 has them, with a line `# …` before them where there is a note. */
export function csvOf({ head, rows, note }: Table): string {
  const lines = [head, ...rows].map((row) => row.map(csvValue).join(","));
  return `${note === undefined ? "" : `# ${note}\n`}${lines.join("\n")}\n`;
}

function csvValue(value: Value): string {
  if (value === null) return "";
  const text = String(value);
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function textOf({ figure, run, choices }: Seen): string {
  return [figure.title(run, choices), figure.words(run, choices), figure.caption(run, choices), settingsOf(figure, run, choices)].join("\n");
}

/** The rows as a table, or as many as can be read; before it, what is to be said of them. */
export function tableOf({ head, rows, note }: Table): HTMLElement[] {
  const step = Math.max(1, (rows.length - 1) / (MOST_ROWS - 1));
  const shown = rows.length <= MOST_ROWS ? rows : Array.from({ length: MOST_ROWS }, (_, i) => rows[Math.round(i * step)] ?? []);
  const about = [...(note === undefined ? [] : [note]), ...(shown.length < rows.length ? [say.frame.sampled(shown.length, rows.length)] : [])];
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      {},
      ...shown.map((row) =>
        el("tr", {}, ...row.map((value) => el("td", typeof value === "number" ? { class: "number" } : {}, cellText(value)))),
      ),
    ),
  );
  return [...(about.length > 0 ? [el("p", { class: "muted" }, about.join(" "))] : []), table];
}

const cellText = (value: Value): string => (value === null ? say.UNKNOWN : String(value));
