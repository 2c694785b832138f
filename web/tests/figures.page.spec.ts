// The figures in a browser: keys, names, tools, files, colours, and how often each is drawn.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { expect, type Locator, type Page, test } from "@playwright/test";
import { cost } from "../src/figures/cost.ts";
import { CHOICES } from "../src/figures/figure.ts";
import { openFigures } from "./harness.ts";
import { begin, DENSE, PACKED, type Plan, read, SINKS, WINDOW, word } from "./made.ts";
import { ask, mock, open, parts } from "./page.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const THREE: Plan = { lanes: [WINDOW, SINKS, DENSE], count: 512, title: "Take the sinks away" };
const CHAT: Plan = { lanes: [SINKS], mode: "chat" };
const TALL = { width: 700, height: 3200 };

const figure = (page: Page, id: string): Locator => page.locator(`#${id}`);
const said = (page: Page) => page.evaluate(() => window.figures.said);

/** Waits until a figure has been drawn. */
async function drawn(page: Page, ...ids: string[]): Promise<void> {
  for (const id of ids) await expect(page.locator(`#${id}-words`)).not.toHaveText("");
}

/** Opens a figure's menu and downloads one of its files. */
async function save(page: Page, id: string, item: string): Promise<{ name: string; bytes: Buffer }> {
  await figure(page, id).getByRole("button", { name: "Save or copy" }).click();
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("menuitem", { name: item, exact: true }).click(),
  ]);
  return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) };
}

test("a cursor goes along the stream by keys, is read out, and is the same in all figures", async ({ page }) => {
  await page.setViewportSize(TALL);
  const found = await openFigures(page, THREE, 400);
  await drawn(page, "cost", "memory");
  const slider = page.getByRole("slider", { name: "Extra cost since the first word left" });
  await slider.focus();
  await expect(slider).toHaveAttribute("aria-valuenow", "399");
  await page.keyboard.press("Home");
  for (const key of ["PageUp", "PageUp", "PageUp", "PageUp", "ArrowRight", "ArrowUp"]) await page.keyboard.press(key);
  await expect(slider).toHaveAttribute(
    "aria-valuetext",
    `token 130, “${word(130).text}”: window 3.50 nats, extra cost 2.00; sinks 2.56 nats, extra cost 0.13; dense 2.50 nats, extra cost 0.00`,
  );
  await expect(figure(page, "cost").locator(".tip p")).toHaveCount(4);
  for (const id of ["cost", "memory", "time"]) {
    await expect(figure(page, id).locator('path[stroke="var(--accent)"]')).toHaveCount(1);
  }
  await page.keyboard.press("ArrowLeft");
  await expect(slider).toHaveAttribute("aria-valuenow", "129");
  await page.keyboard.press("End");
  await expect(slider).toHaveAttribute("aria-valuenow", "399");
  await page.keyboard.press("Escape");
  await expect(figure(page, "cost").locator(".tip")).toBeHidden();
  expect(await page.evaluate(() => window.figures.run().cursor)).toBeNull();
  expect(found).toEqual([]);
});

test("the pointer moves the cursor; a click pins it, and a second one lets it go", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 400);
  await drawn(page, "cost");
  const at = () => page.evaluate(() => window.figures.run().cursor);
  const stop = figure(page, "cost").locator(".stop");
  await stop.hover({ position: { x: 200, y: 100 } });
  await expect.poll(at).toBeGreaterThan(100);
  await expect(figure(page, "cost").locator(".tip")).toBeVisible();
  await figure(page, "time").locator("h3").hover();
  await expect.poll(at).toBeNull();
  await stop.click({ position: { x: 200, y: 100 } });
  await figure(page, "time").locator("h3").hover();
  expect(await at()).toBeGreaterThan(100);
  await stop.click({ position: { x: 200, y: 100 } });
  await figure(page, "time").locator("h3").hover();
  await expect.poll(at).toBeNull();
});

test("one cell of the cache has the focus, and goes by keys", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, { lanes: [PACKED] }, 401);
  await drawn(page, "cache");
  const grid = page.getByRole("grid", { name: "What is in the cache now" });
  await expect(grid).not.toHaveAttribute("aria-colcount", "0");
  const columns = Number(await grid.getAttribute("aria-colcount"));
  const cell = grid.getByRole("gridcell");
  await expect(cell).toHaveCount(1);
  await cell.focus();
  await expect(cell).toHaveAccessibleName("slot 0 of 128, “The”, stream 0, sink, 23,040 bytes in all layers");
  await page.keyboard.press("ArrowRight");
  await expect(cell).toHaveAccessibleName(`slot 1 of 128, “${word(1).text}”, stream 1, sink, 23,040 bytes in all layers`);
  await page.keyboard.press("PageDown");
  // Sixteen masked places and one that just left lie before the packed ones.
  await expect(cell).toHaveAccessibleName(
    `slot 16 of 128, “${word(289).text}”, stream 289, packed int4, 7,200 bytes in all layers`,
  );
  const row = Math.floor(33 / columns);
  await expect(grid.getByRole("row")).toHaveAttribute("aria-rowindex", String(row + 1));
  await expect(cell).toHaveAttribute("aria-colindex", String((33 % columns) + 1));
  await page.keyboard.press("Control+End");
  await expect(cell).toHaveAccessibleName(`slot 127 of 128, “${word(400).text}”, stream 400, tail, exact, 23,040 bytes in all layers`);
  await page.keyboard.press("ArrowDown");
  await expect(cell).toHaveAccessibleName(/^slot 127 /);
  await page.keyboard.press("Control+Home");
  await page.keyboard.press("ArrowUp");
  await expect(cell).toHaveAccessibleName(/^slot 0 /);
  await expect(figure(page, "cache").locator(".tip")).toContainText("slot 0 of 128");
  // The cell lies where its drawing is.
  const [outer, inner] = [await grid.boundingBox(), await cell.boundingBox()];
  expect(inner?.width).toBeGreaterThan(5);
  expect((inner?.x ?? 0) - (outer?.x ?? 0)).toBeLessThan(2);
});

test("opening a cell of the attention asks for that head and shows where it looks", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 200);
  await drawn(page, "attention");
  const grid = page.getByRole("grid", { name: "Attention on the first slots, by layer and head" });
  await expect(grid).toHaveAttribute("aria-rowcount", "30");
  await expect(grid).toHaveAttribute("aria-colcount", "18");
  const cell = grid.getByRole("gridcell");
  await cell.focus();
  await page.keyboard.press("End");
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("ArrowDown");
  await expect(cell).toHaveAccessibleName("sinks 4+124, layer 3, head 8: 11%");
  await page.keyboard.press("Enter");
  expect(await page.evaluate(() => window.figures.run().asked)).toEqual({ lane: 1, layer: 3, head: 8 });
  await page.evaluate(() => window.figures.read(1));
  await cell.focus();
  await expect(page.locator("#attention figcaption")).toContainText("Each bar is one slot");
  await expect(page.locator("#attention-words")).toContainText("Layer 3, head 8 gives");
  const scale = figure(page, "attention").getByRole("button", { name: "Log axis" });
  await scale.click();
  await expect(scale).toHaveAttribute("aria-pressed", "true");
  await expect(figure(page, "memory").getByRole("button", { name: "Log axis" })).toHaveAttribute("aria-pressed", "false");
  await cell.focus();
  await page.keyboard.press("Escape");
  await expect(page.locator("#attention figcaption")).toContainText("Strong cells");
});

test("lanes, views and rolling means are chosen by buttons", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 400);
  await drawn(page, "cost", "cache");
  await figure(page, "cost").getByRole("button", { name: "Loss" }).click();
  await expect(page.getByRole("heading", { name: "Loss of each lane (mean of the last 64 tokens)" })).toBeVisible();
  await figure(page, "cost").getByRole("button", { name: "Mean of the last 16 tokens" }).click();
  await expect(page.getByRole("heading", { name: "Loss of each lane (mean of the last 16 tokens)" })).toBeVisible();
  await expect(figure(page, "cost").getByRole("button", { name: "Mean of the last 16 tokens" })).toBeFocused();
  const [inCache, inMemory] = ["cache", "memory"].map((id) => figure(page, id).getByRole("button", { name: "Show the lane window 128" }));
  await expect(figure(page, "cache").getByRole("button", { name: "Show the lane sinks 4+124" })).toHaveAttribute("aria-pressed", "true");
  await expect(page.locator("#cache-words")).toContainText("sinks 4+124: 128 of 128 slots: 4 sinks");
  await inCache?.click();
  await inMemory?.focus();
  await expect(inMemory as Locator).toHaveAttribute("aria-pressed", "true");
  await expect(page.locator("#memory-words")).toContainText("window 128: The cache takes");
});

test("each figure is two stops for Tab: its tools, among which arrows go, and its drawing", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 300);
  await drawn(page, "cost", "cache", "attention", "memory", "time", "knows");
  await expect(page.locator(".told-kept")).toBeVisible();
  const stops: string[] = [];
  for (let i = 0; i < 12; i += 1) {
    await page.keyboard.press("Tab");
    stops.push(
      await page.evaluate(() => {
        const e = document.activeElement;
        return `${e?.closest("figure")?.id} ${e?.closest("[role=toolbar]") === null ? e?.getAttribute("role") : "tools"}`;
      }),
    );
  }
  expect(stops).toEqual([
    ...["cost tools", "cost slider", "cache tools", "cache gridcell", "attention tools", "attention gridcell"],
    ...["memory tools", "memory slider", "time tools", "time slider", "knows tools", "knows region"],
  ]);
  await figure(page, "cost").getByRole("button", { name: "Make it the lead figure" }).focus();
  await page.keyboard.press("ArrowRight");
  await expect(figure(page, "cost").getByRole("button", { name: "Show it as a table" })).toBeFocused();
  await page.keyboard.press("End");
  await expect(figure(page, "cost").getByRole("button", { name: "Loss" })).toBeFocused();
  await page.keyboard.press("ArrowRight");
  await expect(figure(page, "cost").getByRole("button", { name: "Make it the lead figure" })).toBeFocused();
});

test("any figure becomes the lead one: first in reading order, larger, and keeps the focus", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 300);
  await drawn(page, "memory");
  const order = () => page.locator("#figures > figure").evaluateAll((all) => all.map(({ id }) => id));
  expect(await order()).toEqual(["cost", "cache", "attention", "memory", "time", "knows"]);
  const before = await figure(page, "memory").locator(".stage").boundingBox();
  const button = figure(page, "memory").getByRole("button", { name: "Make it the lead figure" });
  await button.focus();
  await page.keyboard.press("Enter");
  expect(await order()).toEqual(["memory", "cost", "cache", "attention", "time", "knows"]);
  await expect(button).toBeFocused();
  await expect(button).toHaveAttribute("aria-pressed", "true");
  const after = await figure(page, "memory").locator(".stage").boundingBox();
  expect(after?.height).toBeGreaterThan(before?.height ?? 0);
  expect(await said(page)).toEqual(["lead memory"]);
});

test("the table is one, has at most 32 rows, and takes the drawing's room", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 400);
  await drawn(page, "cost");
  const before = await figure(page, "cost").boundingBox();
  await figure(page, "cost").getByRole("button", { name: "Show it as a table" }).click();
  const table = figure(page, "cost").getByRole("table");
  await expect(table).toBeVisible();
  await expect(table.getByRole("row")).toHaveCount(33);
  await expect(figure(page, "cost")).toContainText("32 of 399 rows, evenly apart; all of them are in the CSV.");
  await expect(table.getByRole("columnheader").first()).toHaveText("i");
  await expect(figure(page, "cost").locator(".stage")).toBeHidden();
  expect(await figure(page, "cost").boundingBox()).toEqual(before);
  await figure(page, "cost").getByRole("button", { name: "Show it as a picture" }).click();
  await expect(figure(page, "cost").locator(".stage")).toBeVisible();
  await expect(table).toBeHidden();
});

test("the SVG is the drawing on the screen, with colours, title, words and settings of its own", async ({ page }) => {
  await page.setViewportSize(TALL);
  await page.emulateMedia({ colorScheme: "dark" });
  await openFigures(page, THREE, 400);
  await drawn(page, "cost", "cache");
  const { name, bytes } = await save(page, "cost", "Save as SVG");
  expect(name).toBe("sinkstream-cost-take-sinks-away-400.svg".replace("take-", "take-the-"));
  const svg = bytes.toString();
  expect(svg).toContain('<title id="title">Extra cost since the first word left</title>');
  expect(svg).toContain("<desc id=\"desc\">After 400 tokens the window lane has cost 271.00 nats more than dense");
  expect(svg).toContain("SmolLM2-135M-Instruct; 400 tokens; window 128 · sinks 4+124 · dense");
  expect(svg).toContain('fill="rgb(28, 32, 36)"');
  expect(svg).not.toMatch(/var\(|class=|href/);
  const geometry = (markup: string) => [...markup.matchAll(/ d="([^"]+)"/g)].map(([, d]) => d);
  const screen = await figure(page, "cost").locator("svg").evaluate((element) => element.innerHTML);
  expect(geometry(svg)).toEqual(geometry(screen));
  expect(geometry(svg).length).toBeGreaterThan(8);
  // It is well-formed, and what is painted on a canvas becomes one, too.
  const cells = (await save(page, "cache", "Save as SVG")).bytes.toString();
  const wrong = await page.evaluate(
    (all) => all.map((text) => new DOMParser().parseFromString(text, "image/svg+xml").querySelector("parsererror")?.textContent ?? null),
    [svg, cells],
  );
  expect(wrong).toEqual([null, null]);
  expect(cells.match(/<rect /g)?.length).toBeGreaterThan(128);
});

test("the PNG has two pixels for each of the drawing's", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 300);
  await drawn(page, "attention");
  const { name, bytes } = await save(page, "attention", "Save as PNG");
  expect(name).toBe("sinkstream-attention-take-the-sinks-away-300.png");
  expect(bytes.subarray(1, 4).toString()).toBe("PNG");
  const stage = await figure(page, "attention").locator(".stage").boundingBox();
  expect(bytes.readUInt32BE(16)).toBe(2 * ((stage?.width ?? 0) + 32));
});

test("the CSV has every row to the digit, and what needs quotes has them", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, THREE, 300);
  await drawn(page, "cost");
  const lines = (await save(page, "cost", "Save as CSV")).bytes.toString().split("\n");
  expect(lines[0]).toBe(
    "i,token_id,token,nll_window_128,nll_sinks_4+124,nll_dense,evicted_from_window_128,evicted_to_window_128,evicted_from_sinks_4+124,evicted_to_sinks_4+124",
  );
  expect(lines).toHaveLength(301);
  expect(lines[1]).toBe('0,101," lamp",2.25,2.25,2.25,,,,');
  // 28 is the text's comma; i = 128 is the first prediction without token 0.
  const comma = lines.find((line) => line.startsWith("27,"));
  expect(comma).toBe(`27,${word(28).id},"${word(28).text}",2,2,2,,,,`);
  expect(lines[129]).toBe(`128,${word(129).id},"${word(129).text}",3.25,2.3125,2.25,0,1,4,5`);
  const { rows } = cost.rows(read(begin(THREE), 300), CHOICES);
  for (const [i, row] of rows.entries()) expect(lines[i + 1]?.split(",").slice(-7).join()).toBe(row.slice(3).join());
});

test("the menu goes by keys, copies a link and the text, and shortens the curves", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.setViewportSize(TALL);
  await openFigures(page, { ...THREE, count: 2000 }, 1500);
  await drawn(page, "memory");
  const opener = figure(page, "memory").getByRole("button", { name: "Save or copy" });
  const items = page.getByRole("menu").locator("button");
  await opener.focus();
  await page.keyboard.press("Enter");
  await expect(items.first()).toBeFocused();
  await page.keyboard.press("ArrowUp");
  await expect(items.last()).toBeFocused();
  await page.keyboard.press("Home");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("menu")).toHaveCount(0);
  await expect(opener).toBeFocused();
  const clip = () => page.evaluate(() => navigator.clipboard.readText());
  await opener.click();
  await page.getByRole("menuitem", { name: "Copy a link to this" }).click();
  await expect.poll(clip).toBe("https://example.org/?fig=memory");
  await opener.click();
  await page.getByRole("menuitem", { name: "Copy as text" }).click();
  await expect.poll(clip).toContain("The cache takes 2.9 MB, 2,949,120 bytes");
  expect(await said(page)).toEqual(["Copied.", "Copied."]);
  await expect(figure(page, "memory").locator("svg")).toContainText("1,000");
  await opener.click();
  await page.getByRole("menuitemcheckbox", { name: "Curves: last 512 tokens only" }).click();
  await expect(figure(page, "memory").locator("svg")).not.toContainText("1,000");
  await expect(figure(page, "cost").locator("svg")).toContainText("1,400");
});

test("each is drawn at its own pace, and only what is in sight", async ({ page }) => {
  await page.setViewportSize({ width: 700, height: 900 });
  await openFigures(page, THREE, 200);
  await drawn(page, "cost");
  const draws = await page.evaluate(async () => {
    const counts: Record<string, number> = { cost: 0, memory: 0, time: 0 };
    for (const id of Object.keys(counts)) {
      const svg = document.querySelector(`#${id} svg`);
      if (svg !== null) new MutationObserver(() => (counts[id] = (counts[id] ?? 0) + 1)).observe(svg, { childList: true });
    }
    for (let n = 0; n < 60; n += 1) {
      window.figures.read(1);
      await new Promise((done) => setTimeout(done, 50));
    }
    return counts;
  });
  // Three seconds or more: 4 a second, and none below the fold.
  expect(draws["cost"]).toBeGreaterThan(4);
  expect(draws["cost"]).toBeLessThan(30);
  expect(draws["memory"]).toBe(0);
  await figure(page, "memory").scrollIntoViewIfNeeded();
  await expect(figure(page, "memory").locator("svg")).toContainText("Saved so far");
});

test("a canvas has a pixel for each of the screen's, and its colours follow the theme", async ({ browser }) => {
  const context = await browser.newContext({ deviceScaleFactor: 2, viewport: TALL, colorScheme: "light" });
  const page = await context.newPage();
  await openFigures(page, THREE, 200);
  await drawn(page, "cache");
  const look = () =>
    figure(page, "cache").locator("canvas").evaluate((canvas) => {
      const { width, height } = canvas as HTMLCanvasElement;
      const context = (canvas as HTMLCanvasElement).getContext("2d");
      // The middle of the last cell of the first row.
      const pixels = context?.getImageData(0, 0, width, height).data ?? new Uint8ClampedArray();
      const found = new Set<string>();
      for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] === 255) found.add(`${pixels[i]} ${pixels[i + 1]} ${pixels[i + 2]}`);
      return { width, height, hasLight: found.has("182 131 0"), hasDark: found.has("246 210 39") };
    });
  const stage = await figure(page, "cache").locator(".stage").boundingBox();
  const size = { width: (stage?.width ?? 0) * 2, height: (stage?.height ?? 0) * 2 };
  await expect.poll(look).toEqual({ ...size, hasLight: true, hasDark: false });
  await page.emulateMedia({ colorScheme: "dark" });
  await expect.poll(look).toMatchObject({ hasLight: false, hasDark: true });
  await page.evaluate(() => document.documentElement.setAttribute("data-theme", "light"));
  await expect.poll(look).toMatchObject({ hasLight: true, hasDark: false });
  await context.close();
});

for (const media of [
  { colorScheme: "light" },
  { colorScheme: "dark" },
  { forcedColors: "active" },
  { reducedMotion: "reduce" },
] as const) {
  test(`axe finds nothing with ${JSON.stringify(media)}`, async ({ page }) => {
    await page.emulateMedia(media);
    await page.setViewportSize(TALL);
    const found = await openFigures(page, CHAT, 400);
    await drawn(page, "cost", "cache", "attention", "memory", "time", "knows");
    const violations = async (): Promise<string[]> => {
      await page.evaluate(AXE);
      return page.evaluate(async () => {
        const { axe } = window as unknown as {
          axe: { run(): Promise<{ violations: { id: string; nodes: { target: string[]; failureSummary: string }[] }[] }> };
        };
        const { violations } = await axe.run();
        return violations.flatMap(({ id, nodes }) => nodes.map((n) => `${id}: ${n.target.join(" ")}: ${n.failureSummary}`));
      });
    };
    expect(await violations(), "a chat").toEqual([]);
    await page.evaluate(([plan]) => window.figures.begin(plan, 300), [THREE] as const);
    await figure(page, "cost").getByRole("button", { name: "Show it as a table" }).click();
    await expect(figure(page, "cost").getByRole("table")).toBeVisible();
    await figure(page, "memory").getByRole("button", { name: "Save or copy" }).click();
    await expect(page.getByRole("menu")).toBeVisible();
    expect(await violations(), "lanes, a table and a menu").toEqual([]);
    expect(found).toEqual([]);
  });
}

test("the forgotten fact: plant it, talk past it, ask", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, CHAT, 200);
  await drawn(page, "knows");
  const part = page.getByRole("region", { name: "The forgotten fact" });
  const [plant, talk, ask] = ["Plant: “The password is heron.”", "Talk past it", "Ask"].map((name) => part.getByRole("button", { name }));
  if (plant === undefined || talk === undefined || ask === undefined) throw new Error("a button is missing");
  await expect(talk).toBeDisabled();
  await expect(ask).toBeDisabled();
  await plant.click();
  // 40 tokens were read from 200 on; the oldest that is kept is 240 - 124 = 116, so 124 more push all of it out.
  await expect(part).toContainText("124 tokens until it has left the cache.");
  await ask.click();
  await expect(part.getByRole("row").nth(1)).toHaveText("sinks 4+1240yesIt is Heron.yes");
  await talk.click();
  await expect(part).toContainText("It has left the cache. Ask.");
  await expect(talk).toBeDisabled();
  await ask.click();
  // 40 for the first question, and three more answers of 40.
  await expect(part.getByRole("row").nth(2)).toHaveText("sinks 4+124160noIt is Heron.yes");
  expect((await said(page)).filter((text) => !text.startsWith("sent"))).toEqual(["It has left the cache. Ask."]);
  expect((await said(page)).filter((text) => text.startsWith("sent"))).toEqual([
    "sent Remember this: the password is heron. Just say yes.",
    "sent What is the password?",
    "sent Tell me a long story about a lighthouse keeper.",
    "sent Go on with the story.",
    "sent Go on with the story.",
    "sent What is the password?",
  ]);
});

test("talking past a fact ends when somebody stops the answer", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, CHAT, 200);
  await drawn(page, "knows");
  await page.evaluate(() => (window.figures.stopAt = "Go on with the story."));
  const part = page.getByRole("region", { name: "The forgotten fact" });
  await part.getByRole("button", { name: "Plant" }).click();
  await part.getByRole("button", { name: "Talk past it" }).click();
  await expect.poll(() => said(page)).toContain("sent Go on with the story.");
  await expect(part.getByRole("button", { name: "Talk past it" })).toBeEnabled();
  expect((await said(page)).filter((text) => text === "sent Go on with the story.")).toHaveLength(1);
});

test("the text has what left struck through under a heading, and the sinks ringed", async ({ page }) => {
  await page.setViewportSize(TALL);
  await openFigures(page, CHAT, 300);
  await drawn(page, "knows");
  const text = page.getByRole("region", { name: "What it still knows" });
  const between = (from: number, to: number) => Array.from({ length: to - from }, (_, n) => word(from + n).text).join("");
  await expect(text.locator(".told-sinks")).toHaveText(`Sinks, kept for ever${between(0, 4)}`);
  await expect(text.locator(".told-left s")).toHaveText(between(4, 176));
  await expect(text.locator(".told-kept span")).toHaveText(between(176, 300));
  expect(await text.locator(".told-sinks span").evaluate((e) => getComputedStyle(e).outlineStyle)).toBe("solid");
});

test("with reduced motion nothing flashes, and figures are drawn once a second", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.setViewportSize({ width: 700, height: 900 });
  await openFigures(page, THREE, 200);
  await drawn(page, "cost");
  const draws = await page.evaluate(async () => {
    let count = 0;
    const svg = document.querySelector("#cost svg");
    if (svg !== null) new MutationObserver(() => (count += 1)).observe(svg, { childList: true });
    for (let n = 0; n < 40; n += 1) {
      window.figures.read(1);
      await new Promise((done) => setTimeout(done, 50));
    }
    return count;
  });
  expect(draws).toBeGreaterThan(0);
  expect(draws).toBeLessThan(8);
});

for (const width of [320, 390, 768, 1440]) {
  test(`nothing is cut off or below 12 pixels at ${width}`, async ({ page }) => {
    await page.setViewportSize({ width, height: 4200 });
    await openFigures(page, { lanes: [WINDOW, { ...SINKS, sinks: 1, recent: 127 }, SINKS, PACKED], count: 512 }, 400);
    await drawn(page, "cost", "memory", "time", "knows");
    await page.evaluate(() => window.figures.read(10));
    await expect(figure(page, "knows").locator("svg")).toContainText("kept");
    const faults = await page.evaluate(() => {
      const found: string[] = [];
      for (const svg of document.querySelectorAll("figure svg")) {
        const outer = svg.getBoundingClientRect();
        for (const text of svg.querySelectorAll("text")) {
          const box = text.getBoundingClientRect();
          const out = box.left < outer.left - 1 || box.right > outer.right + 1 || box.top < outer.top - 1 || box.bottom > outer.bottom + 1;
          if (out) found.push(`${svg.closest("figure")?.id}: ${text.textContent} is cut off`);
        }
      }
      for (const element of document.querySelectorAll("figure *")) {
        if (element.textContent !== "" && Number.parseFloat(getComputedStyle(element).fontSize) < 12) found.push(`${element.tagName} is small`);
      }
      const { scrollWidth, clientWidth } = document.documentElement;
      if (scrollWidth > clientWidth) found.push(`${scrollWidth - clientWidth} pixels sideways`);
      return found;
    });
    expect(faults).toEqual([]);
  });
}

test.describe("in a chat of the page", () => {
  test("figures follow the answer, and a head that is opened is asked for", async ({ page }) => {
    await page.setViewportSize({ width: 1200, height: 900 });
    await mock(page, { most: 60, delay: 10 });
    await open(page, "&backend=cpu&sinks=4&recent=28&view=chat");
    await ask(page, "Hello");
    await figure(page, "attention").scrollIntoViewIfNeeded();
    const cell = page.getByRole("grid", { name: "Attention on the sinks, by layer and head" }).getByRole("gridcell");
    await cell.focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    await expect(parts(page).note).toHaveText(/^60 tokens/);
    await cell.blur();
    await cell.focus();
    // Evenly spread over 32 slots: 4 of them have 1/8.
    await expect(page.locator("#attention-words")).toContainText("Layer 0, head 1 gives 13% to the first slots.");
    await figure(page, "cache").scrollIntoViewIfNeeded();
    await figure(page, "cache").getByRole("gridcell").focus();
    await expect(page.locator("#cache-words")).toHaveText(
      "32 of 32 slots: 4 sinks, 28 exact; token 99 came, token 71 left; 0.7 MB.",
    );
    const kept = page.getByRole("region", { name: "What it still knows" });
    await kept.scrollIntoViewIfNeeded();
    await expect(kept.locator(".told-left s")).toContainText("The lamp was lit each evening");
    await expect(kept.locator(".told-sinks")).toContainText("Hello");
  });

  test("the forgotten fact is told to the model, and its answer is read", async ({ page }) => {
    await page.setViewportSize({ width: 1200, height: 900 });
    await mock(page, { most: 30, words: ["It ", "is ", "heron. "] });
    await open(page, "&backend=cpu&sinks=4&recent=92&view=chat");
    const part = page.getByRole("region", { name: "The forgotten fact" });
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText(/^30 tokens/);
    await part.getByRole("button", { name: "Plant" }).click();
    await expect(part.getByRole("button", { name: "Talk past it" })).toBeEnabled();
    await expect(parts(page).log).toContainText("the password is heron");
    const told = page.getByRole("region", { name: "What it still knows" });
    await expect(told.locator(".told-kept")).toContainText("the password is heron");
    await part.getByRole("button", { name: "Talk past it" }).click();
    await expect(part).toContainText("It has left the cache. Ask.");
    await expect(told.locator(".told-left s")).toContainText("the password is heron");
    await part.getByRole("button", { name: "Ask" }).click();
    await expect(part.getByRole("row").nth(1)).toContainText("It is heron.");
    await expect(part.getByRole("row").nth(1).getByRole("cell").nth(2)).toHaveText("no");
    await expect(part.getByRole("row").nth(1).getByRole("cell").nth(4)).toHaveText("yes");
  });

  test("without a model the exercise says what is missing", async ({ page }) => {
    await mock(page);
    await page.goto("/?backend=cpu&view=chat");
    const part = page.getByRole("region", { name: "The forgotten fact" });
    await part.getByRole("button", { name: "Plant" }).click();
    await expect(part).toContainText("The chat cannot take a message now: load the model");
    await expect(part.getByRole("button", { name: "Ask" })).toBeDisabled();
  });
});
