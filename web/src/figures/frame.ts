// What stands around a figure on the page: title, tools, drawing, text alternative, caption, table.

import { button, el, setText } from "../dom.ts";
import type { RunState } from "../run.ts";
import * as say from "../strings.en.ts";
import { type Palette, paint } from "./canvas.ts";
import type { Choices, Figure, Grid, Option, Stream } from "./figure.ts";
import type { FigureWishes } from "./index.ts";
import { type Box, LIVE, markup, type Point } from "./shapes.ts";

/** What a frame needs from the registry. */
export interface Host {
  readonly choices: Choices;
  readonly palette: Palette;
  readonly wishes: FigureWishes;
  choose(set: Option["set"]): void;
  lead(figure: Figure): void;
}

/** What stands below a drawing. */
export interface Extra {
  element: HTMLElement;
  draw(run: RunState, choices: Choices): void;
}

/** The text alternative is refreshed so often while it is not in focus, milliseconds. */
const WORDS = 2000;
/** A table is refreshed so often, milliseconds. */
const TABLE = 1000;
/** Steps of Page Up and Page Down. */
const PAGE = 32;

export class FigureFrame {
  readonly element: HTMLElement;
  private readonly title: HTMLElement;
  private readonly words: HTMLElement;
  private readonly caption = el("figcaption", { class: "muted" });
  private readonly stage = el("div", { class: "stage" });
  private readonly drawing: SVGSVGElement | HTMLCanvasElement;
  private readonly tip = el("div", { class: "tip", "aria-hidden": "true" });
  private readonly tools: HTMLElement;
  private readonly options = el("div", { class: "options" });
  private readonly leadButton: HTMLButtonElement;
  private readonly tableButton: HTMLButtonElement;
  private readonly table: HTMLElement;
  private readonly stop: Stop | null;
  private box: Box = { width: 0, height: 0 };
  private pixels: Box = { width: 0, height: 0 };
  private run: RunState | null = null;
  private seen = false;
  /** Something but the run changed. */
  private stale = true;
  /** When it was drawn last. */
  private drawn = Number.NEGATIVE_INFINITY;
  private drawnRun: RunState | null = null;
  private wordsDue = 0;
  private tableDrawn = Number.NEGATIVE_INFINITY;

  constructor(
    readonly figure: Figure,
    private readonly host: Host,
    private readonly extra: Extra | null,
  ) {
    const { id } = figure;
    this.title = el("h3", { id: `${id}-title` });
    this.words = el("p", { id: `${id}-words`, class: "hidden" });
    this.leadButton = icon("⤢", say.frame.lead, () => host.lead(figure));
    this.leadButton.setAttribute("aria-pressed", "false");
    this.tableButton = icon("⊞", say.frame.table, () => void this.toggleTable());
    const menuButton = icon("⋯", say.frame.menu, () => void this.openMenu(menuButton));
    menuButton.setAttribute("aria-haspopup", "menu");
    this.tools = el(
      "div",
      { class: "tools", role: "toolbar" },
      this.title,
      el("div", { class: "icons" }, this.leadButton, this.tableButton, menuButton),
      this.options,
    );
    this.tools.addEventListener("keydown", (event) => this.walkTools(event));
    if (figure.surface === "svg") {
      this.drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    } else this.drawing = el("canvas", {});
    const { keys } = figure;
    this.stop = keys === undefined ? null : keys.kind === "stream" ? new StreamStop(this, keys) : new GridStop(this, keys);
    if (this.stop === null) {
      this.drawing.setAttribute("role", "img");
      this.drawing.setAttribute("aria-labelledby", `${id}-title ${id}-words`);
    } else this.drawing.setAttribute("aria-hidden", "true");
    this.tip.hidden = true;
    this.stage.append(this.drawing, this.tip, ...(this.stop === null ? [] : [this.stop.element]));
    this.table = el("div", { class: "table", tabindex: "0", role: "region" });
    this.table.hidden = true;
    this.element = el(
      "figure",
      { id, "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-words` },
      this.tools,
      this.stage,
      this.table,
      this.words,
      this.caption,
      ...(extra === null ? [] : [extra.element]),
    );
    this.element.addEventListener("focusin", () => this.refreshWords());
    this.watch();
    this.roam();
  }

  private watch(): void {
    new ResizeObserver(([entry]) => {
      if (entry === undefined) return;
      this.box = { width: entry.contentRect.width, height: entry.contentRect.height };
      const [exact] = entry.devicePixelContentBoxSize ?? [];
      this.pixels = {
        width: whole(exact?.inlineSize, this.box.width),
        height: whole(exact?.blockSize, this.box.height),
      };
      this.refresh();
    }).observe(this.stage, deviceBox());
    new IntersectionObserver(([entry]) => {
      this.seen = entry?.isIntersecting ?? false;
      if (this.seen) this.host.wishes.wake();
    }).observe(this.element);
  }

  /** What it would show now; keys may be faster than drawings. */
  get state(): { run: RunState; box: Box; choices: Choices } {
    return { run: this.host.wishes.run(), box: this.box, choices: this.host.choices };
  }

  get wishes(): FigureWishes {
    return this.host.wishes;
  }

  /** Draws with the next frame, whatever its turn. */
  refresh(): void {
    this.stale = true;
    this.host.wishes.wake();
  }

  showLead(isLead: boolean): void {
    this.element.classList.toggle("leading", isLead);
    this.leadButton.setAttribute("aria-pressed", String(isLead));
  }

  focusLead(): void {
    this.leadButton.focus();
  }

  /** Whether it has something new to draw. */
  wants(run: RunState): boolean {
    const before = this.run;
    this.run = run;
    // What has no picture yet has its words, so that nothing moves when it is scrolled to.
    const begins = before === null || before.lanes.length !== run.lanes.length || before.mode !== run.mode || before.title !== run.title;
    if (begins || this.stale) {
      this.label(run);
      this.extra?.draw(run, this.host.choices);
    }
    return this.seen && this.box.width > 0 && (this.stale || run !== this.drawnRun);
  }

  /** Whether it may be drawn now. */
  due(run: RunState, now: number): boolean {
    const pause = this.host.choices.still ? Math.max(1000, 1000 / this.figure.hertz) : 1000 / this.figure.hertz;
    const moved = this.drawnRun !== null && run.cursor !== this.drawnRun.cursor;
    return this.stale || moved || now - this.drawn >= pause;
  }

  get lastDrawn(): number {
    return this.drawn;
  }

  draw(run: RunState, now: number): void {
    const { figure, host, box } = this;
    const { choices } = host;
    this.run = run;
    [this.stale, this.drawn, this.drawnRun] = [false, now, run];
    this.label(run);
    this.extra?.draw(run, choices);
    if (this.words.textContent === "") this.refreshWords();
    else if (this.wordsDue === 0) this.wordsDue = setTimeout(() => this.refreshWords(), WORDS);
    if (!this.table.hidden) {
      if (now - this.tableDrawn >= TABLE) void this.drawTable(now);
      return;
    }
    const shapes = figure.shapes(run, box, choices);
    if (this.drawing instanceof HTMLCanvasElement) {
      const { width, height } = this.pixels;
      // Setting a size clears it, too.
      [this.drawing.width, this.drawing.height] = [width, height];
      const context = this.drawing.getContext("2d");
      if (context !== null) paint(context, shapes, host.palette.colours, width / box.width);
    } else {
      this.drawing.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
      this.drawing.innerHTML = markup(shapes, LIVE, `live-${figure.id}`);
    }
    this.stop?.draw(run, box, choices);
  }

  private label(run: RunState): void {
    const { figure, host } = this;
    const title = figure.title(run, host.choices);
    if (setText(this.title, title)) this.tools.setAttribute("aria-label", say.frame.tools(title));
    setText(this.caption, figure.caption(run, host.choices));
    this.drawOptions(figure.options?.(run, host.choices) ?? []);
  }

  private refreshWords(): void {
    clearTimeout(this.wordsDue);
    this.wordsDue = 0;
    const { run, choices } = this.state;
    setText(this.words, this.figure.words(run, choices));
  }

  private drawOptions(groups: Option[][]): void {
    const before = [...this.options.querySelectorAll("button")];
    const wanted = groups.flat();
    const same =
      before.length === wanted.length &&
      before.every(
        (b, i) => b.textContent === wanted[i]?.text && b.getAttribute("aria-pressed") === String(wanted[i]?.pressed ?? false),
      );
    if (same) return;
    const focused = before.indexOf(document.activeElement as HTMLButtonElement);
    this.options.replaceChildren(
      ...groups.map((group) =>
        el(
          "div",
          { class: "choice" },
          ...group.map(({ text, name, pressed, set }) =>
            button(text, () => this.host.choose(set), {
              class: "small",
              "aria-pressed": String(pressed),
              ...(name === undefined ? {} : { "aria-label": name }),
            }),
          ),
        ),
      ),
    );
    this.roam();
    if (focused >= 0) {
      const now = [...this.options.querySelectorAll("button")];
      (now[Math.min(focused, now.length - 1)] ?? this.leadButton).focus();
    }
  }

  /** All but those of a menu that is open. */
  private toolButtons(): HTMLButtonElement[] {
    return [...this.tools.querySelectorAll<HTMLButtonElement>(".icons > button, .options button")];
  }

  /** The tools are one stop for Tab. */
  private roam(to?: HTMLButtonElement): void {
    const all = this.toolButtons();
    const current = to ?? all.find((b) => b.tabIndex === 0 && b.hasAttribute("tabindex")) ?? all[0];
    for (const one of all) one.tabIndex = one === current ? 0 : -1;
  }

  private walkTools(event: KeyboardEvent): void {
    const all = this.toolButtons();
    const at = all.indexOf(event.target as HTMLButtonElement);
    if (at < 0) return;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    if (next === undefined) return;
    this.roam(next);
    next.focus();
  }

  /** Text beside a point of the drawing; null takes it away. */
  showTip(lines: readonly string[] | null, at: Point = [0, 0]): void {
    this.tip.hidden = lines === null;
    if (lines === null) return;
    this.tip.replaceChildren(...lines.map((line) => el("p", {}, line)));
    const { width, height } = this.box;
    const right = at[0] > width / 2;
    this.tip.style.insetInlineStart = right ? "auto" : `${Math.min(at[0] + 12, width - 40)}px`;
    this.tip.style.insetInlineEnd = right ? `${Math.min(width - at[0] + 12, width - 40)}px` : "auto";
    const low = at[1] > height / 2;
    this.tip.style.insetBlockStart = low ? "auto" : `${at[1] + 12}px`;
    this.tip.style.insetBlockEnd = low ? `${height - at[1] + 12}px` : "auto";
  }

  private async toggleTable(): Promise<void> {
    const opens = this.table.hidden;
    this.table.hidden = !opens;
    this.stage.hidden = opens;
    this.tableButton.setAttribute("aria-label", opens ? say.frame.picture : say.frame.table);
    this.tableButton.title = opens ? say.frame.picture : say.frame.table;
    if (opens) await this.drawTable(Number.NEGATIVE_INFINITY);
    else this.refresh();
  }

  private async drawTable(now: number): Promise<void> {
    this.tableDrawn = now;
    const { tableOf } = await import("./menu.ts");
    const { run, choices } = this.state;
    this.table.setAttribute("aria-label", this.figure.title(run, choices));
    this.table.replaceChildren(...tableOf(this.figure.rows(run, choices)));
  }

  private async openMenu(opener: HTMLButtonElement): Promise<void> {
    const { openMenu } = await import("./menu.ts");
    openMenu({ ...this.state, figure: this.figure, colours: this.host.palette.colours, wishes: this.wishes, opener, choose: (set) => this.host.choose(set) });
  }

  choose(set: Option["set"]): void {
    this.host.choose(set);
  }
}

function icon(sign: string, name: string, act: () => void): HTMLButtonElement {
  return button(sign, act, { class: "icon", "aria-label": name, title: name });
}

/** Device pixels of a length; what the browser says is taken where it is a rounding of it, which it is not when a screen is imitated. */
function whole(exact: number | undefined, length: number): number {
  const wanted = length * devicePixelRatio;
  return exact !== undefined && Math.abs(exact - wanted) <= 1 ? exact : Math.round(wanted);
}

/** The box to observe: device pixels where the browser tells them. */
function deviceBox(): ResizeObserverOptions {
  return "devicePixelContentBoxSize" in ResizeObserverEntry.prototype ? { box: "device-pixel-content-box" } : {};
}

/** The part of a drawing that takes the focus. */
interface Stop {
  element: HTMLElement;
  draw(run: RunState, box: Box, choices: Choices): void;
}

/** A cursor that goes along the stream: a slider, which every screen reader knows. */
class StreamStop implements Stop {
  readonly element: HTMLElement;
  private pinned = false;

  constructor(
    private readonly frame: FigureFrame,
    private readonly keys: Stream,
  ) {
    const { id } = frame.figure;
    this.element = el("div", {
      class: "stop",
      role: "slider",
      tabindex: "0",
      "aria-labelledby": `${id}-title`,
      "aria-describedby": `${id}-words`,
      "aria-valuemin": "0",
      "aria-valuemax": "0",
      "aria-valuenow": "0",
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("pointermove", (event) => {
      if (!this.pinned) this.move(this.at(event));
    });
    this.element.addEventListener("pointerleave", () => {
      if (!this.pinned) this.move(null);
    });
    this.element.addEventListener("click", (event) => {
      this.pinned = !this.pinned;
      this.move(this.at(event));
    });
    this.element.addEventListener("focus", () => this.tell());
    this.element.addEventListener("blur", () => {
      if (!this.pinned) this.move(null);
    });
  }

  draw(run: RunState, box: Box, choices: Choices): void {
    const { first } = this.keys.plot(run, box, choices);
    const now = run.cursor ?? Math.max(0, run.at - 1);
    this.element.setAttribute("aria-valuemin", String(first));
    this.element.setAttribute("aria-valuemax", String(Math.max(first, run.at - 1)));
    this.element.setAttribute("aria-valuenow", String(now));
    this.element.setAttribute("aria-valuetext", this.keys.reading(run, now, choices));
    if (run.cursor === null) this.frame.showTip(null);
    else if (this.element.matches(":hover, :focus")) this.tell();
  }

  /** The stream position under the pointer. */
  private at({ clientX }: MouseEvent): number {
    const { state } = this.frame;
    const { left, right, first, last } = this.keys.plot(state.run, state.box, state.choices);
    const part = (clientX - this.element.getBoundingClientRect().left - left) / (right - left);
    const at = Math.round(first + part * (last - first));
    return Math.min(Math.max(at, first), Math.max(first, state.run.at - 1));
  }

  private move(at: number | null): void {
    this.frame.wishes.cursor(at);
    if (at === null) this.frame.showTip(null);
  }

  private tell(): void {
    const { state } = this.frame;
    if (state.run.cursor === null) return;
    const { left, right, first, last } = this.keys.plot(state.run, state.box, state.choices);
    const x = left + ((state.run.cursor - first) / (last - first)) * (right - left);
    this.frame.showTip(this.keys.reading(state.run, state.run.cursor, state.choices).split(/: |; /), [x, 0]);
  }

  private key(event: KeyboardEvent): void {
    const { state } = this.frame;
    const end = Math.max(0, state.run.at - 1);
    const { first } = this.keys.plot(state.run, state.box, state.choices);
    const now = state.run.cursor ?? end;
    const to: Record<string, number | null> = {
      ArrowRight: now + 1,
      ArrowUp: now + 1,
      ArrowLeft: now - 1,
      ArrowDown: now - 1,
      PageUp: now + PAGE,
      PageDown: now - PAGE,
      Home: first,
      End: end,
      Enter: now,
    };
    if (event.key === "Escape" && state.run.cursor !== null) {
      event.preventDefault();
      this.pinned = false;
      return this.move(null);
    }
    const at = to[event.key];
    if (at === undefined || at === null) return;
    event.preventDefault();
    if (event.key === "Enter") this.pinned = !this.pinned;
    this.move(Math.min(Math.max(at, first), end));
  }
}

/** A grid of which one cell is there, and moves. */
class GridStop implements Stop {
  readonly element: HTMLElement;
  private readonly row = el("div", { role: "row" });
  private readonly cell = el("div", { role: "gridcell", tabindex: "0", class: "cell" });
  private at = { row: 0, column: 0 };

  constructor(
    private readonly frame: FigureFrame,
    private readonly keys: Grid,
  ) {
    const { id } = frame.figure;
    this.row.append(this.cell);
    this.element = el(
      "div",
      { class: "stop", role: "grid", "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-words` },
      this.row,
    );
    this.cell.addEventListener("keydown", (event) => this.key(event));
    this.cell.addEventListener("focus", () => this.tell());
    this.cell.addEventListener("blur", () => frame.showTip(null));
    this.element.addEventListener("pointermove", (event) => {
      if (this.under(event)) this.tell();
      else frame.showTip(null);
    });
    this.element.addEventListener("pointerleave", () => frame.showTip(null));
    this.element.addEventListener("click", (event) => {
      if (!this.under(event)) return;
      this.cell.focus();
      this.open();
    });
  }

  draw(run: RunState, box: Box, choices: Choices): void {
    const { rows, columns } = this.keys.size(run, box, choices);
    this.at = { row: Math.min(this.at.row, Math.max(0, rows - 1)), column: Math.min(this.at.column, Math.max(0, columns - 1)) };
    this.element.setAttribute("aria-rowcount", String(rows));
    this.element.setAttribute("aria-colcount", String(columns));
    this.place();
    if (this.cell.matches(":focus")) this.tell();
  }

  /** Moves to the cell under the pointer, if there is one. */
  private under({ clientX, clientY }: MouseEvent): boolean {
    const { state } = this.frame;
    const { left, top } = this.element.getBoundingClientRect();
    const found = this.keys.hit(state.run, state.box, state.choices, [clientX - left, clientY - top]);
    if (found === null || this.cellAt(found.row, found.column) === null) return false;
    this.at = found;
    this.place();
    return true;
  }

  private cellAt(row: number, column: number): ReturnType<Grid["cell"]> {
    const { state } = this.frame;
    return this.keys.cell(state.run, state.box, state.choices, row, column);
  }

  private place(): void {
    const { row, column } = this.at;
    const found = this.cellAt(row, column);
    this.row.setAttribute("aria-rowindex", String(row + 1));
    this.cell.setAttribute("aria-colindex", String(column + 1));
    this.cell.setAttribute("aria-label", found?.name ?? say.noToken);
    if (found === null) return;
    const { style } = this.cell;
    style.insetInlineStart = `${found.rect.x}px`;
    style.insetBlockStart = `${found.rect.y}px`;
    style.inlineSize = `${found.rect.width}px`;
    style.blockSize = `${found.rect.height}px`;
  }

  private tell(): void {
    const found = this.cellAt(this.at.row, this.at.column);
    if (found === null) return this.frame.showTip(null);
    const { x, y, width, height } = found.rect;
    this.frame.showTip([found.name], [x + width / 2, y + height / 2]);
  }

  private open(): void {
    const opens = this.cellAt(this.at.row, this.at.column)?.opens ?? null;
    if (opens === null) return;
    this.frame.choose({ head: opens });
    this.frame.wishes.ask(opens.lane, opens.layer, opens.head);
  }

  private key(event: KeyboardEvent): void {
    const { state } = this.frame;
    const { rows, columns } = this.keys.size(state.run, state.box, state.choices);
    let { row, column } = this.at;
    const step = (by: number): void => {
      const index = row * columns + column + by;
      row = Math.floor(index / columns);
      column = index - row * columns;
    };
    switch (event.key) {
      case "ArrowRight":
        step(1);
        break;
      case "ArrowLeft":
        step(-1);
        break;
      case "ArrowDown":
        row += 1;
        break;
      case "ArrowUp":
        row -= 1;
        break;
      case "PageDown":
        step(PAGE);
        break;
      case "PageUp":
        step(-PAGE);
        break;
      case "Home":
        [row, column] = event.ctrlKey ? [0, 0] : [row, 0];
        break;
      case "End":
        [row, column] = event.ctrlKey ? [rows - 1, columns - 1] : [row, columns - 1];
        break;
      case "Enter":
        event.preventDefault();
        return this.open();
      case "Escape":
        if (state.choices.head === null) return;
        event.preventDefault();
        return this.frame.choose({ head: null });
      default:
        return;
    }
    event.preventDefault();
    if (row < 0 || row >= rows) return;
    // The last row may be shorter than the others.
    while (column > 0 && this.cellAt(row, column) === null) column -= 1;
    if (this.cellAt(row, column) === null) return;
    this.at = { row, column };
    this.place();
    this.tell();
    // Named anew: some screen readers only speak on a change of focus.
    this.cell.focus();
  }
}
