// The package for other pages: the model in a worker, behind a few methods.

import type { Backend, CacheSettings, ModelInfo, SamplerSettings, Step } from "../../crates/wasm/types";
import type { Fault, Request, Response, Source } from "./protocol.ts";
import { defaults } from "./settings.ts";
import { type Gpu, probe, start } from "./startup.ts";

export type { Backend, CacheSettings, ModelInfo, SamplerSettings, Step } from "../../crates/wasm/types";

export interface LoadOptions {
  /** Where the weights lie, or the file itself, which is read without a copy. GGUF. */
  model: string | URL | File;
  /** Left out: WebGPU where it works, else the CPU. */
  backend?: Backend;
  /** Left out: 4 sinks and the last 1,020 tokens, in f16. */
  cache?: Partial<CacheSettings>;
  /** Called about ten times a second. `total` is null while it is not known. */
  onProgress?: (bytes: number, total: number | null) => void;
}

export interface ChatOptions extends Partial<SamplerSettings> {
  /** Most tokens of the answer; 0 or left out: no limit. */
  maxTokens?: number;
  /** Called with the report of every step: tokens, cache, attention on the sinks. */
  onStep?: (step: Step) => void;
}

/** A model with one conversation. Its methods reject with an `Error` that names the thing and the remedy. */
export class Sinkstream {
  private waiting: ((response: Response) => void) | null = null;
  private readonly early: Response[] = [];

  private constructor(
    private readonly worker: Worker,
    readonly info: ModelInfo,
    /** Where it runs. */
    readonly backend: Backend,
    private readonly cache: CacheSettings,
  ) {
    worker.onmessage = ({ data }: MessageEvent<Response>): void => this.receive(data);
    worker.onerror = (event): void =>
      this.receive({ kind: "failed", fault: { name: "worker", message: event.message, remedy: null } });
  }

  /** Starts a worker, tests it, and loads the weights. */
  static async load(options: LoadOptions): Promise<Sinkstream> {
    const { model, onProgress } = options;
    const gpu = (navigator as { gpu?: Gpu }).gpu;
    const asked = await probe(options.backend ?? null, isSecureContext, gpu);
    const module = new URL(/* @vite-ignore */ "./wasm.js", import.meta.url).href;
    const { signal } = new AbortController();
    const { worker, place } = await start(asked, module, spawn, signal).catch((caught: unknown) => {
      throw caught instanceof Error ? caught : failure(caught as Fault);
    });
    const cache = { ...defaults(0).cache, ...options.cache };
    const source: Source =
      model instanceof File
        ? { kind: "file", name: model.name, file: model }
        : {
            kind: "download",
            id: "model",
            name: String(model),
            urls: [new URL(model, document.baseURI).href],
            check: null,
          };
    const info = await new Promise<ModelInfo>((resolve, reject) => {
      worker.onmessage = ({ data }: MessageEvent<Response>): void => {
        if (data.kind === "progress") onProgress?.(data.progress.bytes, data.progress.total);
        else if (data.kind === "loaded") resolve(data.model);
        else if (data.kind === "failed") {
          worker.terminate();
          reject(failure(data.fault));
        }
      };
      worker.postMessage({ kind: "load", source, shelf: null, cache } satisfies Request);
    });
    return new Sinkstream(worker, info, place.backend, cache);
  }

  /** Sends a message and gives the answer piece by piece. Leaving the loop stops the answer. */
  async *chat(text: string, options: ChatOptions = {}): AsyncGenerator<string, void> {
    const { maxTokens = 0, onStep, ...sampler } = options;
    const seed = sampler.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
    this.post({
      kind: "send",
      text,
      options: { sampler: { ...defaults(seed).send.sampler, ...sampler }, max_tokens: maxTokens },
    });
    let over = false;
    try {
      while (!over) {
        const step = await this.pull().catch((caught: unknown) => {
          // An answer that was refused or broke off cannot be stopped.
          over = true;
          throw caught;
        });
        onStep?.(step);
        over = step.kind === "end";
        if (step.kind !== "prompt" && step.text !== "") yield step.text;
      }
    } finally {
      if (!over) {
        this.post({ kind: "stop" });
        while ((await this.pull()).kind !== "end");
      }
    }
  }

  /** Begins a new conversation with an empty cache; `settings` change what it keeps. */
  async reset(settings: Partial<CacheSettings> = {}): Promise<void> {
    this.post({ kind: "empty", cache: { ...this.cache, ...settings } });
    await this.answer();
  }

  /** Ends the worker and gives its memory back. */
  close(): void {
    this.worker.terminate();
  }

  private async pull(): Promise<Step> {
    this.post({ kind: "pull", attention: null });
    const response = await this.answer();
    if (response.kind === "step") return response.step;
    throw new Error(`the worker answered “${response.kind}” where a step was asked for`);
  }

  private async answer(): Promise<Response> {
    const response =
      this.early.shift() ?? (await new Promise<Response>((resolve) => (this.waiting = resolve)));
    if (response.kind === "refused" || response.kind === "failed") throw failure(response.fault);
    return response;
  }

  private receive(response: Response): void {
    const { waiting } = this;
    this.waiting = null;
    if (waiting === null) this.early.push(response);
    else waiting(response);
  }

  private post(request: Request): void {
    this.worker.postMessage(request);
  }
}

const spawn = (): Worker =>
  new Worker(new URL(/* @vite-ignore */ "./worker.js", import.meta.url), { type: "module", name: "model" });

function failure({ name, message, remedy }: Fault): Error {
  const error = new Error(remedy === null ? message : `${message} ${remedy}`);
  error.name = name;
  return error;
}
