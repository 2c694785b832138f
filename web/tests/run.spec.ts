// A run's state: what follows from its steps, live or recorded, and how little room it takes.

import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import type { RecordedIndex, RecordedRun } from "../../crates/wasm/run";
import type { CompareStep, LaneStep, Step } from "../../crates/wasm/types";
import { FIRST, questionOf, textOf } from "../src/comparison.ts";
import { cost } from "../src/figures/cost.ts";
import { CHOICES } from "../src/figures/figure.ts";
import { Player, readRun, Tape } from "../src/replay.ts";
import {
  chatBegins,
  chatStep,
  emptyRun,
  EXACT,
  type LaneState,
  perplexity,
  recentPerplexity,
  reduceRun,
  type RunState,
  type RunStep,
} from "../src/run.ts";
import { mean } from "../src/series.ts";
import { experiments, laneName } from "../src/strings.en.ts";
import { compared, lanes, MODEL, STORY } from "./runs.ts";

interface Golden {
  tokens: number[];
  runs: Record<string, { mean: number; ppl: number; nll: number[] }>;
}

/** Losses of the independent program on our story. */
const GOLDEN = JSON.parse(
  readFileSync(new URL("../../tests/golden/policies.json", import.meta.url), "utf8"),
) as Golden;

const NOTHING = { sinks: 0, codes: 0, scales: 0, tail: 0, slack: 0 };

function read(i: number, more: Partial<LaneStep> = {}): LaneStep {
  return {
    i,
    id: i % 1000,
    text: `w${i % 1000} `,
    nll: i === 0 ? null : 2,
    best: null,
    ended: false,
    ms: null,
    held: Math.min(i + 1, 128),
    capacity: 128,
    sinks: 0,
    tail: 0,
    bytes: NOTHING,
    evicted: i < 128 ? null : [i - 128, i - 127],
    sink_mass: new Float32Array(),
    first_mass: new Float32Array(),
    ...more,
  };
}

const step = (...read: (LaneStep | null)[]): RunStep => ({ kind: "step", step: { ms: 1, lanes: read, done: false } });

function begun(mode: RunState["mode"], ...words: string[]): RunState {
  const run = { title: "a", origin: "live", mode, made: null, model: MODEL, count: null } as const;
  return reduceRun(emptyRun(), { kind: "begin", run, lanes: lanes(...words) });
}

const lane = (state: RunState, i: number): LaneState => state.lanes[i] as LaneState;

/** The story as lanes of the independent program read it. */
function golden(...names: [run: string, lane: string][]): RunState {
  let state = begun("forced", ...names.map(([, words]) => words));
  for (const [i, id] of GOLDEN.tokens.entries()) {
    const steps = names.map(([name, words]) => {
      const capacity = words === "dense" ? Number.POSITIVE_INFINITY : lane(state, 0).capacity;
      const sinks = Number(/sinks:(\d+)/.exec(words)?.[1] ?? 0);
      const nll = i === 0 ? null : (GOLDEN.runs[name]?.nll[i - 1] ?? null);
      return read(i, { id, nll, evicted: i < capacity ? null : [i - capacity + sinks, i - capacity + sinks + 1] });
    });
    state = reduceRun(state, step(...steps));
  }
  return state;
}

test.describe("the state of a run", () => {
  test("perplexities are the independent program's, and the window falls behind when its first word has left", () => {
    const state = golden(["window_128", "window:128"], ["sinks_4_124", "sinks:4+124"], ["dense", "dense"]);
    for (const [i, name] of ["window_128", "sinks_4_124", "dense"].entries()) {
      const known = GOLDEN.runs[name];
      expect(perplexity(lane(state, i)) ?? 0).toBeCloseTo(known?.ppl ?? -1, 3);
      // In single precision, as it is kept.
      expect(lane(state, i).losses[300]).toBeCloseTo(known?.nll[299] ?? -1, 5);
    }
    expect(state.reference).toBe(2);
    const { mean: window, nll } = GOLDEN.runs["window_128"] as Golden["runs"][string];
    const dense = GOLDEN.runs["dense"]?.mean ?? 0;
    expect(lane(state, 0).cost_now).toBeCloseTo((window - dense) * nll.length, 0);
    expect(lane(state, 2).cost_now).toBe(0);
    // Until the first token has left, both lanes see the same.
    const cost = (i: number, at: number) => mean(lane(state, i).cost.bins.find(({ last }) => last >= at) as never);
    expect(Math.abs(cost(0, 127))).toBeLessThan(0.01);
    const gap = lane(state, 0).rolling.bins.flatMap((bin, k) => {
      const other = lane(state, 1).rolling.bins[k];
      return bin.first > 128 && bin.first <= 428 && other !== undefined ? [mean(bin) - mean(other)] : [];
    });
    expect(Math.max(...gap)).toBeGreaterThan(0.5);
    expect(lane(state, 0).health.kind).toBe("losing");
    expect(lane(state, 0).health).toEqual({ kind: "losing", since: 238 });
    expect(lane(state, 1).health.kind).toBe("steady");
    expect(lane(state, 1).first_left).toBe(128);
    expect(lane(state, 2)).toMatchObject({ first_left: null, health: { kind: "steady" } });
    expect(state.marks.filter(({ kind }) => kind === "first_left")).toEqual([
      { i: 128, lane: 0, kind: "first_left" },
      { i: 128, lane: 1, kind: "first_left" },
    ]);
  });

  test("lanes that keep sinks do not lose the thread, whatever they forget; a tiny window does at once", () => {
    const names = ["sinks_4_60", "sinks_4_252", "sinks_1_127", "stream_4_124", "window_16"] as const;
    const words = ["sinks:4+60", "sinks:4+252", "sinks:1+127", "sinks:4+124:stream", "window:16"];
    const state = golden(...names.map((name, i): [string, string] => [name, words[i] ?? ""]), ["dense", "dense"]);
    expect(state.lanes.map(({ health }) => health.kind)).toEqual([...Array(4).fill("steady"), "losing", "steady"]);
    expect(lane(state, 4).health.since).toBe(127);
  });

  test("another rolling mean is that of all that was read", () => {
    const at64 = golden(["window_128", "window:128"]);
    const at16 = reduceRun(at64, { kind: "roll", tokens: 16 });
    expect(at16.roll).toBe(16);
    const { nll } = GOLDEN.runs["window_128"] as Golden["runs"][string];
    for (const [state, tokens] of [
      [at64, 64],
      [at16, 16],
    ] as const) {
      const last = nll.slice(-tokens).reduce((sum, loss) => sum + loss, 0) / tokens;
      expect(Math.log(recentPerplexity(lane(state, 0)) ?? 0)).toBeCloseTo(last, 4);
      const middle = nll.slice(500 - tokens, 500).reduce((sum, loss) => sum + loss, 0) / tokens;
      const bin = lane(state, 0).rolling.bins.find(({ last }) => last === 500);
      expect(bin === undefined ? 0 : mean(bin)).toBeCloseTo(middle, 4);
    }
  });

  test("without everything kept, sinks are what is compared with; free lanes are not compared", () => {
    expect(begun("forced", "window:8", "sinks:4+4").reference).toBe(1);
    expect(begun("forced", "window:8").reference).toBeNull();
    expect(begun("free", "window:8", "dense").reference).toBeNull();
  });

  test("a lane that skips positions stands for them", () => {
    let state = begun("forced", "dense", "recompute:64");
    for (let i = 0; i <= 16; i += 1) state = reduceRun(state, step(read(i), null));
    state = reduceRun(state, step(null, read(16, { nll: 2.5 })));
    // Half a nat more, for the token and the sixteen before it.
    expect(lane(state, 1).cost_now).toBeCloseTo(0.5 * 17, 5);
    expect(lane(state, 1).tokens.at(-1)?.extra).toBeCloseTo(0.5, 5);
    expect(state.at).toBe(17);
  });

  const free = (text: (i: number) => string, id: (i: number) => number, tokens: number): LaneState => {
    let state = begun("free", "window:128");
    for (let i = 0; i < tokens; i += 1) state = reduceRun(state, step(read(i, { text: text(i), id: id(i) })));
    return lane(state, 0);
  };

  test("a free lane repeats itself where fewer than half of its groups of four differ", () => {
    const words = (i: number): string => `w${i} `;
    // 61 groups lie in 64 tokens: 31 different ones are more than half of them, 30 are not.
    expect(free(words, (i) => i % 31, 223).health.kind).toBe("steady");
    expect(free(words, (i) => i % 30, 400).health).toEqual({ kind: "repeating", since: 63 });
    expect(free(words, (i) => (i < 100 ? i : 7), 400).health).toEqual({ kind: "repeating", since: 134 });
    // A longer phrase is found in 224 tokens, of whose 221 groups 133 are more than six tenths.
    expect(free(words, (i) => i % 133, 400).health.kind).toBe("steady");
    expect(free(words, (i) => i % 132, 400).health).toEqual({ kind: "repeating", since: 223 });
  });

  test("it loses the thread where most signs are no letters, in whatever script; in code they are", () => {
    const of = (text: string) => free((i) => text[i % text.length] ?? "", (i) => i, 200).health;
    expect(of("^\\';{lHT-}|:==+*_#")).toEqual({ kind: "losing", since: 63 });
    expect(of("灯台守は毎晩、灯をともした。").kind).toBe("steady");
    expect(of("for (let i = 0; i < n; i += 1) sum += a[i] * b[i];").kind).toBe("steady");
    expect(of("             .").kind).toBe("steady");
  });

  test("the lane that others are compared with can be the one that falls behind", () => {
    let state = begun("forced", "sinks:4+124", "dense");
    for (let i = 0; i < 400; i += 1) {
      const nll = i === 0 ? null : i < 200 ? 2 : 3;
      state = reduceRun(state, step(read(i, { nll: i === 0 ? null : 2 }), read(i, { nll })));
    }
    expect(lane(state, 0).health.kind).toBe("steady");
    expect(lane(state, 1).health.kind).toBe("losing");
    expect(lane(state, 1).health.since).toBeGreaterThan(200 + 64);
  });

  test("it loses the thread at a word of 18 letters, or at two of 16 near each other", () => {
    const at = (places: Record<number, string>) => free((i) => places[i] ?? "no ", (i) => i, 300).health;
    expect(at({ 40: "abcdefghijklmnopq " }).kind).toBe("steady");
    expect(at({ 40: "abcdefghijklmnopqr " })).toEqual({ kind: "losing", since: 40 });
    expect(at({ 40: "abcdefghi", 41: "jklmnopqr " })).toEqual({ kind: "losing", since: 41 });
    expect(at({ 40: "abcdefghijklmnop ", 240: "abcdefghijklmnop " }).kind).toBe("steady");
    expect(at({ 40: "abcdefghijklmnop ", 140: "abcdefghijklmnop " })).toEqual({ kind: "losing", since: 140 });
  });

  test("hours take no more room than minutes", () => {
    let state = begun("forced", "window:128", "dense");
    const TOKENS = 40_000;
    const began = performance.now();
    for (let i = 0; i < TOKENS; i += 1) {
      state = reduceRun(state, step(read(i, { nll: i === 0 ? null : 3, ms: 1 }), read(i, { evicted: null })));
    }
    expect((performance.now() - began) / TOKENS).toBeLessThan(0.5);
    for (const { tokens, losses, ids, recent, first_tokens, ...one } of state.lanes) {
      expect(tokens.length).toBeLessThanOrEqual(600);
      expect(tokens.length).toBeGreaterThanOrEqual(500);
      expect([losses.length, ids.length]).toEqual([EXACT, EXACT]);
      expect(recent.length).toBeLessThanOrEqual(256);
      expect(first_tokens).toHaveLength(4);
      for (const series of [one.loss, one.rolling, one.cost, one.ms, one.memory, one.dense, one.occupancy]) {
        expect(series.bins.length).toBeLessThanOrEqual(2048);
      }
    }
    // One nat a token, of every token but the first.
    expect(lane(state, 0).cost_now).toBeCloseTo(TOKENS - 1, 0);
    expect(state.marks.map(({ kind }) => kind).sort()).toEqual(["first_left", "losing", "trained"]);
    expect(state.marks.find(({ kind }) => kind === "trained")).toEqual({ i: 8192, lane: null, kind: "trained" });
    for (let k = 0; k < 500; k += 1) state = reduceRun(state, { kind: "mark", mark: { i: k, lane: null, kind: "setting" } });
    expect(state.marks.length).toBeLessThanOrEqual(100);
    expect(state.marks.some(({ kind }) => kind === "first_left")).toBe(true);
  });

  test("a conversation is a run of one lane", () => {
    const cache = {
      held: 40,
      capacity: 64,
      sinks: 4,
      stream: 40,
      bytes: 100,
      parts: { ...NOTHING, sinks: 100 },
      tail: 0,
      dense_bytes: 0,
    };
    const tokens = Array.from({ length: 40 }, (_, n) => ({ id: 100 + n, text: ` said ${n}` }));
    const steps: Step[] = [
      { kind: "prompt", done: 40, total: 40, tokens, ms: 1, cache, evicted: null, sink_mass: new Float32Array([0.25, 0.75]) },
      {
        kind: "token",
        id: 7,
        slot: 40,
        text: " on",
        nll: 1.5,
        ms: 20,
        cache: { ...cache, held: 41, stream: 41 },
        evicted: null,
        sink_mass: new Float32Array([0.5, 0.5]),
        first_mass: new Float32Array([0, 0]),
        probs: new Float32Array([1]),
      },
      { kind: "end", reason: "end", text: "" },
    ];
    let state = reduceRun(emptyRun(), chatBegins(null, { policy: "sinks", sinks: 4, recent: 60, kv: "f16" }));
    state = reduceRun(state, { kind: "probs", lane: 0, layer: 3, head: 1 });
    for (const told of steps) {
      const next = chatStep(told, { layer: 3, head: 1 });
      if (next !== null) state = reduceRun(state, next);
    }
    const only = lane(state, 0);
    expect(state).toMatchObject({ mode: "chat", at: 41, reference: null });
    expect(only).toMatchObject({ name: "sinks 4+60", held: 41, sinks: 4, first_left: null });
    const asked = tokens.map(({ id, text }, i) => ({ i, id, text, nll: null, extra: null }));
    expect(only.tokens).toEqual([...asked, { i: 40, id: 7, text: " on", nll: 1.5, extra: null }]);
    expect(only.first_tokens).toEqual(asked.slice(0, 4));
    expect([...only.ids.subarray(0, 41)]).toEqual([...tokens.map(({ id }) => id), 7]);
    expect(state.vocab.get(103)).toBe(" said 3");
    expect([only.loss.bins.length, only.recent.length]).toEqual([1, 1]);
    expect(only.attention.bins.map(mean)).toEqual([0.5, 0.5]);
    expect(only.ms.bins.map(mean)).toEqual([20]);
    expect(only.probs).toMatchObject({ layer: 3, head: 1 });
    // A piece of forty tokens that pushed ten out: the first of them went with its 31st.
    const piece: Step = { ...(steps[0] as Step & { kind: "prompt" }), cache: { ...cache, stream: 81 }, evicted: [4, 14] };
    expect(lane(reduceRun(state, chatStep(piece, null) as RunStep), 0).first_left).toBe(71);
  });

  test("what a person repeats is not held against the model, and a pinned prompt is among the sinks", () => {
    const cache = { held: 80, capacity: 400, sinks: 12, stream: 80, bytes: 0, parts: NOTHING, tail: 0, dense_bytes: 0 };
    const tokens = Array.from({ length: 80 }, () => ({ id: 5, text: "again" }));
    const piece = { kind: "prompt", ms: 1, evicted: null, sink_mass: new Float32Array() } as const;
    let state = reduceRun(emptyRun(), chatBegins(null, { policy: "sinks", sinks: 4, recent: 60, kv: "f16", turns: true }));
    state = reduceRun(state, chatStep({ ...piece, done: 80, total: 80, tokens, cache }, null) as RunStep);
    expect(lane(state, 0).health.kind).toBe("steady");
    expect(lane(state, 0).first_tokens.map(({ i }) => i)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  });

  test("lanes have the names of the program's tables", () => {
    const names = lanes("dense", "window:256", "sinks:4+252", "sinks:4+252:int4", "recompute:256").map(laneName);
    expect(names).toEqual(["dense", "window 256", "sinks 4+252", "sinks 4+252 int4", "recompute 256"]);
    const long = lanes("sinks:4+60:k=int2:group=64:tail=64:stream:softmax1:zero:text=\\n").map(laneName);
    expect(long).toEqual(['sinks 4+60 K int2 V f16 group 64 tail 64 stream softmax1 zero sinks text "\\n"']);
  });
});

/** What must be the same in a live run and in its recording, as far as a recording is precise. */
function compare(live: RunState, replayed: RunState): void {
  expect(replayed.marks).toEqual(live.marks);
  expect(replayed).toMatchObject({ at: live.at, mode: live.mode, reference: live.reference, done: true });
  expect(replayed.lanes).toHaveLength(live.lanes.length);
  for (const [i, was] of live.lanes.entries()) {
    const is = lane(replayed, i);
    for (const key of ["name", "at", "held", "capacity", "sinks", "tail", "bytes", "dense_bytes", "first_left", "health", "ended", "evicted"] as const) {
      expect(is[key], `${was.name}: ${key}`).toEqual(was[key]);
    }
    const bare = (one: LaneState) => one.tokens.map(({ i, id, text }) => [i, id, text]);
    expect(bare(is)).toEqual(bare(was));
    const losses = (one: LaneState) => Array.from(one.losses.subarray(0, one.at), (loss) => (Number.isNaN(loss) ? -1 : loss));
    expect(losses(is)).toHaveLength(losses(was).length);
    for (const [k, loss] of losses(was).entries()) expect(losses(is)[k]).toBeCloseTo(loss, 3);
    expect(is.cost_now).toBeCloseTo(was.cost_now, 1);
    expect(is.occupancy).toEqual(was.occupancy);
    expect(is.memory).toEqual(was.memory);
    expect(is.ms.bins.length).toBe(was.ms.bins.length);
    expect(is.attention.bins).toHaveLength(was.attention.bins.length);
    for (const [k, bin] of was.attention.bins.entries()) {
      expect(mean(is.attention.bins[k] ?? bin)).toBeCloseTo(mean(bin), 2);
    }
  }
}

function played(run: RecordedRun): RunState {
  const tape = new Tape(run, run.lanes.map((_, i) => i));
  let state = reduceRun(emptyRun(), tape.begin());
  for (let k = 0; k < tape.length; k += 1) state = reduceRun(state, tape.step(k));
  return state;
}

const QUESTION = "<|im_start|>user\nTell me.<|im_end|>\n<|im_start|>assistant\n";
const SAMPLER = { temperature: 0.8, top_k: 64, top_p: 0.95, min_p: 0, repetition_penalty: 1.2, seed: 1 };

test.describe("a recorded run", () => {
  for (const [name, settings, source] of [
    ["a text", ["window:64", "sinks:4+60:int4", "dense", "recompute:64"], { mode: "forced", text: STORY, from: 3, n: 400 }],
    ["sinks of their own", ["sinks:4+60:text=\\n\\n\\n\\n", "window:200"], { mode: "forced", text: STORY, from: 0, n: 150 }],
    ["answers", ["window:32", "sinks:4+28"], { mode: "free", prompt: QUESTION, sampler: SAMPLER, max_tokens: 200 }],
  ] as const) {
    test(`${name}: written from live steps and played again it gives the same state`, async () => {
      const { state, run } = await compared(name, lanes(...settings), source);
      const again = readRun(JSON.stringify(run), "run.json");
      expect(again).toEqual(run);
      compare(state, played(again));
    });
  }

  test("carries its text and its question", async () => {
    const forced = await compared("a", lanes("window:64"), { mode: "forced", text: STORY, from: 0, n: 20 });
    expect(STORY.startsWith(textOf(forced.run))).toBe(true);
    const source = { mode: "free", prompt: QUESTION, sampler: SAMPLER, max_tokens: 9 } as const;
    expect(questionOf((await compared("a", lanes("dense"), source)).run)).toBe("Tell me.");
  });

  test("means of several losses cost as much as the losses themselves", async () => {
    const { state, run } = await compared("a", lanes("window:64", "dense"), { mode: "forced", text: STORY, from: 0, n: 401 });
    const every = 16;
    const means = run.lanes.map(({ nll }) =>
      Array.from({ length: 25 }, (_, k) => nll.slice(k * every, (k + 1) * every).reduce<number>((sum, n) => sum + (n ?? 0), 0) / every),
    );
    const short: RecordedRun = {
      ...run,
      every,
      tokens: null,
      vocab: {},
      lanes: run.lanes.map((one, i) => ({ ...one, nll: means[i] ?? [], best: [] })),
    };
    const again = played(readRun(JSON.stringify(short), "run.json"));
    expect(again.at).toBe(401);
    expect(lane(again, 0).cost_now).toBeCloseTo(lane(state, 0).cost_now, 1);
    expect(lane(again, 0).first_left).toBe(64);
    expect(lane(again, 0).tokens).toEqual([]);
    expect(cost.rows(again, CHOICES).rows.map(([i]) => i)).toEqual(Array.from({ length: 25 }, (_, k) => k * every));
    expect(recentPerplexity(lane(again, 0)) ?? 0).toBeCloseTo(recentPerplexity(lane(state, 0)) ?? -1, 1);
  });

  test("what is none is refused with a sentence; what is not known is left alone", async () => {
    const { run } = await compared("a", lanes("window:64", "dense"), { mode: "forced", text: STORY, from: 0, n: 80 });
    const first = run.lanes[0] as RecordedRun["lanes"][number];
    const lane0 = (change: object): object => ({ ...run, lanes: [{ ...first, ...change }, run.lanes[1]] });
    expect(readRun(JSON.stringify({ ...run, later: [1], lanes: run.lanes.map((l) => ({ ...l, later: 2 })) }), "a")).toBeTruthy();
    const wrong: [text: string, says: RegExp][] = [
      ["{", /it is not JSON/],
      ["[]", /does not say “sinkstream-run”/],
      [JSON.stringify({ ...run, version: 2 }), /has version 2, and this page knows 1/],
      [JSON.stringify({ ...run, version: "1" }), /has version 1,/],
      [JSON.stringify({ ...run, count: 81 }), /“tokens”/],
      [JSON.stringify({ ...run, tokens: null }), /“tokens”/],
      [JSON.stringify({ ...run, vocab: {} }), /“tokens”/],
      [JSON.stringify({ ...run, lanes: [] }), /“lanes”/],
      [JSON.stringify({ ...run, model: { ...run.model, layers: -1 } }), /“model”/],
      [JSON.stringify({ ...run, key_ranges: [{ layer: 0, ranges: [1, 2] }] }), /“key_ranges”/],
      [JSON.stringify(lane0({ nll: first.nll.slice(1) })), /“lanes\[0\]\.nll”/],
      [JSON.stringify(lane0({ nll: first.nll })).replace('"nll":[', '"nll":[1e999,').replace(/,[\d.]+\],"ms"/, '],"ms"'), /“lanes\[0\]\.nll”/],
      [JSON.stringify(lane0({ held: [] })), /“lanes\[0\]\.held”/],
      [JSON.stringify(lane0({ held: [[1, 2, 3]] })), /“lanes\[0\]\.held”/],
      [JSON.stringify(lane0({ oldest: [[0, 2, 3], [0, 1, 1]] })), /“lanes\[0\]\.oldest”/],
      [JSON.stringify(lane0({ bytes: [[0, { sinks: 1 }]] })), /“lanes\[0\]\.bytes”/],
      [JSON.stringify(lane0({ settings: { policy: "all", sinks: 0, recent: 1, kv: "f16" } })), /settings\.policy/],
      [JSON.stringify(lane0({ heads: { every: 16, shape: [30, 9], u8: "<>" } })), /heads\.u8/],
      [JSON.stringify(lane0({ ms: { every: 0, values: [] } })), /“lanes\[0\]\.ms”/],
    ];
    for (const [text, says] of wrong) expect(() => readRun(text, "run.json"), text.slice(0, 200)).toThrow(says);
    expect(() => readRun("{", "run.json")).toThrow(/^run\.json cannot be played: it is not JSON\.$/);
  });

  test("the player goes to any place, and gives the state that playing on gives", async () => {
    const { run, state } = await compared("a", lanes("window:64", "sinks:4+60", "dense"), { mode: "forced", text: STORY, from: 0, n: 300 });
    const player = new Player(new Tape(run, [0, 1, 2]), 14);
    const settle = () => {
      while (player.busy) player.tick(performance.now());
    };
    const bare = ({ lanes: all, marks, at }: RunState) => ({ at, marks, costs: all.map((l) => l.cost_now), texts: all.map((l) => l.tokens.map(({ text }) => text).join("")) });
    player.seek(200);
    settle();
    const at200 = bare(player.state);
    expect(at200.at).toBe(200);
    player.seek(201);
    settle();
    player.seek(300);
    settle();
    expect(player.atEnd).toBe(true);
    compare(state, player.state);
    player.seek(200);
    settle();
    expect(bare(player.state)).toEqual(at200);
    player.seek(-5);
    settle();
    expect(player.state.at).toBe(0);
  });

  test("the player keeps its pace by the clock, rests where it shall, and stops at the end", async () => {
    const { run } = await compared("a", lanes("window:64"), { mode: "forced", text: STORY, from: 0, n: 100 });
    const player = new Player(new Tape(run, [0]), 10, new Map([[20, 500]]));
    let now = 1000;
    const pass = (ms: number) => {
      for (const end = now + ms; now < end; ) player.tick((now += 20));
    };
    player.play();
    pass(20);
    expect(player.at).toBe(1);
    pass(1000);
    expect(player.at).toBe(11);
    pass(1500);
    // Resting: half a second from the twentieth on.
    const { at } = player;
    expect([at, player.playing]).toEqual([expect.any(Number), true]);
    expect(at).toBeGreaterThanOrEqual(20);
    expect(at).toBeLessThan(25);
    player.pause();
    pass(1000);
    expect(player.at).toBe(at);
    player.speed = 400;
    player.play();
    pass(5000);
    expect([player.at, player.playing, player.atEnd, player.state.done]).toEqual([100, false, true, true]);
    player.play();
    expect(player.at).toBe(0);
  });
});

test.describe("the runs that the page brings", () => {
  const folder = new URL("../runs/", import.meta.url);
  const text = (name: string): string => readFileSync(new URL(name, folder), "utf8");
  const index = (): RecordedIndex => JSON.parse(text("index.json")) as RecordedIndex;

  test("every experiment has one, and the index says what they say", () => {
    const { runs } = index();
    expect(runs.map(({ name }) => name).sort()).toEqual([FIRST, ...Object.keys(experiments)].sort());
    expect(readdirSync(folder).sort()).toEqual([...runs.map(({ file }) => file), "index.json"].sort());
    for (const { file, title, count, lanes: told } of runs) {
      const run = readRun(text(file), file);
      expect([run.title, run.count]).toEqual([title, count]);
      expect(told).toEqual(run.lanes.map(({ name, summary }) => ({ name, summary })));
    }
  });

  test("their losses are the independent program's, where it read the same", () => {
    const known: [file: string, lane: string, run: string][] = [
      ["hero.json", "window 256", "window_256"],
      ["hero.json", "sinks 4+252", "sinks_4_252"],
      ["hero.json", "dense", "dense"],
      ["take-sinks-away.json", "window 128", "window_128"],
      ["take-sinks-away.json", "sinks 4+124", "sinks_4_124"],
      ["tiny.json", "sinks 4+12", "sinks_4_12"],
    ];
    for (const [file, name, golden] of known) {
      const nll = GOLDEN.runs[golden]?.nll;
      const found = readRun(text(file), file).lanes.find((one) => one.name === name);
      if (nll === undefined) continue;
      for (const [i, loss] of (found?.nll ?? [Number.NaN]).entries()) {
        // Caches of f16 on one side, and single precision on the other.
        expect(Math.abs((loss ?? Number.NaN) - (nll[i] ?? Number.NaN)), `${file}, ${name}, ${i}`).toBeLessThan(0.05);
      }
    }
  });

  test("played to its end, each is what its summary says, and the window falls behind by more than half a nat", () => {
    for (const { file } of index().runs) {
      const run = readRun(text(file), file);
      const state = played(run);
      expect(state.at).toBe(run.count);
      for (const [i, { name, summary, settings }] of run.lanes.entries()) {
        const told = summary[0]?.perplexity ?? 0;
        const mine = perplexity(lane(state, i)) ?? 0;
        // Means of several losses hide how many were in the last one.
        expect(Math.abs(mine / told - 1), `${file}, ${name}`).toBeLessThan(run.every > 1 ? 0.01 : 1e-3);
        if (settings.policy === "sinks" && settings.sinks + settings.recent >= 64 && run.mode === "forced") {
          expect(lane(state, i).health.kind, `${file}, ${name}`).toBe("steady");
        }
      }
    }
    const state = played(readRun(text("take-sinks-away.json"), "take-sinks-away.json"));
    const gap = lane(state, 0).rolling.bins.flatMap((bin) => {
      const other = lane(state, 1).rolling.bins.find(({ first }) => first === bin.first);
      return other !== undefined && bin.first > 128 && bin.first <= 428 ? [mean(bin) - mean(other)] : [];
    });
    expect(Math.max(...gap)).toBeGreaterThan(0.5);
  });

  test("the hero moment: one word, told by the lanes that still have their first", () => {
    const run = readRun(text("hero.json"), "hero.json");
    const sure = (name: string) => Math.exp(-(run.lanes.find((one) => one.name === name)?.nll[256] ?? Number.NaN));
    expect(run.vocab[String(run.tokens?.[257])]).toBe(" hour");
    expect(sure("window 256")).toBeLessThan(0.01);
    expect(sure("sinks 4+252")).toBeGreaterThan(0.9);
    expect(sure("dense")).toBeGreaterThan(0.9);
  });

  test("the story falls apart in the window lane alone", () => {
    const state = played(readRun(text(`${FIRST}.json`), FIRST));
    const kinds = Object.fromEntries(state.lanes.map(({ name, health }) => [name, health.kind]));
    expect(kinds).toMatchObject({ "window 128": "losing", "sinks 4+124": "steady" });
  });
});

/** Steps as the worker sends them are the ones that the reducer takes. */
test("a step in which no lane did anything ends a run", () => {
  const last: CompareStep = { ms: 0, lanes: [], done: true };
  const state = begun("forced", "dense");
  expect(reduceRun(state, { kind: "step", step: last })).toMatchObject({ done: true, at: 0 });
});
