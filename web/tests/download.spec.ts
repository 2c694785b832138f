// A download that does not go as it should, and what is kept in the browser afterwards.

import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, type Page, test } from "@playwright/test";
import { mock, open, parts, random } from "./page.ts";

const MIB = 1024 * 1024;
const FILE = Buffer.alloc(20 * MIB);
for (let i = 4; i < FILE.length; i += 1) FILE[i] = (i * 2_654_435_761) >>> 24;
FILE.write("GGUF");
const SHA256 = createHash("sha256").update(FILE).digest("hex");

/** How the server behaves; what is left out works. */
interface Behaviour {
  /** Bytes after which each connection breaks, in turn. */
  cuts?: number[];
  ignoresRanges?: boolean;
  /** A byte that arrives changed. */
  wrong?: number;
  /** Answers with this status so many times. */
  status?: [code: number, times: number];
  /** Sends nothing more after so many bytes of the first connection. */
  stalls?: number;
}

let server: Server;
let behaviour: Behaviour = {};
let etag = "";
/** The range of each request, empty where there was none. */
let asked: string[] = [];

function serve(request: IncomingMessage, response: ServerResponse): void {
  const cors = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "*",
    "access-control-expose-headers": "etag",
  };
  if (request.method === "OPTIONS") return void response.writeHead(204, cors).end();
  const range = behaviour.ignoresRanges ? undefined : request.headers.range;
  asked.push(request.headers.range ?? "");
  const { status } = behaviour;
  if (status !== undefined && status[1] > 0) {
    status[1] -= 1;
    return void response.writeHead(status[0], cors).end();
  }
  const from = Number(/^bytes=(\d+)-$/.exec(range ?? "")?.[1] ?? 0);
  const body = Buffer.from(FILE.subarray(from));
  const { wrong } = behaviour;
  if (wrong !== undefined && wrong >= from) body[wrong - from] = (body[wrong - from] ?? 0) ^ 1;
  response.writeHead(range === undefined ? 200 : 206, {
    ...cors,
    etag,
    "content-length": body.length,
    ...(range === undefined ? {} : { "content-range": `bytes ${from}-${FILE.length - 1}/${FILE.length}` }),
  });
  const cut = behaviour.cuts?.shift();
  const { stalls } = behaviour;
  delete behaviour.stalls;
  if (stalls !== undefined) response.write(body.subarray(0, stalls));
  else if (cut === undefined) response.end(body);
  // What the page has not read when the line breaks is lost with it, so it gets a moment.
  else response.write(body.subarray(0, Math.max(0, cut - from)), () => setTimeout(() => response.destroy(), 300));
}

test.beforeAll(async () => {
  server = createServer(serve);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});

test.afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test.beforeEach(() => {
  behaviour = {};
  etag = '"one"';
  asked = [];
});

const model = (): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}/a-model.gguf`;
const query = (): string => `&backend=cpu&model=${model()}&sha256=${SHA256}`;
const retry = (page: Page) => page.getByRole("button", { name: "Retry" });

/** SHA-256 of each finished file that the browser keeps, computed apart from the page's code. */
const hashes = (page: Page): Promise<string[]> =>
  page.evaluate(async () => {
    const found: string[] = [];
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("models");
    for await (const [name, handle] of folder.entries()) {
      if (!name.endsWith(".gguf") || handle.kind !== "file") continue;
      const bytes = await (await (handle as FileSystemFileHandle).getFile()).arrayBuffer();
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      found.push([...hash].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
    }
    return found;
  });

/** What the browser keeps, by the page's own list. */
async function kept(page: Page): Promise<string[]> {
  await page.getByRole("button", { name: "Models" }).click();
  const rows = await page.locator("#models .rows li").allInnerTexts();
  await page.getByRole("button", { name: "Close" }).click();
  return rows.map((row) => row.replaceAll(/\s+/g, " "));
}

const PIECE = /a-model 21\.0 MB, \w+ \d+, \d{4} Use Remove/;

test("cut at ten random bytes it goes on each time, and is kept whole", async ({ page }) => {
  test.setTimeout(120_000);
  const errors = await mock(page, { total: FILE.length });
  const seed = Number(process.env["SINKSTREAM_SEED"] ?? Date.now() % 1_000_000);
  console.log(`cuts of seed ${seed}`);
  const next = random(seed);
  // A cut before what has come already would send nothing, which is a fault of another kind.
  behaviour.cuts = Array.from({ length: 10 }, () => 1 + Math.floor(next() * (FILE.length - 1))).sort((a, b) => a - b);
  await page.goto(`/?load=1${query()}`);
  await expect(parts(page).status).toContainText("Trying again.");
  await expect(parts(page).status).toContainText("Ready.", { timeout: 60_000 });
  expect(asked).toHaveLength(11);
  expect(asked[0]).toBe("");
  for (const range of asked.slice(1)) expect(range).toMatch(/^(bytes=\d+-)?$/);
  // A browser that stalls may have read nothing before the first cut, and begins anew.
  expect(asked.filter((range) => range !== "").length).toBeGreaterThanOrEqual(8);
  expect(await kept(page)).toEqual([expect.stringMatching(PIECE)]);
  expect(await hashes(page)).toEqual([SHA256]);
  expect(errors.filter((text) => !text.includes("ERR_"))).toEqual([]);
});

test("a server that ignores ranges sends it all again, and nothing is taken twice", async ({ page }) => {
  await mock(page, { total: FILE.length });
  behaviour = { cuts: [7_000_001], ignoresRanges: true };
  await open(page, query());
  expect(asked).toEqual(["", expect.stringMatching(/^bytes=/)]);
  expect(await kept(page)).toEqual([expect.stringMatching(PIECE)]);
});

test("a wrong byte is found and said, thrown away, and Retry fetches it all", async ({ page }) => {
  await mock(page, { total: FILE.length });
  // In the second part, where the first had been right.
  behaviour = { wrong: 12_345_678, cuts: [7_000_001] };
  await page.goto(`/?load=1${query()}`);
  const { status } = parts(page);
  await expect(status).toContainText(/Wrong bytes came from .*a-model\.gguf: the file's SHA-256 is [0-9a-f]{64}, not/);
  await expect(status).toContainText("They were thrown away.");
  behaviour = {};
  expect(await hashes(page)).toEqual([]);
  await retry(page).click();
  await expect(status).toContainText("Ready.");
  expect(asked).toEqual(["", expect.stringMatching(/^bytes=/), ""]);
  expect(await hashes(page)).toEqual([SHA256]);
});

test("a file that changed in between is begun anew", async ({ page }) => {
  await mock(page, { total: FILE.length });
  behaviour.cuts = [7_000_001];
  const first = page.waitForResponse((response) => response.url() === model());
  await page.goto(`/?load=1&backend=cpu&model=${model()}`);
  await first;
  etag = '"two"';
  await expect(parts(page).status).toContainText("Ready.");
  expect(asked).toEqual(["", expect.stringMatching(/^bytes=/), ""]);
});

test("a busy server is asked again; one that stays busy is named by its status", async ({ page }) => {
  await mock(page, { total: FILE.length });
  behaviour.status = [503, 2];
  await page.goto(`/?load=1${query()}`);
  const { status } = parts(page);
  await expect(status).toContainText("The server answered 503 Service Unavailable");
  await expect(status).toContainText("Trying again.");
  await expect(status).toContainText("Ready.");
  expect(asked).toHaveLength(3);
  behaviour.status = [503, 99];
  await page.goto("about:blank");
  await page.goto(`/?load=1&backend=cpu&model=${model()}?other`);
  await expect(retry(page)).toBeVisible({ timeout: 20_000 });
  await expect(status).toContainText("The server answered 503 Service Unavailable");
  expect(asked).toHaveLength(3 + 5);
});

test("a server that falls silent is asked again from where it stopped", async ({ page }) => {
  test.setTimeout(90_000);
  await mock(page, { total: FILE.length });
  behaviour.stalls = 5_000_000;
  await page.goto(`/?load=1${query()}`);
  await expect(parts(page).status).toContainText("no byte came for 15 s", { timeout: 30_000 });
  await expect(parts(page).status).toContainText("Ready.");
  expect(asked[1]).toMatch(/^bytes=\d{6,}-$/);
});

test("what was fetched before Cancel, or before the tab was closed, is not fetched again", async ({ page }) => {
  await mock(page, { total: FILE.length });
  behaviour.stalls = 9_000_000;
  await page.goto(`/?load=1${query()}`);
  const { status, load } = parts(page);
  await expect(page.getByText(/^9\.0 of 21\.0 MB/)).toBeVisible();
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(status).toContainText("The download was cancelled. What came is kept");
  behaviour.stalls = 3_000_000;
  await load.click();
  await expect(page.getByText(/^12\.0 of 21\.0 MB/)).toBeVisible();
  await page.reload();
  await expect(status).toContainText("Ready.");
  expect(asked).toEqual(["", "bytes=9000000-", "bytes=12000000-"]);
});

test("the second visit comes from this browser by itself; a removed model is fetched again", async ({ page }) => {
  await mock(page, { total: FILE.length, most: 3 });
  await open(page, query());
  await page.goto(`/?backend=cpu&model=${model()}`);
  await expect(parts(page).status).toContainText("Ready.");
  expect(asked).toHaveLength(1);
  await page.getByRole("button", { name: "Models" }).click();
  await page.getByRole("button", { name: "Remove a-model" }).click();
  await expect(page.getByText("No model is kept in this browser yet.")).toBeVisible();
  await page.goto(`/?backend=cpu&model=${model()}`);
  await expect(parts(page).load).toBeEnabled();
  expect(asked).toHaveLength(1);
});

test("several models side by side: another address, then back", async ({ page }) => {
  await mock(page, { total: FILE.length });
  await open(page, query());
  await page.getByRole("button", { name: "Models" }).click();
  await page.getByRole("textbox", { name: "Address of a GGUF file" }).fill(model().replace("a-model", "b-model"));
  await page.getByRole("button", { name: "Fetch" }).click();
  await expect.poll(() => asked.length).toBe(2);
  await expect(parts(page).status).toContainText("Ready.");
  expect((await kept(page)).map((row) => row.slice(0, 7)).sort()).toEqual(["a-model", "b-model"]);
  await page.getByRole("button", { name: "Models" }).click();
  await page.getByRole("button", { name: "Use a-model" }).click();
  await expect(parts(page).status).toContainText("Ready.");
  expect(asked).toHaveLength(2);
});

test("no room: the model is used all the same, and the page says that it is not kept", async ({ page }) => {
  await mock(page, { total: FILE.length, most: 3 });
  const session = await page.context().newCDPSession(page);
  await page.goto("/?view=chat&backend=cpu");
  const origin = await page.evaluate(() => location.origin);
  await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 5 * MIB });
  await open(page, query());
  await expect(parts(page).status).toContainText("This browser gave no room to keep the model");
  expect(await kept(page)).toEqual(["No model is kept in this browser yet."]);
});

for (const [name, refuse] of [
  ["without private files the cache keeps it", ["files"]],
  ["a private window that keeps nothing says so", ["files", "cache", "chats"]],
] as const) {
  test(name, async ({ page }) => {
    await page.addInitScript((refuse: readonly string[]) => {
      const denied = (): Promise<never> => Promise.reject(new DOMException("denied", "SecurityError"));
      if (refuse.includes("files")) StorageManager.prototype.getDirectory = denied;
      if (refuse.includes("cache")) CacheStorage.prototype.open = denied;
      if (refuse.includes("chats")) {
        IDBFactory.prototype.open = (): never => {
          throw new DOMException("denied", "SecurityError");
        };
      }
    }, refuse);
    await mock(page, { total: FILE.length });
    behaviour.cuts = [9_000_001];
    await open(page, query());
    if (refuse.length === 1) {
      expect(await kept(page)).toEqual([expect.stringMatching(PIECE)]);
      await page.goto(`/?backend=cpu&model=${model()}`);
      await expect(parts(page).status).toContainText("Ready.");
      expect(asked).toHaveLength(2);
    } else {
      await expect(parts(page).status).toContainText("This browser keeps no files for this page");
      await expect(parts(page).status).toContainText("This browser does not keep chats here (denied)");
    }
  });
}

test("a file from the disk is used where it lies, chosen or dropped", async ({ page }) => {
  await mock(page, { most: 3 });
  await page.goto("/?view=chat&backend=cpu");
  await expect(parts(page).load).toBeEnabled();
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Use a file" }).click();
  await (await chooser).setFiles({ name: "mine.gguf", mimeType: "", buffer: Buffer.from("GGUF mine") });
  await expect(parts(page).status).toContainText("Ready.");
  expect(await kept(page)).toEqual(["No model is kept in this browser yet."]);
  const drop = (name: string) =>
    page.evaluate((name) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["GGUF dropped"], name));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
    }, name);
  await drop("notes.pdf");
  await expect(parts(page).status).toContainText("notes.pdf is not a GGUF file by its name");
  await drop("other.gguf");
  await expect(parts(page).status).toContainText("Ready.");
  expect(asked).toEqual([]);
});

test("Clear storage asks first, and then nothing is left", async ({ page }) => {
  await mock(page, { total: FILE.length, most: 3 });
  await open(page, query());
  await parts(page).message.fill("Hello");
  await parts(page).send.click();
  await expect(parts(page).note).toHaveText("3 tokens.");
  await page.getByRole("button", { name: "Models" }).click();
  await page.getByRole("button", { name: "Clear storage" }).click();
  await expect(page.getByText("There is no way back.")).toBeVisible();
  await page.getByRole("button", { name: "Remove everything" }).click();
  await expect(parts(page).status).toContainText("Everything was removed from this browser.");
  await expect(page.locator(".turn")).toHaveCount(0);
  await page.goto(`/?backend=cpu&model=${model()}`);
  await expect(parts(page).load).toBeEnabled();
  await expect(page.locator(".turn")).toHaveCount(0);
  expect(await kept(page)).toEqual(["No model is kept in this browser yet."]);
});
