// From an address to bytes in order: tries again with growing pauses, goes on where a connection
// broke, keeps what came, and holds the whole to its SHA-256.

import { sha256 } from "@noble/hashes/sha2.js";
import { type Fault, fault, type Source } from "./protocol.ts";
import type { Card, Part, Shelf } from "./shelf.ts";
import * as say from "./strings.en.ts";

/** Pauses before each new try, milliseconds. Bytes that come set the count back. */
const PAUSES = [500, 1000, 2000, 4000];
/** Milliseconds without a byte after which a server counts as silent. */
const STALL = 15_000;
/** Bytes of a piece that is read back from the shelf. */
const PIECE = 4 * 1024 * 1024;
/** Answers that may be different next time. */
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Who takes the bytes. */
export interface Sink {
  /** All that came before counts for nothing. */
  restart(): void;
  push(bytes: Uint8Array): Promise<void>;
  /** A try failed, and another one follows in so many milliseconds. */
  retrying(fault: Fault, pause: number): void;
  /** Size of the whole, bytes. */
  total(bytes: number): void;
}

/** How a download ended. */
export interface Receipt {
  /** The file on the shelf; null where it is not kept. */
  card: Card | null;
  /** Why it is not kept, as a sentence. */
  notice: string | null;
}

type Download = Extract<Source, { kind: "download" }>;

/** Sends the file of `source` to `sink`, from the first address that has it. Rejects with a `Fault`. */
export async function download(source: Download, shelf: Shelf | null, sink: Sink): Promise<Receipt> {
  let first: unknown;
  for (const url of source.urls) {
    try {
      return await new Transfer(source, url, shelf, sink).run();
    } catch (caught) {
      // Another address may have what this one has not; damage is damage everywhere.
      if (!isMissing(caught)) throw caught;
      first ??= caught;
    }
  }
  throw first;
}

class Transfer {
  private part: Part | null = null;
  private notice: string | null = null;
  private hash = sha256.create();
  private have = 0;
  private card: Card;

  constructor(
    private readonly source: Download,
    private readonly url: string,
    private readonly shelf: Shelf | null,
    private readonly sink: Sink,
  ) {
    const { id, name } = source;
    this.card = { id, name, url, bytes: null, sha256: null, etag: null, added: null };
  }

  async run(): Promise<Receipt> {
    await this.open();
    try {
      await this.stored();
      for (let tries = 0; ; tries += 1) {
        const before = this.have;
        try {
          await this.once();
          break;
        } catch (caught) {
          if (this.have > before) tries = 0;
          const pause = PAUSES[tries];
          if (!isPassing(caught) || pause === undefined) throw caught;
          this.sink.retrying(caught.fault, pause);
          await new Promise((resolve) => setTimeout(resolve, pause));
        }
      }
      return await this.finish();
    } catch (caught) {
      if (!(caught instanceof Passing)) throw caught;
      const { bytes } = this.card;
      const kept = this.part !== null && this.have > 0 && bytes !== null;
      throw kept ? { ...caught.fault, remedy: say.goesOn(this.have, bytes) } : caught.fault;
    } finally {
      await this.part?.close();
    }
  }

  /** Bytes of a damaged file are of no use to the next try. */
  private async damaged(fault: Fault): Promise<Fault> {
    await this.part?.clear();
    return fault;
  }

  private async open(): Promise<void> {
    if (this.shelf === null) {
      this.notice = say.notKept;
      return;
    }
    try {
      this.part = await this.shelf.part(this.source.id);
      const known = (await this.shelf.list()).find((card) => card.id === this.source.id);
      if (known !== undefined && known.added === null) this.card = { ...known, url: this.url };
      else if (this.part.size() > 0) await this.part.clear();
    } catch (caught) {
      this.notice = say.notKeptBecause(fault("storage", caught, null).message);
    }
  }

  /** What an earlier visit has fetched already. */
  private async stored(): Promise<void> {
    const size = this.part?.size() ?? 0;
    if (this.card.bytes !== null && size > this.card.bytes) await this.part?.clear();
    for (let at = 0; this.part !== null && at < size; at += PIECE) {
      const bytes = await this.part.read(at, Math.min(size, at + PIECE));
      this.hash.update(bytes);
      this.have += bytes.length;
      await this.feed(bytes);
    }
  }

  /** One connection, from where the bytes end. */
  private async once(): Promise<void> {
    if (this.card.bytes !== null && this.have === this.card.bytes) return;
    const stop = new AbortController();
    let stalled = 0;
    const watch = (): void => {
      clearTimeout(stalled);
      stalled = setTimeout(() => stop.abort(new Error(say.stalled(STALL / 1000))), STALL) as unknown as number;
    };
    watch();
    try {
      const headers: HeadersInit = this.have > 0 ? { range: `bytes=${this.have}-` } : {};
      const answer = await fetch(this.url, { headers, signal: stop.signal, cache: "no-store" }).catch(
        (caught: unknown) => {
          throw new Passing(unreachable(this.url, caught));
        },
      );
      let skip = await this.answered(answer);
      const body = answer.body?.getReader();
      while (body !== undefined) {
        const { done, value } = await body.read().catch((caught: unknown) => {
          throw new Passing(unreachable(this.url, caught));
        });
        if (done) break;
        watch();
        const fresh = skip > 0 ? value.subarray(skip) : value;
        skip -= value.length - fresh.length;
        if (fresh.length > 0) await this.take(fresh);
      }
    } finally {
      clearTimeout(stalled);
      stop.abort();
    }
    const { bytes } = this.card;
    if (bytes !== null && this.have < bytes) throw new Passing(broken(this.url, this.have, bytes));
  }

  /** Looks at the head of an answer; returns how many of its bytes are here already. */
  private async answered(answer: Response): Promise<number> {
    if (answer.status === 416) {
      // The file has become shorter than what is here.
      await this.restart();
      throw new Passing(status(this.url, answer));
    }
    if (!answer.ok) {
      const sentence = status(this.url, answer);
      throw PASSING.has(answer.status) ? new Passing(sentence) : sentence;
    }
    // Many hosts answer with their own page for what they do not have.
    if (answer.headers.get("content-type")?.startsWith("text/html") === true) {
      throw { name: "http", message: say.webPage(this.url), remedy: say.httpRemedy } satisfies Fault;
    }
    const etag = answer.headers.get("etag");
    const length = Number(answer.headers.get("content-length") ?? Number.NaN);
    // The length of a compressed answer is not the file's.
    const plain = Number.isFinite(length) && answer.headers.get("content-encoding") === null;
    const partial = answer.status === 206;
    const size = plain ? (partial ? this.have : 0) + length : null;
    const { etag: had, bytes } = this.card;
    // Servers mark the same file differently; where its hash is known, that decides.
    const marked = this.source.check === null && had !== null && etag !== null && had !== etag;
    const changed = marked || (bytes !== null && size !== null && bytes !== size);
    if (changed) {
      await this.restart();
      if (partial) throw new Passing(other(this.url));
    }
    this.card = { ...this.card, etag: etag ?? this.card.etag, bytes: size ?? this.card.bytes };
    if (this.card.bytes !== null) {
      this.sink.total(this.card.bytes);
      await this.room(this.card.bytes - this.have);
    }
    await this.part?.note(this.card);
    return partial ? 0 : this.have;
  }

  private async restart(): Promise<void> {
    await this.part?.clear();
    this.hash = sha256.create();
    this.have = 0;
    this.card = { ...this.card, bytes: null, etag: null };
    this.sink.restart();
  }

  /** Does not begin to write what there is no room for. */
  private async room(bytes: number): Promise<void> {
    if (this.part === null) return;
    const { quota, usage } = await navigator.storage.estimate().catch(() => ({}) as StorageEstimate);
    if (quota === undefined || usage === undefined || quota - usage >= bytes) return;
    await this.letGo();
  }

  /** The download goes on without being kept. */
  private async letGo(): Promise<void> {
    const { part } = this;
    this.part = null;
    this.notice = say.noRoom;
    await part?.clear();
    await part?.close();
    await this.shelf?.remove(this.source.id);
  }

  private async take(bytes: Uint8Array): Promise<void> {
    this.hash.update(bytes);
    this.have += bytes.length;
    try {
      await this.part?.append(bytes);
    } catch {
      await this.letGo();
    }
    await this.feed(bytes);
  }

  private async feed(bytes: Uint8Array): Promise<void> {
    try {
      await this.sink.push(bytes);
    } catch (caught) {
      throw await this.damaged(fault("engine", caught, null));
    }
  }

  private async finish(): Promise<Receipt> {
    const found = hex(this.hash.digest());
    const { check } = this.source;
    const held = check !== null && (check.bytes === null || check.bytes === this.have);
    if (held && found !== check.sha256) {
      throw await this.damaged({
        name: "hash",
        message: say.wrongHash(this.url, found, check.sha256),
        remedy: say.wrongHashRemedy,
      });
    }
    const card: Card = { ...this.card, bytes: this.have, sha256: found, added: new Date().toISOString() };
    const { part } = this;
    if (part === null) return { card: null, notice: this.notice };
    this.part = null;
    await part.finish(card);
    return { card, notice: null };
  }
}

/** A failure that the next try may not meet. */
class Passing {
  constructor(readonly fault: Fault) {}
}

const isPassing = (caught: unknown): caught is Passing => caught instanceof Passing;

/** The address does not have the file, or cannot be reached. */
const isMissing = (caught: unknown): boolean =>
  typeof caught === "object" && caught !== null && "name" in caught && ["http", "network"].includes(String(caught.name));

const hex = (bytes: Uint8Array): string => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

function status(url: string, { status, statusText }: Response): Fault {
  return { name: "http", message: say.http(url, status, statusText), remedy: say.httpRemedy };
}

function unreachable(url: string, caught: unknown): Fault {
  const { message } = fault("network", caught, null);
  return { name: "network", message: say.network(url, message), remedy: say.networkRemedy };
}

const broken = (url: string, have: number, total: number): Fault => ({
  name: "network",
  message: say.endedEarly(url, have, total),
  remedy: say.networkRemedy,
});

const other = (url: string): Fault => ({ name: "network", message: say.otherFile(url), remedy: null });
