// The picture that stands for the page where no scripts run: the lead figure of a recorded run, drawn by the page's own
// functions while the page is built.

import { readFileSync } from "node:fs";
import { cost } from "./src/figures/cost.ts";
import { CHOICES, type Figure } from "./src/figures/figure.ts";
import { svgOf } from "./src/figures/menu.ts";
import { LIVE, type Point, type Shape } from "./src/figures/shapes.ts";
import { readRun, Tape } from "./src/replay.ts";
import { emptyRun, reduceRun } from "./src/run.ts";

/** The run in which one word decides. */
const RUN = "hero.json";
/** Room for the drawing itself, pixels: what a phone has, so that its text can be read there. */
const BOX = { width: 326, height: 240 };
/** How much larger it is shown where there is room. */
const LARGER = 1.5;
/** Places that a pixel has in the picture: finer ones only make the file longer. */
const PLACES = 4;

export interface Picture {
  svg: string;
  /** What it shows, in words. */
  alt: string;
  /** As it is shown, pixels. */
  width: number;
  height: number;
}

/**
 * The picture, in the colours of the theme that whoever looks at it has chosen.
 *
 * @throws an `Error` where the recorded run or the style sheet is not as it must be.
 */
export function picture(): Picture {
  const text = readFileSync(new URL(`runs/${RUN}`, import.meta.url), "utf8");
  const recorded = readRun(text, RUN);
  const tape = new Tape(recorded, recorded.lanes.map((_, lane) => lane));
  let run = reduceRun(emptyRun(), tape.begin());
  for (let k = 0; k < tape.length; k += 1) run = reduceRun(run, tape.step(k));
  const drawn = svgOf({ figure: coarse, run, box: BOX, choices: CHOICES, colours: LIVE });
  const [, width, height] = /width="(\d+)" height="(\d+)"/.exec(drawn) ?? [];
  if (width === undefined || height === undefined) throw new Error("the picture has no size");
  return {
    svg: drawn.replace(/(?<=^<svg[^>]*>)/, `<style>${themes(drawn)}</style>`),
    alt: cost.words(run, CHOICES),
    width: Math.round(Number(width) * LARGER),
    height: Math.round(Number(height) * LARGER),
  };
}

/** The lead figure, its curves without what no eye sees. */
const coarse: Figure = {
  ...cost,
  shapes: (run, box, choices) =>
    cost.shapes(run, box, choices).map((shape): Shape => (shape.kind === "path" ? { ...shape, points: thinned(shape.points) } : shape)),
};

/** The points on a grid, and of those that lie level the ends alone. */
function thinned(points: readonly Point[]): Point[] {
  const round = (n: number): number => Math.round(n * PLACES) / PLACES;
  const rounded = points.map(([x, y]): Point => [round(x), round(y)]);
  return rounded.filter(([, y], i) => rounded[i - 1]?.[1] !== y || rounded[i + 1]?.[1] !== y);
}

/** The colours that a drawing names, light and dark, as the style sheet has them: files know no style sheet. */
function themes(drawn: string): string {
  const sheet = readFileSync(new URL("src/style.css", import.meta.url), "utf8");
  const block = (begin: RegExp): Map<string, string> => {
    const [, inside = ""] = begin.exec(sheet) ?? [];
    return new Map(Array.from(inside.matchAll(/(--[\w-]+): ([^;]+);/g), ([, name = "", value = ""]) => [name, value]));
  };
  const light = block(/^:root {([^}]*)}/m);
  const dark = block(/:root:not\(\[data-theme\]\) {([^}]*)}/);
  const wanted = new Set<string>();
  const want = (text: string): void => {
    for (const [, name = ""] of text.matchAll(/var\((--[\w-]+)\)/g)) {
      const value = light.get(name);
      if (value === undefined) throw new Error(`style.css has no ${name}`);
      wanted.add(name);
      // One may be named by another.
      want(value);
    }
  };
  want(drawn);
  if (![...wanted].some((name) => dark.has(name))) throw new Error("style.css has no dark colours");
  const rule = (values: Map<string, string>): string =>
    `:root{${[...wanted].flatMap((name) => (values.has(name) ? [`${name}:${values.get(name)}`] : [])).join(";")}}`;
  return `${rule(light)}@media(prefers-color-scheme:dark){${rule(dark)}}`;
}
