// Shapes on a canvas, for drawings of many small parts.

import { type Colours, FAINT, type Fill, HALO, HATCH, HEATS, isDotted, type Rect, type Shape, TEXT } from "./shapes.ts";

/** Paints the shapes on a canvas that was just cleared. `scale`: device pixels for a CSS pixel. */
export function paint(context: CanvasRenderingContext2D, shapes: readonly Shape[], colours: Colours, scale: number): void {
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.textBaseline = "alphabetic";
  for (const shape of shapes) {
    switch (shape.kind) {
      case "path":
        stroke(context, shape.points, colours(shape.ink), shape.width, shape.dash);
        break;
      case "area":
        trace(context, shape.points);
        fillWith(context, shape.fill, colours, null);
        break;
      case "rect":
        if (shape.fill !== null) {
          context.beginPath();
          context.rect(shape.x, shape.y, shape.width, shape.height);
          fillWith(context, shape.fill, colours, shape);
        }
        if (shape.stroke !== undefined) {
          context.strokeStyle = colours(shape.stroke);
          context.lineWidth = shape.thick ?? 1;
          context.setLineDash(dashes(shape.dash));
          context.strokeRect(shape.x, shape.y, shape.width, shape.height);
        }
        break;
      case "ring":
        context.beginPath();
        context.arc(shape.at[0], shape.at[1], shape.radius, 0, 2 * Math.PI);
        context.strokeStyle = colours(shape.ink);
        context.lineWidth = shape.width;
        context.setLineDash([]);
        context.stroke();
        break;
      case "text":
        context.font = `${shape.bold === undefined ? "" : "600 "}${TEXT}px system-ui, sans-serif`;
        context.textAlign = shape.anchor === "middle" ? "center" : shape.anchor;
        if (shape.halo === true) {
          context.setLineDash([]);
          context.lineJoin = "round";
          context.lineWidth = HALO;
          context.strokeStyle = colours("card");
          context.strokeText(shape.text, shape.at[0], shape.at[1]);
        }
        context.fillStyle = colours(shape.ink);
        context.fillText(shape.text, shape.at[0], shape.at[1]);
        break;
    }
  }
}

function trace(context: CanvasRenderingContext2D, points: readonly (readonly [number, number])[]): void {
  context.beginPath();
  for (const [i, [x, y]] of points.entries()) {
    if (i === 0) context.moveTo(x, y);
    else context.lineTo(x, y);
  }
}

function stroke(
  context: CanvasRenderingContext2D,
  points: readonly (readonly [number, number])[],
  colour: string,
  width: number,
  dash: string | undefined,
): void {
  trace(context, points);
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.lineCap = isDotted(dash) ? "round" : "butt";
  context.setLineDash(dashes(dash));
  context.stroke();
}

/** Fills the current path; a hatch is drawn inside `rect` only. */
function fillWith(context: CanvasRenderingContext2D, fill: Fill, colours: Colours, rect: Rect | null): void {
  context.fillStyle = colours("heat" in fill ? fill : fill.ink);
  if (!("style" in fill) || fill.style === "solid") return context.fill();
  context.globalAlpha = FAINT;
  context.fill();
  context.globalAlpha = 1;
  if (fill.style === "faint" || rect === null) return;
  context.save();
  context.clip();
  context.strokeStyle = colours(fill.ink);
  context.lineWidth = 2;
  context.setLineDash([]);
  context.beginPath();
  // Lines of all cells lie on one grid, as in the SVG's pattern.
  const step = HATCH * Math.SQRT2;
  const first = Math.floor((rect.x - rect.y - rect.height) / step) * step;
  for (let c = first; c <= rect.x + rect.width - rect.y; c += step) {
    context.moveTo(rect.y + c, rect.y);
    context.lineTo(rect.y + rect.height + c, rect.y + rect.height);
  }
  context.stroke();
  context.restore();
}

const dashes = (dash: string | undefined): number[] => (dash === undefined ? [] : dash.split(" ").map(Number));

/** The style sheet's colours as the browser sees them now: canvases and files cannot name them. */
export class Palette {
  private readonly probe = document.createElement("span");
  private known = new Map<string, string>();
  readonly colours: Colours = (colour) => (typeof colour === "string" ? this.named(colour) : this.heat(colour.heat));

  constructor(parent: HTMLElement) {
    this.probe.hidden = true;
    parent.append(this.probe);
  }

  /** The theme may have changed. */
  forget(): void {
    this.known = new Map();
  }

  private named(name: string): string {
    const before = this.known.get(name);
    if (before !== undefined) return before;
    this.probe.style.color = `var(--${name})`;
    const found = getComputedStyle(this.probe).color;
    this.known.set(name, found);
    return found;
  }

  private heat(value: number): string {
    const place = Math.min(1, Math.max(0, value)) * (HEATS - 1);
    // Steps that no eye tells apart, so that few colours are ever mixed.
    const key = `mixed ${Math.round(place * 40)}`;
    const before = this.known.get(key);
    if (before !== undefined) return before;
    const below = Math.min(HEATS - 2, Math.floor(place));
    const [from, to] = [channels(this.named(`heat-${below}`)), channels(this.named(`heat-${below + 1}`))];
    const mixed = from.map((channel, i) => Math.round(channel + ((to[i] ?? 0) - channel) * (place - below)));
    const found = `rgb(${mixed.join(" ")})`;
    this.known.set(key, found);
    return found;
  }
}

/** Red, green and blue from 0 to 255, of `rgb(…)` or of `color(srgb …)`, which has them from 0 to 1. */
function channels(colour: string): number[] {
  const scale = colour.startsWith("color(") ? 255 : 1;
  return (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map((channel) => Number(channel) * scale);
}
