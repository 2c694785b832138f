// Serves `figures.page.ts` to a browser: bundled once for all specs of a worker.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Page } from "@playwright/test";
import { build } from "vite";
import { errors } from "./page.ts";
import type { Plan } from "./made.ts";

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

let bundled: Promise<Map<string, string>> | null = null;

async function bundle(): Promise<Map<string, string>> {
  const built = await build({
    configFile: false,
    root: here(".."),
    logLevel: "warn",
    build: {
      write: false,
      minify: false,
      target: "es2023",
      modulePreload: { polyfill: false },
      rolldownOptions: { input: here("figures.page.ts"), output: { entryFileNames: "page.js", chunkFileNames: "[name].js" } },
    },
  });
  const outputs = Array.isArray(built) ? built : [built];
  return new Map(
    outputs.flatMap((one) =>
      "output" in one ? one.output.flatMap((file) => (file.type === "chunk" ? [[file.fileName, file.code] as [string, string]] : [])) : [],
    ),
  );
}

const HTML = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Figures</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="style.css"></head>
<body><header><h1>Sinkstream</h1></header><main><section id="figures" class="figures" aria-label="Figures"><h2>Figures</h2></section></main>
<script type="module" src="page.js"></script></body></html>`;

/** Opens the figures over a run that has read `tokens`. The list returned fills with console errors. */
export async function openFigures(page: Page, plan: Plan, tokens: number): Promise<string[]> {
  const files = await (bundled ??= bundle());
  await page.route("**/made/**", (route) => {
    const name = new URL(route.request().url()).pathname.split("/made/")[1] ?? "";
    if (name === "") return route.fulfill({ contentType: "text/html", body: HTML });
    if (name === "style.css") {
      return route.fulfill({ contentType: "text/css", body: readFileSync(here("../src/style.css"), "utf8") });
    }
    const code = files.get(name);
    return code === undefined ? route.fulfill({ status: 404 }) : route.fulfill({ contentType: "text/javascript", body: code });
  });
  const found = errors(page);
  await page.goto("/made/");
  await page.waitForFunction(() => "figures" in window);
  await page.evaluate(([plan, tokens]) => window.figures.begin(plan, tokens), [plan, tokens] as const);
  return found;
}
