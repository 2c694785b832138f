import { defineConfig } from "vite";

// The package `sinkstream`, for other pages: a client and a worker side by side, as they are imported.
// `package.mjs` puts the module, the types and package.json beside them.
export default defineConfig({
  base: "./",
  publicDir: false,
  build: {
    target: "es2023",
    outDir: "package",
    modulePreload: false,
    rolldownOptions: {
      input: { index: "src/package.ts", worker: "src/worker.ts" },
      preserveEntrySignatures: "strict",
      output: { entryFileNames: "[name].js", chunkFileNames: "[name].js" },
    },
  },
});
