// 20,000 tokens through a small cache, with the real module and the small random model of the tests: the module's memory
// does not grow, the cache stays the same to the byte, and a step at the end takes no longer than one at the beginning.
// `npm run endless`, against a server named by SINKSTREAM_URL whose models/ holds tiny.gguf (tests/examples/tiny_model.rs).

import { expect, test } from "@playwright/test";

const TOKENS = Number(process.env["SINKSTREAM_TOKENS"] ?? 20_000);

const REPEATS = 3;
const ratios: Record<"cpu" | "webgpu", number[]> = { cpu: [], webgpu: [] };

test.setTimeout(60 * 60_000);

// Repeats of the two backends alternate.
const runs = Array.from({ length: REPEATS }, (_, run) => run).flatMap((run) =>
  (["cpu", "webgpu"] as const).map((backend) => ({ run, backend })),
);
for (const { run: repeat, backend } of runs) {
  test(`${backend}: ${TOKENS} tokens, run ${repeat}`, async ({ page }) => {
    await page.goto("/");
    const run = await page.evaluate(
      async ({ backend, tokens }) => {
        const address = new URL("pkg/wasm.js", location.href).href;
        const module = await import(/* @vite-ignore */ address);
        await module.default({ module_or_path: new URL("wasm_bg.wasm", address) });
        const engine = await module.Engine.create(backend, true);
        engine.load_begin();
        engine.load_push(new Uint8Array(await (await fetch("models/tiny.gguf")).arrayBuffer()));
        await engine.load_end();
        let cache = engine.reset({ policy: "sinks", sinks: 4, recent: 124, kv: "f16" });
        const bytes = cache.bytes;
        const times: number[] = [];
        const memory: number[] = [];
        const sampler = { temperature: 1, top_k: 64, top_p: 1, min_p: 0, repetition_penalty: 1, seed: 1 };
        while (cache.stream < tokens) {
          engine.send("on", { sampler: { ...sampler, seed: cache.stream }, max_tokens: 0 });
          for (;;) {
            const step = cache.stream < tokens ? await engine.next() : engine.stop();
            if (step.kind === "end") break;
            cache = step.cache;
            if (step.kind !== "token") continue;
            times.push(step.ms);
            memory.push(module.memory_bytes());
          }
        }
        const tenth = (n: number): number => {
          // The page's clock is coarse: means of 50 steps, and of those the median.
          const part = times.slice((n * times.length) / 10, ((n + 1) * times.length) / 10);
          const means: number[] = [];
          for (let i = 0; i + 50 <= part.length; i += 50) {
            means.push(part.slice(i, i + 50).reduce((sum, ms) => sum + ms, 0) / 50);
          }
          means.sort((a, b) => a - b);
          return means[means.length >> 1] ?? Number.NaN;
        };
        const at = (part: number): number => memory[Math.floor(part * (memory.length - 1))] ?? Number.NaN;
        return { cache, bytes, second: tenth(1), last: tenth(9), early: at(0.1), late: at(1) };
      },
      { backend, tokens: TOKENS },
    );
    console.log(
      `${backend}: stream ${run.cache.stream}, held ${run.cache.held}, cache ${run.cache.bytes} bytes, module ` +
        `${run.early} bytes at a tenth and ${run.late} at the end, ${run.second.toFixed(3)} ms a step in the second ` +
        `tenth and ${run.last.toFixed(3)} in the last, ratio ${(run.last / run.second).toFixed(3)}`,
    );
    ratios[backend].push(run.last / run.second);
    expect(run.cache.bytes).toBe(run.bytes);
    expect(run.cache.held).toBe(128);
    expect(run.late).toBe(run.early);
  });
}

test.afterAll(() => {
  for (const [backend, found] of Object.entries(ratios)) {
    const median = found.sort((a, b) => a - b)[found.length >> 1];
    console.log(`${backend}: last tenth / second tenth, median of ${found.length} runs: ${median?.toFixed(3)}`);
  }
});
