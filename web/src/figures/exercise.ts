// The forgotten fact: plant it, talk until it has left the cache, ask for it.

import { button, el, setText } from "../dom.ts";
import type { LaneState } from "../run.ts";
import * as say from "../strings.en.ts";
import type { FigureWishes } from "./index.ts";
import { oldestRecent } from "./slots.ts";

/** Results that are shown. */
const MOST_ROWS = 8;

export class Exercise {
  readonly element: HTMLElement;
  private readonly plantButton: HTMLButtonElement;
  private readonly talkButton: HTMLButtonElement;
  private readonly askButton: HTMLButtonElement;
  private readonly note = el("p", { class: "muted numbers" });
  private readonly results = el("tbody", {});
  private readonly table: HTMLElement;
  /** Where the fact lies in the stream, `[from, to)`. */
  private planted: { from: number; to: number } | null = null;
  /** Something was sent, and its answer is awaited. */
  private busy = false;

  constructor(private readonly wishes: FigureWishes) {
    this.plantButton = button(say.exercise.plant, () => void this.plant(), { class: "small" });
    this.talkButton = button(say.exercise.talk, () => void this.talk(), { class: "small" });
    this.askButton = button(say.exercise.ask, () => void this.ask(), { class: "small" });
    this.table = el(
      "table",
      {},
      el("caption", { class: "hidden" }, say.exercise.table),
      el("thead", {}, el("tr", {}, ...say.exercise.columns.map((name) => el("th", { scope: "col" }, name)))),
      this.results,
    );
    this.table.hidden = true;
    this.element = el(
      "section",
      { class: "exercise", "aria-labelledby": "exercise-title" },
      el("h4", { id: "exercise-title" }, say.exercise.heading),
      el("p", { class: "muted" }, say.exercise.intro),
      el("div", { class: "buttons" }, this.plantButton, this.talkButton, this.askButton),
      this.note,
      el("div", { class: "scrolls" }, this.table),
    );
    this.element.hidden = true;
  }

  /** The chat's lane as it is now; null where nobody can be asked. */
  private get lane(): LaneState | null {
    const run = this.wishes.run();
    return run.mode === "chat" ? (run.lanes[0] ?? null) : null;
  }

  draw(): void {
    const { lane } = this;
    // A stream that became shorter is another one.
    if (lane === null || (this.planted !== null && lane.at < this.planted.to)) this.planted = null;
    this.element.hidden = lane === null;
    this.plantButton.disabled = this.busy;
    this.talkButton.disabled = this.busy || this.planted === null || this.hasLeft || this.isPinned;
    this.askButton.disabled = this.busy || this.planted === null;
    if (this.planted === null) return;
    if (this.isPinned) setText(this.note, say.exercise.pinned);
    else if (this.hasLeft) setText(this.note, say.exercise.hasLeft);
    else setText(this.note, say.exercise.toGo(this.toGo));
  }

  /** Tokens until all of the fact has left. */
  private get toGo(): number {
    const { lane, planted } = this;
    if (lane === null || planted === null) return 0;
    return Math.max(0, lane.capacity - lane.held) + Math.max(0, planted.to - oldestRecent(lane));
  }

  private get hasLeft(): boolean {
    return this.planted !== null && this.lane !== null && oldestRecent(this.lane) >= this.planted.to;
  }

  private get isPinned(): boolean {
    return this.planted !== null && this.lane !== null && this.planted.to <= this.lane.sinks;
  }

  /** Sends a message and waits for its answer; null where there was none. */
  private async send(text: string): Promise<string | null> {
    this.busy = true;
    this.draw();
    const answer = await this.wishes.send(text);
    this.busy = false;
    if (answer === null) setText(this.note, say.exercise.notNow);
    this.draw();
    return answer;
  }

  private async plant(): Promise<void> {
    const from = this.lane?.at ?? 0;
    this.planted = null;
    const answer = await this.send(say.exercise.messages.plant);
    const { lane } = this;
    if (answer === null || lane === null) return;
    // An answer that says it again would tell it, too.
    const said = say.exercise.answer.test(answer) ? undefined : lane.tokens.findLast(({ i, nll }) => i >= from && nll === null);
    this.planted = { from, to: said === undefined ? lane.at : said.i + 1 };
    setText(this.note, say.exercise.planted);
    this.draw();
  }

  private async talk(): Promise<void> {
    let next = say.exercise.messages.talk;
    while (this.planted !== null && !this.hasLeft) {
      if ((await this.send(next)) === null) {
        setText(this.note, say.exercise.stopped);
        return;
      }
      next = say.exercise.messages.goOn;
    }
    if (this.planted === null) return;
    this.wishes.say(say.exercise.hasLeft);
  }

  private async ask(): Promise<void> {
    const { planted, lane } = this;
    if (planted === null || lane === null) return;
    const [since, isKept] = [lane.at - planted.to, !this.hasLeft];
    const answer = await this.send(say.exercise.messages.ask);
    if (answer === null) return;
    const knew = say.exercise.answer.test(answer);
    const yes = (is: boolean): string => (is ? say.exercise.yes : say.exercise.no);
    const cells = [lane.name, say.count(since), yes(isKept), answer.trim(), yes(knew)];
    this.results.append(el("tr", {}, ...cells.map((text) => el("td", {}, text))));
    while (this.results.children.length > MOST_ROWS) this.results.firstElementChild?.remove();
    this.table.hidden = false;
  }
}
