// What breaks while the page is open: the text stays, the model comes back by itself, and the answer is gone on with.

import { expect, type Page, test } from "@playwright/test";
import { ask, fakeGpu, GPU, mock, open, parts, watchWorkers } from "./page.ts";

const TEN = "The lamp was lit each evening, and the sea below";

/** The answer is whole, and the page answers again. */
async function goesOn(page: Page): Promise<void> {
  const { answer, note, status } = parts(page);
  await expect(note).toHaveText("10 tokens. Refilled from the text at token 5.");
  await expect(answer).toHaveText(TEN);
  await expect(status).toContainText("Ready.");
  await expect(page.locator(".turn")).toHaveCount(2);
  await ask(page, "Again");
  await expect(page.locator(".turn.model")).toHaveCount(2);
  await expect(answer).toContainText("The lamp was lit");
}

for (const [name, plan] of [
  ["a step that rejects, as with a lost device", { rejectAt: 5 }],
  ["a worker that dies", { dieAt: 5 }],
  ["a panic that settles no promise", { panicAt: 5 }],
] as const) {
  test(`${name}: the answer is gone on with`, async ({ page }) => {
    await mock(page, { ...plan, most: 10 });
    await open(page, "&backend=cpu");
    await ask(page, "Hello");
    await goesOn(page);
  });
}

/** Ends the page's worker as a browser does that is short of memory: without a word. */
async function kill(page: Page): Promise<void> {
  await page.evaluate(() => (window as unknown as { workers: Worker[] }).workers.at(-1)?.terminate());
}

test("a worker that is killed without a word, at many moments", async ({ page }) => {
  test.setTimeout(180_000);
  await watchWorkers(page);
  await mock(page, { most: 30, delay: 4 });
  await open(page, "&backend=cpu");
  const whole = `${"The lamp was lit each evening, and the sea below it never slept. ".repeat(3)}`.split(" ");
  for (let i = 0; i < 25; i += 1) {
    await ask(page, `question ${i}`);
    await page.waitForTimeout(10 + ((i * 37) % 130));
    await kill(page);
    await expect(page.locator(".turn.model")).toHaveCount(i + 1);
    await expect(parts(page).note).toHaveText(/^30 tokens\./);
    await expect(parts(page).answer).toHaveText(whole.slice(0, 30).join(" "));
  }
});

test("a killed worker that was idle is replaced, and the conversation is read again", async ({ page }) => {
  await watchWorkers(page);
  await mock(page, { most: 10 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("10 tokens.");
  await kill(page);
  await expect(parts(page).log).toContainText("Refilled from the text: the model was loaded again.");
  await expect(parts(page).status).toContainText("Ready.");
  await ask(page, "Again");
  await expect(parts(page).note).toHaveText("10 tokens.");
});

test("a worker that is killed while it takes the place of another: the answer and the next message are not lost", async ({
  page,
}) => {
  await watchWorkers(page);
  await mock(page, { most: 10, delay: 30, slow: 1500 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  const { answer, status } = parts(page);
  await expect(answer).toContainText("The lamp");
  await kill(page);
  await expect(status).toContainText("Starting on");
  await ask(page, "Next");
  await expect(status).toContainText("Your message is sent as soon as the model is ready.");
  await page.waitForTimeout(500);
  await kill(page);
  await expect(page.locator(".turn.model .text")).toHaveText([TEN, TEN]);
  await expect(page.locator(".turn.you .text")).toHaveText(["Hello", "Next"]);
  await expect(parts(page).note).toHaveText("10 tokens.");
});

test("what breaks again and again waits for a click", async ({ page }) => {
  await mock(page, { rejectAt: 5, again: true });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  const { status, answer, note } = parts(page);
  await expect(status).toContainText("It broke twice without a word in between");
  await expect(status).toContainText("The answer broke off: The device was lost.");
  await expect(answer).toHaveText("The lamp was lit each");
  await expect(note).toContainText("5 tokens, broke off.");
  await mock(page, { most: 10 });
  await page.getByRole("button", { name: "Start again" }).click();
  await expect(status).toContainText("Ready.");
  await page.getByRole("button", { name: /^Go on/ }).click();
  await expect(note).toHaveText(/^10 tokens/);
  await expect(answer).toHaveText(TEN);
});

test("on a phone a fault is in sight, with what to do about it, wherever the page was scrolled to", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await mock(page, { rejectAt: 5, again: true });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await page.locator("#memory").scrollIntoViewIfNeeded();
  await expect(parts(page).status).toContainText("It broke twice");
  await expect(parts(page).status).toBeInViewport();
  await expect(page.getByRole("button", { name: "Start again" })).toBeInViewport();
});

test("a model that falls silent is named after ten seconds, and Stop replaces it", async ({ page }) => {
  await page.clock.install();
  await mock(page, { hangAt: 5, most: 10 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  const { status, answer, note, stop } = parts(page);
  await expect(answer).toHaveText("The lamp was lit each");
  await page.clock.fastForward(9_000);
  await expect(status).not.toContainText("Nothing has come");
  await page.clock.fastForward(2_000);
  await page.clock.resume();
  await expect(status).toContainText("Nothing has come from the model for 10 s.");
  await stop.click();
  await expect(status).toContainText("Ready.");
  await expect(answer).toHaveText("The lamp was lit each");
  await expect(note).toContainText("5 tokens, broke off.");
  await page.getByRole("button", { name: /^Go on/ }).click();
  await expect(note).toHaveText(/^10 tokens/);
});

test("WebGPU that breaks off twice is left for the CPU", async ({ page }) => {
  await mock(page, { rejectAt: 5, again: "webgpu" });
  await fakeGpu(page, GPU);
  await open(page);
  await ask(page, "Hello");
  await expect(parts(page).runs).toHaveText("CPU, one thread");
  await expect(parts(page).status).toContainText("WebGPU on Acme Rocket 9000 broke off twice. Using the CPU");
});

test("a tab that was closed in the middle of an answer has it when it is opened again", async ({ page }) => {
  await mock(page, { delay: 10, most: 200 });
  await open(page, "&backend=cpu");
  await ask(page, "Tell me a story");
  await expect(parts(page).answer).toContainText("slept.");
  const again = await page.context().newPage();
  await page.close({ runBeforeUnload: false });
  await again.goto("/?backend=cpu&load=1");
  const { status, answer, note, log } = parts(again);
  await expect(log).toContainText("Tell me a story");
  await expect(answer).toContainText("The lamp was lit");
  await expect(note).toContainText("broke off");
  await expect(status).toContainText("Ready.");
  await again.getByRole("button", { name: /^Go on/ }).click();
  await expect(note).toHaveText(/^\d+ tokens\./, { timeout: 30_000 });
});

test("a tab that was closed while the message was read says that the answer broke off", async ({ page }) => {
  await mock(page, { delay: 20, prompt: 4000, most: 10 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toContainText("Reading the message");
  const again = await page.context().newPage();
  await page.close();
  await mock(again, { most: 10 });
  await again.goto("/?backend=cpu&load=1");
  const { status, answer, note } = parts(again);
  await expect(status).toContainText("Ready.");
  await expect(note).toHaveText(/^0 tokens, broke off\./);
  await again.getByRole("button", { name: /^Write again/ }).click();
  await expect(note).toHaveText("10 tokens.");
  await expect(answer).toHaveText(TEN);
});

test("a tab that is closed at many moments loses nothing that was seen", async ({ page }) => {
  test.setTimeout(180_000);
  const found = await mock(page, { delay: 6, most: 2000 });
  await open(page, "&backend=cpu");
  for (let i = 0; i < 25; i += 1) {
    await ask(page, `question ${i}`);
    await page.waitForTimeout(60 + ((i * 53) % 400));
    const seen = (await page.locator(".turn.model .text").last().textContent()) ?? "";
    await page.reload();
    await expect(page.locator(".turn.you .text").last()).toHaveText(`question ${i}`);
    const kept = (await parts(page).answer.textContent()) ?? "";
    expect(kept.trim().startsWith(seen.trim()), `${seen} and ${kept}`).toBe(true);
    await expect(parts(page).status).toContainText("Ready.");
  }
  expect(found).toEqual([]);
});

test("two tabs: the second asks before it takes the model, and has the conversation", async ({ page }) => {
  await mock(page, { most: 10 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("10 tokens.");
  const second = await page.context().newPage();
  await second.goto("/?backend=cpu&load=1");
  await expect(parts(second).status).toContainText("Another tab is using the model.");
  await expect(parts(second).log).toContainText("Hello");
  await second.getByRole("button", { name: "Use it here" }).click();
  await expect(parts(second).status).toContainText("Ready.");
  await expect(parts(page).status).toContainText("Another tab is using the model now. The text stays here.");
  await expect(parts(page).answer).toHaveText(TEN);
  await ask(second, "Again");
  await expect(second.locator(".turn.model")).toHaveCount(2);
  await page.getByRole("button", { name: "Use it here" }).click();
  await expect(parts(page).status).toContainText("Ready.");
  await expect(page.locator(".turn.model")).toHaveCount(2);
});

test("a page that is reloaded again and again before its model is there waits for a click", async ({ page }) => {
  await mock(page, { create: { cpu: "hang" } });
  for (let i = 0; i < 3; i += 1) {
    await page.goto("/?backend=cpu&load=1");
    await expect(parts(page).status).toContainText("Starting on");
  }
  await mock(page, { most: 10 });
  await page.goto("/?backend=cpu&load=1");
  await expect(parts(page).status).toContainText("reloaded several times within a minute");
  await parts(page).load.click();
  await expect(parts(page).status).toContainText("Ready.");
  await page.goto("/?backend=cpu&load=1");
  await expect(parts(page).status).toContainText("Ready.");
});

test("a hidden tab goes on writing, says so in its title, and draws once when it is shown", async ({ page }) => {
  await page.addInitScript(() => {
    const state = { hidden: false };
    Object.assign(window, { hide: (hidden: boolean) => {
      state.hidden = hidden;
      document.dispatchEvent(new Event("visibilitychange"));
    } });
    Object.defineProperty(document, "hidden", { get: () => state.hidden });
    // Browsers call no frames in a hidden tab.
    const frame = window.requestAnimationFrame.bind(window);
    const waiting: FrameRequestCallback[] = [];
    window.requestAnimationFrame = (callback) => {
      if (!state.hidden) return frame(callback);
      waiting.push(callback);
      return 1;
    };
    document.addEventListener("visibilitychange", () => {
      if (!state.hidden) for (const callback of waiting.splice(0)) frame(callback);
    });
  });
  await mock(page, { delay: 10, most: 200 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).answer).toContainText("The lamp");
  const hide = (hidden: boolean) =>
    page.evaluate((hidden) => (window as unknown as { hide(h: boolean): void }).hide(hidden), hidden);
  await hide(true);
  await expect(page).toHaveTitle(/^▶ \d+ · Sinkstream$/);
  await page.waitForTimeout(4000);
  await hide(false);
  await expect(parts(page).note).toHaveText("200 tokens.", { timeout: 2000 });
  await expect(page).toHaveTitle("Sinkstream: a chat that never ends");
});
