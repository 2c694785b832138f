// The pump: the only file that imports the Rust module. One request at a time, in order, so that no
// method of the engine is called while a promise of it is pending; a step runs only when it was pulled.

import type { AttentionHead, CompareStep, Engine, LoadProgress, ModelInfo } from "../../crates/wasm/types";
import { download, type Receipt } from "./download.ts";
import { type Fault, fault, type Request, type Response, type Source } from "./protocol.ts";
import type { LaneHead } from "./run.ts";
import { type ShelfKind, shelf } from "./shelf.ts";
import * as say from "./strings.en.ts";

type Module = typeof import("../../crates/wasm/types") & {
  default: (options: { module_or_path: URL }) => Promise<unknown>;
};

declare const self: DedicatedWorkerGlobalScope;

/** Time between two reports of a download, milliseconds. */
const REPORT = 100;
/** Bytes of a file that are read at a time. */
const PIECE = 4 * 1024 * 1024;
/** A lane that recomputes reads its window again at every so many positions. */
const AGAIN_EVERY = 16;
/** Part of the time of a comparison that such lanes may take, so that the others go on. */
const AGAIN_SHARE = 1 / 3;

let engine: Engine | null = null;
let memory = (): number => 0;
let writing = false;
/** Read between two steps. */
let stopping = false;
/** The comparison that is under way: milliseconds that each kind of lane took, and whether the others have read all. */
let comparison: { again: boolean; read: boolean; took: { shared: number; again: number } } | null = null;
let queue: Promise<void> = Promise.resolve();

const post = (response: Response): void => self.postMessage(response);

self.onmessage = ({ data }: MessageEvent<Request>): void => {
  // Stop overtakes the pulls that wait; a new message must not be stopped by an old click.
  if (data.kind === "stop") stopping = true;
  if (data.kind === "send" || data.kind === "proceed" || data.kind === "resume") stopping = false;
  queue = queue.then(() => handle(data));
};

// A panic inside the module settles no promise; it arrives here or as the worker's `error` event.
self.addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  post({ kind: "failed", fault: died(event.reason) });
});

async function handle(request: Request): Promise<void> {
  switch (request.kind) {
    case "start":
      return start(request).catch((caught: unknown) =>
        post({ kind: "failed", fault: isFault(caught) ? caught : fault("engine", caught, null) }),
      );
    case "load":
      return load(request).catch((caught: unknown) =>
        post({ kind: "failed", fault: isFault(caught) ? caught : fault("engine", caught, null) }),
      );
    case "empty":
      return attempt((engine) => {
        writing = false;
        post({ kind: "emptied", cache: engine.reset(request.cache) });
      });
    case "send":
      return attempt((engine) => {
        engine.send(request.text, request.options);
        writing = true;
      });
    case "proceed":
      return attempt((engine) => {
        engine.proceed(request.options);
        writing = true;
      });
    case "resume":
      return attempt((engine) => {
        const cache = engine.reset(request.cache);
        post({ kind: "resumed", places: engine.resume(request.messages, request.options, request.write), cache });
        writing = true;
      });
    case "pull":
      return pull(request.attention).catch((caught: unknown) => {
        writing = false;
        const { message } = fault("engine", caught, null);
        post({
          kind: "failed",
          fault: { name: "engine", message: say.stepFailed(message), remedy: say.startAgainRemedy },
        });
      });
    case "stop":
      return;
    case "compare":
      return attempt((engine) => {
        writing = false;
        const info = engine.compare(request.lanes, request.source);
        comparison = { again: info.shared.includes(false), read: false, took: { shared: 0, again: 0 } };
        post({ kind: "compared", info });
      });
    case "compare_pull":
      return comparePull(request.attention).catch((caught: unknown) => {
        comparison = null;
        const { message } = fault("engine", caught, null);
        post({
          kind: "failed",
          fault: { name: "engine", message: say.comparisonFailed(message), remedy: say.startAgainRemedy },
        });
      });
    case "compare_end":
      return attempt((engine) => {
        if (comparison !== null) engine.compare_end();
        comparison = null;
      });
  }
}

async function start(request: Extract<Request, { kind: "start" }>): Promise<void> {
  const { module: url, backend, software, lock } = request;
  if (lock !== null) await hold(lock);
  let module: Module;
  try {
    module = (await import(/* @vite-ignore */ url)) as Module;
    await module.default({ module_or_path: new URL("wasm_bg.wasm", url) });
  } catch (caught) {
    const { message } = fault("module", caught, null);
    throw {
      name: "module",
      message: say.moduleFault(url, message),
      remedy: caught instanceof TypeError ? say.moduleRemedy : say.reloadRemedy,
    } satisfies Fault;
  }
  memory = module.memory_bytes;
  post({ kind: "module", versions: module.versions() });
  engine = await module.Engine.create(backend, software);
  post({ kind: "device" });
  post({ kind: "started", test: await engine.self_test() });
}

async function load({ source, shelf: kind, cache }: Extract<Request, { kind: "load" }>): Promise<void> {
  const engine = running();
  engine.load_begin();
  let latest: LoadProgress | null = null;
  let total: number | null = null;
  // By a timer, so that the last bytes before a pause of the network are reported too.
  const timer = setInterval(() => {
    if (latest !== null) post({ kind: "progress", progress: { ...latest, total: latest.total ?? total } });
    latest = null;
  }, REPORT);
  const push = async (bytes: Uint8Array): Promise<void> => {
    latest = await engine.load_push(bytes);
  };
  let receipt: Receipt = { card: null, notice: null };
  let model: ModelInfo;
  try {
    if (source.kind === "download") {
      receipt = await download(source, kind === null ? null : shelf(kind), {
        push,
        restart: () => engine.load_begin(),
        retrying: (fault, pause) => post({ kind: "retrying", fault, pause }),
        total: (bytes) => (total = bytes),
      });
    } else {
      const file = source.kind === "file" ? source.file : await stored(source, kind);
      total = file.size;
      for (let at = 0; at < file.size; at += PIECE) {
        await push(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()));
      }
    }
    model = await engine.load_end();
  } catch (caught) {
    // A stored file that the engine does not take would fail for ever.
    if (source.kind === "stored" && kind !== null && !isFault(caught)) {
      await shelf(kind).remove(source.id);
      throw {
        name: "damaged",
        message: say.damaged(source.name, fault("engine", caught, null).message),
        remedy: say.damagedRemedy,
      } satisfies Fault;
    }
    throw caught;
  } finally {
    clearInterval(timer);
  }
  try {
    post({ kind: "loaded", model, cache: engine.reset(cache), ...receipt });
  } catch (caught) {
    // The file is good; it is the settings that the engine does not take.
    const { message } = fault("cache", caught, null);
    throw { name: "cache", message: say.cacheRefused(message), remedy: say.cacheRemedy } satisfies Fault;
  }
}

async function stored(source: Extract<Source, { kind: "stored" }>, kind: ShelfKind | null): Promise<Blob> {
  const file = kind === null ? null : await shelf(kind).open(source.id);
  if (file !== null) return file;
  throw { name: "gone", message: say.gone(source.name), remedy: say.goneRemedy } satisfies Fault;
}

/** What the engine refuses leaves it as it was. */
function attempt(work: (engine: Engine) => void): void {
  try {
    work(running());
  } catch (caught) {
    post({ kind: "refused", fault: fault("engine", caught, null) });
  }
}

/** Keeps a lock until this worker is gone, for whatever reason: whoever waits for it learns of that. */
function hold(name: string): Promise<void> {
  return new Promise((held) => {
    void navigator.locks.request(name, () => {
      held();
      return new Promise(() => {});
    });
  });
}

async function pull(attention: AttentionHead | null): Promise<void> {
  if (!writing) return;
  const engine = running();
  const step = stopping ? engine.stop() : await engine.next(attention);
  writing = step.kind !== "end";
  post({ kind: "step", step, attention, memory: memory() });
}

async function comparePull(attention: LaneHead | null): Promise<void> {
  if (comparison === null) return;
  const now = comparison;
  const engine = running();
  const steps: CompareStep[] = [];
  const timed = async (kind: "shared" | "again", read: () => Promise<CompareStep | null>): Promise<CompareStep | null> => {
    const began = performance.now();
    const step = await read();
    now.took[kind] += performance.now() - began;
    if (step !== null) steps.push({ ...step, done: false });
    return step;
  };
  if (!now.read) now.read = (await timed("shared", () => engine.compare_next(attention)))?.done ?? true;
  const { shared, again } = now.took;
  if (now.again && (now.read || again <= AGAIN_SHARE * (shared + again))) {
    const step = await timed("again", () => engine.compare_again(AGAIN_EVERY));
    // One that has caught up with lanes that are at their end has nothing left to read.
    if (step?.done === true || (step === null && now.read)) now.again = false;
  }
  const done = now.read && !now.again;
  if (done) {
    steps.push({ ...(steps.pop() ?? { ms: 0, lanes: [] }), done });
    engine.compare_end();
    comparison = null;
  }
  post({ kind: "compare_steps", steps, attention, memory: memory() });
}

function running(): Engine {
  if (engine === null) throw new Error("the engine is not started");
  return engine;
}

function died(reason: unknown): Fault {
  const { message } = fault("worker", reason ?? say.noReason, null);
  return { name: "worker", message: say.workerDied(message), remedy: say.startAgainRemedy };
}

function isFault(caught: unknown): caught is Fault {
  return typeof caught === "object" && caught !== null && !(caught instanceof Error) && "remedy" in caught;
}
