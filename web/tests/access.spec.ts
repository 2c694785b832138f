// The page for everyone: axe finds nothing in either theme at either width, keys reach everything,
// and nothing scrolls sideways.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { expect, type Page, test } from "@playwright/test";
import { ask, mock, open, parts } from "./page.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  nodes: { target: string[]; failureSummary: string }[];
}

async function violations(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  const found = await page.evaluate(
    async () =>
      (await (window as unknown as { axe: { run(): Promise<{ violations: unknown[] }> } }).axe.run())
        .violations,
  );
  return (found as Violation[]).flatMap(({ id, nodes }) =>
    nodes.map(({ target, failureSummary }) => `${id}: ${target.join(" ")}: ${failureSummary}`),
  );
}

const sideways = (page: Page) =>
  page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

for (const colorScheme of ["light", "dark"] as const) {
  for (const [width, height] of [
    [1280, 800],
    [390, 844],
  ] as const) {
    test(`axe: ${colorScheme}, ${width} wide, in every state`, async ({ page }) => {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height });
      await mock(page, { rejectAt: 60, delay: 5 });
      await page.goto("/?backend=cpu&sinks=4&recent=60&colour=red");
      await expect(parts(page).load).toBeEnabled();
      expect(await violations(page), "before loading").toEqual([]);
      await page.context().route("**/models/*.gguf", () => {});
      await parts(page).load.click();
      await expect(parts(page).bar).toBeVisible();
      expect(await violations(page), "loading").toEqual([]);
      await mock(page, { rejectAt: 60, delay: 5 });
      await open(page, "&backend=cpu&sinks=4&recent=60");
      expect(await violations(page), "ready").toEqual([]);
      await ask(page, "Hello");
      await expect(parts(page).answer).toContainText("The lamp");
      await expect(parts(page).status).toContainText("broke off");
      expect(await violations(page), "broken off").toEqual([]);
      expect(await sideways(page)).toBeLessThanOrEqual(0);
    });
  }
}

test("nothing scrolls sideways at 320 pixels", async ({ page }) => {
  await page.setViewportSize({ width: 320, height: 640 });
  await mock(page, { most: 20 });
  await open(page, "&backend=cpu");
  await ask(page, "x".repeat(300));
  await expect(parts(page).note).toHaveText("20 tokens.");
  expect(await sideways(page)).toBeLessThanOrEqual(0);
});

test("Tab reaches everything, in reading order", async ({ page }) => {
  await mock(page, { delay: 20 });
  await open(page, "&backend=cpu");
  const names: string[] = [];
  for (let i = 0; i < 6; i += 1) {
    await page.keyboard.press("Tab");
    names.push(
      await page.evaluate(() => {
        const e = document.activeElement;
        return e?.getAttribute("aria-label") || e?.id || e?.textContent || "";
      }),
    );
  }
  expect(names).toEqual(["To the chat", "To the figures", "Conversation", "message", "Send", "figures"]);
  await ask(page, "Hello");
  await expect(parts(page).stop).toBeEnabled();
  await parts(page).message.focus();
  await page.keyboard.press("Tab");
  await expect(parts(page).stop).toBeFocused();
});

test("the focus is never lost when a button goes", async ({ page }) => {
  await mock(page, { delay: 20 });
  await page.goto("/?backend=cpu");
  const { load, message, send, stop, bar, status } = parts(page);
  const cancel = page.getByRole("button", { name: "Cancel" });
  await page.context().route("**/models/*.gguf", () => {});
  await load.focus();
  await page.keyboard.press("Enter");
  await expect(bar).toBeVisible();
  await expect(cancel).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(load).toBeFocused();
  await mock(page, { delay: 20 });
  await page.keyboard.press("Enter");
  await expect(status).toContainText("Ready.");
  await expect(message).toBeFocused();
  await page.keyboard.type("Hello");
  await send.focus();
  await page.keyboard.press("Enter");
  await expect(message).toBeFocused();
  await stop.focus();
  await page.keyboard.press("Enter");
  await expect(stop).toBeDisabled();
  await expect(message).toBeFocused();
});
