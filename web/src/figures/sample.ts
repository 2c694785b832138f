// A piece of a lane's line, for the heading of the lane.

import type { LaneStyle } from "./lanes.ts";
import { LIVE, markup } from "./shapes.ts";

/** Long enough for the longest dash to be seen twice, pixels. */
const SIZE = { width: 40, height: 10 };

export function sampleOf({ ink, dash }: LaneStyle): SVGSVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "glyph");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("viewBox", `0 0 ${SIZE.width} ${SIZE.height}`);
  const middle = SIZE.height / 2;
  const points: [number, number][] = [
    [2, middle],
    [SIZE.width - 2, middle],
  ];
  svg.innerHTML = markup([{ kind: "path", points, ink, width: 3, ...(dash === null ? {} : { dash }) }], LIVE, "sample");
  return svg;
}
