import { defineConfig } from "@playwright/test";
import type { Options } from "./tests/real.faults.spec.ts";

// `SINKSTREAM_URL` is a running server of the page, the module and the weights. Without it the built
// page alone is served, which is enough for the specs that bring their own engine.
const given = process.env["SINKSTREAM_URL"];
const baseURL = given ?? "http://127.0.0.1:4173/";

export default defineConfig<Options>({
  testDir: "tests",
  outputDir: "test-results",
  workers: 1,
  // A machine that stalls for seconds is not a fault of the page; a spec that needed it is listed as flaky.
  retries: 1,
  forbidOnly: true,
  reporter: "list",
  timeout: 60_000,
  expect: { timeout: 15_000 },
  use: {
    baseURL,
    // It would answer before the specs' own routes do; `offline.spec.ts` lets it.
    serviceWorkers: "block",
    viewport: { width: 1280, height: 800 },
    launchOptions: {
      executablePath: process.env["CHROMIUM"] || "/usr/bin/chromium",
      args: [
        "--headless",
        "--no-sandbox",
        "--enable-unsafe-webgpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    },
  },
  projects: [
    {
      name: "page",
      testIgnore: ["real.*.spec.ts", "shots.spec.ts", "endless.spec.ts", "soak.spec.ts", "wllama.spec.ts", "start.spec.ts", "lanes.spec.ts", "facts.spec.ts"],
    },
    // A device that is destroyed takes a minute on a software adapter: `faults` tries it.
    { name: "real", testMatch: "real.*.spec.ts", grepInvert: /device is destroyed/ },
    { name: "shots", testMatch: "shots.spec.ts" },
    { name: "endless", testMatch: "endless.spec.ts" },
    // Measurements: a second try would hide what the first one found.
    { name: "soak", testMatch: "soak.spec.ts" },
    { name: "wllama", testMatch: "wllama.spec.ts", retries: 0 },
    { name: "faults", testMatch: "real.faults.spec.ts", retries: 0, use: { times: 25 } },
    { name: "start", testMatch: "start.spec.ts", retries: 0 },
    { name: "lanes", testMatch: "lanes.spec.ts", retries: 0 },
    { name: "facts", testMatch: "facts.spec.ts", retries: 0 },
  ],
  ...(given === undefined
    ? { webServer: { command: "npx vite preview --host 127.0.0.1 --port 4173 --strictPort", url: baseURL } }
    : {}),
});
