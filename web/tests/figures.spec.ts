// Figures: what they say, what they draw, and the history behind them.

import { expect, test } from "@playwright/test";
import { attention } from "../src/figures/attention.ts";
import { memory } from "../src/figures/memory.ts";
import { occupancy } from "../src/figures/occupancy.ts";
import { ticks } from "../src/figures/plot.ts";
import { markup, type Shape } from "../src/figures/shapes.ts";
import { EMPTY, MOST_BINS, mean, push } from "../src/series.ts";
import { type Action, initial, reduce, type State } from "../src/state.ts";
import type { CacheSettings } from "../../crates/wasm/types";
import { defaults } from "../src/settings.ts";
import { ask, mock, open, parts } from "./page.ts";

test.describe("history", () => {
  test("takes a bounded room, and neighbours are summed up", () => {
    let series = EMPTY;
    for (let at = 1; at <= 10_000; at += 1) series = push(series, at, at === 777 ? 5 : at === 778 ? -5 : 1);
    // 2,048 bins hold 10,000 positions eight at a time: 0 to 1,250.
    expect(series.width).toBe(8);
    expect(series.bins).toHaveLength(1251);
    expect(series.bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(10_000);
    expect(series.bins.reduce((sum, bin) => sum + bin.sum, 0)).toBe(9_998);
    expect(Math.max(...series.bins.map((bin) => bin.max))).toBe(5);
    expect(Math.min(...series.bins.map((bin) => bin.min))).toBe(-5);
    expect(series.bins[97]).toEqual({ first: 776, last: 783, count: 8, sum: 6, min: -5, max: 5 });
    expect(series.bins[97] && mean(series.bins[97])).toBe(0.75);
    expect(series.bins.at(-1)).toEqual({ first: 10_000, last: 10_000, count: 1, sum: 1, min: 1, max: 1 });
  });

  test("keeps every value as long as it has room", () => {
    let series = EMPTY;
    for (let at = 0; at < MOST_BINS; at += 1) series = push(series, at, at);
    expect(series.width).toBe(1);
    expect(series.bins).toHaveLength(2048);
  });

  test("pieces of a prompt leave gaps and are still in order", () => {
    let series = EMPTY;
    for (let at = 0; at <= 300_000; at += 100) series = push(series, at, 1);
    expect(series.bins.length).toBeLessThanOrEqual(2048);
    expect(series.bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(3001);
    for (const [i, bin] of series.bins.entries()) {
      expect(bin.first).toBeGreaterThan(series.bins[i - 1]?.last ?? -1);
    }
  });
});

test("round numbers on axes", () => {
  expect(ticks(1024, 3, true)).toEqual([0, 500, 1000]);
  expect(ticks(43, 4, true)).toEqual([0, 20, 40]);
  expect(ticks(0.3, 3, false).map((v) => v.toFixed(1))).toEqual(["0.0", "0.1", "0.2", "0.3"]);
  expect(ticks(2, 4, true)).toEqual([0, 1, 2]);
});

const begin = (cache: CacheSettings): State => initial({ ...defaults(1), cache });

/** A state after 3 layers of 2 heads have read `stream` tokens through 4 + 28 slots. */
function after(stream: number): State {
  const actions: Action[] = [
    { kind: "planned", place: { backend: "cpu", adapter: null, software: false, offers: null, why: null } },
    {
      kind: "loaded",
      model: {
        name: "m",
        layers: 3,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 64,
        vocab: 9,
        trained_length: 64,
        weight_bytes: 1,
      },
      cache: { held: 0, capacity: 32, sinks: 4, stream: 0, bytes: 737_280, dense_bytes: 0 },
      name: "m",
      notice: null,
    },
    { kind: "asked", text: "Hello" },
  ];
  let state = begin({ policy: "sinks", sinks: 4, recent: 28, kv: "f16" });
  for (const action of actions) state = reduce(state, action);
  for (let t = 1; t <= stream; t += 1) {
    state = reduce(state, {
      kind: "step",
      at: t * 20,
      memory: 0,
      step: {
        kind: "token",
        id: t,
        slot: Math.min(t, 32) - 1,
        text: "a",
        nll: 1,
        ms: 20,
        cache: {
          held: Math.min(t, 32),
          capacity: 32,
          sinks: 4,
          stream: t,
          bytes: 737_280,
          dense_bytes: t * 23_040,
        },
        evicted: t > 32 ? [t - 29, t - 28] : null,
        sink_mass: Float32Array.of(0, 0, 0.25, 0.75, 0.75, 1),
        first_mass: Float32Array.of(0, 0, 0, 0, 0, 0),
      },
    });
  }
  return state;
}

const BOX = { width: 468, height: 200 };
const lines = (shapes: Shape[]) => shapes.filter((s) => s.kind === "path");
const texts = (shapes: Shape[]) => shapes.flatMap((s) => (s.kind === "text" ? [s.text] : []));

test("occupancy: what is kept, what has left, since when", () => {
  const { words, shapes } = occupancy(after(100), BOX);
  expect(words).toBe(
    "32 of 32 slots are in use. The stream is 100 tokens long. " +
      "Kept are the first 4 tokens (sinks) and the last 28; 68 have left.",
  );
  // The plot is 400 wide for 100 tokens: sinks 0..4, gone 4..72, recent 72..100.
  const bars = shapes.flatMap((s) => (s.kind === "rect" ? [[s.x, s.width, s.fill]] : []));
  expect(bars).toEqual([
    [48 + 16, 272, null],
    [48 + 288, 112, "recent"],
    [48, 16, "sink"],
  ]);
  // The 33rd token pushed the first one out.
  const mark = shapes.find((s) => s.kind === "line" && s.ink === "gone");
  expect(mark?.kind === "line" && mark.from[0]).toBe(48 + 132);
  expect(texts(shapes)).toEqual(
    expect.arrayContaining(["slots", "capacity 32", "first word left", "stream position (tokens)"]),
  );
  expect(occupancy(after(20), BOX).words).toContain("Every token is still in the cache.");
});

test("attention: by layer and as a mean", () => {
  const { words, title, shapes } = attention(after(3), { width: 468, height: 300 });
  expect(title).toBe("Attention on the sinks, by layer");
  // Layers give 0, 1/2 and 7/8; the mean is 11/24.
  expect(words).toBe(
    "At the last token 46% of the attention went to the sinks, as the mean of all layers: " +
      "from 0% in layer 0 to 88% in layer 2.",
  );
  // The frame of the bars is 20 to 126.
  const bars = shapes.flatMap((s) => (s.kind === "rect" ? [s.height] : []));
  expect(bars).toEqual([0, 53, 92.75]);
  expect(lines(shapes)[0]?.points).toHaveLength(3);
});

test("attention of a window is that on its first four slots", () => {
  const state = after(3);
  state.wanted = { policy: "window", sinks: 0, recent: 28, kv: "f16" };
  state.cache = { held: 3, capacity: 28, sinks: 0, stream: 3, bytes: 1, dense_bytes: 1 };
  expect(attention(state, BOX).title).toBe("Attention on the first four slots, by layer");
});

test("memory: the cache against everything kept", () => {
  const { words, shapes } = memory(after(100), BOX);
  expect(words).toBe(
    "The cache takes 0.7 MB, 737,280 bytes. Keeping all 100 tokens in f16 would take 2.3 MB.",
  );
  expect(texts(shapes)).toEqual(
    expect.arrayContaining(["MB", "this cache: 0.7 MB", "everything kept, f16: 2.3 MB"]),
  );
  // Past four times the cache, which is 128 tokens, the line is cut and its name points on.
  const far = memory(after(200), BOX);
  expect(texts(far.shapes)).toContain("everything kept, f16: 4.6 MB ↗");
  expect(lines(far.shapes)[0]?.points).toHaveLength(129);
  expect(lines(far.shapes)[1]?.points).toHaveLength(201);
});

test("figures are drawn before there is anything to draw, and at any size", () => {
  for (const figure of [occupancy, attention, memory]) {
    for (const state of [
      begin({ policy: "dense", sinks: 0, recent: 1, kv: "f16" }),
      after(1),
      after(100),
    ]) {
      for (const box of [BOX, { width: 300, height: 150 }]) {
        const { shapes, words, title, caption } = figure(state, box);
        expect(markup(shapes)).not.toMatch(/NaN|Infinity|undefined/);
        expect([words, title, caption].every((s) => s.length > 5)).toBe(true);
      }
    }
  }
});

test("text in a drawing cannot become markup", () => {
  const text = markup([{ kind: "text", at: [0, 0], text: "<b>&", anchor: "end", ink: "ink" }]);
  expect(text).toContain("&lt;b&gt;&amp;</text>");
});

test("on the page: names, words and drawings change as tokens come", async ({ page }) => {
  await mock(page, { most: 20 });
  await open(page, "&backend=cpu&sinks=4&recent=28");
  const figure = (name: string) => page.getByRole("img", { name });
  await expect(figure("What is in the cache now The cache is empty.")).toBeVisible();
  await expect(figure("Attention on the sinks, by layer No token has been read yet.")).toBeVisible();
  const before = await page.locator("figure svg").evaluateAll((all) => all.map((svg) => svg.innerHTML));
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText(/^20 tokens\./);
  await expect(
    figure("What is in the cache now 32 of 32 slots are in use. The stream is 60 tokens long."),
  ).toBeVisible();
  // Layer l of the mocked engine gives l / 40.
  await expect(figure("36% of the attention went to the sinks")).toBeVisible();
  await expect(figure("from 0% in layer 0 to 73% in layer 29.")).toBeVisible();
  await expect(figure("Memory of the cache The cache takes 0.7 MB, 737,280 bytes.")).toBeVisible();
  const now = await page.locator("figure svg").evaluateAll((all) => all.map((svg) => svg.innerHTML));
  for (const [i, drawing] of now.entries()) expect(drawing).not.toBe(before[i]);
});
