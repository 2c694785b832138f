// What the specs share: a page with the engine of `engine.mock.js`, weights of a few bytes, and a
// record of everything that went to the console as an error.

import { readFileSync } from "node:fs";
import { expect, type Locator, type Page } from "@playwright/test";
import type { Engine } from "../../crates/wasm/types";

export const ENGINE = readFileSync(new URL("./engine.mock.js", import.meta.url), "utf8");

export type Backend = "webgpu" | "cpu";

/** How the mocked engine behaves; what is left out works. Token counts are within an answer. */
export interface Plan {
  init?: "reject" | "hang";
  create?: Partial<Record<Backend, "reject" | "hang">>;
  /** Milliseconds that a device takes to start. */
  slow?: number;
  selfTest?: Partial<Record<Backend, boolean>>;
  /** Bytes that the file must have. */
  total?: number;
  /** Length of a prompt, tokens. */
  prompt?: number;
  words?: string[];
  /** Milliseconds a step takes. */
  delay?: number;
  /** Tokens after which the model ends its answer. */
  most?: number;
  /** A message that the engine does not take. */
  refuse?: string;
  rejectAt?: number;
  dieAt?: number;
  panicAt?: number;
  hangAt?: number;
  /** The fault comes back after the conversation was read again, anywhere or on one backend. */
  again?: boolean | "webgpu" | "cpu";
  /** Tokens after which a comparison breaks off. */
  compareRejectAt?: number;
}

export const GGUF = Buffer.concat([Buffer.from("GGUF"), Buffer.alloc(100_000)]);

/** Serves the mocked engine and its weights. The list returned fills with console errors. */
export async function mock(page: Page, plan: Plan = {}): Promise<string[]> {
  await page
    .context()
    .route("**/pkg/wasm.js", (route) =>
      route.fulfill({
        contentType: "text/javascript",
        body: `const PLAN = ${JSON.stringify(plan)};\n${ENGINE}`,
      }),
    );
  await page
    .context()
    .route("**/models/*.gguf", (route) =>
      route.fulfill({ contentType: "application/octet-stream", body: GGUF }),
    );
  return errors(page);
}

/** Writes down the page's workers, so that the newest can be ended as a browser ends one: without a word. */
export async function watchWorkers(page: Page): Promise<void> {
  await page.addInitScript(() => {
    const workers: Worker[] = [];
    Object.assign(window, { workers });
    window.Worker = class extends Worker {
      constructor(url: string | URL, options?: WorkerOptions) {
        super(url, options);
        workers.push(this);
      }
    };
  });
}

export function errors(page: Page): string[] {
  const found: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error") found.push(message.text());
  });
  page.on("pageerror", (error) => found.push(error.message));
  return found;
}

/** An adapter as the page sees it; without one, `requestAdapter` gives null. */
export interface FakeAdapter {
  features: string[];
  limits?: Record<string, number>;
  info: { vendor: string; architecture: string; description: string; isFallbackAdapter?: boolean };
}

export const GPU: FakeAdapter = {
  features: ["timestamp-query"],
  info: { vendor: "acme", architecture: "rocket", description: "Acme Rocket 9000" },
};

/** Puts `adapter` in the place of the browser's own; "missing" takes WebGPU away. */
export async function fakeGpu(page: Page, adapter: FakeAdapter | null | "missing"): Promise<void> {
  await page.addInitScript((adapter) => {
    const gpu =
      adapter === "missing"
        ? undefined
        : {
            requestAdapter: async () =>
              adapter && {
                ...adapter,
                features: new Set(adapter.features),
                limits: {
                  maxStorageBufferBindingSize: 134_217_728,
                  maxStorageBuffersPerShaderStage: 8,
                  maxComputeWorkgroupStorageSize: 16_384,
                  maxComputeInvocationsPerWorkgroup: 256,
                  ...adapter.limits,
                },
              },
          };
    Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
  }, adapter);
}

export const parts = (page: Page) => ({
  status: page.getByRole("status"),
  log: page.getByRole("log"),
  message: page.getByRole("textbox", { name: "Message" }),
  send: page.getByRole("button", { name: "Send" }),
  stop: page.getByRole("button", { name: "Stop" }),
  load: page.getByRole("button", { name: "Load the model" }),
  bar: page.getByRole("progressbar"),
  runs: page.locator("#runs"),
  answer: page.locator(".turn.model .text").last(),
  note: page.locator(".turn.model .note").last(),
});

/** Opens the page with `query` and loads the model. */
export async function open(page: Page, query = ""): Promise<void> {
  await page.goto(`/?load=1${query}`);
  await expect(parts(page).status).toContainText("Ready.");
}

/** The engine itself in a page of its own, on the CPU, with the real model, as `window.engine`. */
export async function bench(page: Page): Promise<void> {
  await page.context().route("**/bench/", (route) =>
    route.fulfill({ contentType: "text/html", body: "<!doctype html><title>bench</title>" }),
  );
  await page.goto("/bench/");
  await page.evaluate(async () => {
    const module = await import("/pkg/wasm.js" as string);
    await module.default({ module_or_path: new URL("/pkg/wasm_bg.wasm", location.href) });
    const engine: Engine = await module.Engine.create("cpu", false);
    engine.load_begin();
    const response = await fetch("/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    engine.load_push(new Uint8Array(await response.arrayBuffer()));
    await engine.load_end();
    Object.assign(window, { engine });
  });
}

export async function ask(page: Page, text: string): Promise<Locator> {
  const { message, send, answer } = parts(page);
  await message.fill(text);
  await send.click();
  return answer;
}

/** Numbers from 0 to 1, the same for the same seed. */
export function random(seed: number): () => number {
  let state = (seed % 2_147_483_646) + 1;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}
