// The conversation on the page: turns, what can be done with each, and what has left the cache.

import { button, el, setText } from "./dom.ts";
import { Prose } from "./prose.ts";
import { departed, lastSaid, type State, type Turn } from "./state.ts";
import * as say from "./strings.en.ts";

/** What the person can ask for, of a turn. */
export interface TurnWishes {
  copy(text: string): void;
  edit(turn: number): void;
  regenerate(): void;
  proceed(): void;
  example(text: string): void;
}

/** Turns on the page; older ones wait for a button. */
const MOST = 60;
/** Pixels from its end within which the conversation keeps to the end. */
const STICKY = 120;
/** Milliseconds between two drawings of the growing answer, and how many times their own cost they must be apart. */
const PACE = { least: 50, share: 8 };

export class Transcript {
  readonly element = el("div", {
    class: "log",
    role: "log",
    "aria-live": "off",
    "aria-label": say.conversation,
    tabindex: "0",
  });
  private readonly empty: HTMLElement;
  private readonly earlier = button("", () => this.showEarlier(), { class: "earlier" });
  private readonly turns = new Map<number, TurnView>();
  private first = 0;
  private chat = "";
  private stuck = true;
  private shown: State | null = null;
  private next = 0;

  constructor(private readonly wishes: TurnWishes) {
    this.empty = el(
      "div",
      { class: "empty" },
      el("p", { class: "lead" }, say.lead),
      el("p", { class: "muted" }, say.conversationEmpty),
      el(
        "div",
        { class: "examples", role: "group", "aria-label": say.examples },
        ...say.prompts.map((text) => button(text, () => wishes.example(text))),
      ),
    );
    this.earlier.hidden = true;
    this.element.append(el("h2", { class: "hidden" }, say.conversation), this.empty, this.earlier);
    this.element.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      this.stuck = scrollHeight - scrollTop - clientHeight < STICKY;
    });
  }

  /** Moves the focus to where the last answer begins. */
  toAnswer(): void {
    const last = [...this.turns.values()].findLast(({ who }) => who === "model");
    last?.element.querySelector<HTMLElement>(".who")?.focus();
  }

  /** Keeps to the end from now on. */
  stick(): void {
    this.stuck = true;
  }

  /** True where it waits for its next turn to be drawn. `now` in milliseconds. */
  draw(state: State, now: number): boolean {
    const growing = state.phase === "writing" && this.shown?.phase === "writing";
    if (growing && now < this.next) return true;
    const began = performance.now();
    if (state.chat.id !== this.chat) this.clear(state);
    this.shown = state;
    const { turns } = state;
    this.empty.hidden = turns.length > 0;
    if (this.first > Math.max(0, turns.length - 1)) this.first = Math.max(0, turns.length - MOST);
    // A page that stays open for a week must not grow by every turn.
    if (this.stuck && turns.length - this.first > MOST + MOST / 2) this.first = turns.length - MOST;
    this.earlier.hidden = this.first === 0;
    if (this.first > 0) setText(this.earlier, say.showEarlier(Math.min(MOST, this.first)));
    for (const [i, view] of this.turns) {
      if (i >= this.first && i < turns.length && view.who === turns[i]?.who) continue;
      view.element.remove();
      this.turns.delete(i);
    }
    const last = lastSaid(turns);
    let changed = false;
    let before: Element = this.earlier;
    for (let i = this.first; i < turns.length; i += 1) {
      const turn = turns[i];
      if (turn === undefined) break;
      let view = this.turns.get(i);
      if (view === undefined) {
        view = new TurnView(turn.who, i, this.wishes);
        this.turns.set(i, view);
        before.after(view.element);
      }
      before = view.element;
      changed = view.draw(state, turn, i === last) || changed;
    }
    if (changed && this.stuck) this.element.scrollTop = this.element.scrollHeight;
    this.next = now + Math.max(PACE.least, PACE.share * (performance.now() - began));
    return false;
  }

  private clear(state: State): void {
    for (const view of this.turns.values()) view.element.remove();
    this.turns.clear();
    this.chat = state.chat.id;
    this.first = Math.max(0, state.turns.length - MOST);
    this.stuck = true;
  }

  private showEarlier(): void {
    this.first = Math.max(0, this.first - MOST);
    this.stuck = false;
    if (this.shown !== null) this.draw(this.shown, Number.POSITIVE_INFINITY);
    this.next = 0;
    this.element.focus();
  }
}

/** One turn. */
class TurnView {
  readonly element: HTMLElement;
  private readonly prose: Prose | null;
  private readonly body: HTMLElement;
  private readonly left = el("span", { class: "left" });
  private readonly note = el("p", { class: "note muted numbers" });
  private readonly actions = el("div", { class: "actions" });
  private readonly edit: HTMLButtonElement;
  private readonly regenerate: HTMLButtonElement;
  private readonly proceed: HTMLButtonElement;
  private drawn: Turn | null = null;
  private text = "";

  constructor(
    readonly who: Turn["who"],
    index: number,
    wishes: TurnWishes,
  ) {
    this.prose = who === "model" ? new Prose() : null;
    this.body = el("div", { class: "text" }, ...(this.prose === null ? [] : [this.prose.element]));
    const named = (action: string, act: () => void): HTMLButtonElement =>
      button(action, act, { class: "small", "aria-label": say.nth(action, index + 1) });
    const copy = named(say.copy, () => wishes.copy(this.text));
    this.edit = named(say.edit, () => wishes.edit(index));
    this.regenerate = named(say.regenerate, () => wishes.regenerate());
    this.proceed = named(say.proceed, () => wishes.proceed());
    if (who === "you") this.actions.append(copy, this.edit);
    if (who === "model") this.actions.append(copy, this.regenerate, this.proceed);
    const speaker =
      who === "page" ? [] : [el("h3", { class: "who", tabindex: "-1" }, who === "you" ? say.you : say.model, " ", this.left)];
    this.element = el(
      "div",
      { class: `turn ${who}` },
      ...speaker,
      this.body,
      this.note,
      ...(who === "page" ? [] : [this.actions]),
    );
  }

  /** True where the turn now looks different. */
  draw(state: State, turn: Turn, last: boolean): boolean {
    let changed = false;
    if (turn.text !== this.text || this.drawn === null) {
      this.text = turn.text;
      changed = this.prose === null ? setText(this.body, turn.text) : this.prose.draw(turn.text);
    }
    changed = setText(this.note, turn.note) || changed;
    const idle = state.phase === "ready";
    const answered = turn.who === "model" && last;
    this.actions.hidden = (state.phase === "writing" && answered) || (turn.text === "" && !answered);
    this.edit.hidden = !idle;
    this.regenerate.hidden = !(idle && answered);
    this.proceed.hidden = !(idle && answered && turn.open && turn.text !== "");
    // Ids of a long answer are long: they are put down once, when it is complete.
    if (turn.who === "model" && state.phase !== "writing" && this.body.dataset["ids"] !== turn.ids)
      this.body.dataset["ids"] = turn.ids;
    if (turn.who !== "page") this.drawLeft(state, turn);
    this.drawn = turn;
    return changed;
  }

  private drawLeft(state: State, turn: Turn): void {
    const { tokens, characters } = departed(state, turn);
    const whole = turn.text !== "" && characters >= turn.text.length;
    const part = turn.cut > 0 ? say.endRead : tokens > 0 ? say.partLeft(tokens) : "";
    setText(this.left, whole ? (turn.place === null ? say.notRead : say.leftTheCache) : part);
    this.element.classList.toggle("gone", whole);
    this.prose?.gone(characters);
  }
}
