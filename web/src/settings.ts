// What the page's address asks for: `?sinks=4&recent=252&temperature=0&max=24`, in the words of the
// command line program. A bad value is said in a sentence; the rest applies.

import type {
  Backend,
  CacheSettings,
  Policy,
  Positions,
  SendOptions,
  Softmax,
  Storage,
} from "../../crates/wasm/types";
import * as say from "./strings.en.ts";

export interface Settings {
  /** Forced by the address; null lets the page choose. */
  backend: Backend | null;
  /** Address of the weights, relative to the page. */
  model: string;
  /** Load at once, without a click. */
  load: boolean;
  cache: CacheSettings;
  send: SendOptions;
  /** One sentence for each value that could not be used. */
  complaints: string[];
}

/** Where the local server keeps the weights, relative to the page. */
export const MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/** Reads the address. `seed` is used where the address names none. */
export function parse(params: Iterable<[string, string]>, seed: number): Settings {
  const settings: Settings = {
    backend: null,
    model: MODEL,
    load: false,
    cache: { policy: "sinks", sinks: 4, recent: 1020, kv: "f16" },
    send: {
      sampler: { temperature: 0.7, top_k: 64, top_p: 0.95, min_p: 0, repetition_penalty: 1.1, seed },
      max_tokens: 0,
    },
    complaints: [],
  };
  const { cache, send, complaints } = settings;
  const { sampler } = send;

  const number = (
    key: string,
    value: string,
    [least, most]: [number, number],
    whole: boolean,
    use: (n: number) => void,
  ): void => {
    const n = value.trim() === "" ? Number.NaN : Number(value);
    if (n >= least && n <= most && (!whole || Number.isInteger(n))) use(n);
    else complaints.push(say.badNumber(key, value, least, most, whole));
  };
  const choice = <T extends string>(
    key: string,
    value: string,
    allowed: readonly T[],
    use: (chosen: T) => void,
  ): void => {
    const chosen = allowed.find((a) => a === value);
    if (chosen === undefined) complaints.push(say.badChoice(key, value, allowed));
    else use(chosen);
  };

  for (const [key, value] of params) {
    switch (key) {
      case "backend":
        choice<Backend>(key, value, ["webgpu", "cpu"], (v) => (settings.backend = v));
        break;
      case "policy":
        choice<Policy>(key, value, ["sinks", "window", "dense", "recompute"], (v) => (cache.policy = v));
        break;
      case "positions":
        choice<Positions>(key, value, ["slot", "stream"], (v) => (cache.positions = v));
        break;
      case "softmax":
        choice<Softmax>(key, value, ["plain", "one"], (v) => (cache.softmax = v));
        break;
      case "kv":
        choice<Storage>(key, value, ["f16", "f32"], (v) => (cache.kv = v));
        break;
      case "sinks":
        number(key, value, [0, 4096], true, (v) => (cache.sinks = v));
        break;
      case "recent":
        number(key, value, [1, 1_048_576], true, (v) => (cache.recent = v));
        break;
      case "temperature":
        number(key, value, [0, 10], false, (v) => (sampler.temperature = v));
        break;
      case "top_k":
        number(key, value, [1, 64], true, (v) => (sampler.top_k = v));
        break;
      case "top_p":
        number(key, value, [0, 1], false, (v) => (sampler.top_p = v));
        break;
      case "min_p":
        number(key, value, [0, 1], false, (v) => (sampler.min_p = v));
        break;
      case "penalty":
        number(key, value, [0.1, 10], false, (v) => (sampler.repetition_penalty = v));
        break;
      case "seed":
        number(key, value, [0, 4_294_967_295], true, (v) => (sampler.seed = v));
        break;
      case "max":
        number(key, value, [0, 1_048_576], true, (v) => (send.max_tokens = v));
        break;
      case "load":
        choice<"0" | "1">(key, value, ["1", "0"], (v) => (settings.load = v === "1"));
        break;
      case "model":
        if (value.trim() === "") complaints.push(say.emptyModel);
        else settings.model = value;
        break;
      default:
        complaints.push(say.unknownParameter(key));
    }
  }
  // Only the `sinks` policy keeps first tokens; the boundary wants 0 elsewhere.
  if (cache.policy !== "sinks") cache.sinks = 0;
  return settings;
}
