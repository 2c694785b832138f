// What a drawing is made of, before it is drawn: the same shapes give the picture on the page, the files
// that a person takes away and, in tests, numbers to check. Here they become SVG; `canvas.ts` paints them.

/** Names of colours; the style sheet gives each its value in light and in dark. */
export const INKS = [
  "ink",
  "muted",
  "grid",
  "card",
  "sink",
  "packed",
  "tail",
  "gone",
  "window",
  "dense",
  "recompute",
  "accent",
] as const;
export type Ink = (typeof INKS)[number];

/** A share from 0 to 1, in the colours of heat. */
export interface Heat {
  heat: number;
}

/** The colours of heat from 0 to 1, evenly apart; between them, colours are mixed. */
export const HEATS = 6;

export type Point = [x: number, y: number];

/** Lengths in CSS pixels, y down. */
export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

export type Shape =
  | { kind: "path"; points: Point[]; ink: Ink; width: number; dash?: string }
  /** A filled outline. */
  | { kind: "area"; points: Point[]; fill: Fill }
  | ({ kind: "rect"; fill: Fill | null; stroke?: Ink; thick?: number; dash?: string } & Rect)
  | { kind: "ring"; at: Point; radius: number; ink: Ink; width: number }
  /** `halo`: the card shows around it, where it stands on lines. */
  | { kind: "text"; at: Point; text: string; anchor: "start" | "middle" | "end"; ink: "ink" | "muted"; bold?: true; halo?: true };

/** `hatch`: lines at 45 degrees; `faint`: a tint of the colour. */
export type Fill = Heat | { ink: Ink; style: "solid" | "hatch" | "faint" };

/** Room for a drawing, CSS pixels. */
export interface Box {
  width: number;
  height: number;
}

/** Pixels between two lines of a hatch. */
export const HATCH = 5;
/** How much of its colour a faint fill has. */
export const FAINT = 0.18;

/** What a name or a heat looks like: a CSS colour. */
export type Colours = (colour: Ink | Heat) => string;

/** Width of the stroke around text with a halo. */
export const HALO = 4;

/** Colours for drawings within the page, which follow the theme by themselves. */
export const LIVE: Colours = (colour) => (typeof colour === "string" ? `var(--${colour})` : `var(--heat-${Math.round(colour.heat * (HEATS - 1))})`);

/** Height of text, pixels, which no figure goes below. */
export const TEXT = 12;

export function line(from: Point, to: Point, ink: Ink, dash?: string): Shape {
  return { kind: "path", points: [from, to], ink, width: 1, ...(dash === undefined ? {} : { dash }) };
}

/** Dots are round; the ends of longer dashes are not, or their gaps would close. */
export const isDotted = (dash: string | undefined): boolean => dash?.startsWith("0 ") ?? false;

/** The shapes as the inside of an `<svg>`. `id` sets the names of its parts apart from other drawings'. */
export function markup(shapes: readonly Shape[], colours: Colours, id: string): string {
  const hatched = new Set(
    shapes.flatMap((s) => ("fill" in s && s.fill !== null && "style" in s.fill && s.fill.style === "hatch" ? [s.fill.ink] : [])),
  );
  const patterns = [...hatched].map(
    (ink) =>
      `<pattern id="${id}-${ink}" width="${HATCH}" height="${HATCH}" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">` +
      `<rect width="${HATCH}" height="${HATCH}" fill="${colours(ink)}" fill-opacity="${FAINT}"/>` +
      `<rect width="2" height="${HATCH}" fill="${colours(ink)}"/></pattern>`,
  );
  const defs = patterns.length === 0 ? "" : `<defs>${patterns.join("")}</defs>`;
  return defs + shapes.map((shape) => element(shape, colours, id)).join("");
}

function element(shape: Shape, colours: Colours, id: string): string {
  switch (shape.kind) {
    case "path": {
      const { points, ink, width, dash } = shape;
      const cap = isDotted(dash) ? ' stroke-linecap="round"' : "";
      return `<path d="${path(points)}" fill="none" stroke="${colours(ink)}" stroke-width="${width}" stroke-linejoin="round"${cap}${dashed(dash)}/>`;
    }
    case "area":
      return `<path d="${path(shape.points)}Z"${filled(shape.fill, colours, id)}/>`;
    case "rect": {
      const { x, y, width, height, fill, stroke, dash } = shape;
      const edge = stroke === undefined ? "" : ` stroke="${colours(stroke)}" stroke-width="${shape.thick ?? 1}"${dashed(dash)}`;
      return `<rect x="${px(x)}" y="${px(y)}" width="${px(width)}" height="${px(height)}"${filled(fill, colours, id)}${edge}/>`;
    }
    case "ring": {
      const { at, radius, ink, width } = shape;
      return `<circle cx="${px(at[0])}" cy="${px(at[1])}" r="${px(radius)}" fill="none" stroke="${colours(ink)}" stroke-width="${width}"/>`;
    }
    case "text": {
      const { at, text, anchor, ink, bold, halo } = shape;
      const weight = bold === undefined ? "" : ' font-weight="600"';
      const around = halo === undefined ? "" : ` stroke="${colours("card")}" stroke-width="${HALO}" stroke-linejoin="round" paint-order="stroke"`;
      return `<text x="${px(at[0])}" y="${px(at[1])}" text-anchor="${anchor}" fill="${colours(ink)}"${weight}${around}>${escaped(text)}</text>`;
    }
  }
}

function filled(fill: Fill | null, colours: Colours, id: string): string {
  if (fill === null) return ' fill="none"';
  if ("heat" in fill) return ` fill="${colours(fill)}"`;
  if (fill.style === "hatch") return ` fill="url(#${id}-${fill.ink})"`;
  return ` fill="${colours(fill.ink)}"${fill.style === "faint" ? ` fill-opacity="${FAINT}"` : ""}`;
}

const path = (points: readonly Point[]): string =>
  points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${px(x)} ${px(y)}`).join("");

const px = (n: number): string => String(Math.round(n * 100) / 100);

const dashed = (dash: string | undefined): string => (dash === undefined ? "" : ` stroke-dasharray="${dash}"`);

export function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
