// What a person does with a conversation besides sending: Markdown, copy, edit, write again, go on, several
// chats, files, the system prompt, settings; and what has left the cache.

import { readFileSync } from "node:fs";
import { expect, type Page, test } from "@playwright/test";
import { defaults, format, formatLane, parse, parseLane } from "../src/settings.ts";
import { ask, mock, open, parts } from "./page.ts";

/** What the engine was told, in its own words. */
function heard(page: Page): string[] {
  const said: string[] = [];
  page.on("console", (message) => said.push(message.text()));
  return said;
}

const action = (page: Page, name: string) => page.getByRole("button", { name: new RegExp(`^${name}, turn`) }).last();

const MARKDOWN = [
  "# Rain\n\n",
  "Water **falls** as *drops*, `H2O` &amp; more.\n\n",
  "1. It rises\n2. It cools\n\n",
  "- [x] done\n- [ ] open\n\n",
  "```js\nlet a = '<b>';\n```\n\n",
  "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
  "> quoted\n\n",
  "[good](https://example.org) [bad](javascript:alert(1)) ![picture](https://example.org/x.png)\n\n",
  "<img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>\n\n",
  "The end.",
];

test("an answer is Markdown as it is written, and nothing in it can run or load", async ({ page }) => {
  const requests: string[] = [];
  const words = MARKDOWN.join("").split(/(?<=[ \n])/);
  await mock(page, { words, most: words.length });
  await open(page, "&backend=cpu");
  page.context().on("request", (request) => requests.push(request.url()));
  const answer = await ask(page, "Hello");
  await expect(answer).toContainText("The end.");
  await expect(answer.locator(".heading")).toHaveText("Rain");
  await expect(answer.locator("strong")).toHaveText("falls");
  await expect(answer.locator("em")).toHaveText("drops");
  await expect(answer.locator("p code")).toHaveText("H2O");
  await expect(answer).toContainText("H2O & more.");
  await expect(answer.locator("ol li")).toHaveText(["It rises", "It cools"]);
  await expect(answer.locator("ul li")).toHaveText(["☑ done", "☐ open"]);
  await expect(answer.locator("pre code")).toHaveText("let a = '<b>';");
  await expect(answer.locator("td")).toHaveText(["1", "2"]);
  await expect(answer.locator("blockquote")).toHaveText("quoted");
  const link = answer.getByRole("link");
  await expect(link).toHaveCount(1);
  await expect(link).toHaveAttribute("rel", /noopener/);
  await expect(answer).toContainText("[bad](javascript:alert(1))");
  await expect(answer.locator("img, script, b")).toHaveCount(0);
  expect(await page.evaluate(() => "hurt" in window)).toBe(false);
  expect(requests.filter((url) => url.includes("example.org"))).toEqual([]);
});

test("a block that is complete is not made again, and a long answer keeps the page small", async ({ page }) => {
  await mock(page, { words: ["word ", "word ", "word.\n\n"], most: 9000 });
  await open(page, "&backend=cpu");
  const answer = await ask(page, "Hello");
  await expect(answer.locator(".block").nth(3)).toBeAttached();
  await answer.locator(".block").nth(2).evaluate((e) => Object.assign(e, { kept: true }));
  await expect(answer.locator(".block").nth(20)).toBeAttached();
  expect(await answer.locator(".block").nth(2).evaluate((e) => "kept" in e)).toBe(true);
  await expect(parts(page).note).toHaveText(/^9,000 tokens/, { timeout: 50_000 });
  expect(await answer.locator(".block").count()).toBeLessThan(900);
  await page.getByRole("button", { name: "Show the beginning of this answer" }).click();
  expect(await answer.locator(".block").count()).toBeGreaterThan(2900);
});

test("copy takes the answer as it was written", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await mock(page, { words: ["Some **bold** ", "words."], most: 2 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("2 tokens.");
  await action(page, "Copy").click();
  await expect(parts(page).status).toContainText("Copied.");
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe("Some **bold** words.");
});

test("edit and send again: what followed is gone, and the model has not seen it", async ({ page }) => {
  const said = heard(page);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  for (const text of ["one", "two", "three"]) {
    await ask(page, text);
    await expect(parts(page).note).toHaveText(/^3 tokens/);
  }
  await page.getByRole("button", { name: "Edit, turn 3" }).click();
  await expect(parts(page).message).toHaveValue("two");
  await expect(page.getByText("Sending it takes away everything after it.")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(parts(page).message).toHaveValue("");
  await page.getByRole("button", { name: "Edit, turn 3" }).click();
  await parts(page).message.fill("other");
  await parts(page).send.click();
  await expect(page.locator(".turn.you .text")).toHaveText(["one", "other"]);
  await expect(parts(page).note).toHaveText(/^3 tokens/);
  expect(said.find((text) => text.startsWith("resume"))).toContain(
    '[{"role":"user","content":"one"},{"role":"assistant","content":"The lamp was "},{"role":"user","content":"other"}] write true',
  );
});

test("write again: another answer to the same question", async ({ page }) => {
  const said = heard(page);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "one");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await action(page, "Write again").click();
  await expect.poll(() => said.filter((text) => text.startsWith("resume"))).toHaveLength(1);
  await expect(parts(page).note).toHaveText("3 tokens.");
  await expect(page.locator(".turn")).toHaveCount(2);
  expect(said.find((text) => text.startsWith("resume"))).toContain('[{"role":"user","content":"one"}] write true');
});

test("stopped and gone on with, without reading anything again", async ({ page }) => {
  const said = heard(page);
  await mock(page, { delay: 5, most: 60 });
  await open(page, "&backend=cpu");
  await ask(page, "one");
  await expect(parts(page).answer).toContainText("lamp");
  await parts(page).stop.click();
  await expect(parts(page).note).toHaveText(/stopped\.$/);
  const written = (await parts(page).answer.textContent())?.trim() ?? "";
  await action(page, "Go on").click();
  await expect(parts(page).note).toHaveText(/^60 tokens\./);
  expect(await parts(page).answer.textContent()).toContain(written);
  expect(said.filter((text) => text.startsWith("proceed"))).toHaveLength(1);
  expect(said.filter((text) => text.startsWith("resume"))).toEqual([]);
  await expect(action(page, "Go on")).toBeHidden();
});

test("several chats: new, back to the old one, both after a reload, one removed", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "About rain");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "New chat" }).click();
  await expect(page.locator(".turn")).toHaveCount(0);
  await expect(page.locator("#stream")).toHaveText("0");
  await ask(page, "About snow");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.reload();
  await expect(page.locator(".turn.you .text")).toHaveText("About snow");
  await expect(parts(page).status).toContainText("Ready.");
  await expect(parts(page).log).toContainText("Refilled from the text: the model was loaded again.");
  await page.getByRole("button", { name: "Chats" }).click();
  await page.getByRole("button", { name: "Open About rain" }).click();
  await expect(page.locator(".turn.you .text")).toHaveText("About rain");
  await expect(parts(page).log).toContainText("Refilled from the text: you opened this chat.");
  await page.getByRole("button", { name: "Chats" }).click();
  await page.getByRole("button", { name: "Remove About snow" }).click();
  await expect(page.getByRole("button", { name: "Open About snow" })).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Open About rain" })).toBeVisible();
});

test("a chat goes out as a file and comes in again; what is no chat is named", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "About rain");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Chats" }).click();
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export this chat" }).click();
  const file = await saved;
  expect(file.suggestedFilename()).toBe("sinkstream-about-rain.json");
  const json = readFileSync(await file.path(), "utf8");
  expect(JSON.parse(json)).toMatchObject({
    format: "sinkstream-chat",
    version: 1,
    title: "About rain",
    turns: [
      { role: "user", text: "About rain" },
      { role: "assistant", text: "The lamp was ", note: "3 tokens." },
    ],
  });
  await page.getByRole("button", { name: "Close" }).click();
  const take = async (name: string, text: string) => {
    await page.getByRole("button", { name: "Chats" }).click();
    const chooser = page.waitForEvent("filechooser");
    await page.getByRole("button", { name: "Import" }).click();
    await (await chooser).setFiles({ name, mimeType: "application/json", buffer: Buffer.from(text) });
  };
  const { status } = parts(page);
  for (const [text, why] of [
    ["{", "it is not JSON"],
    ["{}", "it does not say “sinkstream-chat”"],
    ['{"format":"sinkstream-chat","version":2}', "it has version 2, and this page knows 1"],
    ['{"format":"sinkstream-chat","version":1,"turns":[{"role":"x","text":"a"}]}', "not a list of who said what"],
  ] as const) {
    await take("bad.json", text);
    await expect(status).toContainText(`bad.json is not a chat that this page exported: `);
    await expect(status).toContainText(why);
  }
  await page.getByRole("button", { name: "New chat" }).click();
  await take("good.json", json.replaceAll("About rain", "About hail"));
  await expect(page.locator(".turn.you .text")).toHaveText("About hail");
  await expect(status).toContainText("Ready.");
  await ask(page, "More");
  await expect(page.locator(".turn.model")).toHaveCount(2);
});

test("a system prompt goes first, and changing it reads the conversation again", async ({ page }) => {
  const said = heard(page);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await page.getByRole("button", { name: "Settings" }).click();
  const system = page.getByLabel("System prompt");
  await system.fill("Be brief.");
  await system.blur();
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  expect(said.find((text) => text.startsWith("resume"))).toContain(
    '[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"}] write true',
  );
  await system.fill("Be long.");
  await system.blur();
  await expect(parts(page).log).toContainText("Refilled from the text: you changed a setting.");
  expect(said.at(-1)).toContain('{"role":"system","content":"Be long."}');
});

test("settings take effect at once, are written into the address and said as a command", async ({ page }) => {
  const said = heard(page);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Settings" }).click();
  const set = async (label: string, value: string) => {
    const field = page.getByLabel(label);
    await field.fill(value);
    await field.blur();
  };
  await set("Recent: last tokens kept", "60");
  await expect(page.locator("#held")).toHaveText(/ of 64$/);
  await expect(parts(page).log).toContainText("Refilled from the text: you changed a setting.");
  await set("Sinks: first tokens", "2");
  await expect(page.locator("#held")).toHaveText(/ of 62$/);
  await page.getByLabel("Storage of one value").selectOption("f32");
  await page.getByLabel("Position of a sink").selectOption("stream");
  await expect.poll(() => said.at(-1)).toContain(
    'cache {"policy":"sinks","sinks":2,"recent":60,"kv":"f32","positions":"stream"}',
  );
  await set("Temperature", "0");
  await set("Seed", "7");
  await set("Longest answer", "2");
  await ask(page, "Again");
  await expect(parts(page).note).toHaveText(/^2 tokens, cut at the limit asked for/);
  await expect(page.locator(".command")).toHaveText(
    "sinkstream chat --policy sinks --sinks 2 --recent 60 --kv f32 --positions stream --temperature 0 --top-k 64 " +
      "--top-p 0.95 --min-p 0 --penalty 1.1 --seed 7 --max 2 --device cpu",
  );
  expect(new URL(page.url()).search).toBe(
    "?backend=cpu&load=1&sinks=2&recent=60&kv=f32&positions=stream&temperature=0&seed=7&max=2",
  );
  // One marker, however often the settings were changed in between.
  await expect(page.locator(".turn.page")).toHaveCount(1);
  await set("Top p", "2");
  await expect(page.getByRole("alert")).toHaveText("Top p must be from 0 to 1; the old value applies.");
  await expect(page.getByLabel("Top p")).toHaveAttribute("aria-invalid", "true");
  await page.getByLabel("What stays in the cache").selectOption("window");
  await expect(page.getByLabel("Sinks: first tokens")).toBeDisabled();
  await expect(page.locator(".command")).toContainText("--policy window --recent 60");
});

test("packing has its own settings, there only where something is packed", async ({ page }) => {
  const said = heard(page);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu&seed=1");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Settings" }).click();
  const [keys, values] = [page.getByLabel("Keys"), page.getByLabel("Values")];
  const [group, tail] = [page.getByLabel("Group: how many"), page.getByLabel("Tail: last tokens")];
  const set = async (field: typeof group, value: string) => {
    await field.fill(value);
    await field.blur();
  };
  for (const field of [keys, values, group, tail]) await expect(field).toBeHidden();
  await page.getByLabel("Storage of one value").selectOption("int4");
  for (const field of [keys, values, group, tail]) await expect(field).toBeVisible();
  await expect(keys).toHaveValue("");
  await expect(group).toHaveValue("32");
  await expect(tail).toHaveValue("32");
  await keys.selectOption("int8");
  await values.selectOption("f16");
  await set(tail, "64");
  await set(group, "16");
  const last = (): string | undefined => said.findLast((text) => text.startsWith("resume"));
  await expect
    .poll(last)
    .toContain('cache {"policy":"sinks","sinks":4,"recent":1020,"kv":"int4","kv_k":"int8","kv_v":"f16","tail":64,"group":16}');
  await expect(page.locator(".command")).toContainText(" --kv int4 --kv-k int8 --kv-v f16 --group 16 --tail 64 ");
  expect(new URL(page.url()).search).toBe("?backend=cpu&load=1&kv=int4&kv_k=int8&kv_v=f16&group=16&tail=64&seed=1");

  // What cannot be is said below its field, which keeps its text; the other field may be the one to put right.
  const wrong = page.getByRole("alert");
  await set(group, "20");
  await expect(wrong).toHaveText("The group is 20: use a multiple of 8, like 32. The old value applies.");
  await set(group, "24");
  await expect(wrong).toHaveText(
    "The tail is 64 and the group 24: make the tail a multiple of the group. The old value applies.",
  );
  await expect(group).toHaveAccessibleDescription(/The tail is 64/);
  await expect(group).toHaveAttribute("aria-invalid", "true");
  expect(new URL(page.url()).search).toContain("group=16&tail=64");
  await set(tail, "72");
  await expect(wrong).toHaveCount(0);
  await expect(group).not.toHaveAttribute("aria-invalid");
  await expect(group).toHaveValue("24");
  expect(new URL(page.url()).search).toContain("group=24&tail=72");
  await set(tail, "4");
  await expect(wrong).toHaveText(/^Tail: last tokens, not packed yet must be from 8 to 65,536/);
  await set(tail, "72");

  // The same as all is no setting of its own; with nothing packed the rest is out of sight.
  await values.selectOption("int4");
  await keys.selectOption("");
  await expect.poll(() => new URL(page.url()).search).toBe("?backend=cpu&load=1&kv=int4&group=24&tail=72&seed=1");
  await page.getByLabel("Storage of one value").selectOption("f16");
  for (const field of [keys, values, group, tail]) await expect(field).toBeHidden();
  await expect(page.locator(".command")).toContainText(" --kv f16 --temperature");
});

test("a cache that the engine refuses is said, and the model stays in the browser", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Storage of one value").selectOption("int4");
  await page.getByLabel("What stays in the cache").selectOption("recompute");
  await expect(parts(page).status).toContainText("recompute keeps nothing that could be packed");
  await page.reload();
  await expect(parts(page).status).toContainText(
    "The cache that the settings ask for cannot be: recompute keeps nothing that could be packed: store its keys " +
      "and values as f32, f16 or bf16.",
  );
  await expect(parts(page).status).toContainText("Change the settings, then load the model again.");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Storage of one value").selectOption("f16");
  await page.context().unroute("**/models/*.gguf");
  await page.context().route("**/models/*.gguf", (route) => route.abort());
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(parts(page).status).toContainText("Ready.");
});

test("the screen stays on only where it is asked for, and again after the tab was hidden", async ({ page }) => {
  // The browser's own would do, but for how many times it was asked.
  await page.addInitScript(() => {
    const counts = { asked: 0, held: 0 };
    class Lock extends EventTarget {
      released = false;
      async release() {
        if (!this.released) counts.held -= 1;
        this.released = true;
      }
    }
    const locks: Lock[] = [];
    let hidden = false;
    Object.defineProperty(document, "hidden", { get: () => hidden });
    Object.assign(window, {
      counts,
      show: (shown: boolean) => {
        hidden = !shown;
        // As a browser does with a tab that is hidden.
        if (hidden) for (const lock of locks) void lock.release();
        document.dispatchEvent(new Event("visibilitychange"));
      },
    });
    const request = async (kind: string) => {
      counts.asked += 1;
      if (kind !== "screen") throw new Error(`no lock “${kind}”`);
      if (sessionStorage.getItem("refuse") !== null) throw new DOMException("the battery is low", "NotAllowedError");
      counts.held += 1;
      const lock = new Lock();
      locks.push(lock);
      return lock;
    };
    Object.defineProperty(navigator, "wakeLock", { value: { request } });
  });
  const counts = () => page.evaluate(() => (window as unknown as { counts: object }).counts);
  const show = (shown: boolean) =>
    page.evaluate((shown) => (window as unknown as { show(shown: boolean): void }).show(shown), shown);
  await mock(page);
  await open(page, "&backend=cpu");
  await page.getByRole("button", { name: "Settings" }).click();
  const box = page.getByRole("checkbox", { name: "Keep the screen on" });
  await expect(box).not.toBeChecked();
  expect(await counts()).toEqual({ asked: 0, held: 0 });
  await box.check();
  await expect.poll(counts).toEqual({ asked: 1, held: 1 });
  await show(false);
  await expect.poll(counts).toEqual({ asked: 1, held: 0 });
  await show(true);
  await expect.poll(counts).toEqual({ asked: 2, held: 1 });
  await box.uncheck();
  await expect.poll(counts).toEqual({ asked: 2, held: 0 });
  await show(false);
  await show(true);
  expect(await counts()).toEqual({ asked: 2, held: 0 });
  await box.check();
  await page.reload();
  await expect.poll(counts).toEqual({ asked: 1, held: 1 });
  await page.evaluate(() => sessionStorage.setItem("refuse", ""));
  await expect(parts(page).status).toContainText("Ready.");
  await show(false);
  await show(true);
  await expect(parts(page).status).toContainText("The browser does not keep the screen on (the battery is low).");
});

test("a browser that cannot keep the screen on has no box for it", async ({ page }) => {
  await page.addInitScript(() => Reflect.deleteProperty(Navigator.prototype, "wakeLock"));
  await mock(page);
  await open(page, "&backend=cpu");
  await page.getByRole("button", { name: "Settings" }).click();
  await expect(page.getByLabel("What stays in the cache")).toBeVisible();
  await expect(page.getByLabel("Keep the screen on")).toBeHidden();
});

test("a setting that is changed while an answer is written waits for its end", async ({ page }) => {
  await mock(page, { delay: 10, most: 60 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Recent: last tokens kept").fill("80");
  await page.getByLabel("Recent: last tokens kept").blur();
  await expect(parts(page).status).toContainText("the change takes effect when it has ended");
  await expect(parts(page).note).toHaveText("60 tokens.");
  await expect(page.locator("#held")).toHaveText(/ of 84$/);
  await expect(parts(page).log).toContainText("you changed a setting");
});

test("the backend can be changed, and the conversation goes along", async ({ page }) => {
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Runs on").selectOption("auto");
  await expect(parts(page).log).toContainText("Refilled from the text: the model was loaded again.");
  await expect(parts(page).status).toContainText("Ready.");
  await expect(page.locator(".turn.you .text")).toHaveText("Hello");
});

test("what has left the cache is marked, in words too", async ({ page }) => {
  await mock(page, { words: ["one ", "two ", "three.\n\n"], most: 60, prompt: 40 });
  await open(page, "&backend=cpu&sinks=4&recent=60");
  await ask(page, "First question");
  // 100 tokens went through 4 + 60: the question's 40 are gone but for the sinks, the answer is whole.
  const turns = page.locator(".turn");
  await expect(parts(page).note).toHaveText(/^60 tokens/);
  await expect(turns.nth(0)).toHaveClass(/gone/);
  await expect(turns.nth(0)).toContainText("has left the cache");
  await expect(turns.nth(1)).not.toContainText("left the cache");
  await ask(page, "Second question");
  await expect(page.locator(".turn.model")).toHaveCount(2);
  await expect(parts(page).note).toHaveText(/^60 tokens/);
  await expect(turns.nth(1)).toHaveClass(/gone/);
  await expect(turns.nth(3)).not.toHaveClass(/gone/);
});

test("half an answer has left: its first paragraphs are struck through, and the count is said", async ({ page }) => {
  await mock(page, { words: ["one ", "two ", "three.\n\n"], most: 90, prompt: 10 });
  await open(page, "&backend=cpu&sinks=4&recent=60");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText(/^90 tokens/);
  // 100 tokens; the last 60 are kept: of the answer's 90 the first 30 are gone, which are ten paragraphs.
  await expect(page.locator(".turn.model")).toContainText("its first 30 tokens have left the cache");
  await expect(page.locator(".turn.model .block.gone")).toHaveCount(10);
});

test("read again, an answer longer than the cache is struck through but for its end", async ({ page }) => {
  await mock(page, { words: ["one ", "two ", "three.\n\n"], most: 90, prompt: 10 });
  await open(page, "&backend=cpu&sinks=4&recent=60&view=chat");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText(/^90 tokens/);
  await page.reload();
  await expect(page.locator(".turn.page")).toContainText("Refilled from the text");
  // Its 61 words are followed by 10 tokens more: of these 71 the last 60 are read, from “two” of the sixth paragraph on.
  await expect(page.locator(".turn.model")).toContainText("only its end is in the cache");
  await expect(page.locator(".turn.model .block.gone")).toHaveCount(5);
  await expect(page.locator(".turn.you")).toContainText("is not in the cache");
  await page.locator("#knows").scrollIntoViewIfNeeded();
  await expect(page.locator(".told-left s")).toHaveText("What was said before, and not read again. ");
  await expect(page.locator(".told-kept span")).toHaveText(/^two three/);
  await ask(page, "Again");
  await expect(parts(page).note).toHaveText(/^90 tokens/);
  await expect(page.locator(".turn.model").first()).toHaveClass(/gone/);
});

test("the chat goes on for ever: nothing says that anything is exceeded", async ({ page }) => {
  await mock(page, { most: 40 });
  await open(page, "&backend=cpu&sinks=4&recent=60");
  for (let i = 0; i < 70; i += 1) {
    await ask(page, `question ${i}`);
    await expect(page.locator(".turn.model .note").last()).toHaveText(/^40 tokens/);
    await expect(page.locator("#stream")).toHaveText(((i + 1) * 80).toLocaleString("en"));
  }
  await expect(page.locator("#held")).toHaveText("64 of 64");
  expect(await page.locator("body").innerText()).not.toMatch(/exceed|too long|limit reached/i);
  // Old turns wait for a button, so that the page does not grow.
  expect(await page.locator(".turn").count()).toBeLessThanOrEqual(90);
  await page.getByRole("button", { name: /^Show \d+ earlier turns/ }).click();
  await expect(page.locator(".turn.you .text").first()).not.toHaveText("question 69");
});

test("the self-test's result can be copied, and has nothing of what was written", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await mock(page, { most: 3 });
  await open(page, "&backend=cpu");
  await ask(page, "My secret");
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Help" }).click();
  await page.getByRole("button", { name: "Copy the self-test's result" }).click();
  await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toContain("rms_norm");
  const report: unknown = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
  expect(report).toMatchObject({
    versions: { burn: "0.22.1" },
    backend: { asked: "cpu", used: "cpu" },
    selfTest: { ok: true },
    milliseconds: { module: expect.any(Number), device: expect.any(Number), test: expect.any(Number) },
  });
  expect(JSON.stringify(report)).not.toContain("My secret");
});

test.describe("the address", () => {
  test("says the settings again: parse(format(s)) is s", () => {
    let state = 1;
    const random = (n: number): number => {
      state = (state * 48_271) % 2_147_483_647;
      return state % n;
    };
    const pick = <T>(all: readonly T[]): T => all[random(all.length)] as T;
    for (let i = 0; i < 500; i += 1) {
      const s = defaults(42);
      const policy = pick(["sinks", "window", "dense"] as const);
      s.backend = pick([null, "webgpu", "cpu"]);
      s.view = pick([null, "chat", "compare"]);
      s.theme = pick([null, "light", "dark", "system"]);
      s.load = random(2) === 1;
      s.cache = { policy, sinks: policy === "sinks" ? random(9) : 0, recent: 1 + random(5000), kv: pick(["f16", "f32"]) };
      if (random(2) === 1) s.cache.positions = "stream";
      if (random(2) === 1) s.cache.softmax = "one";
      if (random(2) === 1) s.cache.kv_k = pick(["int8", "int4", "bf16"]);
      if (random(2) === 1) s.cache.kv_v = pick(["int2", "int4", "bf16"]);
      if (random(2) === 1) [s.cache.group, s.cache.tail] = pick([[8, 8], [16, 48], [64, 128]]);
      s.send.sampler.temperature = random(100) / 10;
      s.send.sampler.seed = random(1000);
      s.send.max_tokens = random(3);
      s.compare.x = pick([null, "tiny", "two-bits"]);
      s.compare.mode = pick([null, "forced", "free"]);
      s.compare.text = pick([null, "story", "own"]);
      s.compare.from = random(10);
      s.compare.t = pick([null, 0, 257]);
      s.compare.play = random(2) === 1;
      for (let lanes = random(5); lanes > 0; lanes -= 1) {
        const lane = pick(["sinks", "window", "dense", "recompute"] as const);
        s.compare.lanes.push({
          policy: lane,
          sinks: lane === "sinks" ? random(9) : 0,
          recent: lane === "dense" ? 0 : 1 + random(500),
          kv: pick(["f32", "f16", "bf16", "int8", "int4", "int2"]),
          ...pick([{}, { positions: "stream" }]),
          ...pick([{}, { softmax: "one" }]),
          ...pick([{}, { kv_k: "int2" }, { kv_v: "int8" }, { kv_k: "int4", kv_v: "f16" }]),
          ...pick([{}, { group: 64, tail: 128 }]),
          ...pick([{}, { zero_sinks: true }]),
          ...(lane === "sinks" ? pick([{}, { sink_text: "\n\n: =\"\\ é" }]) : {}),
        });
      }
      expect(parse(format(s, 42), 42)).toEqual(s);
    }
  });

  test("packing that cannot be is said once, and the rest applies", () => {
    const { cache, complaints } = parse(new URLSearchParams("kv=int4&kv_k=int8&kv_v=int4&group=32&tail=48"), 1);
    expect(cache).toEqual({ policy: "sinks", sinks: 4, recent: 1020, kv: "int4", kv_k: "int8" });
    expect(complaints).toEqual([
      "The address asks for packing that cannot be: The tail is 48 and the group 32: make the tail a multiple of the " +
        "group. The defaults apply.",
    ]);
    expect(parse(new URLSearchParams("group=12"), 1).complaints).toEqual([expect.stringContaining("The group is 12")]);
    expect(parse(new URLSearchParams("kv_k=int3"), 1).complaints).toEqual([expect.stringContaining("kv_k=int3")]);
    expect(parse(new URLSearchParams("group=64&tail=64&kv=int2"), 1).cache).toMatchObject({ group: 64, tail: 64 });
  });

  test("lanes are written as the program names them; others are refused", () => {
    for (const text of ["window:128", "sinks:4+124:int4:stream:softmax1", "dense", "dense:f32", "recompute:128", "sinks:4+60:k=int2:v=int4:group=64:tail=64:zero:text=\\n\\n:"]) {
      expect(formatLane(parseLane(text) ?? { ...NONE })).toBe(text);
    }
    for (const text of ["", "window", "window:0", "window:4+8", "sinks:128", "sinks:4+124:int3", "other:4", "dense:k=f8", "dense:group=7", "window:8:text=a", "sinks:4+4:text=\""]) {
      expect(parseLane(text), text).toBeNull();
    }
    expect(parse([["lane", "other:4"]], 1).complaints).toEqual([expect.stringContaining("lane=other:4")]);
    const five = Array.from({ length: 5 }, (): [string, string] => ["lane", "dense"]);
    expect(parse(five, 1).complaints).toEqual([expect.stringContaining("more than four lanes")]);
  });
});

const NONE = { policy: "dense", sinks: 0, recent: 0, kv: "f16" } as const;
