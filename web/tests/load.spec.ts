// The download: progress, cancelling, and servers that answer with something else.

import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "@playwright/test";
import { GGUF, mock, parts } from "./page.ts";

const TOTAL = 98_362_432;

let server: Server;
let model: string;
/** Downloads that were asked for and not yet taken by a spec. */
const asked: ServerResponse[] = [];

async function download(): Promise<ServerResponse> {
  await expect.poll(() => asked.length).toBe(1);
  const response = asked.pop();
  if (response === undefined) throw new Error("no download");
  return response;
}

function sendAll(response: ServerResponse): void {
  for (let i = 0; i < 4; i += 1) response.write(QUARTER);
  response.end();
}

// Sends what it is told to, when it is told to.
test.beforeAll(async () => {
  server = createServer((_, response) => {
    response.writeHead(200, { "access-control-allow-origin": "*", "content-length": TOTAL });
    asked.push(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  model = `http://127.0.0.1:${(server.address() as AddressInfo).port}/model.gguf`;
});

test.afterAll(() => {
  server.closeAllConnections();
  server.close();
});

const QUARTER = Buffer.alloc(TOTAL / 4);
QUARTER.write("GGUF");

test("progress: bytes, speed, time left; cancelled and begun again", async ({ page }) => {
  const errors = await mock(page, { total: TOTAL });
  const { status, bar, load } = parts(page);
  await page.goto(`/?backend=cpu&model=${model}`);
  await expect(page.locator(".terms")).toContainText(`The weights named by the address: ${model}`);
  await expect(bar).toBeHidden();
  await load.click();
  await expect(status).toContainText("Loading the model.");
  const first = await download();
  first.write(QUARTER);
  await expect(status).toContainText("Loading the model, 25%.");
  await page.waitForTimeout(300);
  first.write(QUARTER);
  await expect(status).toContainText("Loading the model, 50%.");
  expect(Number(await bar.getAttribute("value"))).toBeCloseTo(0.5, 1);
  await expect(page.getByText(/^49\.\d of 98\.4 MB · [\d.,]+ MB\/s · \d+ s left$/)).toBeVisible();

  const gone = new Promise((resolve) => first.once("close", resolve));
  await page.getByRole("button", { name: "Cancel" }).click();
  await gone;
  await expect(status).toContainText("The download was cancelled.");
  await expect(bar).toBeHidden();

  await load.click();
  sendAll(await download());
  await expect(status).toContainText("Ready.");
  await expect(bar).toBeHidden();
  expect(errors).toEqual([]);
});

test("404: the status is named, and Retry works once the file is there", async ({ page }) => {
  await mock(page);
  let there = false;
  await page
    .context()
    .route("**/models/*.gguf", (route) =>
      there ? route.fulfill({ body: GGUF }) : route.fulfill({ status: 404, body: "no such file" }),
    );
  await page.goto("/?backend=cpu&load=1");
  const { status } = parts(page);
  await expect(status).toContainText(
    /The server answered 404 Not Found for .*SmolLM2-135M-Instruct\.Q4_1\.gguf\./,
  );
  await expect(status).toContainText("Check that the weights lie there, then retry.");
  there = true;
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(status).toContainText("Ready.");
});

test("a web page in place of the weights is named with its address", async ({ page }) => {
  await mock(page);
  await page
    .context()
    .route("**/models/*.gguf", (route) =>
      route.fulfill({ contentType: "text/html", body: "<!doctype html><title>Welcome</title>" }),
    );
  await page.goto("/?backend=cpu&load=1");
  await expect(parts(page).status).toContainText(
    /A web page came from http.*\/models\/SmolLM2-135M-Instruct\.Q4_1\.gguf in place of the weights\./,
  );
  await expect(page.getByRole("button", { name: "Retry" })).toBeEnabled();
});

test("a file that is no model: the engine's sentence is shown", async ({ page }) => {
  await mock(page);
  await page.context().route("**/models/*.gguf", (route) => route.fulfill({ body: "MZ" }));
  await page.goto("/?backend=cpu&load=1");
  await expect(parts(page).status).toContainText("The file is not a GGUF file");
  await expect(page.getByRole("button", { name: "Retry" })).toBeEnabled();
});

test("a file that ends too early: the engine's sentence is shown", async ({ page }) => {
  await mock(page, { total: TOTAL });
  await page.goto("/?backend=cpu&load=1");
  await expect(parts(page).status).toContainText(
    "The file ends after 100004 of 98362432 bytes. Load it again.",
  );
});
