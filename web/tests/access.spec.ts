// The page for everyone: axe finds nothing in either theme at either width, keys reach everything,
// and nothing scrolls sideways.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { expect, type Page, test } from "@playwright/test";
import { ask, mock, open, parts } from "./page.ts";
import { allRuns, serve } from "./runs.ts";

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
      await page.goto("/?view=chat&backend=cpu&sinks=4&recent=60&colour=red");
      await expect(parts(page).load).toBeEnabled();
      expect(await violations(page), "before loading").toEqual([]);
      await page.context().route("**/models/*.gguf", () => {});
      await parts(page).load.click();
      await expect(parts(page).bar).toBeVisible();
      expect(await violations(page), "loading").toEqual([]);
      await mock(page, { rejectAt: 60, delay: 5, again: true });
      await open(page, "&backend=cpu&sinks=4&recent=60");
      expect(await violations(page), "ready").toEqual([]);
      await ask(page, "Hello");
      await expect(parts(page).answer).toContainText("The lamp");
      await expect(parts(page).status).toContainText("It broke twice");
      expect(await violations(page), "broken off").toEqual([]);
      expect(await sideways(page)).toBeLessThanOrEqual(0);
    });
  }
}

for (const colorScheme of ["light", "dark"] as const) {
  for (const [width, height] of [
    [1440, 900],
    [768, 1024],
    [390, 844],
    [320, 640],
  ] as const) {
    test(`axe: the comparison, ${colorScheme}, ${width} wide`, async ({ page }) => {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height });
      await mock(page, { delay: 5 });
      await serve(page, await allRuns());
      const slider = page.getByRole("slider", { name: "Position in the run" });
      const act = page.locator("#act");
      await page.goto("/?backend=cpu");
      await expect(page.locator(".words span").nth(3)).toBeAttached();
      expect(await violations(page), "playing").toEqual([]);
      await act.click();
      await slider.focus();
      await page.keyboard.press("End");
      await expect(page.locator(".lane.window")).toContainText("repeating itself");
      await page.getByRole("button", { name: "What happened?" }).click();
      expect(await violations(page), "at its end").toEqual([]);
      await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
      await expect(page.locator(".lane")).toHaveCount(3);
      await slider.focus();
      await page.keyboard.press("End");
      await page.getByRole("button", { name: "Read the last 128 again" }).click();
      await page.getByText("Another text, and runs as files").click();
      await expect(page.locator(".words .w2").first()).toBeAttached();
      expect(await violations(page), "tinted").toEqual([]);
      expect(await sideways(page)).toBeLessThanOrEqual(0);
      if (width < 768) await page.getByRole("button", { name: "Menu" }).click();
      await page.getByRole("button", { name: "Experiments" }).click();
      await expect(page.getByRole("dialog", { name: "Experiments" })).toBeVisible();
      expect(await violations(page), "the menu").toEqual([]);
      await page.keyboard.press("Escape");
      await open(page, "&backend=cpu&x=two-bits&view=compare&play=0");
      await act.click();
      await expect(page.locator(".badge")).toContainText("Live");
      expect(await violations(page), "live").toEqual([]);
      expect(await sideways(page)).toBeLessThanOrEqual(0);
    });
  }
}

test("Tab goes through the comparison in reading order, and the player is one stop", async ({ page }) => {
  await serve(page, await allRuns());
  await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
  await expect(page.locator(".lane")).toHaveCount(3);
  await expect(parts(page).load).toBeEnabled();
  const header = ["Experiments", "New chat", "Chats", "Models", "Settings", "Theme: system", "Help"];
  expect(await tabs(page, 23)).toEqual([
    ...["To the comparison", "To the figures", ...header, "Load the model", "Use a file", "compare-tab"],
    ...["act", "What happened?", "Text of window 128", "Text of sinks 4+124", "Text of dense"],
    ...["Position in the run", "Pace", "Another text, and runs as files", "message", "Send", "figures"],
  ]);
});

test("nothing scrolls sideways at 320 pixels", async ({ page }) => {
  await page.setViewportSize({ width: 320, height: 640 });
  await mock(page, { most: 20 });
  await open(page, "&backend=cpu");
  await ask(page, "x".repeat(300));
  await expect(parts(page).note).toHaveText("20 tokens.");
  expect(await sideways(page)).toBeLessThanOrEqual(0);
});

/** Names of what Tab comes to, in order. */
async function tabs(page: Page, count: number): Promise<string[]> {
  const names: string[] = [];
  for (let i = 0; i < count; i += 1) {
    await page.keyboard.press("Tab");
    names.push(
      await page.evaluate(() => {
        const e = document.activeElement;
        return e?.getAttribute("aria-label") || e?.id || e?.textContent || "";
      }),
    );
  }
  return names;
}

test("Tab reaches everything, in reading order", async ({ page }) => {
  await mock(page, { delay: 20 });
  await open(page, "&backend=cpu");
  const header = ["Experiments", "New chat", "Chats", "Models", "Settings", "Theme: system", "Help"];
  const prompts = [
    "Tell me a long story about a lighthouse keeper",
    "Explain rain to a child",
    "Keep talking for as long as you like",
  ];
  expect(await tabs(page, 17)).toEqual([
    ...["To the chat", "To the figures", ...header],
    ...["chat-tab", "Conversation", ...prompts, "message", "Send", "figures"],
  ]);
  await ask(page, "Hello");
  await expect(parts(page).stop).toBeEnabled();
  await parts(page).message.focus();
  await page.keyboard.press("Tab");
  await expect(parts(page).stop).toBeFocused();
});

test("Tab reaches everything in the settings and the panels", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu&kv=int4");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  const press = (name: string) => page.getByRole("button", { name, exact: true }).press("Enter");
  await press("Settings");
  await page.getByRole("button", { name: "Close" }).focus();
  const fields = ["policy", "sinks", "recent", "kv", "kv_k", "kv_v", "group", "tail", "positions"];
  const choice = ["temperature", "top_k", "top_p", "min_p", "penalty", "seed", "max"];
  const place = ["backend", "system", "spoken", "awake"];
  expect(await tabs(page, 21)).toEqual([
    ...[...fields, ...choice, ...place].map((name) => `set-${name}`),
    "Copy the command",
  ]);
  for (const field of await page.locator("#settings :is(input, select, textarea)").all()) {
    await expect(field).toHaveAccessibleName(/./);
  }
  await page.keyboard.press("Escape");
  for (const [panel, names] of [
    ["Chats", ["Export this chat", "Import", "Open Hello", "Remove Hello"]],
    [
      "Models",
      [
        ...["Use SmolLM2-135M-Instruct", "Remove SmolLM2-135M-Instruct"],
        ...["The default: SmolLM2-135M-Instruct (98 MB)", "Use a file", "model-url", "Fetch", "Clear storage"],
      ],
    ],
    ["Help", ["Copy the self-test's result", expect.stringContaining("For a bug report")]],
  ] as const) {
    await press(panel);
    // What is kept is listed a moment after the panel has opened.
    await expect(page.getByRole("button", { name: /^(Open Hello|Use SmolLM2|Copy the self-test)/ })).toBeVisible();
    await page.getByRole("button", { name: "Close" }).focus();
    expect(await tabs(page, names.length), panel).toEqual(names);
    await page.keyboard.press("Escape");
  }
});

test("every panel opens, is named, closes with Escape and gives the focus back", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  for (const name of ["Chats", "Models", "Help"]) {
    const opener = page.getByRole("button", { name, exact: true });
    await opener.focus();
    await page.keyboard.press("Enter");
    await expect(page.getByRole("dialog", { name })).toBeVisible();
    expect(await violations(page), name).toEqual([]);
    await page.keyboard.press("Escape");
    await expect(page.getByRole("dialog")).toBeHidden();
    await expect(opener).toBeFocused();
  }
  const settings = page.getByRole("button", { name: "Settings" });
  await settings.focus();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("complementary", { name: "Settings" })).toBeVisible();
  await expect(page.getByLabel("What stays in the cache")).toBeFocused();
  expect(await violations(page), "settings").toEqual([]);
  await page.keyboard.press("Escape");
  await expect(settings).toBeFocused();
  await page.locator("h1").click();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog", { name: "Help" })).toBeVisible();
  await page.keyboard.press("Escape");
  await page.getByRole("tab", { name: "Chat" }).focus();
  await page.keyboard.press("ArrowRight");
  await expect(page.getByRole("tab", { name: "Compare" })).toBeFocused();
  await expect(page.getByRole("tabpanel", { name: "Compare" })).toContainText("Take the sinks away");
  expect(await violations(page), "compare").toEqual([]);
});

test("on a phone the menu opens and closes, and everything in it is large enough to touch", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await mock(page);
  await page.goto("/?view=chat&backend=cpu");
  const menu = page.getByRole("button", { name: "Menu" });
  await expect(page.getByRole("button", { name: "Settings" })).toBeHidden();
  await menu.click();
  await expect(menu).toHaveAttribute("aria-expanded", "true");
  for (const entry of await page.locator(".entries button").all()) {
    expect((await entry.boundingBox())?.height).toBeGreaterThanOrEqual(44);
  }
  await page.getByRole("button", { name: "Settings" }).click();
  await expect(page.getByRole("complementary", { name: "Settings" })).toBeVisible();
  expect(await sideways(page)).toBeLessThanOrEqual(0);
});

test("on a phone Escape closes the menu, and what was opened from it gives the focus back to it", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await mock(page);
  await page.goto("/?view=chat&backend=cpu");
  const menu = page.getByRole("button", { name: "Menu" });
  await menu.click();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Escape");
  await expect(menu).toHaveAttribute("aria-expanded", "false");
  await expect(menu).toBeFocused();
  for (const name of ["Settings", "Chats", "Help"]) {
    await menu.click();
    await page.getByRole("button", { name, exact: true }).click();
    await expect(page.getByRole("heading", { name, exact: true })).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(menu, name).toBeFocused();
  }
});

test("turns are headings, and one key from the message the last answer begins", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  const skip = page.getByRole("button", { name: "To the answer" });
  await expect(skip).toHaveCount(0);
  for (const text of ["one", "two"]) {
    await ask(page, text);
    await expect(parts(page).message).toBeFocused();
    await expect(parts(page).note).toHaveText("3 tokens.");
  }
  await expect(page.getByRole("heading", { level: 3 }).filter({ hasText: /^(You|Model)/ })).toHaveCount(4);
  await page.keyboard.press("Shift+Tab");
  await expect(skip).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "Model" }).last()).toBeFocused();
  await page.keyboard.press("Tab");
  await expect(page.getByRole("button", { name: "Copy, turn 4" })).toBeFocused();
  expect(await violations(page)).toEqual([]);
});

for (const media of [
  { forcedColors: "active" },
  { reducedMotion: "reduce" },
  { colorScheme: "dark", forcedColors: "active" },
] as const) {
  test(`nothing is lost with ${JSON.stringify(media)}`, async ({ page }) => {
    await page.emulateMedia(media);
    await mock(page, { most: 100 });
    await open(page, "&backend=cpu&sinks=4&recent=60");
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText(/^100 tokens/);
    expect(await violations(page)).toEqual([]);
    await expect(page.locator("#cost svg")).toContainText("first word left");
    // The curve is there, and has a colour that is not the card's.
    const curve = page.locator("#cost svg path[stroke-width='2.5']");
    const [stroke, card] = await curve.evaluate((path) => {
      const figure = path.closest("figure");
      return [getComputedStyle(path).stroke, figure === null ? "" : getComputedStyle(figure).backgroundColor];
    });
    expect(stroke).not.toBe(card);
  });
}

for (const [width, height] of [
  [320, 640],
  [768, 1024],
  [3840, 2160],
] as const) {
  test(`${width} by ${height}: nothing sideways, the message box in sight`, async ({ page }) => {
    await page.setViewportSize({ width, height });
    await mock(page, { most: 100 });
    await open(page, "&backend=cpu&sinks=4&recent=60");
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText(/^100 tokens/);
    expect(await sideways(page)).toBeLessThanOrEqual(0);
    await expect(parts(page).message).toBeInViewport();
    await page.getByRole("tab", { name: "Compare" }).click();
    expect(await sideways(page)).toBeLessThanOrEqual(0);
  });
}

test("the theme that was chosen is there again", async ({ page }) => {
  await page.emulateMedia({ colorScheme: "light" });
  await mock(page);
  await page.goto("/?view=chat&backend=cpu");
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Theme: system" }).click();
  await page.getByRole("button", { name: "Theme: light" }).click();
  await expect(page.getByRole("button", { name: "Theme: dark" })).toBeVisible();
  expect(await background()).not.toBe(light);
  await page.goto("/?view=chat&backend=cpu");
  await expect(page.getByRole("button", { name: "Theme: dark" })).toBeVisible();
  expect(await background()).not.toBe(light);
});

test("the focus is never lost when a button goes", async ({ page }) => {
  await mock(page, { delay: 20 });
  await page.goto("/?view=chat&backend=cpu");
  const { load, message, send, stop, bar, status } = parts(page);
  const cancel = page.getByRole("button", { name: "Cancel" });
  await page.context().route("**/models/*.gguf", () => {});
  await expect(load).toBeEnabled();
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
