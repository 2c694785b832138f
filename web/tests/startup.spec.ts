// Where the model runs, and what the page says when it cannot run where it should.

import { expect, test } from "@playwright/test";
import { ask, fakeGpu, GPU, mock, open, parts } from "./page.ts";

/** However it came to the CPU, the page must answer there. */
async function chatsOnCpu(page: import("@playwright/test").Page, why: RegExp): Promise<void> {
  await expect(parts(page).status).toContainText(why);
  await expect(parts(page).runs).toHaveText("CPU, one thread");
  const answer = await ask(page, "Hello");
  await expect(answer).toHaveText("The lamp was ");
}

test("a graphics processor with all that is needed is used", async ({ page }) => {
  const errors = await mock(page);
  await fakeGpu(page, GPU);
  await open(page);
  await expect(parts(page).runs).toHaveText("WebGPU · Acme Rocket 9000");
  await expect(parts(page).status).toHaveText("Ready. The model runs on WebGPU (Acme Rocket 9000).");
  expect(errors).toEqual([]);
});

test("the address can force the CPU, and no reason is given", async ({ page }) => {
  await mock(page);
  await fakeGpu(page, GPU);
  await open(page, "&backend=cpu");
  await expect(parts(page).status).toHaveText("Ready. The model runs on the CPU, one thread.");
});

test("an insecure address", async ({ page, baseURL }) => {
  await mock(page, { most: 3 });
  await page.context().route("http://insecure.test/**", async (route) => {
    const url = route
      .request()
      .url()
      .replace("http://insecure.test/", baseURL ?? "");
    if (/wasm\.js|\.gguf/.test(url)) return route.fallback();
    return route.fulfill({ response: await route.fetch({ url }) });
  });
  await page.goto("http://insecure.test/?load=1");
  expect(await page.evaluate(() => isSecureContext)).toBe(false);
  await expect(parts(page).status).toContainText("Ready.");
  await chatsOnCpu(page, /insecure connection/);
});

test("no WebGPU", async ({ page }) => {
  await mock(page, { most: 3 });
  await fakeGpu(page, "missing");
  await open(page);
  await chatsOnCpu(page, /This browser has no WebGPU/);
});

test("no adapter", async ({ page }) => {
  await mock(page, { most: 3 });
  await fakeGpu(page, null);
  await open(page);
  await chatsOnCpu(page, /offers no graphics processor/);
});

test("no timestamp-query: the module is never asked to use WebGPU", async ({ page }) => {
  await mock(page, { most: 3, create: { webgpu: "hang" } });
  await fakeGpu(page, { ...GPU, features: [] });
  await open(page, "&backend=webgpu");
  await chatsOnCpu(page, /Acme Rocket 9000.*“timestamp-query”/);
});

test("a limit below what the kernels need", async ({ page }) => {
  await mock(page, { most: 3 });
  await fakeGpu(page, { ...GPU, limits: { maxStorageBuffersPerShaderStage: 4 } });
  await open(page);
  await chatsOnCpu(page, /maxStorageBuffersPerShaderStage = 4; the model needs 8/);
});

const SWIFTSHADER = {
  ...GPU,
  info: { vendor: "google", architecture: "swiftshader", description: "" },
};

test("a software adapter is left for the CPU", async ({ page }) => {
  await mock(page, { most: 3 });
  await fakeGpu(page, SWIFTSHADER);
  await open(page);
  await chatsOnCpu(page, /imitated in software here \(google swiftshader\)/);
});

test("a software adapter that says so only by its flag is left for the CPU", async ({ page }) => {
  await mock(page, { most: 3 });
  await fakeGpu(page, { ...GPU, info: { ...GPU.info, isFallbackAdapter: true } });
  await open(page);
  await chatsOnCpu(page, /imitated in software here/);
});

test("a software adapter is used when the address forces it", async ({ page }) => {
  await mock(page);
  await fakeGpu(page, SWIFTSHADER);
  await open(page, "&backend=webgpu");
  await expect(parts(page).runs).toHaveText("WebGPU · google swiftshader");
});

test("wrong numbers in the self-test", async ({ page }) => {
  await mock(page, { most: 3, selfTest: { webgpu: false } });
  await fakeGpu(page, GPU);
  await open(page);
  await chatsOnCpu(
    page,
    /WebGPU on Acme Rocket 9000 could not be used: The self-test got wrong numbers in attention\./,
  );
});

test("a module that is not there is named, with what puts it there", async ({ page }) => {
  await mock(page);
  await page.context().route("**/pkg/wasm.js", (route) => route.fulfill({ status: 404, body: "Not found" }));
  await page.goto("/?backend=cpu&load=1");
  const { status } = parts(page);
  await expect(status).toContainText(/The module at \S+\/pkg\/wasm\.js could not be used/);
  await expect(status).toContainText("on a server of your own, see that the file is there");
});

test("a device that cannot be created", async ({ page }) => {
  await mock(page, { most: 3, create: { webgpu: "reject" } });
  await fakeGpu(page, GPU);
  await open(page);
  await chatsOnCpu(page, /could not be used: the device could not be created\./);
});

test("a device that never answers", async ({ page }) => {
  await page.clock.install();
  await mock(page, { most: 3, create: { webgpu: "hang" } });
  await fakeGpu(page, GPU);
  const worker = page.waitForEvent("worker");
  await page.goto("/?load=1");
  await worker;
  // The watchdog starts when the module has come; time is moved on until it bites.
  await expect(async () => {
    await page.clock.fastForward(21_000);
    await expect(parts(page).status).toContainText("no answer from starting the device within 20 s", {
      timeout: 500,
    });
  }).toPass();
  await page.clock.resume();
  await expect(parts(page).status).toContainText("Ready.");
  await chatsOnCpu(page, /Using the CPU/);
});

test("a module that does not come up says so and can be tried again", async ({ page }) => {
  await mock(page, { init: "reject" });
  await page.goto("/?load=1&backend=cpu");
  await expect(parts(page).status).toContainText(/The model cannot run here: .*out of memory\./);
  await expect(parts(page).status).toContainText("Reload the page");
  await mock(page);
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(parts(page).status).toContainText("Ready.");
});

test("nothing of the module or the model is fetched before the click", async ({ page }) => {
  await mock(page);
  const fetched: string[] = [];
  page.context().on("request", (request) => fetched.push(request.url()));
  await page.goto("/?view=chat&backend=cpu");
  await expect(parts(page).status).toHaveText(
    "The model is not here yet. It will run on the CPU, one thread.",
  );
  await expect(page.getByText("98 MB, licence Apache-2.0")).toBeVisible();
  await page.waitForLoadState("networkidle");
  expect(fetched.filter((url) => /pkg|gguf|worker/.test(url))).toEqual([]);
  await parts(page).load.click();
  await expect(parts(page).status).toContainText("Ready.");
  expect(fetched.filter((url) => url.endsWith(".gguf"))).toHaveLength(1);
});

test("bad values in the address are named, and the rest applies", async ({ page }) => {
  const said: string[] = [];
  page.on("console", (message) => said.push(message.text()));
  await mock(page, { most: 3 });
  await open(
    page,
    "&backend=tpu&sinks=-1&recent=252&kv=int3&policy=sinks&temperature=hot&penalty=1&seed=7&max=2&colour=red&top_k=1.5",
  );
  const { status } = parts(page);
  await expect(status).toContainText("backend=tpu, but backend is one of webgpu, cpu");
  await expect(status).toContainText("sinks=-1, but sinks is a whole number from 0 to 4,096");
  await expect(status).toContainText("kv=int3, but kv is one of f32, f16, bf16, int8, int4, int2");
  await expect(status).toContainText("temperature=hot, but temperature is a number from 0 to 10");
  await expect(status).toContainText("top_k=1.5, but top_k is a whole number from 1 to 64");
  await expect(status).toContainText("“colour”, which this page does not know");
  await ask(page, "Hello");
  await expect(parts(page).note).toHaveText("2 tokens, cut at the limit asked for.");
  expect(said).toContainEqual(
    'options {"sampler":{"temperature":0.7,"top_k":64,"top_p":0.95,"min_p":0,"repetition_penalty":1,"seed":7},"max_tokens":2} ' +
      'cache {"policy":"sinks","sinks":4,"recent":252,"kv":"f16"}',
  );
});

test("a window has no sinks, whatever the address says", async ({ page }) => {
  const said: string[] = [];
  page.on("console", (message) => said.push(message.text()));
  await mock(page, { most: 3 });
  await open(page, "&policy=window&sinks=4&recent=64&kv=f32");
  await ask(page, "Hello");
  await expect
    .poll(() => said.join("\n"))
    .toContain('cache {"policy":"window","sinks":0,"recent":64,"kv":"f32"}');
});

for (const [model, sentence] of [
  ["http://", "model=http://, which is not an address; the default applies."],
  ["", "an empty model=; the default applies."],
] as const) {
  test(`model=${model} is named, and the default is loaded`, async ({ page }) => {
    await mock(page);
    await open(page, `&backend=cpu&model=${model}`);
    await expect(parts(page).status).toContainText(sentence);
  });
}
