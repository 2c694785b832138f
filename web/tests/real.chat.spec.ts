// The real module with the real weights, on both backends, against the command line program. The
// server is named by SINKSTREAM_URL; SINKSTREAM_GREEDY names a file `{"text": …, "ids": […]}` that
// the program wrote for this question with the same cache, temperature 0 and no penalty.

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import { ask, errors, parts } from "./page.ts";

const QUESTION = "Explain rain to a child.";
const CACHE = "policy=sinks&sinks=4&recent=252&kv=f16";
const GREEDY = "temperature=0&penalty=1&max=24";

interface Greedy {
  text: string;
  ids: number[];
}

function greedy(): Greedy {
  const file = process.env["SINKSTREAM_GREEDY"];
  if (file === undefined) throw new Error("SINKSTREAM_GREEDY must name the file with the program's answer");
  return JSON.parse(readFileSync(file, "utf8")) as Greedy;
}

// A software adapter writes a few tokens a second, after it has compiled every shader.
test.setTimeout(15 * 60_000);
const patient = { timeout: 10 * 60_000 };

for (const [backend, runs] of [
  ["cpu", /^CPU, one thread$/],
  ["webgpu", /^WebGPU · ./],
] as const) {
  test(`${backend} writes the program's tokens`, async ({ page }) => {
    const wanted = greedy();
    const found = errors(page);
    const { status, note, answer } = parts(page);
    await page.goto(`/?backend=${backend}&load=1&${CACHE}&${GREEDY}`);
    await expect(status).toContainText("Ready.", patient);
    await expect(page.locator("#runs")).toHaveText(runs);
    await expect(page.locator("#held")).toHaveText("0 of 256");
    // 30 layers, K and V, 3 heads of 64 values, 2 bytes, 256 slots.
    await expect(page.locator("#bytes")).toHaveText("5.9 MB");
    // A fast machine answers between two looks at the page, so the status line is written down.
    await status.evaluate((e) => {
      const said: string[] = [];
      Object.assign(window, { said });
      new MutationObserver(() => said.push(e.textContent ?? "")).observe(e, {
        childList: true,
        subtree: true,
      });
    });

    await ask(page, QUESTION);
    await expect(note).toHaveText(/^\d+ tokens/, patient);
    await expect(status).toContainText("Ready.");
    const said = await page.evaluate(() => (window as unknown as { said: string[] }).said);
    expect(said.join("\n")).toContain("Writing an answer.");

    const ids = (await answer.getAttribute("data-ids")) ?? "";
    expect(ids.split(",").map(Number)).toEqual(wanted.ids);
    // The page lays it out as Markdown, which is all but the white space.
    const bare = (text: string | null): string => (text ?? "").replaceAll(/\s/g, "");
    expect(bare(await answer.textContent())).toBe(bare(wanted.text));

    const stream = Number(await page.locator("#stream").textContent());
    expect(stream).toBeGreaterThan(wanted.ids.length);
    await expect(page.locator("#held")).toHaveText(`${stream} of 256`);
    await expect(page.locator("#speed")).toHaveText(/^[\d,.]+ tokens\/s$/);
    // Figures are drawn where they are seen.
    for (const [figure, says] of [
      ["cost", new RegExp(`Over the last ${stream} of ${stream} tokens`)],
      ["cache", new RegExp(`^${stream} of 256 slots: 4 sinks, ${stream - 4} exact`)],
      ["attention", /^On average [1-9]\d*% of attention goes to the/],
      ["memory", /5\.9 MB/],
      ["time", /[\d.]+ ms/],
    ] as const) {
      await page.locator(`#${figure}-words`).locator("xpath=..").scrollIntoViewIfNeeded();
      await expect(page.locator(`#${figure}-words`), figure).toHaveText(says);
    }
    expect(found).toEqual([]);
  });
}

test("cpu: Stop ends an answer, and the next message is answered", async ({ page }) => {
  const found = errors(page);
  const { status, note, stop, send, answer } = parts(page);
  await page.goto(`/?backend=cpu&load=1&${CACHE}&temperature=0&penalty=1`);
  await expect(status).toContainText("Ready.", patient);
  await ask(page, "Tell me a long story about a lighthouse keeper.");
  await expect(answer).not.toBeEmpty(patient);
  await stop.click();
  await expect(note).toHaveText(/^\d+ tokens?, stopped\./, patient);
  await expect(send).toBeEnabled();
  await ask(page, QUESTION);
  await expect(page.locator(".turn.model")).toHaveCount(2);
  await expect(answer).not.toBeEmpty(patient);
  expect(found).toEqual([]);
});

test("cpu: a web page in place of the weights is named as such", async ({ page }) => {
  await page.goto("/?backend=cpu&load=1&model=index.html");
  const { status } = parts(page);
  await expect(page.getByRole("button", { name: "Retry" })).toBeEnabled(patient);
  await expect(status).toContainText(/HTML|web page/i);
});

test("cpu: while the weights are read the module's memory stays below the file and 64 MiB", async ({ page }) => {
  await page.goto("/");
  const { size, peak, after } = await page.evaluate(async () => {
    const address = new URL("pkg/wasm.js", location.href).href;
    const module = await import(/* @vite-ignore */ address);
    await module.default({ module_or_path: new URL("wasm_bg.wasm", address) });
    const engine = await module.Engine.create("cpu", false);
    engine.load_begin();
    const body = (await fetch("models/SmolLM2-135M-Instruct.Q4_1.gguf")).body?.getReader();
    let size = 0;
    let peak = 0;
    for (;;) {
      const piece = await body?.read();
      if (piece?.value === undefined) break;
      size += piece.value.length;
      engine.load_push(piece.value);
      peak = Math.max(peak, module.memory_bytes());
    }
    await engine.load_end();
    return { size, peak, after: module.memory_bytes() as number };
  });
  console.log(`file ${size} bytes; module ${peak} at most while reading, ${after} with the tokenizer built`);
  expect(size).toBe(98_362_432);
  expect(Math.max(peak, after)).toBeLessThan(size + 64 * 1024 * 1024);
});
