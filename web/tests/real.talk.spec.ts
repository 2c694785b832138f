// A conversation with the real module and the real weights, through everything that reads it again. The server
// is named by SINKSTREAM_URL.

import { expect, test } from "@playwright/test";
import { ask, errors, parts, watchWorkers } from "./page.ts";

test.setTimeout(10 * 60_000);
const patient = { timeout: 120_000 };
const QUERY = "view=chat&backend=cpu&sinks=4&recent=124&temperature=0&penalty=1";

test("kept, gone on with, read again after a kill, and warm in a few seconds", async ({ page }) => {
  const found = errors(page);
  await watchWorkers(page);
  const { status, note, answer, stop, load, log } = parts(page);
  await page.goto(`/?${QUERY}`);
  await load.click();
  await expect(status).toContainText("Ready.", patient);
  await expect(status).not.toContainText("gave no room");

  await ask(page, "Tell me a long story about a lighthouse keeper.");
  await expect.poll(async () => Number((await page.locator("#stream").textContent())?.replace(",", "")), patient).toBeGreaterThan(70);
  await stop.click();
  await expect(note).toHaveText(/stopped\.$/);
  const begun = (await answer.textContent()) ?? "";
  await page.getByRole("button", { name: /^Go on, turn/ }).click();
  await expect.poll(async () => (await answer.textContent())?.length, patient).toBeGreaterThan(begun.length + 60);
  expect(((await answer.textContent()) ?? "").startsWith(begun.trimEnd())).toBe(true);

  // Killed in the middle: it comes back from this browser's storage and goes on.
  const before = (await answer.textContent()) ?? "";
  await page.evaluate(() => (window as unknown as { workers: Worker[] }).workers.at(-1)?.terminate());
  await expect(status).toContainText("Going on at token", patient);
  await expect.poll(async () => (await answer.textContent())?.length, patient).toBeGreaterThan(before.length + 20);
  expect(((await answer.textContent()) ?? "").startsWith(before.trimEnd())).toBe(true);
  await stop.click();
  await expect(note).toHaveText(/stopped\..* Refilled from the text at token \d+\.$/, patient);

  // Another cache: the conversation is read into it, and what does not fit is left out.
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Recent: last tokens kept").fill("60");
  await page.getByLabel("Recent: last tokens kept").blur();
  await expect(log).toContainText("Refilled from the text: you changed a setting.");
  await expect(page.locator("#held")).toHaveText("64 of 64", patient);
  await expect(status).toContainText("Ready.", patient);
  await page.keyboard.press("Escape");

  // The second visit, from the address to the first token of an answer.
  await page.goto(`/?${QUERY}&max=1`);
  await expect(status).toContainText("Ready.", patient);
  await page.getByRole("button", { name: "New chat" }).click();
  await page.goto("about:blank");
  const began = Date.now();
  await page.goto(`/?${QUERY}&max=1`);
  await expect(status).toContainText("Ready.", patient);
  const ready = Date.now();
  await ask(page, "Explain rain to a child, please, in few words.");
  await expect(note).toHaveText(/^1 token/, patient);
  console.log(`warm visit: ready after ${ready - began} ms, first token after ${Date.now() - began} ms`);
  expect(found).toEqual([]);
});

test("packed as the settings say, keys and values apart, in groups of their own", async ({ page }) => {
  const { status, note } = parts(page);
  await page.goto("/?backend=cpu&load=1&sinks=4&recent=124&kv=int4&kv_k=int8&group=16&tail=48&temperature=0&max=60");
  await expect(status).toContainText("Ready.", patient);
  // 30 layers of 3 heads of 64 values. 4 sinks and a tail of 48, K and V, in 2 bytes; 8 groups of 16 tokens, a byte a
  // value of K and half of one of V, and 4 bytes of scale and zero for 16 of either.
  const values = 30 * 3 * 64;
  const bytes = values * (2 * 2 * (4 + 48) + 128 * (1 + 0.5) + (2 * 128 * 4) / 16);
  await expect(page.locator("#bytes")).toHaveText(`${(bytes / 1e6).toFixed(1)} MB`);
  await ask(page, "Tell me about the sea.");
  await expect(note).toHaveText(/^60 tokens, cut/, patient);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("What stays in the cache").selectOption("recompute");
  await expect(status).toContainText("recompute keeps nothing that could be packed");
  await page.getByLabel("What stays in the cache").selectOption("sinks");
  await ask(page, "And about ships?");
  await expect(page.locator(".turn.model")).toHaveCount(2);
  await expect(note).toHaveText(/^60 tokens, cut/, patient);
});
