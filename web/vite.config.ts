import { defineConfig } from "vite";

// Relative addresses, so that the built page works below any path of any static host. The Rust
// module is not bundled: the worker imports `pkg/wasm.js` beside the page at run time.
export default defineConfig({
  base: "./",
  publicDir: false,
  build: { target: "es2023", modulePreload: { polyfill: false }, reportCompressedSize: true },
  worker: { format: "es" },
});
