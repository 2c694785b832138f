// The pump: the only file that imports the Rust module. One request at a time, in order, so that no
// method of the engine is called while a promise of it is pending; a step runs only when it was pulled.

import type { AttentionHead, Engine, LoadProgress } from "../../crates/wasm/types";
import { type Fault, fault, type Request, type Response } from "./protocol.ts";
import * as say from "./strings.en.ts";

type Module = typeof import("../../crates/wasm/types") & {
  default: (options: { module_or_path: URL }) => Promise<unknown>;
};

declare const self: DedicatedWorkerGlobalScope;

/** Time between two reports of a download, milliseconds. */
const REPORT = 100;

let engine: Engine | null = null;
let writing = false;
/** Read between two steps. */
let stopping = false;
let queue: Promise<void> = Promise.resolve();

const post = (response: Response): void => self.postMessage(response);

self.onmessage = ({ data }: MessageEvent<Request>): void => {
  // Stop overtakes the pulls that wait; a new message must not be stopped by an old click.
  if (data.kind === "stop") stopping = true;
  if (data.kind === "send") stopping = false;
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
      return start(request.module, request.backend, request.software).catch((caught: unknown) =>
        post({ kind: "failed", fault: isFault(caught) ? caught : fault("engine", caught, null) }),
      );
    case "load":
      return load(request.url, request.cache).catch((caught: unknown) =>
        post({ kind: "failed", fault: isFault(caught) ? caught : fault("engine", caught, null) }),
      );
    case "send":
      try {
        running().send(request.text, request.options);
        writing = true;
      } catch (caught) {
        post({ kind: "refused", fault: fault("engine", caught, null) });
      }
      return;
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
  }
}

async function start(url: string, backend: "webgpu" | "cpu", software: boolean): Promise<void> {
  let module: Module;
  try {
    module = (await import(/* @vite-ignore */ url)) as Module;
    await module.default({ module_or_path: new URL("wasm_bg.wasm", url) });
  } catch (caught) {
    const { message } = fault("module", caught, null);
    throw {
      name: "module",
      message: say.moduleFault(url, message),
      remedy: say.reloadRemedy,
    } satisfies Fault;
  }
  post({ kind: "module", versions: module.versions() });
  engine = await module.Engine.create(backend, software);
  post({ kind: "device" });
  post({ kind: "started", test: await engine.self_test() });
}

async function load(url: string, cache: Parameters<Engine["reset"]>[0]): Promise<void> {
  const engine = running();
  engine.load_begin();
  const body = (await response(url)).body?.getReader();
  let latest: LoadProgress | null = null;
  // By a timer, so that the last bytes before a pause of the network are reported too.
  const timer = setInterval(() => {
    if (latest !== null) post({ kind: "progress", progress: latest });
    latest = null;
  }, REPORT);
  try {
    while (body !== undefined) {
      const { done, value } = await body.read().catch((caught: unknown) => {
        throw unreachable(url, caught);
      });
      if (done) break;
      latest = await engine.load_push(value);
    }
  } finally {
    clearInterval(timer);
  }
  const model = await engine.load_end();
  post({ kind: "loaded", model, cache: engine.reset(cache) });
}

async function response(url: string): Promise<globalThis.Response> {
  const answer = await fetch(url).catch((caught: unknown) => {
    throw unreachable(url, caught);
  });
  if (!answer.ok) {
    throw {
      name: "http",
      message: say.http(url, answer.status, answer.statusText),
      remedy: say.httpRemedy,
    } satisfies Fault;
  }
  return answer;
}

async function pull(attention?: AttentionHead | null): Promise<void> {
  if (!writing) return;
  const engine = running();
  const step = stopping ? engine.stop() : await engine.next(attention);
  writing = step.kind !== "end";
  post({ kind: "step", step });
}

function running(): Engine {
  if (engine === null) throw new Error("the engine is not started");
  return engine;
}

function unreachable(url: string, caught: unknown): Fault {
  const { message } = fault("network", caught, null);
  return { name: "network", message: say.network(url, message), remedy: say.networkRemedy };
}

function died(reason: unknown): Fault {
  const { message } = fault("worker", reason ?? say.noReason, null);
  return { name: "worker", message: say.workerDied(message), remedy: say.startAgainRemedy };
}

function isFault(caught: unknown): caught is Fault {
  return typeof caught === "object" && caught !== null && !(caught instanceof Error) && "remedy" in caught;
}
