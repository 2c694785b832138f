// The npm package: its example page, and what it says when something is wrong.

import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join, normalize } from "node:path";
import { expect, test } from "@playwright/test";
import { ENGINE, errors, GGUF } from "./page.ts";

const WEB = new URL("../", import.meta.url).pathname;

let server: Server;
let url: string;

test.beforeAll(async () => {
  server = createServer((request, response) => {
    const file = normalize(new URL(request.url ?? "", "http://x").pathname);
    const type = file.endsWith(".html") ? "text/html" : "text/javascript";
    const send = (body: string | Buffer) => response.writeHead(200, { "content-type": type }).end(body);
    if (file.endsWith("/wasm.js")) {
      const engine = ENGINE.replace('endsWith("/pkg/wasm_bg.wasm")', 'endsWith("/package/wasm_bg.wasm")');
      return void send(`const PLAN = {"most":5,"refuse":"too much"};\n${engine}`);
    }
    if (file.endsWith(".gguf")) return void send(GGUF);
    try {
      send(readFileSync(join(WEB, file)));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
});

test.afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test("the example page answers, and has ten lines", async ({ page }) => {
  const found = errors(page);
  await page.goto(`${url}example/index.html`);
  await expect(page.locator("#answer")).toHaveText("The lamp was lit each");
  expect(readFileSync(join(WEB, "example/index.html"), "utf8").trim().split("\n").length).toBeLessThanOrEqual(10);
  expect(found.filter((text) => !text.includes("favicon") && !text.includes("404"))).toEqual([]);
});

test("chat, stop by leaving the loop, reset, reports, and errors with a remedy", async ({ page }) => {
  await page.goto(`${url}example/index.html`);
  const run = await page.evaluate(async (address) => {
    const { Sinkstream } = (await import(/* @vite-ignore */ address)) as typeof import("../src/package.ts");
    const progress: number[] = [];
    const model = await Sinkstream.load({
      model: "../models/any.gguf",
      backend: "cpu",
      cache: { sinks: 2, recent: 30 },
      onProgress: (bytes) => progress.push(bytes),
    });
    const all = async (text: string): Promise<string> => {
      let answer = "";
      for await (const piece of model.chat(text, { temperature: 0 })) answer += piece;
      return answer;
    };
    let held = 0;
    for await (const _ of model.chat("one", { onStep: (step) => step.kind === "token" && (held = step.cache.held) })) break;
    const second = await all("two");
    const refused = await all("too much").catch((error: Error) => error.message);
    const third = await all("three");
    await model.reset({ recent: 10 });
    const fourth = await all("four");
    model.close();
    const missing = await Sinkstream.load({ model: "../nothing", backend: "cpu" }).catch((e: Error) => `${e.name}: ${e.message}`);
    return { layers: model.info.layers, backend: model.backend, held, second, refused, third, fourth, missing };
  }, `${url}package/index.js`);
  expect(run).toMatchObject({
    layers: 30,
    backend: "cpu",
    held: 32,
    second: "The lamp was lit each ",
    refused: "The message is longer than this cache can ever take. Shorten it.",
    third: "The lamp was lit each ",
    fourth: "The lamp was lit each ",
    missing: expect.stringMatching(/^http: The server answered 404 Not Found for .*\/nothing\. Check that/),
  });
});
