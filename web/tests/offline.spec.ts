// A static host without special headers: the page's own policy, and the second visit without a connection.

import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join, normalize } from "node:path";
import { expect, test } from "@playwright/test";
import { ask, ENGINE, errors, GGUF, parts } from "./page.ts";

const DIST = new URL("../dist/", import.meta.url).pathname;
const TYPES: Record<string, string> = { html: "text/html", js: "text/javascript", css: "text/css" };

let server: Server;
let url: string;

// Below a path, as such hosts have it.
test.beforeAll(async () => {
  server = createServer((request, response) => {
    const path = new URL(request.url ?? "", "http://x").pathname.replace(/^\/below\//, "");
    const file = path === "" ? "index.html" : normalize(path);
    const type = TYPES[file.split(".").at(-1) ?? ""] ?? "application/octet-stream";
    const send = (body: string | Buffer) => response.writeHead(200, { "content-type": type }).end(body);
    if (file === "pkg/wasm.js") return void send(`const PLAN = {"most":5};\n${ENGINE}`);
    if (file === "pkg/wasm_bg.wasm") return void send("\0asm");
    if (file.endsWith(".gguf")) return void send(GGUF);
    try {
      send(readFileSync(join(DIST, file)));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/below/`;
});

test.afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test.use({ serviceWorkers: "allow" });

test("the second visit works without a connection, and the chat is there", async ({ page, context }) => {
  const found = errors(page);
  await page.goto(`${url}?view=chat&backend=cpu`);
  await parts(page).load.click();
  await expect(parts(page).status).toContainText("Ready.");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("5 tokens.");
  await page.waitForFunction(async () => {
    const cache = await caches.open("sinkstream-page");
    const kept = (await cache.keys()).map(({ url }) => url);
    return ["/below/", "wasm.js", "wasm_bg.wasm", "worker-"].every((part) => kept.some((u) => u.includes(part)));
  });
  expect(found).toEqual([]);
  await context.setOffline(true);
  await page.reload();
  await expect(page.locator(".turn.you .text")).toHaveText("Hello");
  await expect(parts(page).status).toContainText("Ready.");
  await ask(page, "Again");
  await expect(parts(page).note).toHaveText("5 tokens.");
  await expect(page.locator(".turn.model")).toHaveCount(2);
  const another = await context.newPage();
  await another.goto(`${url}?backend=cpu&sinks=2&recent=60`);
  await expect(another.locator("h1")).toBeVisible();
});

test("offline in the middle of a chat changes nothing", async ({ page, context }) => {
  await page.goto(`${url}?backend=cpu&load=1`);
  await expect(parts(page).status).toContainText("Ready.");
  await context.setOffline(true);
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("5 tokens.");
});

test("the page's own policy allows no inline script and no code from elsewhere", async ({ page }) => {
  const html = readFileSync(join(DIST, "index.html"), "utf8");
  expect(html).not.toMatch(/<script(?![^>]*\bsrc=)/);
  expect(html).not.toMatch(/\son\w+=|<style|\sstyle=/);
  await page.goto(`${url}?view=chat&backend=cpu`);
  const refused = await page.evaluate(async () => {
    const violated: string[] = [];
    document.addEventListener("securitypolicyviolation", (event) => violated.push(event.effectiveDirective));
    const inline = document.createElement("script");
    inline.textContent = "window.ran = true";
    document.head.append(inline);
    const remote = document.createElement("script");
    remote.src = "https://example.org/x.js";
    document.head.append(remote);
    await new Promise((resolve) => setTimeout(resolve, 300));
    return { ran: "ran" in window, violated };
  });
  expect(refused).toEqual({ ran: false, violated: ["script-src-elem", "script-src-elem"] });
});
