// 3,000 tokens of the real model on the page, on the CPU, through 4 sinks and 124 recent tokens: the module's
// memory, the page's heap and its elements stay as they are, and a token at the end takes no longer than one
// near the beginning. Then 2,000 tokens of a comparison. `npm run soak`, against a server named by SINKSTREAM_URL.

import { readFileSync } from "node:fs";
import { type CDPSession, expect, test } from "@playwright/test";
import { parts } from "./page.ts";

const TOKENS = Number(process.env["SINKSTREAM_TOKENS"] ?? 3000);
const PART = 500;

test.setTimeout(30 * 60_000);

interface Row {
  tokens: number;
  seconds: number;
  heap: number;
  nodes: number;
  module: number;
}

/** Bytes of JavaScript values and number of elements, after what is no longer used was thrown away. */
async function weigh(session: CDPSession): Promise<{ heap: number; nodes: number }> {
  await session.send("HeapProfiler.collectGarbage");
  const { metrics } = await session.send("Performance.getMetrics");
  const value = (name: string): number => metrics.find((m) => m.name === name)?.value ?? Number.NaN;
  return { heap: value("JSHeapUsedSize"), nodes: value("Nodes") };
}

test(`${TOKENS} tokens`, async ({ page }) => {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await page.goto("/?backend=cpu&load=1&sinks=4&recent=124&temperature=0.8&seed=1");
  const { status, message, send } = parts(page);
  await expect(status).toContainText("Ready.", { timeout: 120_000 });
  const module = async (): Promise<number> => {
    await page.getByRole("button", { name: "Help" }).click();
    const report = JSON.parse((await page.locator(".report").textContent()) ?? "{}") as { moduleBytes: number };
    await page.keyboard.press("Escape");
    return report.moduleBytes;
  };
  // Read from the page's own answers, a part at a time; the model may end an answer, and is then asked again.
  const written = (): Promise<number> =>
    page.evaluate(() =>
      [...document.querySelectorAll<HTMLElement>(".turn.model .text")].length === 0
        ? 0
        : Number(document.querySelector("#stream")?.textContent?.replaceAll(",", "") ?? 0),
    );
  const rows: Row[] = [];
  let [began, from] = [Date.now(), 0];
  while (rows.length * PART < TOKENS) {
    if (await send.isEnabled()) {
      await message.fill("Tell me more, as long as you can.");
      await send.click();
    }
    await page.waitForTimeout(50);
    const now = await written();
    if (now < from + PART) continue;
    const seconds = ((Date.now() - began) / (now - from)) * (PART / 1000);
    rows.push({ tokens: now, seconds, ...(await weigh(session)), module: await module() });
    [began, from] = [Date.now(), await written()];
  }
  console.table(rows);
  const [, second] = rows;
  const last = rows.at(-1);
  if (second === undefined || last === undefined) throw new Error("there are too few parts to compare");
  expect(last.module).toBe(second.module);
  expect(last.heap - second.heap).toBeLessThan(2_000_000);
  expect(last.nodes - second.nodes).toBeLessThan(1500);
  console.log(`seconds for ${PART} tokens, last over second: ${(last.seconds / second.seconds).toFixed(3)}`);
  expect(last.seconds / second.seconds).toBeLessThanOrEqual(1.05);
});

test("2,000 tokens of a comparison", async ({ page }) => {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await page.goto("/?backend=cpu&load=1&view=compare&play=0&lane=window:128&lane=sinks:4%2B124");
  await expect(parts(page).status).toContainText("Ready.", { timeout: 120_000 });
  const story = readFileSync(new URL("../../tests/golden/story.txt", import.meta.url), "utf8");
  await page.getByText("Another text, and runs as files").click();
  await page.getByLabel("Your own text").fill(`${story}\n\n${story}`);
  // The lanes begin at once.
  await page.getByRole("button", { name: "Use this text" }).click();
  const place = page.locator(".place");
  const read = async (): Promise<number> => Number((await place.innerText()).split(" ")[0]?.replaceAll(",", ""));
  const rows: Omit<Row, "seconds" | "module">[] = [];
  for (let at = PART; at <= 2000; at += PART) {
    await expect.poll(read, { timeout: 120_000, intervals: [100] }).toBeGreaterThanOrEqual(at);
    rows.push({ tokens: await read(), ...(await weigh(session)) });
  }
  console.table(rows);
  const [first] = rows;
  const last = rows.at(-1);
  if (first === undefined || last === undefined) throw new Error("nothing was weighed");
  expect(last.heap - first.heap).toBeLessThan(500_000);
  expect(last.nodes - first.nodes).toBeLessThan(500);
});
