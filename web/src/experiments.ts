// The experiments: what each is about, and the menu that they are chosen from.

import { el, keys } from "./dom.ts";
import { Panel } from "./panels.ts";
import * as say from "./strings.en.ts";

export interface Experiment {
  title: string;
  what: string;
  why: string;
  /** Goes on after "Look at". */
  look: string;
  /** The paper's number. */
  paper: string;
}

export const experimentOf = (name: string): Experiment | null =>
  (say.experiments as Record<string, Experiment>)[name] ?? null;

/** Lists the experiments as links, each of which `address` gives; null is the first story. */
export function menu(address: (name: string | null) => string, choose: (name: string | null) => void): HTMLElement {
  const entry = (name: string | null, title: string, what: string): HTMLElement => {
    const link = el("a", { href: address(name) }, title);
    link.addEventListener("click", (event) => {
      // Another tab or window is the browser's matter.
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      choose(name);
    });
    return el("li", {}, link, el("p", { class: "muted" }, what));
  };
  return el(
    "ul",
    { class: "experiments" },
    entry(null, say.firstStory, say.firstStoryWhat),
    ...keys(say.experiments).map((name) => {
      const { title, what } = say.experiments[name];
      return entry(name, title, what);
    }),
  );
}

/** The menu as a dialog, which closes with a choice. */
export function dialog(address: (name: string | null) => string, choose: (name: string | null) => void): HTMLDialogElement {
  const { element } = new Panel(
    "experiments",
    say.experimentsMenu,
    el("p", { class: "muted" }, say.experimentsIntro),
    menu(address, (name) => {
      element.close();
      choose(name);
    }),
  );
  return element;
}
