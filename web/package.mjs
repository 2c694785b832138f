// Completes the npm package in package/: types, the Rust module, licences and package.json.

import { copyFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";

const here = (path) => new URL(path, import.meta.url);
const { version, license } = JSON.parse(readFileSync(here("package.json"), "utf8"));

for (const [from, to, remedy] of [
  ["pkg/wasm.js", "wasm.js", "cargo xtask wasm"],
  ["pkg/wasm_bg.wasm", "wasm_bg.wasm", "cargo xtask wasm"],
  ["../crates/wasm/types.d.ts", "types.d.ts", "git checkout"],
  ["../LICENSE-MIT", "LICENSE-MIT", "git checkout"],
  ["../LICENSE-APACHE", "LICENSE-APACHE", "git checkout"],
]) {
  if (!existsSync(here(from))) {
    console.error(`${from} is not there: \`${remedy}\` makes it`);
    process.exit(1);
  }
  copyFileSync(here(from), here(`package/${to}`));
}
const types = readFileSync(here("node_modules/.cache/tsc/main/package.d.ts"), "utf8");
writeFileSync(here("package/index.d.ts"), types.replaceAll('"../../crates/wasm/types"', '"./types"'));
writeFileSync(
  here("package/package.json"),
  `${JSON.stringify(
    {
      name: "sinkstream",
      version,
      license,
      description: "A language model that talks without end in a browser tab, in a worker.",
      type: "module",
      exports: { ".": { types: "./index.d.ts", default: "./index.js" } },
      files: ["*.js", "*.d.ts", "*.wasm", "LICENSE-*"],
    },
    null,
    2,
  )}\n`,
);
