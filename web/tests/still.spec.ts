// Where no scripts run: what the page is about, and a picture of it, which was drawn when the page was built.

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import { heading, lead, noScripts } from "../src/strings.en.ts";

test.use({ javaScriptEnabled: false });

for (const colorScheme of ["light", "dark"] as const) {
  for (const width of [1440, 390]) {
    test(`the page without scripts, ${colorScheme}, ${width} wide`, async ({ page, request }) => {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const refused: string[] = [];
      page.on("console", (message) => refused.push(message.text()));
      const came = page.waitForResponse(/still\.svg$/);
      await page.goto("/");
      await expect(page.getByRole("heading", { level: 1, name: heading })).toBeVisible();
      await expect(page.locator("[role=main] p")).toHaveText([lead, noScripts]);
      // In the order in which it is read.
      const tops = await page.locator("[role=main] > *").evaluateAll((all) => all.map((e) => e.getBoundingClientRect().top));
      expect(tops).toEqual(tops.toSorted((a, b) => a - b));
      // The alternative says the numbers that the recording ends with.
      const picture = page.getByRole("img", { name: /^After 513 tokens the window lane has cost 17\d\.\d\d nats more than dense and the sinks lane 2\d\.\d\d\. The first word left at token 256\.$/ });
      await expect(picture).toBeVisible();
      expect((await came).headers()["content-type"]).toContain("image/svg+xml");
      const box = await picture.boundingBox();
      expect(box?.width).toBeGreaterThan(Math.min(500, width - 60));
      expect(box?.width).toBeLessThanOrEqual(width);
      // Its text can be read: 12 pixels of its 358.
      expect((12 * (box?.width ?? 0)) / 358).toBeGreaterThan(11.9);
      expect((box?.height ?? 0) / (box?.width ?? 1)).toBeGreaterThan(0.6);
      // A picture that did not load is one flat area, which takes few bytes.
      expect((await picture.screenshot()).length).toBeGreaterThan(5000);
      const file = await (await request.get("/still.svg")).text();
      for (const colour of ["#ffffff", "#1c2024"]) expect(file).toContain(`--card:${colour}`);
      expect(file.match(/stroke-width="2.5"/g)).toHaveLength(3);
      expect(refused).toEqual([]);
    });
  }
}

test("the numbers of the picture are those of the recording", async ({ page }) => {
  const run = JSON.parse(readFileSync(new URL("../runs/hero.json", import.meta.url), "utf8")) as {
    lanes: { name: string; nll: number[] }[];
  };
  const [window, sinks, dense] = run.lanes.map(({ nll }) => nll.reduce((sum, loss) => sum + loss, 0));
  await page.goto("/");
  const alt = (await page.getByRole("img").getAttribute("alt")) ?? "";
  const [, ofWindow, ofSinks] = /cost (.*) nats more than dense and the sinks lane (.*)\. The/.exec(alt) ?? [];
  expect(Number(ofWindow)).toBeCloseTo((window ?? 0) - (dense ?? 0), 1);
  expect(Number(ofSinks)).toBeCloseTo((sinks ?? 0) - (dense ?? 0), 1);
});
