// The page's elements, and how each follows from the state. Nothing here decides anything.

import { attention } from "./figures/attention.ts";
import { memory } from "./figures/memory.ts";
import { occupancy } from "./figures/occupancy.ts";
import { type Box, type Figure, markup } from "./figures/shapes.ts";
import { portion, type State, sentences, type Turn } from "./state.ts";
import * as say from "./strings.en.ts";

/** What the person can ask for. */
export interface Wishes {
  load(): void;
  cancel(): void;
  send(text: string): void;
  stop(): void;
}

/** Least time between two drawings of the figures and numbers, milliseconds. */
const REDRAW = 250;
/** Pixels from its end within which the conversation keeps to the end. */
const STICKY = 120;

export class View {
  private readonly log = el("div", {
    class: "log",
    role: "log",
    "aria-live": "off",
    "aria-label": say.conversation,
    tabindex: "0",
  });
  private readonly empty = el("p", { class: "muted" }, say.conversationEmpty);
  private readonly status = el("div", { class: "status", role: "status", "aria-atomic": "false" });
  private readonly loadButton = el("button", { type: "button", class: "primary" }, say.load);
  private readonly cancelButton = el("button", { type: "button" }, say.cancel);
  private readonly bar = el("progress", { "aria-label": say.loadBar, max: "1" });
  private readonly loaded = el("p", { class: "numbers muted" });
  private readonly terms = el("p", { class: "muted" });
  private readonly loader = el(
    "section",
    { class: "loader", "aria-label": say.load },
    this.loadButton,
    this.bar,
    this.cancelButton,
    this.loaded,
    this.terms,
  );
  private readonly box = el("textarea", {
    id: "message",
    rows: "2",
    "aria-describedby": "hint",
    autocomplete: "off",
  });
  private readonly sendButton = el("button", { type: "submit", class: "primary" }, say.send);
  private readonly stopButton = el("button", { type: "button" }, say.stop);
  private readonly values = {
    held: el("dd", { id: "held" }),
    bytes: el("dd", { id: "bytes" }),
    stream: el("dd", { id: "stream" }),
    speed: el("dd", { id: "speed" }),
    runs: el("dd", { id: "runs" }),
  };
  private readonly figures = [
    new FigureView("occupancy", occupancy),
    new FigureView("attention", attention),
    new FigureView("memory", memory),
  ];
  /** The hidden live region. */
  readonly region = el("div", { class: "hidden", "aria-live": "polite", "aria-atomic": "true" });

  private readonly turns: TurnView[] = [];
  private stuck = true;
  private shown: State | null = null;
  private drawn = Number.NEGATIVE_INFINITY;

  constructor(root: HTMLElement, wishes: Wishes, terms: string) {
    this.terms.textContent = terms;
    this.log.append(this.empty);
    const form = el(
      "form",
      { class: "composer" },
      el("label", { for: "message" }, say.message),
      this.box,
      el("div", { class: "buttons" }, this.sendButton, this.stopButton),
      el("p", { id: "hint", class: "muted" }, say.messageHint),
    );
    const numbers = el(
      "dl",
      { class: "facts" },
      ...keys(this.values).map((key) => el("div", {}, el("dt", {}, say.facts[key]), this.values[key])),
    );
    root.append(
      el("a", { class: "skip", href: "#message" }, say.skipToChat),
      el("a", { class: "skip", href: "#figures" }, say.skipToFigures),
      el(
        "main",
        {},
        el(
          "div",
          { class: "talk" },
          el(
            "header",
            {},
            el("p", { class: "name" }, say.name),
            el("h1", {}, say.heading),
            el("p", { class: "lead" }, say.lead),
          ),
          el(
            "section",
            { class: "chat", "aria-labelledby": "chat" },
            el("h2", { id: "chat" }, say.chat),
            this.status,
            this.loader,
            this.log,
            numbers,
            form,
          ),
        ),
        el(
          "section",
          { id: "figures", class: "figures", "aria-labelledby": "figures-title", tabindex: "0" },
          el("h2", { id: "figures-title" }, say.figures),
          ...this.figures.map((f) => f.element),
        ),
      ),
      this.region,
    );

    this.loadButton.addEventListener("click", () => wishes.load());
    this.cancelButton.addEventListener("click", () => wishes.cancel());
    this.stopButton.addEventListener("click", () => wishes.stop());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      wishes.send(this.box.value);
    });
    this.box.addEventListener("keydown", (event) => {
      // 229 is what some browsers report for the Enter that ends a composition.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      wishes.send(this.box.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) wishes.stop();
    });
    this.log.addEventListener("scroll", () => {
      this.stuck = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < STICKY;
    });
  }

  /** Takes the message out of the box. */
  clear(): void {
    this.box.value = "";
    this.stuck = true;
  }

  /** Gives a message that was not taken back, unless another one has been begun. */
  giveBack(text: string): void {
    if (this.box.value === "") this.box.value = text;
  }

  /** True where figures and numbers wait for their next turn. `now` in milliseconds. */
  draw(state: State, now: number): boolean {
    const before = this.shown;
    this.shown = state;
    this.drawConversation(state);
    this.drawStatus(sentences(state));
    this.drawControls(state);
    if (before?.phase === state.phase && now - this.drawn < REDRAW) return true;
    this.drawn = now;
    this.drawNumbers(state);
    for (const figure of this.figures) figure.draw(state);
    return false;
  }

  private drawConversation(state: State): void {
    this.empty.hidden = state.turns.length > 0;
    while (this.turns.length > state.turns.length) this.turns.pop()?.element.remove();
    let changed = false;
    // Only the last two turns can have changed.
    for (
      let i = Math.max(0, Math.min(this.turns.length, state.turns.length) - 2);
      i < state.turns.length;
      i += 1
    ) {
      const turn = state.turns[i];
      if (turn === undefined) break;
      let view = this.turns[i];
      if (view === undefined) {
        view = new TurnView(turn.who);
        this.turns.push(view);
        this.log.append(view.element);
      }
      changed = view.draw(turn, i === state.turns.length - 1 && state.phase === "writing") || changed;
    }
    if (changed && this.stuck) this.log.scrollTop = this.log.scrollHeight;
  }

  private drawStatus(wanted: readonly string[]): void {
    wanted.forEach((sentence, i) => {
      const line = this.status.children[i] ?? this.status.appendChild(el("p", {}));
      setText(line, sentence);
    });
    while (this.status.children.length > wanted.length) this.status.lastElementChild?.remove();
    this.status.classList.toggle("wrong", this.shown?.phase === "failed");
  }

  private drawControls(state: State): void {
    const focused = document.activeElement;
    this.drawLoader(state);
    this.sendButton.disabled = state.phase !== "ready";
    this.stopButton.disabled = state.phase !== "writing";
    // A button that is switched off or taken away drops the focus to nowhere; hand it on instead.
    if (!(focused instanceof HTMLButtonElement) || (!focused.disabled && focused.checkVisibility())) return;
    const next = [this.cancelButton, this.loadButton].find((button) => button.checkVisibility());
    (this.loader.contains(focused) && next !== undefined ? next : this.box).focus();
  }

  private drawLoader({ phase, load, fault, model }: State): void {
    const busy = phase === "starting" || phase === "loading";
    this.loader.hidden = phase === "ready" || phase === "writing";
    this.loadButton.hidden = busy;
    this.loadButton.disabled = phase === "checking";
    setText(this.loadButton, fault === null ? say.load : model === null ? say.retry : say.startAgain);
    this.bar.hidden = !busy;
    this.cancelButton.hidden = !busy;
    this.terms.hidden = model !== null;
    this.loaded.hidden = phase !== "loading";
    const part = portion(load);
    if (part === null) this.bar.removeAttribute("value");
    else this.bar.value = part;
    if (load !== null) setText(this.loaded, say.loaded(load.bytes, load.total, load.speed));
  }

  private drawNumbers({ cache, place, speed }: State): void {
    setText(this.values.held, cache === null ? say.UNKNOWN : say.heldOf(cache.held, cache.capacity));
    setText(this.values.bytes, cache === null ? say.UNKNOWN : say.megabytes(cache.bytes));
    setText(this.values.stream, cache === null ? say.UNKNOWN : say.count(cache.stream));
    setText(this.values.speed, speed === null ? say.UNKNOWN : say.rate(speed));
    setText(this.values.runs, place === null ? say.UNKNOWN : say.runs(place.backend, place.adapter));
  }
}

/** One turn. The answer's text is one node that only ever grows. */
class TurnView {
  readonly element: HTMLElement;
  private readonly text = document.createTextNode("");
  private readonly body: HTMLElement;
  private readonly note = el("p", { class: "note muted numbers" });

  constructor(who: Turn["who"]) {
    this.body = el("div", { class: "text" }, this.text);
    const speaker = who === "page" ? [] : [el("p", { class: "who" }, who === "you" ? say.you : say.model)];
    this.element = el("div", { class: `turn ${who}` }, ...speaker, this.body, this.note);
  }

  /** True where the turn now looks different. */
  draw(turn: Turn, growing: boolean): boolean {
    const fresh = turn.text.length - this.text.length;
    if (fresh > 0) this.text.appendData(turn.text.slice(this.text.length));
    const noteChanged = setText(this.note, turn.note);
    // Ids of a long answer are long: they are put down once, when it is complete.
    if (turn.who === "model" && !growing && this.body.dataset["ids"] !== turn.ids)
      this.body.dataset["ids"] = turn.ids;
    return fresh > 0 || noteChanged;
  }
}

class FigureView {
  readonly element: HTMLElement;
  private readonly title: HTMLElement;
  private readonly caption = el("figcaption", { class: "muted" });
  private readonly words: HTMLElement;
  private readonly svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  private readonly stage: HTMLElement;
  private box: Box = { width: 0, height: 0 };
  private state: State | null = null;

  constructor(
    id: string,
    private readonly figure: (state: State, box: Box) => Figure,
  ) {
    this.title = el("h3", { id: `${id}-title` });
    this.words = el("p", { id: `${id}-words`, class: "hidden" });
    this.stage = el("div", { class: "stage" });
    this.stage.append(this.svg);
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-labelledby", `${id}-title ${id}-words`);
    this.element = el("figure", { id }, this.title, this.stage, this.words, this.caption);
    new ResizeObserver(([entry]) => {
      if (entry === undefined) return;
      this.box = { width: entry.contentRect.width, height: entry.contentRect.height };
      if (this.state !== null) this.draw(this.state);
    }).observe(this.stage);
  }

  draw(state: State): void {
    this.state = state;
    const { width, height } = this.box;
    const { title, caption, words, shapes } = this.figure(state, this.box);
    setText(this.title, title);
    setText(this.caption, caption);
    setText(this.words, words);
    if (width === 0 || height === 0) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.innerHTML = markup(shapes);
  }
}

function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string>,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Writes only what differs, so that nothing is laid out or read aloud twice. */
function setText(element: Element, text: string): boolean {
  if (element.textContent === text) return false;
  element.textContent = text;
  return true;
}

function keys<T extends object>(object: T): (keyof T)[] {
  return Object.keys(object) as (keyof T)[];
}
