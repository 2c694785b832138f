import { readdirSync, readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

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
        attrs: { rel: "preload", href: "runs/lighthouse.json", as: "fetch", crossorigin: "" },
        injectTo: "head",
      },
    ],
  };
}

// Relative addresses, so that the built page works below any path of any static host. The Rust
// module is not bundled: the worker imports `pkg/wasm.js` beside the page at run time. The service
// worker lies beside the page too, since it may only serve what is below it.
export default defineConfig({
  base: "./",
  publicDir: false,
  plugins: [runs()],
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
