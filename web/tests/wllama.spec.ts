// Our engine on the CPU beside wllama, which is llama.cpp in WebAssembly: one browser, one page, one file, one thread
// each, turn by turn. `npm run wllama`, against a server named by SINKSTREAM_URL; the package must be built, and the
// machine quiet.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, type Page, test } from "@playwright/test";

const MODEL = "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
/** Words of the story in a question, and tokens of its answer; a few of those are no measure of anything. */
const CASES: [words: number, answer: number][] = [
  [182, 128],
  [402, 8],
];
const REPEATS = 3;
/** Tokens of an answer whose speed counts. */
const ANSWER = 128;
/** Slots of either cache, in f16. */
const CAPACITY = 1024;
/** How many times as fast we must be. */
const LEAST = { prompt: 5, decode: 3 };

/** Where the files behind /bench/ lie: wllama's come from the package that npm installed, never from elsewhere. */
const FILES: [name: RegExp, folder: string][] = [
  [/^wllama\.js$/, "../node_modules/@wllama/wllama/esm/index.js"],
  [/^wllama\.wasm$/, "../node_modules/@wllama/wllama/esm/wasm/wllama.wasm"],
  [/^(wasm\.js|wasm_bg\.wasm)$/, "../pkg/$1"],
  [/^([\w-]+\.js)$/, "../package/$1"],
];

/** One answer. Milliseconds by the page's clock: from the question to the first token, from there to the last. */
interface Run {
  prompt: number;
  tokens: number;
  first: number;
  rest: number;
  /** The same by wllama's own clock. */
  own: { prompt: number; decode: number } | null;
  text: string;
}

interface Bench {
  ours(question: string, answer: number): Promise<Run>;
  theirs(question: string, answer: number): Promise<Run>;
}

test.setTimeout(15 * 60_000);

test("ours beside wllama", async ({ page, baseURL }) => {
  const elsewhere: string[] = [];
  const origin = new URL(baseURL ?? "").origin;
  await page.context().route(
    (url) => url.origin !== origin && url.protocol !== "blob:",
    (route) => {
      elsewhere.push(route.request().url());
      return route.abort();
    },
  );
  // A page of its own: wllama's worker comes from a blob, which our page's security policy does not let run.
  await page.context().route("**/bench/**", (route) => {
    const name = new URL(route.request().url()).pathname.slice("/bench/".length);
    if (name === "") return route.fulfill({ contentType: "text/html", body: "<!doctype html><title>bench</title>" });
    const [known, file] = FILES.find(([known]) => known.test(name)) ?? [];
    if (known === undefined || file === undefined) return route.fulfill({ status: 404 });
    return route.fulfill({ path: fileURLToPath(new URL(name.replace(known, file), import.meta.url)) });
  });
  await page.goto("/bench/");
  const setup = await begin(page);
  const rows: Record<string, string | number>[] = [];
  const short: string[] = [];
  for (const [words, answer] of CASES) {
    const question = ask(words);
    const runs: Record<keyof Bench, Run[]> = { ours: [], theirs: [] };
    // The first turn does not count: in it the browser compiles all of it as well as it can.
    for (let i = 0; i <= REPEATS; i += 1) {
      for (const which of ["ours", "theirs"] as const) {
        if (i === 0 && answer < ANSWER) continue;
        const done = await run(page, which, question, answer);
        expect(done.tokens).toBe(answer);
        if (i > 0) runs[which].push(done);
      }
    }
    const prompt = runs.ours[0]?.prompt ?? 0;
    for (const done of runs.theirs) expect(done.prompt, "both must read the same tokens").toBe(prompt);
    for (const what of ["prompt", "decode"] as const) {
      if (what === "decode" && answer < ANSWER) continue;
      const [mine, its] = [speeds(runs.ours, what), speeds(runs.theirs, what)];
      const ratio = median(mine) / median(its);
      rows.push({
        "prompt, tokens": prompt,
        what: what === "prompt" ? "reading the prompt" : `writing ${answer} tokens`,
        "ours, tokens/s": shown(mine),
        "wllama, tokens/s": shown(its),
        ratio: ratio.toFixed(2),
        "must be": LEAST[what],
      });
      if (ratio < LEAST[what]) short.push(`${what} at ${prompt} tokens: ${ratio.toFixed(2)} of ${LEAST[what]}`);
    }
  }
  const { version } = JSON.parse(
    readFileSync(new URL("../node_modules/@wllama/wllama/package.json", import.meta.url), "utf8"),
  ) as { version: string };
  console.log(
    [
      `${await page.evaluate(() => navigator.userAgent)}, headless, one page; ${MODEL.split("/").at(-1)}`,
      `ours: ${setup.ours}, 4 sinks and ${CAPACITY - 4} recent tokens in f16`,
      `wllama ${version}: ${setup.theirs}, a context of ${CAPACITY} in f16, all else as it comes`,
      "both: greedy, the same chat template, one thread; the page's clock, and wllama's own where that is kinder to it",
      `medians of ${REPEATS} turns each, alternating, after one that does not count; least and most in brackets`,
    ].join("\n"),
  );
  console.table(rows);
  expect(elsewhere).toEqual([]);
  expect(short).toEqual([]);
});

/** Loads both. */
function begin(page: Page): Promise<Record<keyof Bench, string>> {
  return page.evaluate(
    async ({ model, capacity }) => {
      const from = (name: string): string => new URL(name, location.href).href;
      const { Sinkstream } = (await import(/* @vite-ignore */ from("index.js"))) as typeof import("../src/package.ts");
      const { Wllama } = (await import(/* @vite-ignore */ from("wllama.js"))) as typeof import("@wllama/wllama");

      const sinkstream = await Sinkstream.load({
        model,
        backend: "cpu",
        cache: { policy: "sinks", sinks: 4, recent: capacity - 4, kv: "f16" },
      });
      const ours: Bench["ours"] = async (question, answer) => {
        await sinkstream.reset();
        const run: Run = { prompt: 0, tokens: 0, first: 0, rest: 0, own: null, text: "" };
        const began = performance.now();
        const pieces = sinkstream.chat(question, {
          temperature: 0,
          repetition_penalty: 1,
          maxTokens: answer,
          onStep: (step) => {
            if (step.kind === "prompt") run.prompt = step.total;
            if (step.kind !== "token") return;
            run.tokens += 1;
            if (run.tokens === 1) run.first = performance.now() - began;
            else run.rest = performance.now() - began - run.first;
          },
        });
        for await (const piece of pieces) run.text += piece;
        return run;
      };

      const quiet = { debug: () => {}, log: () => {}, warn: console.warn, error: console.error };
      const wllama = new Wllama({ default: from("wllama.wasm") }, { suppressNativeLog: true, logger: quiet });
      // What it would fetch from elsewhere for browsers that lack something; this one does not.
      wllama.setCompat(null);
      const file = await (await fetch(model)).blob();
      await wllama.loadModel([file], { n_threads: 1, n_gpu_layers: 0, n_ctx: capacity });
      const theirs: Bench["theirs"] = async (question, answer) => {
        const run: Run = { prompt: 0, tokens: 0, first: 0, rest: 0, own: null, text: "" };
        const began = performance.now();
        await wllama.createChatCompletion({
          messages: [{ role: "user", content: question }],
          temperature: 0,
          max_tokens: answer,
          // Else it would not read again what the last question began with.
          cache_prompt: false,
          stream: true,
          onData: ({ choices, timings }) => {
            const piece = choices[0]?.delta.content ?? "";
            if (piece !== "") {
              const now = performance.now() - began;
              if (run.first === 0) run.first = now;
              else run.rest = now - run.first;
              run.text += piece;
            }
            if (timings === undefined) return;
            run.prompt = timings.prompt_n + timings.cache_n;
            run.tokens = timings.predicted_n;
            run.own = { prompt: timings.prompt_per_second, decode: timings.predicted_per_second };
          },
        });
        return run;
      };

      Object.assign(window, { bench: { ours, theirs } satisfies Bench });
      return {
        ours: `sinkstream on ${sinkstream.backend}`,
        theirs: `llama.cpp ${Wllama.getLibllamaVersion()}, ${wllama.getNumThreads()} thread${wllama.isMultithread() ? "s" : ""}, no WebGPU`,
      };
    },
    { model: MODEL, capacity: CAPACITY },
  );
}

const run = (page: Page, which: keyof Bench, question: string, answer: number): Promise<Run> =>
  page.evaluate(
    ([which, question, answer]) => (window as unknown as { bench: Bench }).bench[which](question, answer),
    [which, question, answer] as const,
  );

/** A question with so many words of our story in it. */
function ask(words: number): string {
  const story = readFileSync(new URL("../../tests/golden/story.txt", import.meta.url), "utf8");
  return `${story.split(/\s+/).slice(0, words).join(" ")}\n\nTell this story on, at great length.`;
}

/** Tokens a second. */
function speeds(runs: Run[], what: "prompt" | "decode"): number[] {
  return runs.map(({ prompt, tokens, first, rest, own }) => {
    const speed = what === "prompt" ? (1000 * prompt) / first : (1000 * (tokens - 1)) / rest;
    return Math.max(speed, own?.[what] ?? 0);
  });
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const [low, high] = [sorted[sorted.length % 2 === 1 ? middle : middle - 1], sorted[middle]];
  return ((low ?? Number.NaN) + (high ?? Number.NaN)) / 2;
}

const shown = (values: number[]): string =>
  `${median(values).toFixed(1)} (${Math.min(...values).toFixed(1)} to ${Math.max(...values).toFixed(1)})`;
