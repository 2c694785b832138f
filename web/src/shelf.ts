// Weights that stay in the browser: in the origin's private files, or where a browser has none, in
// its cache. A file is written under a temporary name and gets its own when all of it is there.
// Runs in the page, which lists and removes, and in the worker, which writes and reads.

/** What is known of a file on the shelf. */
export interface Card {
  /** Its name on the shelf: letters, digits, dots, hyphens. */
  id: string;
  /** What people call it. */
  name: string;
  /** Where it came from. */
  url: string;
  /** Size of the whole, bytes; null while the server has not said it. */
  bytes: number | null;
  /** Of the whole, in hexadecimal; null until it is there. */
  sha256: string | null;
  /** The server's mark for this very file, so that two halves of different files are never joined. */
  etag: string | null;
  /** When it was complete, in ISO 8601; null while it is not. */
  added: string | null;
}

/** A file that is being written. */
export interface Part {
  /** Bytes that are there. */
  size(): number;
  /** Rejects with a `QuotaExceededError` where the browser gives no room. */
  append(bytes: Uint8Array): Promise<void>;
  /** Bytes `[from, to)`. */
  read(from: number, to: number): Promise<Uint8Array<ArrayBuffer>>;
  clear(): Promise<void>;
  /** Writes down what is known so far. */
  note(card: Card): Promise<void>;
  /** Gives the file its name. */
  finish(card: Card): Promise<void>;
  close(): Promise<void>;
}

export interface Shelf {
  readonly kind: ShelfKind;
  /** All files, unfinished ones too. */
  list(): Promise<Card[]>;
  part(id: string): Promise<Part>;
  /** A finished file; null where there is none. */
  open(id: string): Promise<Blob | null>;
  remove(id: string): Promise<void>;
  clear(): Promise<void>;
}

export type ShelfKind = "files" | "cache";

const FOLDER = "models";
const CACHE = "sinkstream-models";
/** Bytes of a piece in the cache. */
const PIECE = 4 * 1024 * 1024;

/** The best shelf that this browser has; null where it keeps nothing, as in some private windows. */
export async function findShelf(): Promise<ShelfKind | null> {
  try {
    const root = await navigator.storage.getDirectory();
    await root.getDirectoryHandle(FOLDER, { create: true });
    return "files";
  } catch {
    // Refused or unknown: the next one is asked.
  }
  try {
    await caches.open(CACHE);
    return "cache";
  } catch {
    return null;
  }
}

export const shelf = (kind: ShelfKind): Shelf => (kind === "files" ? new Files() : new Cached());

export const isCard = (value: unknown): value is Card =>
  typeof value === "object" && value !== null && "id" in value && typeof value.id === "string" && "url" in value;

interface SyncHandle {
  getSize(): number;
  read(into: Uint8Array, options: { at: number }): number;
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  flush(): void;
  close(): void;
}

/** What only workers have, or only some browsers. */
type Handle = FileSystemFileHandle & {
  createSyncAccessHandle?(): Promise<SyncHandle>;
  move?(name: string): Promise<void>;
};

class Files implements Shelf {
  readonly kind = "files";

  async list(): Promise<Card[]> {
    const folder = await this.folder();
    const cards: Card[] = [];
    for await (const [name, handle] of entries(folder)) {
      if (handle.kind !== "file" || !name.endsWith(".json")) continue;
      const card = await read(handle as FileSystemFileHandle);
      if (card !== null) cards.push(card);
    }
    return cards;
  }

  async part(id: string): Promise<Part> {
    const folder = await this.folder();
    const handle: Handle = await folder.getFileHandle(`${id}.part`, { create: true });
    const file = await handle.createSyncAccessHandle?.();
    if (file === undefined) throw new Error("this browser cannot write files piece by piece");
    return new FilePart(folder, id, handle, file);
  }

  async open(id: string): Promise<Blob | null> {
    const handle = await (await this.folder()).getFileHandle(`${id}.gguf`).catch(() => null);
    return (await handle?.getFile()) ?? null;
  }

  async remove(id: string): Promise<void> {
    const folder = await this.folder();
    for (const end of ["json", "gguf", "part"]) await folder.removeEntry(`${id}.${end}`).catch(() => {});
  }

  async clear(): Promise<void> {
    for (const { id } of await this.list()) await this.remove(id);
  }

  private async folder(): Promise<FileSystemDirectoryHandle> {
    return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
  }
}

class FilePart implements Part {
  constructor(
    private readonly folder: FileSystemDirectoryHandle,
    private readonly id: string,
    private readonly handle: Handle,
    private readonly file: SyncHandle,
  ) {}

  size(): number {
    return this.file.getSize();
  }

  async append(bytes: Uint8Array): Promise<void> {
    const at = this.file.getSize();
    const written = this.file.write(bytes, { at });
    if (written === bytes.length) return;
    this.file.truncate(at);
    throw new DOMException(`only ${written} of ${bytes.length} bytes were written`, "QuotaExceededError");
  }

  async read(from: number, to: number): Promise<Uint8Array<ArrayBuffer>> {
    const bytes = new Uint8Array(to - from);
    return bytes.subarray(0, this.file.read(bytes, { at: from }));
  }

  async clear(): Promise<void> {
    this.file.truncate(0);
  }

  async note(card: Card): Promise<void> {
    const handle: Handle = await this.folder.getFileHandle(`${this.id}.json`, { create: true });
    const file = await handle.createSyncAccessHandle?.();
    if (file === undefined) return;
    file.truncate(0);
    file.write(new TextEncoder().encode(JSON.stringify(card)), { at: 0 });
    file.flush();
    file.close();
  }

  async finish(card: Card): Promise<void> {
    this.file.flush();
    this.file.close();
    const name = `${this.id}.gguf`;
    await this.folder.removeEntry(name).catch(() => {});
    if (this.handle.move !== undefined) await this.handle.move(name);
    else {
      const whole = await (await this.folder.getFileHandle(name, { create: true })).createWritable();
      await (await this.handle.getFile()).stream().pipeTo(whole);
      await this.folder.removeEntry(`${this.id}.part`);
    }
    await this.note(card);
  }

  async close(): Promise<void> {
    this.file.close();
  }
}

/** In numbered pieces, since an answer in the cache is whole or not there. */
class Cached implements Shelf {
  readonly kind = "cache";

  async list(): Promise<Card[]> {
    const cache = await caches.open(CACHE);
    const cards: Card[] = [];
    for (const request of await cache.keys()) {
      if (!request.url.endsWith("/card")) continue;
      const card: unknown = await (await cache.match(request))?.json();
      if (isCard(card)) cards.push(card);
    }
    return cards;
  }

  async part(id: string): Promise<Part> {
    const cache = await caches.open(CACHE);
    let pieces = 0;
    while ((await cache.match(address(id, pieces))) !== undefined) pieces += 1;
    return new CachedPart(cache, id, pieces);
  }

  async open(id: string): Promise<Blob | null> {
    const cache = await caches.open(CACHE);
    const card: unknown = await (await cache.match(address(id, "card")))?.json();
    if (!isCard(card) || card.added === null) return null;
    const pieces: Blob[] = [];
    for (;;) {
      const piece = await cache.match(address(id, pieces.length));
      if (piece === undefined) return new Blob(pieces);
      pieces.push(await piece.blob());
    }
  }

  async remove(id: string): Promise<void> {
    const cache = await caches.open(CACHE);
    const all = await cache.keys();
    await Promise.all(all.filter((r) => r.url.includes(`/stored/${id}/`)).map((r) => cache.delete(r)));
  }

  async clear(): Promise<void> {
    await caches.delete(CACHE);
  }
}

class CachedPart implements Part {
  /** Whole pieces are in the cache; the bytes after them wait here. */
  private rest: Uint8Array[] = [];
  private waiting = 0;

  constructor(
    private readonly cache: Cache,
    private readonly id: string,
    private pieces: number,
  ) {}

  size(): number {
    return this.pieces * PIECE + this.waiting;
  }

  async append(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const fits = bytes.slice(at, at + PIECE - this.waiting);
      this.rest.push(fits);
      this.waiting += fits.length;
      at += fits.length;
      if (this.waiting === PIECE) await this.put();
    }
  }

  async read(from: number, to: number): Promise<Uint8Array<ArrayBuffer>> {
    const bytes = new Uint8Array(to - from);
    for (let piece = Math.floor(from / PIECE); piece * PIECE < to && piece < this.pieces; piece += 1) {
      const whole = new Uint8Array((await (await this.cache.match(address(this.id, piece)))?.arrayBuffer()) ?? new ArrayBuffer());
      const first = Math.max(from, piece * PIECE);
      bytes.set(whole.subarray(first - piece * PIECE, to - piece * PIECE), first - from);
    }
    return bytes;
  }

  async clear(): Promise<void> {
    for (let i = 0; i < this.pieces; i += 1) await this.cache.delete(address(this.id, i));
    [this.pieces, this.rest, this.waiting] = [0, [], 0];
  }

  async note(card: Card): Promise<void> {
    await this.cache.put(address(this.id, "card"), new Response(JSON.stringify(card)));
  }

  async finish(card: Card): Promise<void> {
    if (this.waiting > 0) await this.put();
    await this.note(card);
  }

  async close(): Promise<void> {
    this.rest = [];
  }

  private async put(): Promise<void> {
    await this.cache.put(address(this.id, this.pieces), new Response(new Blob(this.rest as BlobPart[])));
    [this.pieces, this.rest, this.waiting] = [this.pieces + 1, [], 0];
  }
}

/** Never asked of a server: names in the cache must look like addresses. */
const address = (id: string, part: number | "card"): string => `/stored/${id}/${part}`;

async function read(handle: FileSystemFileHandle): Promise<Card | null> {
  try {
    const card: unknown = JSON.parse(await (await handle.getFile()).text());
    return isCard(card) ? card : null;
  } catch {
    // Half a card is no card; its file is then fetched anew.
    return null;
  }
}

/** Entries of a folder, which not every library of types knows how to walk. */
const entries = (folder: FileSystemDirectoryHandle): AsyncIterable<[string, FileSystemHandle]> =>
  (folder as unknown as { entries(): AsyncIterable<[string, FileSystemHandle]> }).entries();
