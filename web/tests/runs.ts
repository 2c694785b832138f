// Recorded runs for the specs: the stand-in for the Rust module compares lanes, and what it did is written down as
// the page writes its own.

import { readFileSync } from "node:fs";
import type { Page } from "@playwright/test";
import type { RecordedIndex, RecordedRun } from "../../crates/wasm/run";
import type { CompareSource, CompareStep, LaneSettings } from "../../crates/wasm/types";
import { Recorder } from "../src/record.ts";
import { type Beginning, emptyRun, reduceRun, type RunState } from "../src/run.ts";
import { parseLane } from "../src/settings.ts";
import { ENGINE } from "./page.ts";

export const STORY = readFileSync(new URL("../../tests/golden/story.txt", import.meta.url), "utf8");

export const MODEL = {
  name: "SmolLM2-135M-Instruct",
  layers: 30,
  n_heads: 9,
  n_kv_heads: 3,
  head_dim: 64,
  trained_length: 8192,
};

export const lanes = (...words: string[]): LaneSettings[] => words.map((word) => parseLane(word) as LaneSettings);

interface Standin {
  compare(lanes: LaneSettings[], source: CompareSource): { tokens: number };
  compare_next(attention: null): Promise<CompareStep>;
  compare_again(every: number): Promise<CompareStep | null>;
}

/** The stand-in, started in this process. */
async function standin(plan: object): Promise<Standin> {
  const text = `const PLAN = ${JSON.stringify(plan)};\n${ENGINE}`;
  const quiet = text.replaceAll("console.debug", "void ");
  const module = await import(`data:text/javascript,${encodeURIComponent(quiet)}`);
  return module.Engine.create("cpu");
}

/** Lets lanes run to their end; the state at the end, and the recording. */
export async function compared(
  title: string,
  settings: LaneSettings[],
  source: CompareSource,
  plan: object = {},
): Promise<{ state: RunState; run: RecordedRun }> {
  const engine = await standin(plan);
  const { tokens } = engine.compare(settings, source);
  const free = source.mode === "free";
  const begin: Beginning = {
    title,
    origin: "live",
    mode: source.mode,
    made: null,
    model: MODEL,
    count: tokens + (free ? source.max_tokens : 0),
    prompt: free ? tokens : 0,
  };
  const recorder = new Recorder(begin, settings);
  let state = reduceRun(emptyRun(), { kind: "begin", run: begin, lanes: settings });
  const take = (step: CompareStep | null): void => {
    if (step === null) return;
    state = reduceRun(state, { kind: "step", step });
    recorder.step(step);
  };
  for (let done = false; !done; ) {
    const step = await engine.compare_next(null);
    take(step);
    done = step.done;
  }
  if (settings.some(({ policy }) => policy === "recompute")) {
    for (let step = await engine.compare_again(16); step !== null; step = step.done ? null : await engine.compare_again(16)) {
      take(step);
    }
  }
  const run = recorder.recorded({
    title,
    made: {
      by: "sinkstream 0.1.0",
      commit: "0123456789abcdef",
      date: "2026-01-31",
      backend: "cpu",
      adapter: null,
      command: "sinkstream compare",
    },
    model: { ...MODEL, file: "SmolLM2-135M-Instruct.Q4_1.gguf", sha256: "b1".repeat(32) },
    sampler: free ? source.sampler : null,
    text: free ? null : { name: "story.txt", sha256: "00".repeat(32) },
    start: 0,
  });
  if (run === null) throw new Error("nothing was recorded");
  return { state, run };
}

const SAMPLER = { temperature: 0.8, top_k: 64, top_p: 0.95, min_p: 0, repetition_penalty: 1.2, seed: 1 };
const PROMPT =
  "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";

/** The runs that the page asks for, by name. */
export async function allRuns(): Promise<Map<string, RecordedRun>> {
  const words = STORY.split(/(?<= )/);
  const forced = async (name: string, settings: LaneSettings[], n = 300): Promise<RecordedRun> =>
    (await compared(name, settings, { mode: "forced", text: STORY, from: 0, n })).run;
  const free = { mode: "free", prompt: PROMPT, sampler: SAMPLER, max_tokens: 200 } as const;
  const runs: [string, RecordedRun][] = [
    ["lighthouse", (await compared("lighthouse", lanes("window:64", "sinks:4+60"), free, { words })).run],
    ["take-sinks-away", await forced("take-sinks-away", lanes("window:128", "sinks:4+124", "dense", "recompute:128"))],
    ["hero", await forced("hero", lanes("window:256", "sinks:4+252", "dense"))],
    ["how-many", await forced("how-many", lanes("sinks:1+127", "sinks:4+124", "sinks:8+120", "dense"))],
    ["newlines", await forced("newlines", lanes("sinks:4+124", "sinks:4+124:text=\\n\\n\\n\\n", "dense"))],
    ["softmax1", await forced("softmax1", lanes("window:128", "window:128:softmax1", "sinks:4+124", "dense"))],
    ["stream-positions", await forced("stream-positions", lanes("sinks:4+124", "sinks:4+124:stream", "dense"))],
    ["two-bits", await forced("two-bits", lanes("sinks:4+124", "sinks:4+124:int4", "sinks:4+124:int2", "dense"))],
    ["tiny", await forced("tiny", lanes("window:16", "sinks:4+12", "dense"))],
    ["wrong-axis", wrongAxis(await forced("wrong-axis", lanes("sinks:4+124:int2", "sinks:4+124:int2:v=int4", "dense")))],
    ["past-8192", numbersOnly(await forced("past-8192", lanes("sinks:4+124", "dense"), 0))],
  ];
  return new Map(runs);
}

/** As though the second lane had packed its keys along the other axis. */
function wrongAxis(run: RecordedRun): RecordedRun {
  return { ...run, lanes: run.lanes.map((lane, i) => (i === 1 ? { ...lane, keys: "by_token" } : lane)) };
}

/** The same run as means of 16 losses, without its text. */
function numbersOnly(run: RecordedRun): RecordedRun {
  const every = 16;
  const means = (nll: (number | null)[]): number[] =>
    Array.from({ length: Math.ceil(nll.length / every) }, (_, k) => {
      const part = nll.slice(k * every, (k + 1) * every).map((loss) => loss ?? 0);
      return part.reduce((sum, loss) => sum + loss, 0) / part.length;
    });
  return {
    ...run,
    every,
    tokens: null,
    vocab: {},
    lanes: run.lanes.map((lane) => ({ ...lane, nll: means(lane.nll), best: [] })),
  };
}

export function indexOf(runs: Map<string, RecordedRun>): RecordedIndex {
  return {
    format: "sinkstream-runs",
    version: 1,
    runs: [...runs].map(([name, run]) => ({
      name,
      file: `${name}.json`,
      title: run.title,
      bytes: JSON.stringify(run).length,
      count: run.count,
      lanes: run.lanes.map(({ name: lane, summary }) => ({ name: lane, summary })),
    })),
  };
}

/** Serves these runs in the place of the committed ones. */
export async function serve(page: Page, runs: Map<string, RecordedRun>): Promise<void> {
  await page.context().route("**/runs/*.json", (route) => {
    const name = /runs\/(.*)\.json$/.exec(new URL(route.request().url()).pathname)?.[1] ?? "";
    const run = name === "index" ? indexOf(runs) : runs.get(name);
    return run === undefined ? route.fulfill({ status: 404 }) : route.fulfill({ json: run });
  });
}
