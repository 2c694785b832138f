// What breaks while the real model writes, at random moments: each time the transcript is whole, and the next answer
// comes. A few times each with the other specs of the real model; `npm run faults` tries each many times. The server
// is named by SINKSTREAM_URL, the moments by SINKSTREAM_SEED.

import { readFileSync } from "node:fs";
import { test as base, type BrowserContext, expect, type Page } from "@playwright/test";
import { ask, parts, random, watchWorkers } from "./page.ts";

export interface Options {
  /** How often each fault is tried. */
  times: number;
}

const test = base.extend<Options>({ times: [2, { option: true }] });
test.setTimeout(60 * 60_000);

const SEED = Number(process.env["SINKSTREAM_SEED"] ?? Date.now() % 1_000_000);
const patient = { timeout: 120_000 };
const CACHE = "load=1&sinks=4&recent=124&temperature=0.7&seed=1";

interface Turn {
  role: "user" | "assistant";
  text: string;
}

const table: { kind: string; "times tried": number; "times whole": number; seconds: number }[] = [];

test.afterAll(() => {
  console.log(`seed ${SEED}`);
  console.table(table);
});

async function open(context: BrowserContext, query: string): Promise<Page> {
  const page = await context.newPage();
  await watchWorkers(page);
  await page.goto(`/?${query}`);
  await expect(parts(page).status).toContainText("Ready.", patient);
  return page;
}

/** All that was said, as the page hands it out. */
async function transcript(page: Page): Promise<Turn[]> {
  await page.getByRole("button", { name: "Chats" }).click();
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export this chat" }).click();
  const { turns } = JSON.parse(readFileSync(await (await saved).path(), "utf8")) as { turns: Turn[] };
  await page.keyboard.press("Escape");
  return turns.filter(({ role }) => role === "user" || role === "assistant");
}

/** The answer is complete, and the page waits for the next message. */
async function settled(page: Page): Promise<void> {
  const { note, status } = parts(page);
  const goOn = page.getByRole("button", { name: /^Go on, turn/ });
  const again = page.getByRole("button", { name: /^Write again, turn/ });
  await expect(async () => {
    await expect(status).toContainText("Ready.");
    // A tab that was closed has the answer as far as it was, if it was begun; whoever comes back goes on with it.
    if (/broke off/.test((await note.textContent()) ?? "")) await ((await goOn.isVisible()) ? goOn : again).click();
    await expect(note).toHaveText(/^[\d,]+ tokens?(, cut at the limit asked for|, stopped)?\./, { timeout: 1 });
  }).toPass(patient);
}

/** What can be compared of a text while it is written: Markdown moves all but its letters. */
const letters = (text: string): string => text.replaceAll(/[^\p{L}]/gu, "");

/**
 * Asks, lets `longest` milliseconds pass at most, breaks something, and looks at what is left of the conversation; so
 * many times, each answer being the one that comes after the fault before.
 */
async function tried(
  kind: string,
  times: number,
  longest: number,
  page: Page,
  fault: (page: Page) => Promise<Page>,
  prepare = async (page: Page): Promise<Page> => page,
): Promise<void> {
  const next = random(SEED + kind.length);
  const row = { kind, "times tried": times, "times whole": 0, seconds: 0 };
  const began = Date.now();
  table.push(row);
  let before: Turn[] = [];
  for (let i = 0; i < times; i += 1) {
    page = await prepare(page);
    const question = `Tell me something about the number ${i + 1}.`;
    await ask(page, question);
    await page.waitForTimeout(next() * longest);
    const seen = (await parts(page).answer.textContent()) ?? "";
    page = await fault(page);
    await settled(page);
    const turns = await transcript(page);
    const last = turns.at(-1);
    expect(turns.slice(0, -2), `${kind}, ${i + 1}: what was said before`).toEqual(before);
    expect(turns.at(-2), `${kind}, ${i + 1}: the question`).toMatchObject({ role: "user", text: question });
    expect(last?.role).toBe("assistant");
    // Only an answer that was stopped may have no word yet, or begin with a number.
    const note = (await parts(page).note.textContent()) ?? "";
    if (!/^\d+ tokens?, stopped/.test(note)) {
      expect(letters(last?.text ?? ""), `${kind}, ${i + 1}: the answer, “${last?.text}”, ${note}`).toMatch(/./);
    }
    expect(letters((await parts(page).answer.textContent()) ?? "").startsWith(letters(seen)), seen).toBe(true);
    before = turns;
    row["times whole"] += 1;
    row.seconds = Math.round((Date.now() - began) / 1000);
  }
  await ask(page, "And another one.");
  await expect(parts(page).answer).not.toBeEmpty(patient);
}

test("Stop, then Send", async ({ context, times }) => {
  const page = await open(context, `backend=cpu&${CACHE}&max=200`);
  await tried("Stop, then Send", Math.min(times, 20), 1500, page, async () => {
    await page.keyboard.press("Escape");
    return page;
  });
});

test("the worker is killed", async ({ context, times }) => {
  const page = await open(context, `backend=cpu&${CACHE}&max=48`);
  await tried("worker killed", times, 1500, page, async () => {
    const count = () => page.evaluate(() => (window as unknown as { workers: Worker[] }).workers.length);
    const had = await count();
    await page.evaluate(() => (window as unknown as { workers: Worker[] }).workers.at(-1)?.terminate());
    await expect.poll(count, patient).toBe(had + 1);
    return page;
  });
});

test("the tab is closed and opened again", async ({ context, times }) => {
  const query = `backend=cpu&${CACHE}&max=48`;
  await tried("tab closed", times, 1500, await open(context, query), async (page) => {
    await page.close();
    return open(context, query);
  });
});

test("the device is destroyed", async ({ context, times }) => {
  // The worker's own script, with a hook in front of it.
  await context.route("**/assets/worker-*.js", async (route) => {
    const response = await route.fetch();
    const hook = `{
      const { requestDevice } = GPUAdapter.prototype;
      GPUAdapter.prototype.requestDevice = async function (...asked) {
        const device = await requestDevice.apply(this, asked);
        const channel = new BroadcastChannel("device");
        channel.onmessage = () => {
          device.destroy();
          channel.postMessage("destroyed");
        };
        return device;
      };
    }\n`;
    await route.fulfill({ response, body: hook + (await response.text()) });
  });
  // Software imitates the graphics processor here, so the cache and the answers are short.
  const query = `backend=webgpu&load=1&sinks=4&recent=60&temperature=0.7&seed=1&max=6`;
  const destroy = async (page: Page): Promise<Page> => {
    await page.evaluate(async () => {
      const channel = new BroadcastChannel("device");
      const destroyed = new Promise((resolve) => (channel.onmessage = resolve));
      channel.postMessage("destroy");
      await destroyed;
      channel.close();
    });
    return page;
  };
  // A device that broke twice is left for the CPU; a page that is opened anew tries it again.
  const onDevice = async (page: Page): Promise<Page> => {
    if (((await parts(page).runs.textContent()) ?? "").startsWith("WebGPU")) return page;
    await page.close();
    return open(context, query);
  };
  await tried("device destroyed", times < 3 ? 1 : times, 4000, await open(context, query), destroy, onDevice);
});
