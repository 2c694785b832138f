// Messages and answers.

import { expect, type Page, test } from "@playwright/test";
import { ask, errors, mock, open, parts } from "./page.ts";

const TEN = "The lamp was lit each evening, and the sea below ";

test("an answer is streamed, and its ids are there at the end", async ({ page }) => {
  const errors = await mock(page, { most: 10 });
  await open(page, "&backend=cpu");
  const answer = await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("10 tokens.");
  await expect(answer).toHaveText(TEN.trim());
  await expect(answer).toHaveAttribute("data-ids", "1000,1001,1002,1003,1004,1005,1006,1007,1008,1009");
  await expect(page.locator(".turn.you .text")).toHaveText("Hello");
  await expect(parts(page).message).toHaveValue("");
  await expect(page.locator("#held")).toHaveText("50 of 1,024");
  await expect(page.locator("#stream")).toHaveText("50");
  await expect(page.locator("#bytes")).toHaveText("23.6 MB");
  expect(errors).toEqual([]);
});

test("one message after another", async ({ page }) => {
  const errors = await mock(page, { most: 10 });
  await open(page, "&backend=cpu");
  for (const [i, text] of ["one", "two", "three"].entries()) {
    await ask(page, text);
    await expect(page.locator(".turn.model .note")).toHaveCount(i + 1);
    await expect(parts(page).note).toHaveText("10 tokens.");
  }
  await expect(page.locator(".turn.model .text")).toHaveText([TEN, TEN, TEN].map((t) => t.trim()));
  await expect(page.locator("#stream")).toHaveText("150");
  expect(errors).toEqual([]);
});

test("while an answer is written, Stop is on, Send is off and the box can be used", async ({ page }) => {
  await mock(page, { delay: 20 });
  await open(page, "&backend=cpu");
  const { send, stop, message, answer, note, status } = parts(page);
  await expect(send).toBeEnabled();
  await expect(stop).toBeDisabled();
  await ask(page, "Hello");
  await expect(send).toBeDisabled();
  await expect(stop).toBeEnabled();
  await expect(answer).toContainText("The lamp");
  await message.fill("My next message");
  await message.press("Enter");
  await expect(status).toContainText("An answer is being written");
  await stop.click();
  await expect(note).toHaveText(/^\d+ tokens, stopped\.$/);
  const written = await answer.textContent();
  await expect(send).toBeEnabled();
  await expect(stop).toBeDisabled();
  await page.waitForTimeout(200);
  expect(await answer.textContent()).toBe(written);
  await expect(message).toHaveValue("My next message");
});

test("stopping and sending again, ten times in a row", async ({ page }) => {
  const errors = await mock(page, { delay: 1 });
  await open(page, "&backend=cpu");
  for (let i = 1; i <= 10; i += 1) {
    await ask(page, `message ${i}`);
    await expect(parts(page).answer).toContainText("The");
    await page.keyboard.press("Escape");
    await expect(parts(page).note).toHaveText(/stopped\.$/);
    await expect(page.locator(".turn.model")).toHaveCount(i);
  }
  expect(errors).toEqual([]);
});

test("an answer can be stopped before its first token, and the model never sees it", async ({ page }) => {
  const said: string[] = [];
  page.on("console", (message) => said.push(message.text()));
  await mock(page, { prompt: 4000, delay: 10, most: 5 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText(/Reading the message: \d+ of 4,000 tokens\./);
  await parts(page).stop.click();
  await expect(parts(page).note).toHaveText(/^0 tokens, stopped\./);
  // An empty turn would be an example to it. Nor does a question without an answer stay: turns take turns.
  await ask(page, "Again");
  await expect(parts(page).note).toHaveText(/^5 tokens/);
  expect(said.find((text) => text.startsWith("resume"))).toContain('[{"role":"user","content":"Again"}] write true');
  await expect(page.locator(".turn.you .left").first()).toHaveText("is not in the cache");
  await expect(page.locator(".turn.you .left").last()).toHaveText("");
  await expect(page.locator(".turn.page")).toHaveText("Refilled from the text, without the question that has no answer.");
  await page.locator("#knows").scrollIntoViewIfNeeded();
  await expect(page.locator(".told-left s")).toHaveText("What was said before, and not read again. ");
});

test("keys: Enter sends, Shift and Enter makes a line, a composition is left alone", async ({ page }) => {
  await mock(page, { most: 10 });
  await open(page, "&backend=cpu");
  const { message, log } = parts(page);
  await message.focus();
  await page.keyboard.type("first");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("second");
  for (const init of [{ isComposing: true }, { keyCode: 229 }]) {
    const prevented = await message.evaluate(
      (box, init) =>
        !box.dispatchEvent(
          new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...init }),
        ),
      init,
    );
    expect(prevented).toBe(false);
  }
  await expect(log.locator(".turn")).toHaveCount(0);
  await expect(message).toHaveValue("first\nsecond");
  await page.keyboard.press("Enter");
  await expect(page.locator(".turn.you .text")).toHaveText("first\nsecond");
  await expect(message).toBeFocused();
  await expect(parts(page).note).toHaveText("10 tokens.");
  await page.keyboard.press("Enter");
  await expect(parts(page).status).toContainText("The message is empty");
  await expect(log.locator(".turn")).toHaveCount(2);
});

test("a message sent before the model is there: the page asks, loads nothing by itself, and then sends it", async ({
  page,
}) => {
  await mock(page, { most: 10 });
  const fetched: string[] = [];
  page.on("request", (request) => fetched.push(request.url()));
  const models = (): string[] => fetched.filter((url) => url.endsWith(".gguf"));
  await page.goto("/?view=chat&backend=cpu");
  const { message, status, send, load, note } = parts(page);
  await expect(load).toBeEnabled();
  const offer = page.getByRole("button", { name: "Load it and send" });
  await expect(offer).toBeHidden();
  await page.getByRole("button", { name: "Explain rain to a child" }).click();
  await send.click();
  await expect(status).toContainText("The model is not here yet. Your message stays in the box.");
  await expect(page.locator(".talk")).toContainText("SmolLM2-135M-Instruct, 98 MB, licence Apache-2.0.");
  await page.getByRole("button", { name: "Not now" }).click();
  await expect(offer).toBeHidden();
  await expect(message).toHaveValue("Explain rain to a child");
  expect(models()).toEqual([]);
  await message.press("Enter");
  await offer.click();
  await expect(message).toBeFocused();
  await expect(page.locator(".turn.you .text")).toHaveText("Explain rain to a child");
  await expect(note).toHaveText("10 tokens.");
  await expect(message).toHaveValue("");
});

test("a message sent while the model is loaded, or the conversation read again, waits for it", async ({ page }) => {
  await mock(page, { most: 10, delay: 30, prompt: 20 });
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => (go = resolve));
  await page.context().route("**/models/*.gguf", async (route) => {
    await gate;
    await route.fallback();
  });
  await page.goto("/?backend=cpu&load=1");
  const { status, note, log } = parts(page);
  await expect(status).toContainText("Loading the model.");
  await ask(page, "Hello");
  await expect(status).toContainText("Your message is sent as soon as the model is ready.");
  go();
  await expect(note).toHaveText("10 tokens.");
  await expect(page.locator(".turn.you .text")).toHaveText("Hello");
  await page.reload();
  await ask(page, "And more");
  await expect(page.locator(".turn.you .text")).toHaveText(["Hello", "And more"]);
  await expect(note).toHaveText("10 tokens.");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Storage of one value").selectOption("f32");
  await expect(status).toContainText("Reading the conversation again.");
  await ask(page, "Third");
  await expect(page.locator(".turn.you .text")).toHaveText(["Hello", "And more", "Third"]);
  await expect(log).toContainText("you changed a setting");
  await expect(page.locator(".turn.model")).toHaveCount(3);
});

test("a prompt longer than the cache streams through and says what has left", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu&sinks=4&recent=28");
  await ask(page, "Hello");
  // 40 tokens through 4 + 28: indices 4 to 11 leave while it is read, three more while it writes.
  await expect(parts(page).note).toHaveText(
    "3 tokens. Tokens 4 to 11 of the stream left the cache while the message was read.",
  );
  await expect(page.locator("#held")).toHaveText("32 of 32");
});

test("a message that the engine refuses comes back", async ({ page }) => {
  const errors = await mock(page, { most: 10, refuse: "too much" });
  await open(page, "&backend=cpu");
  await ask(page, "too much");
  const { message, status, log, note } = parts(page);
  await expect(status).toContainText("The message is longer than this cache can ever take.");
  await expect(message).toHaveValue("too much");
  await expect(log.locator(".turn")).toHaveCount(0);
  await ask(page, "less");
  await expect(note).toHaveText("10 tokens.");
  expect(errors).toEqual([]);
});

test("the conversation keeps to its end, unless someone reads further up", async ({ page }) => {
  await mock(page, { delay: 2, words: ["line\n"] });
  await open(page, "&backend=cpu");
  const { log, stop, note } = parts(page);
  const fromEnd = () => log.evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight);
  const height = () => log.evaluate((e) => e.scrollHeight);
  await ask(page, "Hello");
  await expect.poll(height).toBeGreaterThan(1500);
  expect(await fromEnd()).toBeLessThan(120);
  await log.evaluate((e) => (e.scrollTop = 300));
  const before = await height();
  await expect.poll(height).toBeGreaterThan(before + 300);
  expect(await log.evaluate((e) => e.scrollTop)).toBe(300);
  await stop.click();
  await expect(note).toHaveText(/stopped/);
});

test("three hundred tokens: one live region speaks, and seldom", async ({ page }) => {
  await mock(page, { delay: 20, most: 300 });
  await open(page, "&backend=cpu");
  await page.evaluate(() => {
    const seen: Record<string, number> = {};
    Object.assign(window, { seen });
    for (const e of document.querySelectorAll("[role=log], [role=status], [aria-live=polite]")) {
      const name = e.getAttribute("role") ?? "region";
      new MutationObserver(() => (seen[name] = (seen[name] ?? 0) + 1)).observe(e, {
        childList: true,
        characterData: true,
        subtree: true,
      });
    }
  });
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("300 tokens.");
  const seen = await page.evaluate(() => (window as unknown as { seen: Record<string, number> }).seen);
  await expect(parts(page).log).toHaveAttribute("aria-live", "off");
  expect(seen["region"]).toBeGreaterThanOrEqual(2);
  expect(seen["region"]).toBeLessThanOrEqual(12);
  // Writing, then ready.
  expect(seen["status"]).toBeLessThanOrEqual(2);
});

/** What the hidden region says from now on. */
async function listen(page: Page): Promise<() => Promise<string[]>> {
  await page.evaluate(() => {
    const said: string[] = [];
    Object.assign(window, { said });
    const region = document.querySelector("#say");
    if (region === null) throw new Error("there is no region that speaks");
    new MutationObserver(() => said.push(region.textContent ?? "")).observe(region, { childList: true, characterData: true });
  });
  return () => page.evaluate(() => (window as unknown as { said: string[] }).said);
}

const SENTENCE = "The lamp was lit each evening, and the sea below it never slept.";

test("a screen reader hears each word once, also of an answer that was stopped and gone on with", async ({ page }) => {
  const words = SENTENCE.replace("lamp", "**lamp**").split(/(?<= )/);
  await mock(page, { delay: 40, most: 52, words: [...words.slice(0, -1), "slept. "] });
  await open(page, "&backend=cpu");
  const said = await listen(page);
  await ask(page, "Hello");
  await expect(parts(page).answer).toContainText("slept. The lamp was lit");
  await parts(page).stop.click();
  await expect(parts(page).note).toHaveText(/stopped\.$/);
  await page.getByRole("button", { name: /^Go on, turn/ }).click();
  await expect(parts(page).note).toHaveText("52 tokens.");
  await expect.poll(async () => (await said()).join(" ").replaceAll(/\s+/g, " ")).toBe(`${SENTENCE} `.repeat(4).trim());
});

test("answers are spoken when they are finished, or never, as one likes; it is remembered", async ({ page }) => {
  await mock(page, { delay: 20, most: 26 });
  await open(page, "&backend=cpu&sinks=4&recent=60");
  const choose = async (when: string) => {
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Answers for screen readers").selectOption(when);
    await page.keyboard.press("Escape");
  };
  await choose("when finished");
  let said = await listen(page);
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("26 tokens.");
  // 40 tokens of the question and 26 are more than the cache has room for.
  const full = "The cache is full: from now on its oldest words leave, and the chat goes on.";
  await expect.poll(said).toEqual([full, `${SENTENCE} ${SENTENCE}`]);
  await page.reload();
  await expect(parts(page).status).toContainText("Ready.");
  await choose("never");
  said = await listen(page);
  await ask(page, "Again");
  await expect(page.locator(".turn.model")).toHaveCount(2);
  await expect(parts(page).note).toHaveText(/^26 tokens\./);
  await page.waitForTimeout(2500);
  expect((await said()).filter((words) => words !== full)).toEqual([]);
});

test("numbers of a speed appear while it writes", async ({ page }) => {
  const found = errors(page);
  await mock(page, { delay: 20, most: 60 });
  await open(page, "&backend=cpu");
  await expect(page.locator("#speed")).toHaveText("–");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("60 tokens.");
  // A step takes 20 ms or more, so that there are at most 50 a second.
  const speed = Number.parseFloat((await page.locator("#speed").textContent()) ?? "");
  expect(speed).toBeGreaterThan(5);
  expect(speed).toBeLessThanOrEqual(51);
  expect(found).toEqual([]);
});
