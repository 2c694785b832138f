// Pictures of the page for people to look at: `npm run shots` writes them to shots/.

import { expect, test } from "@playwright/test";
import { ask, fakeGpu, GPU, mock, open, parts } from "./page.ts";

const STORY =
  "Once upon a time there was a lighthouse keeper who lived **alone** at the end of a long pier. Each evening he lit the lamp, wound the clock and wrote one line in his book.\n\nThe sea below him never slept. Ships passed far out, small as seeds, and he counted them until the dark took them away.\n\n".split(
    /(?<= |\n)/,
  );

for (const colorScheme of ["light", "dark"] as const) {
  for (const [name, width, height] of [
    ["wide", 1440, 900],
    ["middle", 768, 1024],
    ["narrow", 390, 844],
  ] as const) {
    test(`${name} ${colorScheme}`, async ({ page }) => {
      test.setTimeout(180_000);
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height });
      const shot = async (what: string) => {
        await page.screenshot({ path: `shots/${name}-${colorScheme}-${what}.png` });
        if (name !== "wide") {
          await page.screenshot({ path: `shots/${name}-${colorScheme}-${what}-whole.png`, fullPage: true });
        }
      };
      await fakeGpu(page, GPU);
      // The engine holds still in the middle of its answer, so that every run shows the same.
      await mock(page, { words: STORY, hangAt: 360 });
      await page.goto("/?view=chat&sinks=4&recent=252");
      await expect(parts(page).load).toBeEnabled();
      await shot("1-empty");
      await page.goto("/?sinks=4&recent=252&view=compare");
      await expect(parts(page).load).toBeEnabled();
      await shot("2-compare");
      for (const x of ["take-sinks-away", "hero", "two-bits", "past-8192"]) {
        await page.goto(`/?x=${x}&play=0`);
        await page.getByRole("slider", { name: "Position in the run" }).focus();
        await page.keyboard.press("End");
        await page.waitForTimeout(1000);
        await shot(`2-compare-${x}`);
      }
      await page.context().route("**/models/*.gguf", () => {});
      await page.goto("/?sinks=4&recent=252&load=1");
      await expect(parts(page).bar).toBeVisible();
      await shot("3-loading");
      // A server that answers with its own page, as many do for what is not there.
      await page.context().unroute("**/models/*.gguf");
      await page.context().route("**/models/*.gguf", (route) =>
        route.fulfill({ contentType: "text/html", body: "<!doctype html><title>Not found</title>" }),
      );
      await page.goto("/?sinks=4&recent=252&load=1");
      await expect(parts(page).status).toContainText("A web page came from");
      await shot("3-not-a-model");
      await mock(page, { words: STORY, hangAt: 360 });
      await open(page, "&sinks=4&recent=252");
      await ask(page, "Tell me a long story about a lighthouse keeper");
      await expect(page.locator("#stream")).toHaveText("400");
      await shot("4-writing");
      if (name === "narrow") await page.getByRole("button", { name: "Menu" }).click();
      await page.getByRole("button", { name: "Settings" }).click();
      await shot("5-settings");
      await page.keyboard.press("Escape");
      await page.reload();
      await mock(page, { words: STORY, rejectAt: 40, again: true });
      await open(page, "&sinks=4&recent=252");
      await ask(page, "And what did he write?");
      await expect(parts(page).status).toContainText("It broke twice");
      await shot("6-error");
      await mock(page, { words: STORY, most: 80 });
      await page.getByRole("button", { name: "Start again" }).click();
      await expect(parts(page).status).toContainText("Ready.");
      await shot("7-refilled");
      for (const panel of ["Models", "Chats", "Help"]) {
        if (name === "narrow") await page.getByRole("button", { name: "Menu" }).click();
        await page.getByRole("button", { name: panel, exact: true }).click();
        await page.screenshot({ path: `shots/${name}-${colorScheme}-8-${panel.toLowerCase()}.png` });
        await page.keyboard.press("Escape");
      }
    });
  }
}
