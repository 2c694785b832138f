// The figures on the page: which there are, and when each is drawn.

import type { RunState } from "../run.ts";
import { attention } from "./attention.ts";
import { cache } from "./cache.ts";
import { Palette } from "./canvas.ts";
import { cost } from "./cost.ts";
import { CHOICES, type Choices, type Figure, type FigureId, type Option } from "./figure.ts";
import { FigureFrame, type Host } from "./frame.ts";
import { knows } from "./knows.ts";
import { memory } from "./memory.ts";
import { time } from "./time.ts";
import { Told } from "./told.ts";

const ALL: readonly Figure[] = [cost, cache, attention, memory, time, knows];

/** What a person can ask for in a figure. Nothing here changes a run by itself. */
export interface FigureWishes {
  /** The run that is shown, as it is now. */
  run(): RunState;
  /** With the next token, the attention of that head on every slot. */
  ask(lane: number, layer: number, head: number): void;
  /** Moves the cursor that all figures share; null lets it follow the end. */
  cursor(at: number | null): void;
  /** Tokens of the rolling mean. */
  roll(tokens: number): void;
  /** A figure was made the lead one. */
  lead(id: FigureId): void;
  /** An address that shows this again. */
  link(id: FigureId): string;
  /** Something is to be drawn though the run did not change: calls `draw` with the next frame. */
  wake(): void;
  /** Said in the page's status line. */
  say(text: string): void;
  /** Sends a message in the chat; its answer, or null where there was none or somebody stopped it. */
  send(text: string): Promise<string | null>;
}

export interface Figures {
  /** Draws what changed and may be drawn now; true where a figure waits for its turn. `now` in milliseconds. */
  draw(run: RunState, now: number): boolean;
  /** Makes a figure the lead one. */
  lead(id: FigureId): void;
}

/** Figures drawn in one frame, at most: each takes a few milliseconds. */
const AT_ONCE = 2;

/** Puts the figures into `container`. `lead` is the first of them, and the largest. */
export function mountFigures(container: HTMLElement, wishes: FigureWishes, lead: FigureId = "cost"): Figures {
  return new Mounted(container, wishes, lead);
}

class Mounted implements Figures, Host {
  choices: Choices;
  readonly palette: Palette;
  private readonly frames: FigureFrame[];

  constructor(
    private readonly container: HTMLElement,
    readonly wishes: FigureWishes,
    lead: FigureId,
  ) {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    this.choices = { ...CHOICES, still: still.matches };
    this.palette = new Palette(container);
    const below = new Told(wishes);
    this.frames = ALL.map((figure) => new FigureFrame(figure, this, figure.id === "knows" ? below : null));
    container.append(...this.frames.map(({ element }) => element));
    this.lead(lead);
    still.addEventListener("change", () => this.choose({ still: still.matches }));
    const recolour = (): void => {
      this.palette.forget();
      this.refresh();
    };
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", recolour);
    }
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  choose({ roll, ...set }: Option["set"]): void {
    if (roll !== undefined) this.wishes.roll(roll);
    this.choices = { ...this.choices, ...set };
    this.refresh();
  }

  lead(wanted: Figure | FigureId): void {
    const id = typeof wanted === "string" ? wanted : wanted.id;
    const first = this.frames.find(({ figure }) => figure.id === id);
    if (first === undefined) return;
    const focused = first.element.contains(document.activeElement);
    for (const frame of this.frames) frame.showLead(frame === first);
    const rest = this.frames.filter((frame) => frame !== first);
    // In their order of reading; only what stands elsewhere is moved.
    const wantedOrder = [first, ...rest].map(({ element }) => element);
    if ([...this.container.querySelectorAll(":scope > figure")].some((element, i) => element !== wantedOrder[i])) {
      this.container.append(...wantedOrder);
    }
    if (focused) first.focusLead();
    if (typeof wanted !== "string") this.wishes.lead(id);
    this.refresh();
  }

  private refresh(): void {
    for (const frame of this.frames) frame.refresh();
  }

  draw(run: RunState, now: number): boolean {
    // Nobody is asked for that head any more, since another run has begun.
    if (this.choices.head !== null && run.asked === null) this.choose({ head: null });
    const wanting = this.frames.filter((frame) => frame.wants(run));
    const due = wanting.filter((frame) => frame.due(run, now)).sort((a, b) => a.lastDrawn - b.lastDrawn);
    for (const frame of due.slice(0, AT_ONCE)) frame.draw(run, now);
    return wanting.length > Math.min(due.length, AT_ONCE);
  }
}
