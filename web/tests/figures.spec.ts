// What the figures say, what they draw, and what they write into files: over runs made by hand, of which every
// number can be worked out on paper. `figures.page.spec.ts` tries them in a browser.

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import { attention } from "../src/figures/attention.ts";
import { cache } from "../src/figures/cache.ts";
import { cost } from "../src/figures/cost.ts";
import { laneIndex } from "../src/figures/choose.ts";
import { CHOICES, type Choices, type Figure } from "../src/figures/figure.ts";
import { knows } from "../src/figures/knows.ts";
import { laneStyle } from "../src/figures/lanes.ts";
import { memory } from "../src/figures/memory.ts";
import { logTicks, ticks } from "../src/figures/plot.ts";
import { type Colours, markup, type Point, type Shape } from "../src/figures/shapes.ts";
import { placeAt, places, slotBytes } from "../src/figures/slots.ts";
import { time } from "../src/figures/time.ts";
import { readRun, Tape } from "../src/replay.ts";
import { EXACT, emptyRun, type RunState, reduceRun } from "../src/run.ts";
import { EMPTY, MOST_BINS, mean } from "../src/series.ts";
import { begin, DENSE, PACKED, type Plan, RECOMPUTE, read, SINKS, WINDOW, word } from "./made.ts";

const ALL: readonly Figure[] = [cost, cache, attention, memory, time, knows];
const BOX = { width: 600, height: 260 };
const THREE: Plan = { lanes: [WINDOW, SINKS, DENSE], count: 512 };
const NAMES: Colours = (colour) => (typeof colour === "string" ? colour : `heat ${colour.heat.toFixed(2)}`);

const made = new Map<string, RunState>();

/** The plan's run after so many tokens. Made once, since nothing reads on from it. */
function after(plan: Plan, tokens: number): RunState {
  const key = JSON.stringify([plan, tokens]);
  const run = made.get(key) ?? read(begin(plan), tokens);
  made.set(key, run);
  return run;
}

const choices = (set: Partial<Choices> = {}): Choices => ({ ...CHOICES, ...set });
const texts = (shapes: readonly Shape[]): string[] => shapes.flatMap((s) => (s.kind === "text" ? [s.text] : []));
const paths = (shapes: readonly Shape[]) => shapes.flatMap((s) => (s.kind === "path" ? [s] : []));
/** Where the dashed line of the first word stands. */
const markAt = (shapes: readonly Shape[]) => paths(shapes).find((p) => p.dash === "4 3")?.points[0]?.[0];

test.describe("history", () => {
  test("takes a bounded room, and neighbours are summed up", () => {
    let series = EMPTY;
    for (let at = 1; at <= 10_000; at += 1) series = series.push(at, at === 777 ? 5 : at === 778 ? -5 : 1);
    // 2,048 bins hold 10,000 positions eight at a time: 0 to 1,250.
    expect(series.width).toBe(8);
    expect(series.bins).toHaveLength(1251);
    expect(series.bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(10_000);
    expect(series.bins.reduce((sum, bin) => sum + bin.sum, 0)).toBe(9_998);
    expect(Math.max(...series.bins.map((bin) => bin.max))).toBe(5);
    expect(Math.min(...series.bins.map((bin) => bin.min))).toBe(-5);
    expect(series.bins[97]).toEqual({ first: 776, last: 783, count: 8, sum: 6, min: -5, max: 5 });
    expect(series.bins[97] && mean(series.bins[97])).toBe(0.75);
    expect(series.last).toEqual({ first: 10_000, last: 10_000, count: 1, sum: 1, min: 1, max: 1 });
  });

  test("keeps every value as long as it has room", () => {
    let series = EMPTY;
    for (let at = 0; at < MOST_BINS; at += 1) series = series.push(at, at);
    expect(series.width).toBe(1);
    expect(series.bins).toHaveLength(2048);
  });

  test("pieces of a prompt leave gaps and are still in order", () => {
    let series = EMPTY;
    for (let at = 0; at <= 300_000; at += 100) series = series.push(at, 1);
    expect(series.bins.length).toBeLessThanOrEqual(2048);
    expect(series.bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(3001);
    for (const [i, bin] of series.bins.entries()) {
      expect(bin.first).toBeGreaterThan(series.bins[i - 1]?.last ?? -1);
    }
  });
});

test("round numbers on axes", () => {
  expect(ticks(0, 1024, 3, true)).toEqual([0, 500, 1000]);
  expect(ticks(0, 43, 4, true)).toEqual([0, 20, 40]);
  expect(ticks(0, 0.3, 3, false).map((v) => v.toFixed(1))).toEqual(["0.0", "0.1", "0.2", "0.3"]);
  expect(ticks(0, 2, 4, true)).toEqual([0, 1, 2]);
  expect(ticks(-8, 22, 3, false)).toEqual([0, 10, 20]);
  expect(ticks(-12, 22, 4, false)).toEqual([-10, 0, 10, 20]);
  expect(logTicks(10_000, 20_000_000)).toEqual([10_000, 100_000, 1_000_000, 10_000_000]);
  expect(logTicks(1, 12)).toEqual([1, 2, 5, 10]);
});

test.describe("cost and loss", () => {
  // From token 129 on, the window loses 1 nat more than dense at each token, and the sinks 1/16.
  test("cost says what each lane lost beyond the reference", () => {
    const run = after(THREE, 400);
    expect(cost.title(run, choices())).toBe("Extra cost since the first word left");
    expect(cost.caption(run, choices())).toContain("Zero means as good as keeping everything.");
    expect(cost.caption(after({ lanes: [WINDOW, SINKS] }, 10), choices())).toContain("Zero means as good as sinks 4+124.");
    expect(cost.words(run, choices())).toBe(
      "After 400 tokens the window lane has cost 271.00 nats more than dense and the sinks lane 16.94. " +
        "The first word left at token 128.",
    );
    const packed = after({ lanes: [{ ...DENSE, kv: "int4" }, { ...DENSE, kv: "int2" }] }, 10);
    expect(cost.title(packed, choices())).toBe("Extra cost of each lane");
    expect(cost.caption(packed, choices())).toContain("as good as dense int4. Watch which line leaves the others.");
    expect(cost.words(after(THREE, 128), choices())).toBe(
      "After 128 tokens the window lane has cost 0.00 nats more than dense and the sinks lane 0.00. No word has left yet.",
    );
  });

  test("lanes differ in dash and colour, have names at their ends, and lie on the zero line until the mark", () => {
    const shapes = cost.shapes(after(THREE, 400), BOX, choices());
    const curves = paths(shapes).filter(({ width }) => width === 2.5);
    expect(curves.map(({ ink, dash }) => [ink, dash])).toEqual([
      ["dense", "0 4.5"],
      ["window", "6 3"],
      ["sink", undefined],
    ]);
    const zero = curves[0]?.points[0]?.[1] ?? 0;
    for (const { points } of curves) for (const [, y] of points.slice(0, 127)) expect(y).toBeCloseTo(zero, 9);
    expect(curves[1]?.points[128]?.[1]).toBeLessThan(zero);
    expect(texts(shapes)).toEqual(
      expect.arrayContaining(["nats", "tokens", "window 128", "sinks 4+124", "dense", "first word left"]),
    );
  });

  test("ends of lines are named apart", () => {
    // All lanes end at 0 here.
    const shapes = cost.shapes(after(THREE, 100), BOX, choices());
    const ys = shapes
      .flatMap((s) => (s.kind === "text" && ["window 128", "sinks 4+124", "dense"].includes(s.text) ? [s.at[1]] : []))
      .sort((a, b) => a - b);
    expect(ys).toHaveLength(3);
    for (const [i, y] of ys.entries()) expect(y - (ys[i - 1] ?? y - 15)).toBeGreaterThanOrEqual(15);
  });

  test("loss is a rolling mean; a free lane's own is not called quality", () => {
    const run = after(THREE, 400);
    const loss = choices({ view: "loss" });
    expect(cost.title(run, loss)).toBe("Loss of each lane (mean of the last 64 tokens)");
    // 2, 2.25, 2.5, 2.75 in turn.
    expect(cost.words(run, loss)).toContain("in nats a token: window 3.38, sinks 2.44 and dense 2.38.");
    const free = after({ ...THREE, mode: "free", count: null }, 200);
    expect(cost.title(free, choices())).toBe("Surprise at its own words");
    expect(cost.caption(free, choices())).toContain("not a measure of quality");
    expect(cost.options?.(free, choices()).flat().map(({ text }) => text)).toEqual(["16", "64", "256"]);
  });

  test("the cursor reads a token of all lanes", () => {
    const run = reduceRun(after(THREE, 400), { kind: "cursor", at: 130 });
    expect(cost.keys?.kind === "stream" && cost.keys.reading(run, 130, choices())).toBe(
      `token 130, “${word(130).text}”: window 3.50 nats, extra cost 2.00; sinks 2.56 nats, extra cost 0.13; dense 2.50 nats, extra cost 0.00`,
    );
    expect(paths(cost.shapes(run, BOX, choices())).filter(({ ink }) => ink === "accent")).toHaveLength(1);
  });

  test("rows are those of `perplexity --per-token`: row i is what was lost on token i + 1", () => {
    const { head, rows, note } = cost.rows(after({ lanes: [WINDOW, DENSE] }, 300), choices());
    expect(note).toBeUndefined();
    expect(head).toEqual(["i", "token_id", "token", "nll_window_128", "nll_dense", "evicted_from", "evicted_to"]);
    expect(rows).toHaveLength(299);
    expect(rows[0]).toEqual([0, word(1).id, word(1).text, 2.25, 2.25, null, null]);
    expect(rows[127]).toEqual([127, word(128).id, word(128).text, 2, 2, null, null]);
    // Token 128 pushed token 0 out, so 129 is the first that was predicted without it.
    expect(rows[128]).toEqual([128, word(129).id, word(129).text, 3.25, 2.25, 0, 1]);
    expect(rows[298]?.slice(-2)).toEqual([170, 171]);
    // Sinks lose those behind them.
    const sinks = cost.rows(after({ lanes: [SINKS, DENSE] }, 300), choices());
    expect(sinks.rows[128]?.slice(-2)).toEqual([4, 5]);
  });

  test("losses have the seven digits of a single-precision number", () => {
    let run = begin({ lanes: [DENSE] });
    run = read(run, 1);
    const step = { ...laneOf(run), i: 1, nll: 12.643371582 };
    run = reduceRun(run, { kind: "step", step: { ms: 1, lanes: [step], done: false } });
    expect(cost.rows(run, choices()).rows[0]?.[3]).toBe(12.64337);
  });

  test("past what is kept one by one, there are means, and the file says so", () => {
    const at = EXACT + 4096;
    let loss = EMPTY;
    for (let i = 0; i < at; i += 1) loss = loss.push(i, 2 + (i % 4) / 4);
    const run = begin({ lanes: [DENSE] });
    const losses = Float32Array.from({ length: EXACT }, (_, i) => 2 + (i % 4) / 4);
    const lanes = run.lanes.map((lane) => ({ ...lane, at, loss, losses }));
    const { rows, note } = cost.rows({ ...run, at, lanes }, choices());
    // 20,480 positions in at most 2,048 bins: 16 each.
    expect(note).toBe("From row 16383 on, losses are not known one by one: each is the mean over 16 positions.");
    expect(rows[16_382]?.slice(0, 1)).toEqual([16_382]);
    expect(rows.slice(16_383).map((row) => [row[0], row[3]])).toEqual(
      Array.from({ length: 256 }, (_, n) => [EXACT - 1 + 16 * n, 2.375]),
    );
  });
});

/** The recorded caches keep f16, the independent program f32: a token's loss may differ by so much, nats. */
const F16 = 0.03;

test("the CSV of the recorded run is what the independent program computes on the same text", () => {
  const file = (path: string): string => readFileSync(new URL(path, import.meta.url), "utf8");
  const golden = JSON.parse(file("../../tests/golden/policies.json")) as {
    tokens: number[];
    runs: Record<string, { nll?: number[] }>;
  };
  const tape = new Tape(readRun(file("../runs/take-sinks-away.json"), "take-sinks-away.json"), [0, 1, 2]);
  let run = reduceRun(emptyRun(), tape.begin());
  for (let k = 0; k < tape.length; k += 1) run = reduceRun(run, tape.step(k));
  const { head, rows } = cost.rows(run, choices());
  const column = (name: string): number => head.indexOf(name);
  const off = rows.flatMap((row, i) => {
    const wrong = row[column("i")] !== i || row[column("token_id")] !== golden.tokens[i + 1];
    const losses = [
      ["nll_window_128", "window_128"],
      ["nll_sinks_4+124", "sinks_4_124"],
      ["nll_dense", "dense"],
    ].map(([mine = "", theirs = ""]) => Math.abs(Number(row[column(mine)]) - (golden.runs[theirs]?.nll?.[i] ?? Number.NaN)));
    return !wrong && losses.every((error) => error <= F16) ? [] : [`${i}: ${losses.join(" ")}`];
  });
  expect(rows).toHaveLength(run.at - 1);
  expect(rows.length).toBeGreaterThan(300);
  expect(off).toEqual([]);
  // What the curve ends at is the sum of the differences.
  const extra = rows.reduce((sum, row) => sum + Number(row[column("nll_window_128")]) - Number(row[column("nll_dense")]), 0);
  const last = run.lanes[0]?.cost.bins.at(-1);
  expect(last && mean(last)).toBeCloseTo(extra, 1);
});

/** A step of the first lane as the engine gives it. */
function laneOf(run: RunState) {
  const lane = run.lanes[0];
  if (lane === undefined) throw new Error("no lane");
  const { held, capacity, sinks, tail, bytes } = lane;
  const none = new Float32Array();
  return { ...word(1), best: null, ended: false, ms: null, held, capacity, sinks, tail, bytes, evicted: null, sink_mass: none, first_mass: none };
}

test.describe("cache", () => {
  test("every slot in reading order: sinks, what left, what is packed, the tail", () => {
    // 401 tokens: 4 sinks, then 124 of which those from 4 + 12 x 32 = 388 on are not packed yet.
    const run = after({ lanes: [PACKED] }, 401);
    const [lane] = run.lanes;
    if (lane === undefined) throw new Error("no lane");
    const found = places(lane, true);
    const kinds = Array.from({ length: found.total }, (_, i) => placeAt(found, i));
    const runs = kinds.reduce<[string, number][]>((all, { kind }) => {
      const last = all.at(-1);
      if (last?.[0] === kind) last[1] += 1;
      else all.push([kind, 1]);
      return all;
    }, []);
    // The oldest kept is 277; its group began at 4 + 8 x 32 = 260, and 276 left with the last token.
    expect(runs).toEqual([
      ["sink", 4],
      ["masked", 16],
      ["evicted", 1],
      ["packed", 111],
      ["tail", 13],
    ]);
    expect(kinds[0]).toEqual({ kind: "sink", slot: 0, position: 0, token: "The" });
    expect(kinds[20]).toEqual({ kind: "evicted", position: 276 });
    expect(kinds[21]).toEqual({ kind: "packed", slot: 4, position: 277, token: word(277).text });
    expect(kinds.at(-1)).toEqual({ kind: "tail", slot: 127, position: 400, token: word(400).text });
    // (16 bits) x 23,040 / 16 and (4 + 32 / 32) x 23,040 / 16.
    expect([slotBytes(run, lane, "tail"), slotBytes(run, lane, "packed")]).toEqual([23_040, 7_200]);
    expect(cache.words(run, choices())).toBe(
      "128 of 128 slots: 4 sinks, 111 packed in int4, 13 exact; token 400 came, token 276 left; 1.8 MB.",
    );
  });

  test("a cell is as high as its values take bits", () => {
    for (const [kv, part] of [
      ["int8", 9 / 16],
      ["int4", 5 / 16],
      ["int2", 3 / 16],
    ] as const) {
      const shapes = cache.shapes(after({ lanes: [{ ...PACKED, kv }] }, 401), BOX, choices());
      const height = (ink: string): number[] => [
        ...new Set(
          shapes.flatMap((s) =>
            s.kind === "rect" && s.fill !== null && "ink" in s.fill && s.fill.ink === ink && s.y > 30 ? [s.height + 1] : [],
          ),
        ),
      ];
      const [whole = 0] = height("tail");
      expect(height("packed")).toEqual([whole * part]);
    }
  });

  test("a line stands in the gap where a packed group ends", () => {
    const edges = (run: RunState, box = BOX) =>
      paths(cache.shapes(run, box, choices({ still: true }))).flatMap(({ ink, width, points }) => (ink === "ink" && width === 1 ? [points] : []));
    const grid = cache.keys?.kind === "grid" ? cache.keys : null;
    const run = after({ lanes: [PACKED] }, 401);
    // Groups of 32 begin behind the four sinks: 277 to 387 are packed, so those that end are at 291, 323, 355 and 387.
    // Before them lie four sinks and 17 slots that have left while their group has not.
    const { columns } = grid?.size(run, BOX, choices({ still: true })) ?? { columns: 1 };
    const lines = edges(run);
    expect(lines).toHaveLength(4);
    for (const [i, end] of [291, 323, 355, 387].entries()) {
      const index = 4 + 17 + end - 277;
      const { rect, name } = grid?.cell(run, BOX, choices({ still: true }), Math.floor(index / columns), index % columns) ?? {};
      expect(name).toMatch(new RegExp(`stream ${end}, packed int4`));
      const [[x = 0, top = 0] = [], [, bottom = 0] = []] = lines[i] ?? [];
      const { x: left = 0, width = 0, y = 0, height = 0 } = rect ?? {};
      // In the gap of two pixels behind that cell, and as high as its row.
      expect(x).toBeGreaterThan(left + width);
      expect(x).toBeLessThan(left + width + 2);
      expect([top < y, bottom > y + height]).toEqual([true, true]);
      expect(x).toBeLessThanOrEqual(BOX.width);
    }
    expect(cache.caption(run, choices())).toContain("a line ends each packed group");
    // Groups of 64 end half as often: at 323 and 387.
    expect(edges(after({ lanes: [{ ...PACKED, group: 64, tail: 64 }] }, 401))).toHaveLength(2);
    const exact = after({ lanes: [SINKS] }, 300);
    expect(edges(exact)).toHaveLength(0);
    expect(cache.caption(exact, choices())).not.toContain("group");
    // A cell of four slots: the groups are those of 32 still.
    const large = after({ lanes: [{ ...PACKED, recent: 1020 }] }, 401);
    expect(texts(cache.shapes(large, { width: 285, height: 200 }, choices()))).toContain("a cell stands for 4 slots");
    expect(edges(large, { width: 285, height: 200 })).toHaveLength(Math.floor((401 - 4) / 32));
  });

  test("four sinks have rings, what left a cross, what is free an outline", () => {
    const early = cache.shapes(after({ lanes: [SINKS] }, 10), BOX, choices());
    const cells = (shapes: readonly Shape[], ink: string) =>
      shapes.filter((s) => s.kind === "rect" && s.stroke === ink && s.y > 20).length;
    expect(cells(early, "sink")).toBe(4);
    expect(cells(early, "grid")).toBe(118);
    const late = cache.shapes(after({ lanes: [SINKS] }, 300), BOX, choices());
    expect([cells(late, "sink"), cells(late, "grid")]).toEqual([4, 0]);
    // Two strokes in the grid and two in the legend.
    const crosses = (set: Partial<Choices>) =>
      paths(cache.shapes(after({ lanes: [SINKS] }, 300), BOX, choices(set))).filter(({ ink, width }) => ink === "window" && width === 2).length;
    expect(crosses({})).toBe(4);
    expect(crosses({ still: true })).toBe(0);
  });

  test("a cell has a name; where a cell stands for several, it names the ends", () => {
    const run = after({ lanes: [SINKS] }, 300);
    const grid = cache.keys?.kind === "grid" ? cache.keys : null;
    const { columns } = grid?.size(run, BOX, choices({ still: true })) ?? { columns: 1 };
    const named = (slot: number) =>
      grid?.cell(run, BOX, choices({ still: true }), Math.floor(slot / columns), slot % columns)?.name;
    expect(named(2)).toBe(`slot 2 of 128, “${word(2).text}”, stream 2, sink, 23,040 bytes in all layers`);
    expect(named(17)).toBe(`slot 17 of 128, “${word(189).text}”, stream 189, recent, 23,040 bytes in all layers`);
    expect(named(128)).toBeUndefined();
    const large = after({ lanes: [{ ...SINKS, recent: 4092 }] }, 20);
    expect(texts(cache.shapes(large, { width: 300, height: 240 }, choices()))).toContain("a cell stands for 16 slots");
    expect(grid?.cell(large, { width: 300, height: 240 }, choices(), 0, 1)?.name).toMatch(/^from slot 16 of 4,096, .*; to slot 31 of 4,096, empty$/);
  });

  test("a million slots are as quick as a hundred", () => {
    const run = after({ lanes: [{ ...SINKS, recent: 1_048_576 }] }, 20);
    expect(cache.shapes(run, BOX, choices()).length).toBeLessThan(2000);
    expect(cache.rows(run, choices()).rows).toHaveLength(20);
  });
});

test.describe("attention", () => {
  test("words, cells and rows by layer and head", () => {
    const run = after({ lanes: [SINKS] }, 50);
    expect(attention.title(run, choices())).toBe("Attention on the sinks, by layer and head");
    expect(attention.words(run, choices())).toBe(
      "On average 36% of attention goes to the 4 sinks; by layer from 0% (layer 0) to 72% (layer 29).",
    );
    const grid = attention.keys?.kind === "grid" ? attention.keys : null;
    expect(grid?.size(run, BOX, choices())).toEqual({ rows: 30, columns: 9 });
    const cell = grid?.cell(run, BOX, choices(), 20, 3);
    expect(cell?.name).toBe("layer 20, head 3: 44%");
    expect(cell?.opens).toEqual({ lane: 0, layer: 20, head: 3 });
    const { rows } = attention.rows(run, choices());
    expect(rows).toHaveLength(30);
    expect(rows[20]?.slice(0, 6)).toEqual(["sinks 4+124", 20, 0.25, 0.3125, 0.375, 0.4375]);
  });

  test("a map that is empty yet names its layers as when it is full, and none where the model is not known", () => {
    const named = (run: RunState): [text: string, y: number][] =>
      attention.shapes(run, BOX, choices()).flatMap((s) => (s.kind === "text" && s.anchor === "end" && s.at[0] < 50 ? [[s.text, s.at[1]]] : []));
    const full = named(after({ lanes: [SINKS], count: 64 }, 50));
    expect(full.map(([text]) => text)).toEqual(["5", "10", "15", "20", "25", "29", "0", "1"]);
    expect(named(after({ lanes: [SINKS], count: 64 }, 0))).toEqual(full);
    const unknown = { ...after({ lanes: [SINKS], count: 64 }, 0), model: null };
    // Those that are left belong to the curve below.
    expect(named(unknown)).toEqual(full.slice(-2));
    expect(texts(attention.shapes(unknown, BOX, choices()))).toEqual(expect.arrayContaining(["layer", "head"]));
    expect(attention.rows(unknown, choices())).toEqual({ head: ["lane", "layer"], rows: [] });
    const grid = attention.keys?.kind === "grid" ? attention.keys : null;
    expect(grid?.size(unknown, BOX, choices())).toEqual({ rows: 0, columns: 0 });
    expect([grid?.cell(unknown, BOX, choices(), 0, 0), grid?.hit(unknown, BOX, choices(), [100, 60])]).toEqual([null, null]);
  });

  test("before the first map of a recording it is said when that comes", () => {
    const full = after({ lanes: [SINKS] }, 50);
    const run: RunState = { ...full, origin: "recorded", lanes: full.lanes.map((lane) => ({ ...lane, heads: null })) };
    const said = (maps_every: number | null) => texts(attention.shapes({ ...run, maps_every }, { width: 900, height: 300 }, choices()));
    expect(said(64)).toContain("first map at token 64");
    for (const never of [null, 32]) expect(said(never)).toContain("not recorded");
  });

  test("a figure of one lane begins with the one that packs most", () => {
    const run = after({ lanes: [WINDOW, SINKS, PACKED] }, 50);
    expect(laneIndex(run, choices())).toBe(2);
    expect(laneIndex(after({ lanes: [WINDOW, SINKS] }, 50), choices())).toBe(1);
    expect(laneIndex(run, choices({ lane: 0 }))).toBe(0);
  });

  test("two lanes are side by side on one scale, and the window's goes to nothing", () => {
    const run = after(THREE, 300);
    expect(attention.words(run, choices())).toContain(
      "In the window lane, on average 0.5% of attention goes to the first four slots;",
    );
    const shapes = attention.shapes(run, BOX, choices());
    const heats = shapes.filter((s) => s.kind === "rect" && s.fill !== null && "heat" in s.fill);
    // 2 x 270, and 24 of the scale.
    expect(heats).toHaveLength(564);
    expect(texts(shapes)).toEqual(expect.arrayContaining(["window", "sinks", "layer", "head", "29", "1", "0.5", "0"]));
    const grid = attention.keys?.kind === "grid" ? attention.keys : null;
    expect(grid?.cell(run, BOX, choices(), 5, 10)?.opens).toEqual({ lane: 1, layer: 5, head: 1 });
  });

  test("a head that was asked for shows each slot, with rings on the sinks", () => {
    const head = { lane: 0, layer: 14, head: 3 };
    let run = read(begin({ lanes: [SINKS] }), 200);
    const opened = choices({ head });
    expect(texts(attention.shapes(run, BOX, opened))).toContain("Comes with the next token.");
    expect(texts(attention.shapes({ ...run, done: true }, BOX, opened))).toContain("Run ended: start it again.");
    run = read(reduceRun(run, { kind: "probs", ...head }), 1);
    const shapes = attention.shapes(run, BOX, opened);
    expect(texts(shapes)).toContain("Where layer 14, head 3 looks now");
    expect(shapes.filter((s) => s.kind === "ring")).toHaveLength(4);
    // The first slot has half of it all, and so half of the height of 48.
    const bars = shapes.flatMap((s) => (s.kind === "rect" && s.fill !== null && "ink" in s.fill ? [s.height] : []));
    expect(bars).toHaveLength(128);
    expect(bars[0]).toBe(24);
    expect(bars[5]).toBeCloseTo((48 * 0.5) / 127, 5);
    expect(attention.words(run, opened)).toContain("Layer 14, head 3 gives 51% to the first slots.");
    const logarithmic = attention.shapes(run, BOX, choices({ head, logShare: true }));
    const taller = logarithmic.flatMap((s) => (s.kind === "rect" && s.fill !== null && "ink" in s.fill ? [s.height] : []));
    // 1 - log(1/254) / log(1/10,000).
    expect(taller[5]).toBeCloseTo(48 * (1 - Math.log(254) / Math.log(10_000)), 4);
  });
});

test.describe("memory", () => {
  test("the parts, everything kept, and what was saved", () => {
    const run = after({ lanes: [PACKED] }, 400);
    // 4 x 23,040; 124 x 23,040 / 4; 124 x 23,040 / 16; 32 x 23,040; 4 tokens of slack at 5/16.
    expect(memory.words(run, choices())).toBe(
      "The cache takes 1.8 MB, 1,751,040 bytes: sinks 92,160, codes 714,240, scales 178,560, tail 737,280 and slack 28,800. " +
        "Keeping all 400 tokens in f16 would take 9.2 MB. That is 7.5 MB (81%) saved.",
    );
    const shapes = memory.shapes(run, BOX, choices());
    expect(texts(shapes)).toEqual(
      expect.arrayContaining(["MB", "Saved so far: 7.5 MB (81%)", "↗ 9.2 MB", "in f16", "codes", "scales", "tail"]),
    );
    expect(shapes.filter((s) => s.kind === "area")).toHaveLength(5);
  });

  test("the parts are those of their time, in the file and in the plot", () => {
    const parts = [
      { sinks: 4000, codes: 0, scales: 0, tail: 6000, slack: 0 },
      { sinks: 4000, codes: 2000, scales: 500, tail: 3000, slack: 500 },
    ];
    let run = begin({ lanes: [PACKED] });
    for (const [i, bytes] of parts.entries()) {
      const lane = { ...laneOf(after({ lanes: [PACKED] }, i + 1)), i, nll: null, bytes };
      run = reduceRun(run, { kind: "step", step: { ms: 1, lanes: [lane], done: false } });
    }
    const { head, rows } = memory.rows(run, choices());
    expect(head).toEqual(["lane", "stream", "cache_bytes", "dense_f16_bytes", "sinks_bytes", "recent_bytes", "scales_bytes", "tail_bytes", "slack_bytes"]);
    expect(rows.map((row) => row[0])).toEqual(["sinks 4+124 int4", "sinks 4+124 int4"]);
    expect(rows.map((row) => row.slice(1))).toEqual([
      [0, 10_000, 23_040, 4000, 0, 0, 6000, 0],
      [1, 10_000, 46_080, 4000, 2000, 500, 3000, 500],
    ]);
    // Where there were no codes they have no height.
    const codes = memory.shapes(run, BOX, choices()).filter((s) => s.kind === "area")[1]?.points ?? [];
    const first = Math.min(...codes.map(([x]) => x));
    expect(new Set(codes.filter(([x]) => x === first).map(([, y]) => y)).size).toBe(1);
    expect(new Set(codes.map(([, y]) => y)).size).toBe(2);
  });

  test("the line of everything leaves the plot at four times the cache, and says so", () => {
    const dense = (tokens: number) =>
      paths(memory.shapes(small(tokens), BOX, choices())).find(({ ink, width }) => ink === "dense" && width === 2.5);
    const small = (tokens: number) => after({ lanes: [{ ...SINKS, recent: 60 }], count: 400 }, tokens);
    // The cache is 64 tokens; 4 x 64 = 256 are drawn.
    expect(dense(200)?.points).toHaveLength(200);
    expect(dense(300)?.points).toHaveLength(256);
    expect(texts(memory.shapes(small(200), BOX, choices()))).toContain("all kept");
    expect(texts(memory.shapes(small(300), BOX, choices()))).toContain("↗ 6.9 MB");
  });

  test("below it, how far the key channels of a layer range", () => {
    // 64 channels a head, three heads: all 2 but one of 8 in layer 0, of 4 in layer 3.
    const ranges = (widest: number) => Array.from({ length: 192 }, (_, channel) => (channel === 70 ? widest : 2));
    const key_ranges = [{ layer: 3, ranges: ranges(4) }, { layer: 0, ranges: ranges(8) }];
    const run = { ...after({ lanes: [PACKED] }, 400), key_ranges };
    const bars = (chosen = choices()) => {
      const [strip = []] = memory.shapes(run, BOX, chosen).flatMap((s) => (s.kind === "area" ? [s.points] : []));
      const bottom = strip[0]?.[1] ?? Number.NaN;
      // Two points a channel, between the two at the ends.
      return strip.slice(1, -1).map(([, y]) => bottom - y);
    };
    expect(bars()).toHaveLength(384);
    expect((bars()[140] ?? 0) / (bars()[0] ?? 0)).toBeCloseTo(4, 6);
    expect((bars(choices({ keyLayer: 3 }))[141] ?? 0) / (bars(choices({ keyLayer: 3 }))[383] ?? 0)).toBeCloseTo(2, 6);
    expect(texts(memory.shapes(run, BOX, choices()))).toContain("Keys, layer 0: widest 8, median 2");
    expect(memory.words(run, choices({ keyLayer: 3 }))).toContain("Of the 192 key channels of layer 3 the widest ranges over 4, the middle one over 2.");
    const layers = memory.options?.(run, choices()).at(-1) ?? [];
    expect(layers.map(({ text, pressed }) => [text, pressed])).toEqual([["3", false], ["0", true]]);
    // The plot gives it its room.
    const plain = memory.shapes(after({ lanes: [PACKED] }, 400), BOX, choices());
    const depth = (shapes: Shape[]) => Math.max(...shapes.flatMap((s) => (s.kind === "text" && s.text === "tokens" ? [s.at[1]] : [])));
    expect(depth(plain) - depth(memory.shapes(run, BOX, choices()))).toBe(46);
  });

  test("a logarithmic axis says so by its numbers, and keeps all in the plot", () => {
    const shapes = memory.shapes(after({ lanes: [PACKED] }, 4000), BOX, choices({ logMemory: true }));
    expect(texts(shapes)).toEqual(expect.arrayContaining(["0.01", "0.1", "1", "10", "100", "all kept", "cache"]));
    expect(texts(shapes).some((text) => text.startsWith("↗"))).toBe(false);
  });
});

test("time: medians now and at the start", () => {
  const run = after({ lanes: [SINKS, RECOMPUTE], count: 600 }, 600);
  // Every 16th token is timed: 30 + (i mod 7) / 2, whose median is 31.5; recompute takes 40 more.
  expect(time.words(run, choices())).toBe(
    "sinks: 31.5 ms now, 31.5 ms at the start, 1.00 times that. recompute: 71.5 ms now, 71.5 ms at the start, 1.00 times that.",
  );
  expect(time.caption(run, choices())).toContain("Recompute pays for its window again");
  const shapes = time.shapes(run, BOX, choices());
  expect(texts(shapes)).toEqual(expect.arrayContaining(["ms", "0", "sinks 4+124", "recompute 128"]));
  expect(time.rows(run, choices()).rows[2]).toEqual(["sinks 4+124", 32, 32, 1, 32, 32, 32]);
});

test("what it still knows: sinks, what left, what is kept", () => {
  const run = after({ lanes: [SINKS], mode: "chat", count: null }, 300);
  expect(knows.words(run, choices())).toBe(
    "Of 300 tokens, tokens 0 to 3 are sinks, tokens 4 to 175 have left and tokens 176 to 299 are kept.",
  );
  const rows = knows.rows(run, choices()).rows;
  expect(rows.map((row) => row.slice(1, 4))).toEqual([
    ["sinks", 0, 4],
    ["left", 4, 176],
    ["kept", 176, 300],
  ]);
  const between = (from: number, to: number) => Array.from({ length: to - from }, (_, n) => word(from + n).text).join("");
  expect(rows.map((row) => row[4])).toEqual([between(0, 4), between(4, 176), between(176, 300)]);
});

test("the first word leaves at the same place in every figure over the stream", () => {
  const run = after(THREE, 400);
  for (const width of [262, 358, 584]) {
    const box = { width, height: 240 };
    const places = ALL.map((figure) => markAt(figure.shapes(run, box, choices())));
    expect(places[0]).toBeGreaterThan(50);
    for (const place of places) expect(place).toBe(places[0]);
  }
});

test("the trained length is marked as soon as it is in sight", () => {
  const run = after({ lanes: [SINKS], count: 9000 }, 100);
  expect(texts(cost.shapes(run, BOX, choices()))).toContain("trained length, 8,192");
  expect(texts(cost.shapes(run, BOX, choices({ span: 512 })))).not.toContain("trained length, 8,192");
});

test("lanes of one policy differ in their dashes", () => {
  for (const lane of [SINKS, WINDOW, DENSE, RECOMPUTE]) {
    const run = begin({ lanes: [lane, { ...lane, recent: 60 }, { ...lane, recent: 30 }, { ...lane, recent: 20 }] });
    const styles = run.lanes.map((_, n) => laneStyle(run, n));
    expect(new Set(styles.map(({ dash }) => dash)).size).toBe(4);
    expect(new Set(styles.map(({ ink }) => ink)).size).toBe(1);
  }
});

test("every figure is drawn before there is anything to draw, of any run, at any size, and nothing is cut off", () => {
  const plans: Plan[] = [
    { lanes: [] },
    THREE,
    { lanes: [WINDOW, { ...SINKS, sinks: 1 }, SINKS, PACKED] },
    { lanes: [{ ...SINKS, sink_text: "\n\n\n\n" }], mode: "free", count: null },
    { lanes: [DENSE], mode: "chat", count: null },
  ];
  // Gathered, since a hundred thousand expectations would take minutes.
  const faults: string[] = [];
  for (const figure of ALL) {
    for (const plan of plans) {
      for (const tokens of [0, 1, 100, 300]) {
        const run = after(plan, plan.lanes.length === 0 ? 0 : tokens);
        for (const box of [BOX, { width: 262, height: 190 }, { width: 1200, height: 500 }]) {
          for (const set of [choices(), choices({ view: "loss", logMemory: true, span: 512, still: true })]) {
            const shapes = figure.shapes(run, box, set);
            const drawn = markup(shapes, NAMES, "t");
            const what = `${figure.id}, ${tokens} tokens, ${box.width} wide`;
            if (/NaN|Infinity|undefined/.test(drawn)) faults.push(`${what}: no number`);
            for (const s of shapes) if (s.kind === "text" && !inside(s, box)) faults.push(`${what}: ${s.text}`);
            for (const text of [figure.words(run, set), figure.title(run, set), figure.caption(run, set)]) {
              if (text.length < 6 || /NaN|undefined|null/.test(text)) faults.push(`${what}: ${text}`);
            }
            const { head, rows } = figure.rows(run, set);
            if (rows.some((row) => row.length !== head.length)) faults.push(`${what}: a row`);
          }
        }
      }
    }
  }
  expect([...new Set(faults)]).toEqual([]);
});

/** Text lies in its box, for letters of 6 pixels. */
function inside({ text, at, anchor }: { text: string; at: Point; anchor: "start" | "middle" | "end" }, box: typeof BOX): boolean {
  const width = text.length * 6;
  const left = at[0] - { start: 0, middle: width / 2, end: width }[anchor];
  return left >= -2 && left + width <= box.width + 2 && at[1] <= box.height && at[1] >= 9;
}

test("a figure takes a few milliseconds, after thousands of tokens too", () => {
  const run = after({ lanes: [WINDOW, { ...PACKED, recent: 1020 }, DENSE, { ...SINKS, recent: 60 }], count: 4000 }, 2500);
  const slow = ALL.flatMap((figure) => {
    // The best of some, since the machine may be busy with other things.
    const times = Array.from({ length: 20 }, () => {
      const before = performance.now();
      markup(figure.shapes(run, BOX, choices()), NAMES, "t");
      return performance.now() - before;
    });
    return Math.min(...times) > 6 ? [`${figure.id}: ${Math.min(...times)} ms`] : [];
  });
  expect(slow).toEqual([]);
});

test("text in a drawing cannot become markup", () => {
  const text = markup([{ kind: "text", at: [0, 0], text: "<b>&\"", anchor: "end", ink: "ink" }], NAMES, "t");
  expect(text).toContain("&lt;b&gt;&amp;&quot;</text>");
});
