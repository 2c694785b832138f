import { defineConfig } from "vite";

// Relative addresses, so that the built page works below any path of any static host. The Rust
// module is not bundled: the worker imports `pkg/wasm.js` beside the page at run time. The service
// worker lies beside the page too, since it may only serve what is below it.
export default defineConfig({
  base: "./",
  publicDir: false,
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
