// What a figure is made of, before it is drawn: the same shapes give the picture on the page and, in
// tests, numbers to check.

/** Names of colours; the style sheet gives each its value in light and dark. */
export type Ink = "ink" | "muted" | "grid" | "sink" | "recent" | "gone" | "window" | "dense";

/** Lengths in CSS pixels, y down. */
export type Shape =
  | { kind: "line"; from: Point; to: Point; ink: Ink; dash?: string }
  | { kind: "path"; points: Point[]; ink: Ink; width: number; dash?: string }
  | { kind: "rect"; x: number; y: number; width: number; height: number; fill: Ink | null; ink?: Ink }
  | { kind: "text"; at: Point; text: string; anchor: "start" | "middle" | "end"; ink: "ink" | "muted" };

export type Point = [x: number, y: number];

/** Room for a drawing, CSS pixels. */
export interface Box {
  width: number;
  height: number;
}

/** A figure as a pure function of state gives it. */
export interface Figure {
  title: string;
  /** What to look at. */
  caption: string;
  /** What the drawing shows, for people who do not see it. */
  words: string;
  shapes: Shape[];
}

/** The shapes as the inside of an `<svg>`. */
export function markup(shapes: readonly Shape[]): string {
  return shapes.map(element).join("");
}

function element(shape: Shape): string {
  switch (shape.kind) {
    case "line": {
      const { from, to, ink, dash } = shape;
      return `<line x1="${px(from[0])}" y1="${px(from[1])}" x2="${px(to[0])}" y2="${px(to[1])}" class="stroke-${ink}"${dashed(dash)}/>`;
    }
    case "path": {
      const d = shape.points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${px(x)} ${px(y)}`).join("");
      return `<path d="${d}" class="stroke-${shape.ink}" stroke-width="${shape.width}"${dashed(shape.dash)}/>`;
    }
    case "rect": {
      const { x, y, width, height, fill, ink } = shape;
      const classes = [
        fill === null ? "hollow" : `fill-${fill}`,
        ...(ink === undefined ? [] : [`stroke-${ink}`]),
      ];
      return `<rect x="${px(x)}" y="${px(y)}" width="${px(width)}" height="${px(height)}" class="${classes.join(" ")}"/>`;
    }
    case "text": {
      const { at, text, anchor, ink } = shape;
      return `<text x="${px(at[0])}" y="${px(at[1])}" text-anchor="${anchor}" class="fill-${ink}">${escaped(text)}</text>`;
    }
  }
}

const px = (n: number): string => String(Math.round(n * 100) / 100);

const dashed = (dash: string | undefined): string =>
  dash === undefined ? "" : ` stroke-dasharray="${dash}"`;

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
