// How often the model tells a fact that it was told, on the CPU, in a cache of 128 tokens: at once, after the fact has left the
// cache, and where it lies among the sinks. What the page says beforehand are these numbers. `npm run facts`, against a
// server named by SINKSTREAM_URL.

import { expect, test } from "@playwright/test";
import type { CacheSettings, Engine } from "../../crates/wasm/types";
import { defaults } from "../src/settings.ts";
import { exercise } from "../src/strings.en.ts";
import { bench } from "./page.ts";

const SEEDS = exercise.known.of;
const CACHES: { name: keyof typeof exercise.known; talk: boolean; cache: CacheSettings }[] = [
  { name: "kept", talk: false, cache: { policy: "sinks", sinks: 4, recent: 124, kv: "f16" } },
  { name: "left", talk: true, cache: { policy: "sinks", sinks: 4, recent: 124, kv: "f16" } },
  { name: "pinned", talk: true, cache: { policy: "sinks", sinks: 64, recent: 64, kv: "f16" } },
];
/** Tokens of an answer, at most. */
const ANSWER = 48;

test.setTimeout(20 * 60_000);

test("a fact is told, and asked for", async ({ page }) => {
  await bench(page);
  const { messages } = exercise;
  const answers = await page.evaluate(
    async ({ caches, seeds, sampler, messages, most }) => {
      const { engine } = window as unknown as { engine: Engine };
      let [stream, asked] = [0, 0];
      const say = async (text: string, seed: number): Promise<string> => {
        engine.send(text, { sampler: { ...sampler, seed }, max_tokens: most });
        let answer = "";
        for (;;) {
          const step = await engine.next();
          if (step.kind !== "prompt") answer += step.text;
          if (step.kind === "end") return answer;
          ({ stream } = step.cache);
          if (step.kind === "prompt") asked = stream;
        }
      };
      const answers: { name: string; seed: number; since: number; answer: string }[] = [];
      for (const { name, talk, cache } of caches) {
        for (let seed = 1; seed <= seeds; seed += 1) {
          engine.reset(cache);
          await say(messages.plant, seed);
          const told = stream;
          if (name === "pinned" && asked > cache.sinks) throw new Error(`the fact ends at ${asked}, behind the sinks`);
          // As many tokens came since as are recent, so only a sink is as old as the fact.
          for (let next = messages.talk; talk && stream - told < cache.recent; next = messages.goOn) await say(next, seed);
          const since = stream - told;
          answers.push({ name, seed, since, answer: await say(messages.ask, seed) });
        }
      }
      return answers;
    },
    { caches: CACHES, seeds: SEEDS, sampler: defaults(0).send.sampler, messages, most: ANSWER },
  );
  console.table(answers.map(({ answer, ...rest }) => ({ ...rest, answer: answer.replaceAll("\n", " ").slice(0, 100) })));
  for (const { name } of CACHES) {
    const knew = answers.filter((one) => one.name === name && exercise.answer.test(one.answer)).length;
    console.log(`${name}: ${knew} of ${SEEDS}`);
    expect.soft(knew, name).toBe(exercise.known[name]);
  }
});
