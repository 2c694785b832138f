// The comparison's elements, and how each follows from what is compared. Nothing here decides anything.

import type { Act, Comparison, Hero, Pace } from "./comparison.ts";
import { PACES } from "./comparison.ts";
import { button, el, fileInput, keys, setText } from "./dom.ts";
import type { Experiment } from "./experiments.ts";
import { laneStyle } from "./figures/lanes.ts";
import { sampleOf } from "./figures/sample.ts";
import { average, type LaneState, type RunState, recentPerplexity, type Token, totalBytes } from "./run.ts";
import { mean } from "./series.ts";
import * as say from "./strings.en.ts";

/** What the person can ask for in the comparison. */
export interface CompareWishes {
  press(): void;
  toggle(): void;
  seek(steps: number): void;
  pace(pace: Pace): void;
  readAgain(lane: number): void;
  useText(text: string, mode: "forced" | "free"): void;
  saveRun(): void;
  openRun(file: File): void;
  /** The shared cursor, at a token. */
  cursor(at: number): void;
}

/** Least time between two drawings of the numbers, milliseconds. */
const REDRAW = 250;
/** Loss beyond the reference's that a token's tint stands for, nats; and plain loss where there is no reference. */
const TINTS = { extra: [0.5, 2, 4], plain: [1, 3, 6, 9] } as const;
/** Part of a strip that lies between two of its lines, at least. */
const LEAST_LINE = 0.02;
/** Tokens of a lane's text on the page, and how many of them go at once. */
const SHOWN = { most: 600, drop: 100 };

export class CompareView {
  readonly children: HTMLElement[];
  private readonly main: HTMLButtonElement;
  private readonly why: HTMLButtonElement;
  private readonly badge = el("p", { class: "badge muted" });
  private readonly lead = el("p", { class: "lead" }, say.lead);
  private readonly title = el("h2", {});
  private readonly about = el("p", { class: "lead" });
  private readonly look = el("p", { class: "lead look" });
  private readonly happened = el("p", { id: "happened", class: "happened lead" });
  private readonly player: PlayerView;
  private readonly lanes = el("div", { class: "lanes" });
  private readonly more: HTMLButtonElement;
  private readonly notice = el("p", { class: "notice" });
  private readonly reason = el("p", { class: "lead" });
  private readonly numbers = el("dl", { class: "numbers against" });
  private readonly own: OwnView;
  private views: LaneView[] = [];
  private names = "";
  private told = false;
  private drawn = Number.NEGATIVE_INFINITY;

  constructor(private readonly wishes: CompareWishes) {
    this.main = button(say.acts.sinks, () => wishes.press(), { class: "primary", id: "act" });
    this.why = button(
      say.whatHappened,
      () => {
        this.told = !this.told;
        this.drawTold();
      },
      { "aria-expanded": "false", "aria-controls": "happened" },
    );
    this.player = new PlayerView(wishes);
    this.own = new OwnView(wishes);
    this.more = button("", () => this.lanes.classList.add("all"), { class: "more" });
    this.children = [
      el("div", { class: "acts" }, this.main, this.why),
      el("div", { class: "story" }, this.lead, this.title, this.about, this.look),
      this.happened,
      this.notice,
      this.lanes,
      this.more,
      this.player.element,
      this.badge,
      el("p", { class: "honest muted" }, say.honestNow),
      this.reason,
      this.numbers,
      this.own.element,
    ];
    this.drawTold();
  }

  /** True where something waits for its next turn. `now` in milliseconds. */
  draw(comparison: Comparison, experiment: Experiment | null, place: string, now: number): boolean {
    const { run } = comparison;
    const waiting = now - this.drawn < REDRAW;
    if (this.layLanes(run)) this.drawn = Number.NEGATIVE_INFINITY;
    this.views.forEach((view, i) => {
      const lane = run.lanes[i];
      if (lane !== undefined) view.drawText(run, lane);
    });
    this.player.draw(comparison);
    this.drawAct(comparison.act);
    if (waiting && this.drawn > 0) return true;
    this.drawn = now;
    this.drawBadge(comparison, place);
    // What is said of an experiment is not said of one's own text.
    this.drawStory(comparison, comparison.compare.text === "own" ? null : experiment);
    this.views.forEach((view, i) => {
      const lane = run.lanes[i];
      if (lane !== undefined) view.drawNumbers(run, lane, comparison.hero, i);
    });
    setText(this.happened, happened(run));
    setText(this.notice, comparison.notice ?? "");
    return false;
  }

  /** True where other lanes were laid out. */
  private layLanes(run: RunState): boolean {
    const { lanes } = run;
    const names = JSON.stringify(lanes.map(({ name }) => name));
    if (names === this.names) return false;
    this.names = names;
    this.views = lanes.map(({ name, settings }, i) => new LaneView(name, settings.policy, sampleOf(laneStyle(run, i)), i, this.wishes));
    this.lanes.replaceChildren(...this.views.map(({ element }) => element));
    this.lanes.classList.remove("all");
    this.lanes.dataset["count"] = String(lanes.length);
    setText(this.more, say.moreLanes(Math.max(0, lanes.length - 2)));
    this.more.hidden = lanes.length <= 2;
    return true;
  }

  private drawAct(act: Act): void {
    if (setText(this.main, say.acts[act])) this.main.dataset["act"] = act;
  }

  private drawBadge({ run, running, recording, recordedOnly, loaded }: Comparison, place: string): void {
    const live = running !== null;
    this.badge.classList.toggle("live", live);
    const { made } = run;
    if (live) {
      const last = run.lanes.flatMap(({ ms }) => ms.last ?? []);
      const rate = last.length === 0 ? null : 1000 / Math.max(...last.map(mean));
      setText(this.badge, say.liveBadge(place, rate));
    } else if (recording === null || made === null) setText(this.badge, "");
    else setText(this.badge, say.recordedBadge(made.by, made.date, made.commit, recordedOnly, loaded));
  }

  private drawStory({ entry, name, run }: Comparison, experiment: Experiment | null): void {
    this.lead.hidden = experiment !== null;
    for (const part of [this.title, this.about, this.look, this.reason]) part.hidden = experiment === null;
    this.numbers.hidden = experiment === null;
    this.why.hidden = !run.lanes.some(({ settings }) => settings.policy === "window");
    if (experiment === null || this.title.dataset["x"] === `${name} ${entry !== null}`) return;
    this.title.dataset["x"] = `${name} ${entry !== null}`;
    setText(this.title, experiment.title);
    setText(this.about, experiment.what);
    setText(this.look, say.lookAt(experiment.look));
    setText(this.reason, experiment.why);
    const ours = entry === null ? [say.UNKNOWN] : say.ours(entry);
    this.numbers.replaceChildren(
      el("div", {}, el("dt", {}, say.paper), el("dd", {}, experiment.paper)),
      el("div", {}, el("dt", {}, say.oursHere), ...ours.map((line) => el("dd", {}, line))),
    );
  }

  private drawTold(): void {
    this.happened.hidden = !this.told;
    this.why.setAttribute("aria-expanded", String(this.told));
  }
}

/** What happened, in words, with the numbers of now. */
function happened({ lanes }: RunState): string {
  const window = lanes.find(({ settings }) => settings.policy === "window");
  const sinks = lanes.find(({ settings }) => settings.policy === "sinks");
  const last = sinks?.attention.last;
  // What the map shows, where there is one.
  const mass = sinks?.heads != null ? average(sinks.heads) : last === undefined ? null : mean(last);
  const ago = window?.first_left == null ? null : window.at - 1 - window.first_left;
  return say.happened(mass, ago, sinks?.settings.sinks ?? 4);
}

/** Play, step and scrub. One stop for the Tab key: the slider takes the keys of all. */
class PlayerView {
  readonly element: HTMLElement;
  private readonly toggle: HTMLButtonElement;
  private readonly back: HTMLButtonElement;
  private readonly on: HTMLButtonElement;
  private readonly range = el("input", { type: "range", min: "0", step: "1", "aria-label": say.position });
  private readonly place = el("span", { class: "place numbers muted" });
  private readonly pace: HTMLSelectElement;
  private at = 0;

  constructor(wishes: CompareWishes) {
    const quiet = { class: "small", tabindex: "-1" };
    this.back = button("‹", () => wishes.seek(this.at - 1), { ...quiet, "aria-label": say.stepBack });
    this.toggle = button(say.play, () => wishes.toggle(), quiet);
    this.on = button("›", () => wishes.seek(this.at + 1), { ...quiet, "aria-label": say.stepOn });
    this.pace = el(
      "select",
      { "aria-label": say.pace },
      ...keys(PACES).map((name) => el("option", { value: name }, say.paces[name])),
    );
    this.pace.value = "reading";
    this.pace.addEventListener("change", () => wishes.pace(this.pace.value as Pace));
    this.range.addEventListener("input", () => wishes.seek(Number(this.range.value)));
    this.range.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      wishes.toggle();
    });
    this.element = el(
      "div",
      { class: "player", role: "group", "aria-label": say.player },
      this.back,
      this.toggle,
      this.on,
      this.range,
      this.place,
      this.pace,
    );
  }

  draw({ run, playing, running }: Comparison): void {
    for (const part of [this.back, this.on, this.range, this.pace]) part.hidden = playing === null;
    this.toggle.hidden = playing === null && running === null;
    if (playing !== null) {
      this.at = playing.at;
      this.range.max = String(playing.length);
      this.range.value = String(playing.at);
      this.range.setAttribute("aria-valuetext", say.tokensOf(run.at, run.count));
      setText(this.toggle, playing.playing ? say.pause : say.play);
    } else if (running !== null) {
      setText(this.toggle, running.running ? say.pause : say.play);
      this.toggle.disabled = running.done;
    }
    if (playing !== null) this.toggle.disabled = false;
    setText(this.place, run.lanes.length === 0 ? "" : say.tokensOf(run.at, run.count));
  }
}

/** A lane: its name, its text, its cache, how it does. */
class LaneView {
  readonly element: HTMLElement;
  private readonly text: TokenText;
  /** Shown where a lane has room for a few lines only. */
  private readonly whole: HTMLButtonElement;
  private readonly strip = new Strip();
  private readonly verdict = el("p", {});
  private readonly verdictRow: HTMLElement;
  private readonly sure = el("span", { class: "sure-bar" });
  private readonly sureOf = el("span", { class: "numbers" });
  private readonly facts = {
    quality: el("dd", {}),
    memory: el("dd", {}),
    time: el("dd", {}),
  };
  private readonly quality = el("dt", {});
  private readonly health = el("p", { class: "health" });
  private readonly again: HTMLButtonElement;

  /** `sample`: of its line in the figures. */
  constructor(name: string, policy: string, sample: Element, index: number, wishes: CompareWishes) {
    const title = el("h2", { id: `lane-${index}` }, sample, name);
    this.text = new TokenText(say.textOf(name), `text-${index}`, (at) => {
      // A word of a few lines is too small a target: the first tap opens them.
      if (this.whole.checkVisibility() && !this.isOpen) this.open(true);
      else if (at !== null) wishes.cursor(at);
    });
    this.whole = button(say.wholeText, () => this.open(!this.isOpen), {
      class: "small whole",
      id: `whole-${index}`,
      "aria-expanded": "false",
      "aria-controls": `text-${index}`,
      "aria-labelledby": `whole-${index} lane-${index}`,
    });
    this.again = button(say.readAgain(0), () => wishes.readAgain(index), { class: "small" });
    const track = el("span", { class: "sure-track", "aria-hidden": "true" }, this.sure);
    this.verdictRow = el("div", { class: "verdict" }, this.verdict, track, this.sureOf);
    this.element = el(
      "div",
      { class: `lane ${policy}`, role: "group", "aria-labelledby": `lane-${index}` },
      el("div", { class: "head" }, title, this.whole),
      this.text.element,
      this.strip.element,
      el("div", { class: "state" }, this.health, this.again),
      this.verdictRow,
      el(
        "dl",
        { class: "facts" },
        el("div", {}, this.quality, this.facts.quality),
        el("div", {}, el("dt", {}, say.laneFacts.memory), this.facts.memory),
        el("div", {}, el("dt", {}, say.laneFacts.time), this.facts.time),
      ),
    );
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isOpen || !this.whole.checkVisibility()) return;
      event.preventDefault();
      this.open(false);
      this.whole.focus();
    });
  }

  private get isOpen(): boolean {
    return this.element.classList.contains("open");
  }

  private open(wanted: boolean): void {
    this.element.classList.toggle("open", wanted);
    this.whole.setAttribute("aria-expanded", String(wanted));
    setText(this.whole, wanted ? say.lessText : say.wholeText);
  }

  drawText(run: RunState, lane: LaneState): void {
    this.text.draw(run, lane);
    this.strip.draw(run, lane);
  }

  drawNumbers(run: RunState, lane: LaneState, hero: Hero | null, index: number): void {
    const { health, settings } = lane;
    setText(this.quality, run.mode === "forced" ? say.laneFacts.perplexity(run.roll) : say.laneFacts.surprise);
    const ppl = recentPerplexity(lane);
    setText(this.facts.quality, ppl === null ? say.UNKNOWN : run.mode === "forced" ? say.perplexity(ppl) : say.natsOf(Math.log(ppl)));
    setText(this.facts.memory, lane.at === 0 ? say.UNKNOWN : say.megabytes(totalBytes(lane.bytes)));
    const ms = lane.ms.last;
    setText(this.facts.time, ms === undefined ? say.UNKNOWN : say.milliseconds(mean(ms)));
    const behind = run.at - lane.at;
    setText(
      this.health,
      say.health(health.kind, health.since, lane.first_left === null ? null : lane.at - 1 - lane.first_left, {
        sinks: settings.policy === "sinks" && settings.sinks > 0,
        behind: settings.policy === "recompute" && behind > 0 ? behind : 0,
        ended: lane.ended,
        past: settings.policy === "dense" && run.model !== null && lane.at > run.model.trained_length,
      }),
    );
    this.element.classList.toggle("bare", run.every > 1);
    this.element.classList.toggle("wrong", health.kind !== "steady");
    // Its place is kept, so that nothing moves when it comes.
    const offered = health.kind !== "steady" && settings.policy !== "recompute" && settings.policy !== "dense";
    this.again.classList.toggle("unseen", !offered);
    if (offered) setText(this.again, say.readAgain(settings.recent));
    this.drawSure(run, lane, hero, index);
  }

  /** How sure the lane was of the first token that was predicted without the first word. */
  private drawSure(run: RunState, lane: LaneState, hero: Hero | null, index: number): void {
    const p = hero?.sure[index] ?? null;
    this.verdictRow.hidden = run.mode !== "forced" || run.every > 1 || run.lanes.every((one) => one.settings.policy === "dense");
    const known = hero !== null && p !== null;
    this.sure.parentElement?.toggleAttribute("hidden", !known);
    setText(this.sureOf, known ? say.sure(p) : "");
    this.sure.style.inlineSize = known ? `${100 * p}%` : "0";
    const { policy, sinks, recent } = lane.settings;
    const full = policy === "dense" || policy === "recompute" ? null : sinks + recent;
    setText(
      this.verdict,
      known ? say.nextWord(hero.text) : lane.first_left === null && full !== null ? say.willLeave(full - lane.at) : "",
    );
  }
}

/** A lane's text. It keeps to its end by its layout alone, so nothing is measured while it grows. */
class TokenText {
  readonly element: HTMLElement;
  private readonly inner = el("p", {});
  private first: Token | undefined;
  private last = -1;
  private count = 0;
  private marked = false;
  /** The question, as far as it was read: it is shown when it is complete. */
  private asked = "";

  /** `press`: with the token that was pressed, or null where it was none. */
  constructor(name: string, id: string, press: (at: number | null) => void) {
    this.element = el("div", { class: "words", id, tabindex: "0", role: "group", "aria-label": name }, this.inner);
    this.element.addEventListener("click", ({ target }) => {
      const i = target instanceof HTMLElement ? target.dataset["i"] : undefined;
      press(i === undefined ? null : Number(i));
    });
  }

  draw(run: RunState, lane: LaneState): void {
    const { tokens, at } = lane;
    if (lane.first_tokens[0] !== this.first || at <= this.last) this.clear(lane.first_tokens[0]);
    if (tokens.length === 0) {
      if (this.count === 0) setText(this.inner, run.every > 1 && at > 0 ? say.numbersOnly : "");
      return;
    }
    let from = tokens.length;
    while (from > 0 && (tokens[from - 1]?.i ?? -1) > this.last) from -= 1;
    if (from === tokens.length) return;
    if (this.count === 0) this.inner.replaceChildren();
    // After a long way at once only the end is shown.
    from = Math.max(from, tokens.length - SHOWN.most);
    const added: Node[] = [];
    for (let k = from; k < tokens.length; k += 1) {
      const token = tokens[k];
      if (token === undefined) continue;
      if (run.mode === "free" && token.i < run.prompt) {
        this.asked += token.text;
        if (token.i < run.prompt - 1) continue;
        added.push(el("span", { class: "asked" }, `${say.question(this.asked)}\n`));
        continue;
      }
      added.push(span(run, token));
      if (!this.marked && lane.first_left !== null && token.i >= lane.first_left) {
        this.marked = true;
        const kept = lane.settings.policy === "sinks" && lane.settings.sinks > 0;
        if (token.i === lane.first_left || lane.settings.policy === "recompute") {
          added.push(el("span", { class: "left-here" }, kept ? say.leftHereKept : say.leftHere));
        }
      }
    }
    this.inner.append(...added);
    this.count += added.length;
    this.last = at - 1;
    if (this.count > SHOWN.most) {
      const surplus = this.count - SHOWN.most + SHOWN.drop;
      for (let n = 0; n < surplus; n += 1) this.inner.firstChild?.remove();
      this.count -= surplus;
    }
  }

  private clear(first: Token | undefined): void {
    this.inner.replaceChildren();
    this.first = first;
    this.last = -1;
    this.count = 0;
    this.marked = false;
    this.asked = "";
  }
}

function span(run: RunState, token: Token): HTMLElement {
  const tint = run.mode === "forced" ? tintOf(token, run.reference !== null) : "";
  return el("span", { "data-i": String(token.i), ...(tint === "" ? {} : { class: tint }) }, token.text);
}

/** Name of the tint of a token: `w1` to `w3` worse than the reference, `b1` to `b3` better, `p1` to `p4` plain loss. */
function tintOf({ nll, extra }: Token, compared: boolean): string {
  const value = compared ? extra : nll;
  if (value === null) return "";
  const size = Math.abs(value);
  const step = (compared ? TINTS.extra : TINTS.plain).filter((least) => size >= least).length;
  if (step === 0) return "";
  return `${compared ? (value > 0 ? "w" : "b") : "p"}${step}`;
}

/** The cache in a line: rings that stay, and recent slots that slide past. */
class Strip {
  readonly element: HTMLElement;
  private readonly sinks = el("span", { class: "rings" });
  private readonly packed = el("span", { class: "packed" });
  private readonly tail = el("span", { class: "fresh" });
  private readonly slots = el("span", { class: "slots numbers muted" });
  private readonly cells: HTMLElement;
  private rings = -1;

  constructor() {
    this.cells = el("span", { class: "cells" }, this.packed, this.tail);
    this.element = el("div", { class: "strip" }, this.sinks, this.cells, this.slots);
    this.sinks.setAttribute("aria-hidden", "true");
    this.cells.setAttribute("aria-hidden", "true");
  }

  draw(run: RunState, { held, capacity, sinks, tail, settings, at }: LaneState): void {
    const rings = Math.min(settings.sinks, 8);
    if (rings !== this.rings) {
      this.rings = rings;
      this.sinks.replaceChildren(...Array.from({ length: rings }, () => el("i", {})));
    }
    // Everything kept has no capacity of its own: its line is as long as the run will be.
    const room = settings.policy === "dense" ? Math.max(held, run.count ?? capacity) : capacity;
    const recent = Math.max(1, room - settings.sinks);
    const packed = tail > 0 || isPacked(settings.kv) ? Math.max(0, held - sinks - tail) : 0;
    const part = (tokens: number): string => `${((100 * tokens) / recent).toFixed(2)}%`;
    this.packed.style.inlineSize = part(packed);
    this.tail.style.inlineSize = part(Math.max(0, held - sinks - packed));
    // Every eighth token of the stream has a line, or fewer where there are many, which slides past.
    let every = 8;
    while (every < LEAST_LINE * recent) every *= 2;
    this.cells.style.setProperty("--every", part(every));
    this.cells.style.setProperty("--slid", `${settings.policy === "dense" ? 0 : (-(at % every) / every).toFixed(3)}`);
    setText(this.slots, say.heldOf(held, room));
  }
}

const isPacked = (kv: string): boolean => kv.startsWith("int");

/** What the lanes read, if it is not what the page brings; and runs as files. */
class OwnView {
  readonly element: HTMLElement;

  constructor(wishes: CompareWishes) {
    const text = el("textarea", { id: "own-text", rows: "4", autocomplete: "off" });
    const mode = el(
      "select",
      { id: "own-mode" },
      ...keys(say.modes).map((key) => el("option", { value: key }, say.modes[key])),
    );
    const file = fileInput(".json,application/json", (chosen) => wishes.openRun(chosen));
    const form = el(
      "form",
      { class: "own-form" },
      el("label", { for: "own-text" }, say.ownText),
      text,
      el("p", { class: "muted" }, say.ownTextHint),
      el("div", { class: "line" }, mode, el("button", { type: "submit" }, say.useText)),
    );
    mode.setAttribute("aria-label", say.whatLanesDo);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      wishes.useText(text.value, mode.value as keyof typeof say.modes);
    });
    this.element = el(
      "details",
      { class: "own" },
      el("summary", {}, say.ownSummary),
      form,
      el(
        "div",
        { class: "buttons" },
        button(say.saveRun, () => wishes.saveRun()),
        button(say.openRun, () => file.click()),
        file,
      ),
    );
  }
}
