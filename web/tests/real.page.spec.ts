// Lanes of the real module and model on the page: what they lose is what the program wrote down of the same text.

import { readFileSync } from "node:fs";
import { expect, type Page, test } from "@playwright/test";
import type { RecordedRun } from "../../crates/wasm/run";
import { readRun, Tape } from "../src/replay.ts";
import { emptyRun, reduceRun, type RunState } from "../src/run.ts";
import { mean } from "../src/series.ts";
import { errors, parts } from "./page.ts";

test.setTimeout(20 * 60_000);

const patient = { timeout: 15 * 60_000 };

/** Lets an experiment run live to its end, and gives it as the page saves it. */
async function live(page: Page, query: string): Promise<RecordedRun> {
  await page.goto(`/?backend=cpu&load=1&view=compare&play=0${query}`);
  await expect(parts(page).status).toContainText("Ready.", patient);
  const act = page.locator("#act");
  await act.click();
  await expect(page.locator(".badge")).toContainText("Live", patient);
  await expect(act).toHaveText("Again", patient);
  await page.getByText("Another text, and runs as files").click();
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save this run" }).click();
  return readRun(readFileSync(await (await saving).path(), "utf8"), "live.json");
}

function played(run: RecordedRun): RunState {
  const tape = new Tape(run, run.lanes.map((_, i) => i));
  let state = reduceRun(emptyRun(), tape.begin());
  for (let k = 0; k < tape.length; k += 1) state = reduceRun(state, tape.step(k));
  return state;
}

test("cpu: take-sinks-away loses what the independent program says, and the window falls behind", async ({ page }) => {
  const found = errors(page);
  const { runs } = JSON.parse(
    readFileSync(new URL("../../tests/golden/policies.json", import.meta.url), "utf8"),
  ) as { runs: Record<string, { nll: number[] }> };
  const lanes = ["window:128:f32", "sinks:4%2B124:f32", "dense:f32"].map((lane) => `&lane=${lane}`).join("");
  const here = await live(page, `&x=take-sinks-away&n=430${lanes}`);
  for (const [i, name] of ["window_128", "sinks_4_124", "dense"].entries()) {
    const known = runs[name]?.nll ?? [];
    const apart = (here.lanes[i]?.nll ?? []).map((loss, k) => Math.abs((loss ?? Number.NaN) - (known[k] ?? Number.NaN)));
    console.log(`${name}: ${apart.length} losses, at most ${Math.max(...apart).toExponential(1)} nats apart`);
    expect(apart).toHaveLength(429);
    expect(Math.max(...apart)).toBeLessThan(2e-3);
  }
  const [window, sinks] = played(here).lanes;
  const gap = (window?.rolling.bins ?? []).flatMap((bin, k) => {
    const other = sinks?.rolling.bins[k];
    return other !== undefined && bin.first > 128 && bin.first <= 428 ? [mean(bin) - mean(other)] : [];
  });
  console.log(`the window is at most ${Math.max(...gap).toFixed(2)} nats a token behind`);
  expect(Math.max(...gap)).toBeGreaterThan(0.5);
  expect(found).toEqual([]);
});

test("cpu: the hero moment, live, is that of the recording", async ({ page }) => {
  const found = errors(page);
  const here = await live(page, "&x=hero&n=300");
  const there = readRun(readFileSync(new URL("../runs/hero.json", import.meta.url), "utf8"), "hero.json");
  expect(here.tokens).toEqual(there.tokens?.slice(0, here.count));
  for (const lane of here.lanes) {
    const other = there.lanes.find(({ name }) => name === lane.name);
    const apart = lane.nll.map((loss, i) => Math.abs((loss ?? Number.NaN) - (other?.nll[i] ?? Number.NaN)));
    const average = apart.reduce((sum, one) => sum + one, 0) / apart.length;
    console.log(`${lane.name}: ${average.toExponential(1)} nats apart, at most ${Math.max(...apart).toExponential(1)}`);
    // A value that lies between two of f16 may be rounded to either, by sums in another order.
    expect(average).toBeLessThan(1e-3);
    expect(Math.max(...apart)).toBeLessThan(2e-2);
  }
  const { lanes } = played(here);
  const sure = (i: number) => Math.exp(-(lanes[i]?.losses[257] ?? Number.NaN));
  expect(sure(0)).toBeLessThan(0.01);
  expect(sure(1)).toBeGreaterThan(0.85);
  expect(sure(2)).toBeGreaterThan(0.85);
  await expect(page.locator(".lane.window .verdict")).toContainText("Sure of “hour”, the word behind the mark:0.6%");
  expect(found).toEqual([]);
});
