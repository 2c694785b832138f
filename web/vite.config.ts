import { readdirSync, readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";
import { type Picture, picture } from "./picture.ts";
import { escaped } from "./src/figures/shapes.ts";
import * as say from "./src/strings.en.ts";

/** Puts the recorded runs beside the page, and fetches the first one with it. */
function runs(): Plugin {
  const folder = new URL("runs/", import.meta.url);
  return {
    name: "runs",
    generateBundle() {
      for (const name of readdirSync(folder)) {
        this.emitFile({ type: "asset", fileName: `runs/${name}`, source: readFileSync(new URL(name, folder)) });
      }
    },
    transformIndexHtml: () => [
      {
        tag: "link",
        attrs: { rel: "prefetch", href: "runs/lighthouse.json", as: "fetch", crossorigin: "" },
        injectTo: "head",
      },
    ],
  };
}

/** Where no scripts run, the page is what it is about, and a picture of it. */
function still(): Plugin {
  const name = "still.svg";
  let drawn: Picture;
  return {
    name: "still",
    buildStart() {
      drawn = picture();
    },
    generateBundle() {
      this.emitFile({ type: "asset", fileName: name, source: drawn.svg });
    },
    // Last, so that nobody takes the picture for one that every visitor fetches.
    transformIndexHtml: {
      order: "post",
      handler(html) {
        const { alt, width, height } = drawn;
        const inside = [
          `<h1>${escaped(say.heading)}</h1>`,
          `<p class="lead">${escaped(say.lead)}</p>`,
          `<p class="lead">${escaped(say.noScripts)}</p>`,
          `<img src="${name}" width="${width}" height="${height}" alt="${escaped(alt)}" />`,
        ];
        return html.replace("<noscript></noscript>", `<noscript><div class="empty" role="main">${inside.join("")}</div></noscript>`);
      },
    },
  };
}

// Relative addresses, so that the built page works below any path of any static host. The Rust
// module is not bundled: the worker imports `pkg/wasm.js` beside the page at run time. The service
// worker lies beside the page too, since it may only serve what is below it.
export default defineConfig({
  base: "./",
  publicDir: false,
  plugins: [runs(), still()],
  build: {
    target: "es2023",
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      input: { index: "index.html", sw: "src/sw.ts" },
      output: {
        entryFileNames: ({ name }) => (name === "sw" ? "sw.js" : "assets/[name]-[hash].js"),
      },
    },
  },
  worker: { format: "es" },
});
