// The page's elements, and how each follows from the state. Nothing here decides anything.

import { CompareView, type CompareWishes } from "./compare.ts";
import type { Comparison } from "./comparison.ts";
import { button, el, keys, setText } from "./dom.ts";
import { type Experiment, dialog } from "./experiments.ts";
import {
  ChatsPanel,
  type ChatsWishes,
  Drawer,
  HelpPanel,
  ModelsPanel,
  type ModelsWishes,
  type SettingsWishes,
} from "./panels.ts";
import type { Settings, Theme, ViewName } from "./settings.ts";
import { portion, type State, sentences } from "./state.ts";
import * as say from "./strings.en.ts";
import { Transcript, type TurnWishes } from "./transcript.ts";

/** What the person can ask for. */
export interface Wishes
  extends Omit<TurnWishes, "edit" | "example">,
    SettingsWishes,
    ChatsWishes,
    ModelsWishes {
  compare: CompareWishes;
  /** Null is the first story. */
  experiment(name: string | null): void;
  /** The address of an experiment. */
  address(name: string | null): string;
  load(): void;
  /** Loads the model, and sends then what is in the box. */
  loadAndSend(): void;
  useHere(): void;
  cancel(): void;
  /** `from`: the turn that the text takes the place of; null for a new one. */
  send(text: string, from: number | null): void;
  stop(): void;
  openPanel(panel: "chats" | "models" | "help"): void;
  theme(theme: Theme): void;
  view(view: ViewName): void;
}

/** Least time between two drawings of the figures and numbers, milliseconds. */
const REDRAW = 250;
const THEMES: Theme[] = ["system", "light", "dark"];

export class View {
  readonly transcript: Transcript;
  readonly drawer: Drawer;
  readonly chats: ChatsPanel;
  readonly models: ModelsPanel;
  readonly help: HelpPanel;
  readonly compare: CompareView;
  private readonly experiments: HTMLDialogElement;
  private readonly status = el("div", { class: "status", role: "status", "aria-atomic": "false" });
  private readonly loadButton: HTMLButtonElement;
  private readonly fileButton: HTMLButtonElement;
  private readonly hereButton: HTMLButtonElement;
  private readonly cancelButton: HTMLButtonElement;
  private readonly bar = el("progress", { "aria-label": say.loadBar, max: "1" });
  private readonly loaded = el("p", { class: "numbers muted" });
  private readonly terms = el("p", { class: "terms muted" });
  private readonly loader: HTMLElement;
  private readonly box = el("textarea", {
    id: "message",
    rows: "2",
    "aria-describedby": "hint",
    autocomplete: "off",
  });
  private readonly label = el("label", { for: "message" });
  private readonly sendButton = el("button", { type: "submit" }, say.send);
  private readonly stopButton: HTMLButtonElement;
  private readonly entries = el("div", { class: "entries", id: "entries" });
  /** On a phone the entries wait behind one button. */
  private readonly menu = button(
    say.menu,
    () => this.menu.setAttribute("aria-expanded", String(this.entries.classList.toggle("open"))),
    { class: "menu", "aria-expanded": "false", "aria-controls": "entries" },
  );
  private readonly toAnswer = button(say.skipToAnswer, () => this.transcript.toAnswer(), { class: "skip" });
  private readonly form: HTMLFormElement;
  private readonly editing: HTMLElement;
  private readonly offer: HTMLElement;
  private readonly offered = el("p", { class: "muted" });
  private readonly values = {
    held: el("dd", { id: "held" }),
    bytes: el("dd", { id: "bytes" }),
    stream: el("dd", { id: "stream" }),
    speed: el("dd", { id: "speed" }),
    runs: el("dd", { id: "runs" }),
  };
  /** What the figures are put into. */
  readonly figures: HTMLElement;
  /** The hidden live region. */
  readonly region = el("div", { class: "hidden", id: "say", "aria-live": "polite", "aria-atomic": "true" });
  private readonly skip = el("a", { class: "skip" });
  private readonly themeButton: HTMLButtonElement;
  private readonly tabs: Record<ViewName, HTMLButtonElement>;
  private readonly panels: Record<ViewName, HTMLElement>;

  private shown: State | null = null;
  private drawn = Number.NEGATIVE_INFINITY;
  private from: number | null = null;
  private theme: Theme = "system";

  constructor(
    root: HTMLElement,
    private readonly wishes: Wishes,
    settings: Settings,
    shown: ViewName,
  ) {
    this.compare = new CompareView(wishes.compare);
    this.experiments = dialog(wishes.address, wishes.experiment);
    this.transcript = new Transcript({
      ...wishes,
      edit: (turn) => this.edit(turn),
      example: (text) => this.fill(text),
    });
    this.drawer = new Drawer(wishes, settings.backend);
    this.chats = new ChatsPanel(wishes);
    this.models = new ModelsPanel(wishes);
    this.help = new HelpPanel(wishes.copy);
    this.loadButton = button(say.load, () => wishes.load());
    this.fileButton = button(say.useFile, () => this.models.file.click());
    this.hereButton = button(say.useHere, () => wishes.useHere());
    this.cancelButton = button(say.cancel, () => wishes.cancel());
    this.stopButton = button(say.stop, () => wishes.stop());
    this.themeButton = button(say.themes.system, () => {
      wishes.theme(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length] ?? "system");
    });
    this.loader = el(
      "section",
      { class: "loader", "aria-label": say.load },
      this.loadButton,
      this.hereButton,
      this.fileButton,
      this.bar,
      this.cancelButton,
      this.loaded,
      this.terms,
    );
    this.editing = el(
      "div",
      { class: "editing" },
      el("p", { class: "muted" }, say.editing),
      button(say.stopEditing, () => this.stopEditing(), { class: "small" }),
    );
    this.editing.hidden = true;
    this.offer = el(
      "div",
      { class: "editing" },
      this.offered,
      button(
        say.loadAndSend,
        () => {
          this.offer.hidden = true;
          wishes.loadAndSend();
          this.box.focus();
        },
        { class: "small" },
      ),
      button(
        say.notNow,
        () => {
          this.offer.hidden = true;
          this.box.focus();
        },
        { class: "small" },
      ),
    );
    this.offer.hidden = true;
    this.form = this.makeForm();
    const numbers = el(
      "dl",
      { class: "facts" },
      ...keys(this.values).map((key) => el("div", {}, el("dt", {}, say.facts[key]), this.values[key])),
    );
    const tab = (name: ViewName, text: string): HTMLButtonElement =>
      button(text, () => wishes.view(name), { role: "tab", id: `${name}-tab`, "aria-controls": name });
    this.tabs = { compare: tab("compare", say.compare), chat: tab("chat", say.chat) };
    const panel = (name: ViewName, ...children: Node[]): HTMLElement =>
      el("section", { id: name, class: name, role: "tabpanel", "aria-labelledby": `${name}-tab` }, ...children);
    this.panels = {
      chat: panel("chat", this.transcript.element, numbers),
      compare: panel("compare", ...this.compare.children),
    };
    this.figures = el(
      "section",
      { id: "figures", class: "figures", "aria-labelledby": "figures-title", tabindex: "0" },
      el("h2", { id: "figures-title" }, say.figures),
    );
    const tablist = el("div", { class: "tabs", role: "tablist", "aria-label": say.views }, ...Object.values(this.tabs));
    tablist.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      wishes.view(this.panels.chat.hidden ? "chat" : "compare");
      Object.values(this.tabs)
        .find((t) => t.tabIndex === 0)
        ?.focus();
    });

    root.append(
      this.skip,
      el("a", { class: "skip", href: "#figures" }, say.skipToFigures),
      this.header(),
      el("div", { class: "bar" }, this.status, this.loader),
      el(
        "main",
        {},
        el(
          "div",
          { class: "talk" },
          tablist,
          this.panels.compare,
          this.panels.chat,
          this.editing,
          this.offer,
          this.form,
        ),
        this.figures,
      ),
      this.drawer.element,
      this.chats.element,
      this.models.element,
      this.help.element,
      this.experiments,
      this.region,
    );
    this.watchKeys();
    this.showView(shown);
  }

  private header(): HTMLElement {
    const opens = (text: string, panel: "chats" | "models" | "help"): HTMLButtonElement =>
      button(text, () => {
        this.wishes.openPanel(panel);
        this[panel].show();
      });
    const back = (opener: HTMLElement): HTMLElement => (opener.checkVisibility() ? opener : this.menu);
    const settings: HTMLButtonElement = button(say.settings, () => this.drawer.toggle(settings, back(settings)), {
      "aria-expanded": "false",
      "aria-controls": "settings",
    });
    this.entries.append(
      button(say.experimentsMenu, () => this.experiments.showModal()),
      button(say.newChat, () => this.wishes.newChat()),
      opens(say.chats, "chats"),
      opens(say.models, "models"),
      settings,
      this.themeButton,
      opens(say.help, "help"),
    );
    // Before the entry does its work, so that whatever it opens gives the focus back to the menu.
    const pressed = (): void => {
      if (this.closeMenu()) this.menu.focus();
    };
    this.entries.addEventListener("click", pressed, { capture: true });
    return el(
      "header",
      {},
      el("p", { class: "name" }, say.name),
      el("h1", {}, say.heading),
      this.menu,
      el("nav", { "aria-label": say.menu }, this.entries),
    );
  }

  /** True where it was open. */
  private closeMenu(): boolean {
    const open = this.entries.classList.contains("open");
    this.entries.classList.remove("open");
    this.menu.setAttribute("aria-expanded", "false");
    return open;
  }

  private makeForm(): HTMLFormElement {
    const form = el(
      "form",
      { class: "composer" },
      this.toAnswer,
      this.label,
      this.box,
      el("div", { class: "buttons" }, this.sendButton, this.stopButton),
      el("p", { id: "hint", class: "muted" }, say.messageHint),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.box.addEventListener("keydown", (event) => {
      // 229 is what some browsers report for the Enter that ends a composition.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.send();
    });
    return form;
  }

  get hasMessage(): boolean {
    return this.box.value.trim() !== "";
  }

  /** Sends what is in the box. */
  send(): void {
    this.wishes.send(this.box.value, this.from);
  }

  /** Asks whether the model is to be loaded for the message in the box. */
  offerToLoad(): void {
    this.offer.hidden = false;
  }

  private watchKeys(): void {
    document.addEventListener("keydown", (event) => {
      if (event.isComposing || event.defaultPrevented) return;
      // A dialog closes by itself.
      if (document.querySelector("dialog[open]") !== null) return;
      const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
      if (event.key === "Escape") {
        if (this.drawer.isOpen) this.drawer.close();
        else if (this.closeMenu()) this.menu.focus();
        else if (!this.editing.hidden) this.stopEditing();
        else this.wishes.stop();
      } else if (event.key === "?" && !typing) {
        event.preventDefault();
        this.wishes.openPanel("help");
        this.help.show();
      }
    });
  }

  /** Takes the message out of the box. */
  clear(): void {
    this.box.value = "";
    this.stopEditing();
    this.transcript.stick();
  }

  /** Gives a message that was not taken back, unless another one has been begun. */
  giveBack(text: string): void {
    if (this.box.value === "") this.box.value = text;
  }

  showView(view: ViewName): void {
    for (const name of keys(this.tabs)) {
      const chosen = name === view;
      this.panels[name].hidden = !chosen;
      this.tabs[name].setAttribute("aria-selected", String(chosen));
      this.tabs[name].tabIndex = chosen ? 0 : -1;
    }
    // One filled button on the page: in the comparison it is the comparison's.
    this.loadButton.classList.toggle("primary", view === "chat");
    // What is written there is a question to all lanes, and no earlier one is changed.
    this.form.classList.toggle("brief", view === "compare");
    setText(this.label, view === "compare" ? say.messageLanes : say.message);
    this.editing.hidden = this.from === null || view === "compare";
    this.skip.setAttribute("href", view === "chat" ? "#message" : "#act");
    setText(this.skip, view === "chat" ? say.skipToChat : say.skipToCompare);
  }

  showTheme(theme: Theme): void {
    this.theme = theme;
    setText(this.themeButton, say.themes[theme]);
    if (theme === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
  }

  private fill(text: string): void {
    this.box.value = text;
    this.box.focus();
  }

  private edit(turn: number): void {
    this.from = turn;
    this.editing.hidden = false;
    this.fill(this.shown?.turns[turn]?.text ?? "");
  }

  private stopEditing(): void {
    if (this.from === null) return;
    this.from = null;
    this.editing.hidden = true;
    this.box.value = "";
    this.box.focus();
  }

  /** Draws the comparison; true where something waits for its next turn. `now` in milliseconds. */
  drawCompare(comparison: Comparison, experiment: Experiment | null, { place }: State, now: number): boolean {
    return this.compare.draw(comparison, experiment, place === null ? say.UNKNOWN : say.runs(place.backend, place.adapter), now);
  }

  /** True where something waits for its next turn. `now` in milliseconds. */
  draw(state: State, now: number, terms: string, elsewhere: boolean): boolean {
    const before = this.shown;
    this.shown = state;
    const waiting = this.transcript.draw(state, now);
    this.drawStatus(sentences(state));
    this.drawControls(state, terms, elsewhere);
    this.drawer.draw(state);
    if (before?.phase === state.phase && now - this.drawn < REDRAW) return true;
    this.drawn = now;
    this.drawNumbers(state);
    return waiting;
  }

  private drawStatus(wanted: readonly string[]): void {
    wanted.forEach((sentence, i) => {
      const line = this.status.children[i] ?? this.status.appendChild(el("p", {}));
      setText(line, sentence);
    });
    while (this.status.children.length > wanted.length) this.status.lastElementChild?.remove();
    this.status.classList.toggle("wrong", this.shown?.phase === "failed");
  }

  private drawControls(state: State, terms: string, elsewhere: boolean): void {
    const focused = document.activeElement;
    this.drawLoader(state, terms, elsewhere);
    const ready = state.phase === "ready";
    const writing = state.phase === "writing";
    this.sendButton.disabled = writing;
    if (state.phase !== "idle" && state.phase !== "failed") this.offer.hidden = true;
    if (!this.offer.hidden) setText(this.offered, terms);
    // One filled button on the page: what is to be done next.
    this.sendButton.classList.toggle("primary", ready && !this.panels.chat.hidden);
    this.toAnswer.hidden = writing || !state.turns.some(({ who }) => who === "model");
    this.stopButton.disabled = !writing && state.phase !== "refilling";
    // A button that is switched off or taken away drops the focus to nowhere; hand it on instead.
    if (!(focused instanceof HTMLButtonElement) || (!focused.disabled && focused.checkVisibility())) return;
    if (focused.closest("dialog") !== null) return;
    const next = [this.cancelButton, this.loadButton].find((button) => button.checkVisibility());
    const rest = [document.getElementById("act"), this.box].find((e) => e?.checkVisibility());
    (this.loader.contains(focused) && next !== undefined ? next : rest)?.focus();
  }

  private drawLoader({ phase, load, fault, model }: State, terms: string, elsewhere: boolean): void {
    const busy = phase === "starting" || phase === "loading";
    this.loader.hidden = ["ready", "writing", "refilling", "comparing"].includes(phase);
    this.hereButton.hidden = busy || !elsewhere;
    this.loadButton.hidden = busy || elsewhere;
    this.fileButton.hidden = busy || elsewhere;
    this.loadButton.disabled = this.fileButton.disabled = phase === "checking";
    setText(this.loadButton, fault === null ? say.load : model === null ? say.retry : say.startAgain);
    this.bar.hidden = !busy;
    this.cancelButton.hidden = !busy;
    this.loaded.hidden = phase !== "loading";
    const part = portion(load);
    if (part === null) this.bar.removeAttribute("value");
    else this.bar.value = part;
    if (load !== null) setText(this.loaded, say.loaded(load.bytes, load.total, load.speed));
    this.terms.hidden = busy && phase !== "starting";
    setText(this.terms, terms);
  }

  private drawNumbers({ cache, place, speed }: State): void {
    setText(this.values.held, cache === null ? say.UNKNOWN : say.heldOf(cache.held, cache.capacity));
    setText(this.values.bytes, cache === null ? say.UNKNOWN : say.megabytes(cache.bytes));
    setText(this.values.stream, cache === null ? say.UNKNOWN : say.count(cache.stream));
    setText(this.values.speed, speed === null ? say.UNKNOWN : say.rate(speed));
    setText(this.values.runs, place === null ? say.UNKNOWN : say.runs(place.backend, place.adapter));
  }
}
