// What three lanes cost beside one, in one forward, on the CPU: the engine itself in a page of its own, with the real
// model, turn by turn. `npm run lanes`, against a server named by SINKSTREAM_URL, on a quiet machine.

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import type { Engine, LaneSettings } from "../../crates/wasm/types";
import { bench } from "./page.ts";

/** How many times one lane's time three may take. */
const MOST = 2.2;
const TURNS = 7;
/** Tokens of a turn; those that fill the caches do not count. */
const TOKENS = 320;
const CAPACITY = 128;

const lane = (settings: Partial<LaneSettings>): LaneSettings =>
  ({ policy: "sinks", sinks: 4, recent: CAPACITY - 4, kv: "f16", ...settings });
const SINKS = [lane({})];
const THREE = [lane({ policy: "window", sinks: 0, recent: CAPACITY }), ...SINKS, lane({ policy: "dense", sinks: 0 })];

test.setTimeout(10 * 60_000);

test("window, sinks and dense in one forward", async ({ page }) => {
  const text = readFileSync(new URL("../../tests/golden/story.txt", import.meta.url), "utf8");
  await bench(page);
  const turns = await page.evaluate(
    async ({ text, sets, tokens, full, turns }) => {
      const { engine } = window as unknown as { engine: Engine };
      const means: number[][] = [];
      // A page's clock goes by tenths of a millisecond, 1% of a token: a median would be off by up to half of that. The mean of
      // the middle half is not, and minds a stall as little.
      const middle = (all: number[]): number => {
        const sorted = all.sort((a, b) => a - b).slice(all.length >> 2, all.length - (all.length >> 2));
        return sorted.reduce((sum, ms) => sum + ms, 0) / sorted.length;
      };
      // The first turn does not count: in it the browser compiles.
      for (let turn = 0; turn <= turns; turn += 1) {
        const times: number[][] = sets.map(() => []);
        for (const [i, lanes] of sets.entries()) {
          engine.compare(lanes, { mode: "forced", text, from: 0, n: tokens });
          for (let at = 0, done = false; !done; at += 1) {
            const step = await engine.compare_next(null);
            done = step.done;
            // Every now and then each lane reads alone, to be timed.
            const apart = lanes.length > 1 && step.lanes.some((lane) => lane?.ms != null);
            if (at >= full && !apart && !done) times[i]?.push(step.ms);
          }
          engine.compare_end();
        }
        if (turn > 0) means.push(times.map(middle));
      }
      return means;
    },
    { text, sets: [SINKS, THREE], tokens: TOKENS, full: CAPACITY, turns: TURNS },
  );
  const median = (of: (turn: number[]) => number): number => turns.map(of).sort((a, b) => a - b)[turns.length >> 1] ?? Number.NaN;
  const [one, three] = [median(([one = Number.NaN]) => one), median(([, three = Number.NaN]) => three)];
  // Neighbours in time are compared: a machine is not equally fast all the while.
  const ratio = median(([one = Number.NaN, three = Number.NaN]) => three / one);
  console.table([
    { lanes: `sinks 4+${CAPACITY - 4}`, "ms a token": one.toFixed(2), "tokens of each lane a second": (1000 / one).toFixed(1) },
    { lanes: `window ${CAPACITY}, sinks 4+${CAPACITY - 4}, dense`, "ms a token": three.toFixed(2), "tokens of each lane a second": (1000 / three).toFixed(1) },
  ]);
  console.log(`turn by turn: ${turns.map(([one = Number.NaN, three = Number.NaN]) => (three / one).toFixed(2)).join(", ")}`);
  console.log(`three lanes take ${ratio.toFixed(2)} times as long as one; at most ${MOST} allowed`);
  expect(ratio).toBeLessThanOrEqual(MOST);
});
