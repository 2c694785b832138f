// What the page's address asks for: `?sinks=4&recent=252&temperature=0&max=24`, in the words of the
// command line program. A bad value is said in a sentence; the rest applies. `format` writes the same
// address again, without what is the default anyway.

import type {
  Backend,
  CacheSettings,
  LaneSettings,
  Policy,
  Positions,
  SendOptions,
  Softmax,
  Storage,
} from "../../crates/wasm/types";
import * as say from "./strings.en.ts";

export type ViewName = "chat" | "compare";
export type Theme = "system" | "light" | "dark";

/** What the comparison is to show. */
export interface Compare {
  /** Name of an experiment; the rest of the address changes it. */
  x: string | null;
  /** Those of the experiment where there are none. */
  lanes: LaneSettings[];
  /** The experiment's where it is null. */
  mode: "forced" | "free" | null;
  /** Where the text comes from: `own` is what stands behind `#`, or was given since; null is the experiment's. */
  text: "story" | "own" | null;
  from: number;
  /** Tokens; 0 for all. */
  n: number;
  /** The lead figure. */
  fig: string | null;
  /** Tokens of a rolling mean. */
  roll: number;
  /** The cursor's stream position. */
  t: number | null;
  /** Address of a recorded run. */
  run: string | null;
  show: boolean;
  play: boolean;
}

export interface Settings {
  /** Forced by the address; null lets the page choose. */
  backend: Backend | null;
  /** Address of the weights, relative to the page. */
  model: string;
  /** What the weights' SHA-256 must be, in hexadecimal. */
  sha256: string | null;
  /** Load at once, without a click. */
  load: boolean;
  /** Null lets the page choose: the chat for those who have a model, else the comparison. */
  view: ViewName | null;
  theme: Theme | null;
  cache: CacheSettings;
  send: SendOptions;
  compare: Compare;
  /** One sentence for each value that could not be used. */
  complaints: string[];
}

/** Where the local server keeps the weights, relative to the page. */
export const MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

export const STORAGES: readonly Storage[] = ["f32", "f16", "bf16", "int8", "int4", "int2"];
export const MOST_LANES = 4;

/** How packed values are grouped where nothing else is said. */
export const PACKING = { group: 32, tail: 32 };

/** Least and greatest value of each number, and whether it is whole. */
export const RANGES = {
  sinks: [0, 4096, true],
  recent: [1, 1_048_576, true],
  group: [8, 1024, true],
  tail: [8, 65_536, true],
  temperature: [0, 10, false],
  top_k: [1, 64, true],
  top_p: [0, 1, false],
  min_p: [0, 1, false],
  penalty: [0.1, 10, false],
  seed: [0, 4_294_967_295, true],
  max: [0, 1_048_576, true],
  from: [0, 1_048_576, true],
  n: [0, 1_048_576, true],
  roll: [1, 256, true],
  t: [0, 1_048_576, true],
} as const satisfies Record<string, readonly [number, number, boolean]>;

export function defaults(seed: number): Settings {
  return {
    backend: null,
    model: MODEL,
    sha256: null,
    load: false,
    view: null,
    theme: null,
    cache: { policy: "sinks", sinks: 4, recent: 1020, kv: "f16" },
    send: {
      sampler: { temperature: 0.7, top_k: 64, top_p: 0.95, min_p: 0, repetition_penalty: 1.1, seed },
      max_tokens: 0,
    },
    compare: {
      x: null,
      lanes: [],
      mode: null,
      text: null,
      from: 0,
      n: 0,
      fig: null,
      roll: 64,
      t: null,
      run: null,
      show: false,
      play: true,
    },
    complaints: [],
  };
}

/** Reads the address. `seed` is used where the address names none. */
export function parse(params: Iterable<[string, string]>, seed: number): Settings {
  const settings = defaults(seed);
  const { cache, send, compare, complaints } = settings;
  const { sampler } = send;

  const number = (key: string, value: string, range: keyof typeof RANGES, use: (n: number) => void): void => {
    const [least, most, whole] = RANGES[range];
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
      case "softmax":
        choice<Softmax>(key, value, ["plain", "one"], (v) => (cache.softmax = v));
        break;
      case "kv":
        choice<Storage>(key, value, STORAGES, (v) => (cache.kv = v));
        break;
      case "positions":
        choice<Positions>(key, value, ["slot", "stream"], (v) => (cache.positions = v));
        break;
      case "kv_k":
      case "kv_v":
        choice<Storage>(key, value, STORAGES, (v) => (cache[key] = v));
        break;
      case "group":
      case "tail":
        number(key, value, key, (v) => (cache[key] = v));
        break;
      case "sinks":
        number(key, value, "sinks", (v) => (cache.sinks = v));
        break;
      case "recent":
        number(key, value, "recent", (v) => (cache.recent = v));
        break;
      case "temp":
      case "temperature":
        number(key, value, "temperature", (v) => (sampler.temperature = v));
        break;
      case "top_k":
        number(key, value, "top_k", (v) => (sampler.top_k = v));
        break;
      case "top_p":
        number(key, value, "top_p", (v) => (sampler.top_p = v));
        break;
      case "min_p":
        number(key, value, "min_p", (v) => (sampler.min_p = v));
        break;
      case "penalty":
        number(key, value, "penalty", (v) => (sampler.repetition_penalty = v));
        break;
      case "seed":
        number(key, value, "seed", (v) => (sampler.seed = v));
        break;
      case "max":
        number(key, value, "max", (v) => (send.max_tokens = v));
        break;
      case "load":
        choice<"0" | "1">(key, value, ["1", "0"], (v) => (settings.load = v === "1"));
        break;
      case "model":
        if (value.trim() === "") complaints.push(say.emptyModel);
        else settings.model = value;
        break;
      case "sha256":
        if (/^[0-9a-f]{64}$/i.test(value)) settings.sha256 = value.toLowerCase();
        else complaints.push(say.badHash(value));
        break;
      case "view":
        choice<ViewName>(key, value, ["chat", "compare"], (v) => (settings.view = v));
        break;
      case "theme":
        choice<Theme>(key, value, ["system", "light", "dark"], (v) => (settings.theme = v));
        break;
      case "lane": {
        const lane = parseLane(value);
        if (lane === null) complaints.push(say.badLane(value));
        else if (compare.lanes.length === MOST_LANES) complaints.push(say.tooManyLanes);
        else compare.lanes.push(lane);
        break;
      }
      case "mode":
        choice<"forced" | "free">(key, value, ["forced", "free"], (v) => (compare.mode = v));
        break;
      case "text":
        choice<"story" | "own">(key, value, ["story", "own"], (v) => (compare.text = v));
        break;
      case "x":
      case "fig":
      case "run":
        compare[key] = value === "" ? null : value;
        break;
      case "from":
      case "n":
      case "roll":
      case "t":
        number(key, value, key, (v) => (compare[key] = v));
        break;
      case "show":
      case "play":
        choice<"0" | "1">(key, value, ["1", "0"], (v) => (compare[key] = v === "1"));
        break;
      default:
        complaints.push(say.unknownParameter(key));
    }
  }
  // Only the `sinks` policy keeps first tokens; the boundary wants 0 elsewhere.
  if (cache.policy !== "sinks") cache.sinks = 0;
  const wrong = badPacking(cache);
  if (wrong !== null) {
    complaints.push(say.badPacking(wrong));
    delete cache.group;
    delete cache.tail;
  }
  settings.cache = withoutDefaults(cache);
  return settings;
}

/** Whether any value is packed, so that there are groups and a tail. */
export function packs({ kv, kv_k = kv, kv_v = kv }: CacheSettings): boolean {
  return [kv_k, kv_v].some((storage) => storage.startsWith("int"));
}

/** The sentence on groups that cannot be packed; null where they can. */
export function badPacking({ group = PACKING.group, tail = PACKING.tail }: CacheSettings): string | null {
  if (group % 8 !== 0) return say.badGroup(group);
  return tail % group === 0 ? null : say.badTail(tail, group);
}

/** The same cache without what is so anyway. */
export function withoutDefaults(cache: CacheSettings): CacheSettings {
  const settings = { ...cache };
  if (settings.kv_k === settings.kv) delete settings.kv_k;
  if (settings.kv_v === settings.kv) delete settings.kv_v;
  if (settings.group === PACKING.group) delete settings.group;
  if (settings.tail === PACKING.tail) delete settings.tail;
  if (settings.positions === "slot") delete settings.positions;
  if (settings.softmax === "plain") delete settings.softmax;
  return settings;
}

/** The address of `settings`, without what is the default. `seed` as for `parse`. */
export function format(settings: Settings, seed: number): URLSearchParams {
  const params = new URLSearchParams();
  const usual = flat(defaults(seed));
  for (const [key, value] of flat(settings)) {
    if (value !== null && value !== usual.find(([other]) => other === key)?.[1]) params.append(key, value);
  }
  for (const lane of settings.compare.lanes) params.append("lane", formatLane(lane));
  return params;
}

function flat({ cache, send, compare, ...page }: Settings): [string, string | null][] {
  const { sampler } = send;
  const text = (value: string | number | null | undefined): string | null => (value == null ? null : String(value));
  const flag = (value: boolean): string => (value ? "1" : "0");
  return [
    ["view", page.view],
    ["x", compare.x],
    ["backend", page.backend],
    ["model", page.model],
    ["sha256", page.sha256],
    ["load", flag(page.load)],
    ["theme", page.theme],
    ["policy", cache.policy],
    ["sinks", cache.policy === "sinks" ? text(cache.sinks) : null],
    ["recent", text(cache.recent)],
    ["kv", cache.kv],
    ["kv_k", text(cache.kv_k)],
    ["kv_v", text(cache.kv_v)],
    ["group", text(cache.group)],
    ["tail", text(cache.tail)],
    ["positions", text(cache.positions)],
    ["softmax", text(cache.softmax)],
    ["temperature", text(sampler.temperature)],
    ["top_k", text(sampler.top_k)],
    ["top_p", text(sampler.top_p)],
    ["min_p", text(sampler.min_p)],
    ["penalty", text(sampler.repetition_penalty)],
    ["seed", text(sampler.seed)],
    ["max", text(send.max_tokens)],
    ["mode", compare.mode],
    ["text", compare.text],
    ["from", text(compare.from)],
    ["n", text(compare.n)],
    ["fig", compare.fig],
    ["roll", text(compare.roll)],
    ["t", text(compare.t)],
    ["run", compare.run],
    ["show", flag(compare.show)],
    ["play", flag(compare.play)],
  ];
}

/**
 * `window:128`, `sinks:4+124:int4:stream:softmax1`, `dense`, `recompute:128`; null where it is none of these. Other words:
 * `k=int2`, `v=int4`, `group=64`, `tail=64`, `zero`, and at the end `text=` with the sinks' own text, escaped as in JSON.
 * What is the default is left out of the lane.
 */
export function parseLane(text: string): LaneSettings | null {
  const [policy, ...rest] = text.split(":");
  const lane: LaneSettings = { policy: "dense", sinks: 0, recent: 0, kv: "f16" };
  if (policy === "window" || policy === "recompute" || policy === "sinks") {
    const size = /^(?:(\d{1,4})\+)?(\d{1,7})$/.exec(rest.shift() ?? "");
    if (size === null || (size[1] !== undefined) !== (policy === "sinks")) return null;
    [lane.policy, lane.sinks, lane.recent] = [policy, Number(size[1] ?? 0), Number(size[2])];
    if (lane.recent === 0) return null;
  } else if (policy !== "dense") return null;
  for (const [i, word] of rest.entries()) {
    const [key, value] = word.split("=", 2);
    const kv = STORAGES.find((known) => known === (value ?? key));
    if (kv !== undefined && value === undefined) lane.kv = kv;
    else if (kv !== undefined && key === "k") lane.kv_k = kv;
    else if (kv !== undefined && key === "v") lane.kv_v = kv;
    else if (word === "stream") lane.positions = word;
    else if (word === "softmax1") lane.softmax = "one";
    else if (word === "zero") lane.zero_sinks = true;
    else if ((key === "group" || key === "tail") && value !== undefined) {
      const [least, most] = RANGES[key];
      const n = /^\d+$/.test(value) ? Number(value) : Number.NaN;
      if (!(n >= least && n <= most)) return null;
      if (n !== 32) lane[key] = n;
    } else if (key === "text" && policy === "sinks") {
      // It is the last one, colons and all.
      const own = unescaped(rest.slice(i).join(":").slice("text=".length));
      if (own === null || own === "") return null;
      return { ...lane, sink_text: own };
    } else if (word !== "slot") return null;
  }
  return lane;
}

function unescaped(text: string): string | null {
  try {
    return String(JSON.parse(`"${text}"`));
  } catch {
    return null;
  }
}

export function formatLane({ policy, sinks, recent, kv, ...other }: LaneSettings): string {
  const size = policy === "dense" ? [] : [policy === "sinks" ? `${sinks}+${recent}` : String(recent)];
  return [
    policy,
    ...size,
    ...(kv === "f16" ? [] : [kv]),
    ...(other.kv_k === undefined ? [] : [`k=${other.kv_k}`]),
    ...(other.kv_v === undefined ? [] : [`v=${other.kv_v}`]),
    ...((other.group ?? 32) === 32 ? [] : [`group=${other.group}`]),
    ...((other.tail ?? 32) === 32 ? [] : [`tail=${other.tail}`]),
    ...(other.positions === "stream" ? ["stream"] : []),
    ...(other.softmax === "one" ? ["softmax1"] : []),
    ...(other.zero_sinks === true ? ["zero"] : []),
    ...(other.sink_text ? [`text=${JSON.stringify(other.sink_text).slice(1, -1)}`] : []),
  ].join(":");
}

/** The same chat on the command line. */
export function command(cache: CacheSettings, { sampler, max_tokens }: SendOptions, backend: Backend): string {
  return [
    "sinkstream chat",
    `--policy ${cache.policy}`,
    // The program keeps a few first tokens of a dense cache from being packed, unless it is told not to.
    ...(cache.policy === "sinks" || (cache.policy === "dense" && packs(cache)) ? [`--sinks ${cache.sinks}`] : []),
    ...(cache.policy === "dense" ? [] : [`--recent ${cache.recent}`]),
    `--kv ${cache.kv}`,
    ...(cache.kv_k === undefined ? [] : [`--kv-k ${cache.kv_k}`]),
    ...(cache.kv_v === undefined ? [] : [`--kv-v ${cache.kv_v}`]),
    ...(packs(cache) && cache.group !== undefined ? [`--group ${cache.group}`] : []),
    ...(packs(cache) && cache.tail !== undefined ? [`--tail ${cache.tail}`] : []),
    ...(cache.positions === "stream" ? ["--positions stream"] : []),
    ...(cache.softmax === "one" ? ["--softmax one"] : []),
    `--temperature ${sampler.temperature}`,
    `--top-k ${sampler.top_k}`,
    `--top-p ${sampler.top_p}`,
    `--min-p ${sampler.min_p}`,
    `--penalty ${sampler.repetition_penalty}`,
    `--seed ${sampler.seed}`,
    ...(max_tokens > 0 ? [`--max ${max_tokens}`] : []),
    `--device ${backend === "cpu" ? "cpu" : "gpu"}`,
  ].join(" ");
}
