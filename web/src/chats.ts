// Chats, kept in this browser's database; where it has none, for as long as the page is open. And as
// files that go from one browser to another.

import { type Chat, type Turn, turn } from "./state.ts";
import * as say from "./strings.en.ts";

const DATABASE = "sinkstream";
const STORE = "chats";
/** Longest title, characters. */
const TITLE = 60;

export interface Kept extends Chat {
  /** Last change, ISO 8601. */
  changed: string;
}

export interface Summary {
  id: string;
  title: string;
  changed: string;
  turns: number;
}

export class Chats {
  private readonly memory = new Map<string, Kept>();

  private constructor(
    private readonly database: IDBDatabase | null,
    /** Why chats are not kept; null where they are. */
    readonly refusal: string | null,
  ) {}

  static async open(): Promise<Chats> {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = (): void => void request.result.createObjectStore(STORE, { keyPath: "id" });
      const database = await done(request);
      // Another tab that clears the storage must not wait for this one.
      database.onversionchange = (): void => database.close();
      return new Chats(database, null);
    } catch (caught) {
      return new Chats(null, caught instanceof Error ? caught.message : String(caught));
    }
  }

  /** Newest first. */
  async list(): Promise<Summary[]> {
    return (await this.all())
      .map((chat) => ({ id: chat.id, title: titleOf(chat), changed: chat.changed, turns: said(chat.turns).length }))
      .sort((a, b) => (a.changed < b.changed ? 1 : -1));
  }

  async all(): Promise<Kept[]> {
    if (this.database === null) return [...this.memory.values()];
    return done(this.store("readonly").getAll() as IDBRequest<Kept[]>);
  }

  async get(id: string): Promise<Kept | null> {
    if (this.database === null) return this.memory.get(id) ?? null;
    return (await done(this.store("readonly").get(id) as IDBRequest<Kept | undefined>)) ?? null;
  }

  async put(chat: Chat): Promise<void> {
    const kept: Kept = { ...chat, turns: chat.turns.map(resting), changed: new Date().toISOString() };
    if (this.database === null) this.memory.set(kept.id, kept);
    else {
      const store = this.store("readwrite");
      const request = store.put(kept);
      // At once, for a page that is being closed does not live until the answer.
      store.transaction.commit();
      await done(request);
    }
  }

  async remove(id: string): Promise<void> {
    if (this.database === null) this.memory.delete(id);
    else await done(this.store("readwrite").delete(id));
  }

  async clear(): Promise<void> {
    this.memory.clear();
    if (this.database !== null) await done(this.store("readwrite").clear());
  }

  private store(mode: IDBTransactionMode): IDBObjectStore {
    if (this.database === null) throw new Error("there is no database");
    return this.database.transaction(STORE, mode).objectStore(STORE);
  }
}

export function newChat(): Chat {
  // Random ids are for secure pages only; a time is enough for a chat.
  const id = globalThis.crypto.randomUUID?.() ?? `chat-${Date.now()}-${Math.random().toString(36).slice(2)}`;
  return { id, created: new Date().toISOString(), system: "", turns: [] };
}

/** The first question, cut at a word. */
export function titleOf({ turns }: Pick<Chat, "turns">): string {
  const first = turns.find(({ who }) => who === "you")?.text.trim().replaceAll(/\s+/g, " ") ?? "";
  if (first === "") return say.untitled;
  if (first.length <= TITLE) return first;
  return `${first.slice(0, TITLE).replace(/\s\S*$/, "")}…`;
}

/** What was said, without the page's own lines. */
const said = (turns: readonly Turn[]): Turn[] => turns.filter(({ who }) => who !== "page");

/** A turn outside of any stream. */
const resting = (turn: Turn): Turn => ({ ...turn, place: null, ends: [], cut: 0 });

/** The file of a chat, as JSON. */
export function exported({ created, system, turns }: Chat): string {
  const file = {
    format: "sinkstream-chat",
    version: 1,
    title: titleOf({ turns }),
    created,
    system,
    turns: said(turns).map(({ who, text, note }) => ({ role: who === "you" ? "user" : "assistant", text, note })),
  };
  return `${JSON.stringify(file, null, 2)}\n`;
}

/** A chat from its file. Throws an `Error` that says what is wrong with it. */
export function imported(json: string, fileName: string): Chat {
  const wrong = (why: string): Error => new Error(say.notAChat(fileName, why));
  let file: unknown;
  try {
    file = JSON.parse(json);
  } catch {
    throw wrong(say.notJson);
  }
  if (!isObject(file) || file["format"] !== "sinkstream-chat") throw wrong(say.noFormat);
  if (file["version"] !== 1) throw wrong(say.newerVersion(file["version"]));
  const { turns, system } = file;
  if (!Array.isArray(turns)) throw wrong(say.noTurns);
  const chat = newChat();
  chat.system = typeof system === "string" ? system : "";
  chat.turns = turns.map((entry: unknown) => {
    if (!isObject(entry) || typeof entry["text"] !== "string") throw wrong(say.noTurns);
    const { role, text, note } = entry;
    if (role !== "user" && role !== "assistant") throw wrong(say.noTurns);
    const who = role === "user" ? "you" : "model";
    return { ...turn(who, text as string), note: typeof note === "string" ? note : "" };
  });
  return chat;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = (): void => resolve(request.result);
    request.onerror = (): void => reject(request.error ?? new Error("the database did not answer"));
  });
}
