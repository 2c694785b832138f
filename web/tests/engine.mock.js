// Stands in for the Rust module: same boundary, no model. The specs put `const PLAN = {…};` in front
// of this text and serve it as `pkg/wasm.js`. What it answers is fixed, so that specs can compare.

const LAYERS = 30;
const HEADS = 9;
const PER_TOKEN = 23_040;
const WORDS =
  PLAN.words ?? "The lamp was lit each evening, and the sea below it never slept. ".split(/(?<= )/);

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export default async function init({ module_or_path }) {
  if (!module_or_path.href.endsWith("/pkg/wasm_bg.wasm")) throw new Error(`not the module: ${module_or_path}`);
  if (PLAN.init === "reject") throw new Error("out of memory");
  if (PLAN.init === "hang") await new Promise(() => {});
}

export const versions = () => ({ crate: "0.1.0", burn: "0.22.1", cubecl: "0.11.3", wgpu: "30.0.2" });
export const memory_bytes = () => 1 << 20;

export class Engine {
  static async create(backend) {
    const engine = new Engine();
    engine.backend = backend;
    engine.pending = false;
    if (PLAN.create?.[backend] === "reject") throw new Error("the device could not be created");
    if (PLAN.create?.[backend] === "hang") await new Promise(() => {});
    if (PLAN.slow) await wait(PLAN.slow);
    return engine;
  }

  /** Complains, as the real module does, when a method is called while a promise is pending. */
  alone() {
    if (this.pending) {
      console.error("a method was called while a promise of the engine was pending");
      throw new Error("recursive use of an object");
    }
  }

  async busy(work) {
    this.alone();
    this.pending = true;
    try {
      return await work();
    } finally {
      this.pending = false;
    }
  }

  self_test() {
    return this.busy(async () => {
      const ok = PLAN.selfTest?.[this.backend] ?? true;
      return {
        ok,
        checks: [
          { name: "rms_norm", ok: true, error: 0, tolerance: 1e-5 },
          { name: "attention", ok, error: ok ? 0 : 1, tolerance: 1e-5 },
        ],
      };
    });
  }

  load_begin() {
    this.alone();
    this.got = 0;
  }

  load_push(bytes) {
    return this.busy(async () => {
      if (this.got === 0 && String.fromCharCode(...bytes.subarray(0, 4)) !== "GGUF") {
        throw new Error(
          "The file is not a GGUF file: it begins like a web page. Check the address of the weights.",
        );
      }
      this.got += bytes.length;
      return { bytes: this.got, total: PLAN.total ?? null, tensors: 1, tensors_total: 272 };
    });
  }

  load_end() {
    return this.busy(async () => {
      if (PLAN.total !== undefined && this.got < PLAN.total)
        throw new Error(`The file ends after ${this.got} of ${PLAN.total} bytes. Load it again.`);
      return {
        name: "SmolLM2-135M-Instruct",
        layers: LAYERS,
        n_heads: HEADS,
        n_kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        trained_length: 8192,
        weight_bytes: this.got,
      };
    });
  }

  reset(settings) {
    this.alone();
    const { policy, kv, kv_k = kv, kv_v = kv } = settings;
    if (policy === "recompute" && `${kv_k}${kv_v}`.includes("int"))
      throw new Error("recompute keeps nothing that could be packed: store its keys and values as f32, f16 or bf16");
    this.settings = settings;
    this.stream = 0;
    return this.cache();
  }

  cache() {
    const { policy, sinks, recent } = this.settings;
    const capacity = policy === "dense" ? Math.max(64, this.stream) : sinks + recent;
    const bytes = parts(this.settings, capacity);
    return {
      held: Math.min(this.stream, capacity),
      capacity,
      sinks,
      stream: this.stream,
      bytes: Object.values(bytes).reduce((sum, part) => sum + part, 0),
      parts: bytes,
      tail: tail(this.settings, this.stream),
      dense_bytes: this.stream * PER_TOKEN,
    };
  }

  /** Feeds tokens and says which stream indices left. */
  feed(tokens) {
    const { sinks } = this.settings;
    const gone = (stream) => sinks + Math.max(0, stream - this.cache().capacity);
    const from = gone(this.stream);
    this.stream += tokens;
    const to = gone(this.stream);
    return to > from ? [from, to] : null;
  }

  send(text, options) {
    this.alone();
    if (text === PLAN.refuse)
      throw new Error("The message is longer than this cache can ever take. Shorten it.");
    console.debug(`options ${JSON.stringify(options)} cache ${JSON.stringify(this.settings)}`);
    this.stopped = this.resumed = false;
    this.left = PLAN.prompt ?? 40;
    this.total = this.left;
    this.prompt = said(text);
    this.written = 0;
    this.most = options.max_tokens || PLAN.most || Number.POSITIVE_INFINITY;
  }

  proceed(options) {
    this.alone();
    if (!this.stopped) throw new Error("The conversation has no answer that could be gone on with.");
    console.debug(`proceed ${JSON.stringify(options)}`);
    this.left = 0;
    this.resumed = true;
    this.most = options.max_tokens || PLAN.most || Number.POSITIVE_INFINITY;
  }

  /** A message of `n` words has `n + 10` tokens. */
  resume(messages, options, write) {
    this.alone();
    if (this.stream > 0) throw new Error("The conversation cannot be read again: the cache is not empty.");
    console.debug(`resume ${JSON.stringify(messages)} write ${write} cache ${JSON.stringify(this.settings)}`);
    const last = messages.at(-1);
    const sizes = messages.map(({ content }) => content.split(" ").length + 10);
    const { policy, sinks, recent } = this.settings;
    const whole = sizes.reduce((sum, size) => sum + size, 0);
    let first = 0;
    if (policy !== "dense" && whole > sinks + recent) {
      let room = recent;
      first = sizes.length;
      while (first > 0 && sizes[first - 1] <= room) room -= sizes[--first];
    }
    const all = messages.map(({ content }) => [...said(content), ...Array(10).fill("")]);
    const head = first > 0 ? sinks : 0;
    // Of one that is too long itself, its end.
    if (first > 0 && first === sizes.length) {
      first -= 1;
      sizes[first] = recent;
      all[first] = all[first].slice(-recent);
    }
    let at = head;
    const places = sizes.map((size, i) => (i < first ? null : [at, (at += size)]));
    this.left = this.total = at;
    this.prompt = [...messages.flatMap(({ content }) => said(content)).slice(0, head), ...all.slice(first).flat()];
    this.resumed = write;
    this.stopped = !write;
    // An answer is gone on with at the word where it ends.
    this.written = last.role === "assistant" ? countOf(last.content) : 0;
    this.most = write ? options.max_tokens || PLAN.most || Number.POSITIVE_INFINITY : -1;
    return places;
  }

  next(attention) {
    return this.busy(async () => {
      if (PLAN.delay) await wait(PLAN.delay);
      if (this.left > 0) {
        const piece = Math.min(this.left, 16);
        const done = this.total - this.left;
        this.left -= piece;
        const evicted = this.feed(piece);
        return {
          kind: "prompt",
          done: done + piece,
          total: this.total,
          // What the template writes around the words has no text here.
          tokens: Array.from({ length: piece }, (_, n) => this.prompt[done + n] ?? "").map((text) => ({ id: id(text), text })),
          ms: 1,
          cache: this.cache(),
          evicted,
          sink_mass: mass(this.stream, this.settings.sinks),
        };
      }
      if (this.most === -1) return { kind: "end", reason: "stopped", text: "" };
      // A fault hits once, unless the plan says that it comes back after the conversation was read again.
      const breaks = (at) => this.written === at && (!this.resumed || PLAN.again === true || PLAN.again === this.backend);
      if (breaks(PLAN.hangAt)) await new Promise(() => {});
      if (breaks(PLAN.rejectAt)) throw new Error("The device was lost. Start again.");
      if (breaks(PLAN.dieAt)) {
        setTimeout(() => {
          throw new Error("unreachable executed");
        });
        await new Promise(() => {});
      }
      if (breaks(PLAN.panicAt)) {
        Promise.reject(new Error("panicked at the disco"));
        await new Promise(() => {});
      }
      if (this.written >= this.most)
        return { kind: "end", reason: PLAN.most === this.most ? "end" : "length", text: "" };
      const text = WORDS[this.written % WORDS.length];
      this.written += 1;
      const evicted = this.feed(1);
      return {
        kind: "token",
        id: 999 + this.written,
        slot: this.cache().held - 1,
        text,
        nll: 1,
        ms: 1,
        cache: this.cache(),
        evicted,
        sink_mass: mass(this.stream, this.settings.sinks),
        first_mass: mass(this.stream, 1),
        ...(attention ? { probs: Float32Array.from({ length: this.cache().held }, () => 1 / this.cache().held) } : {}),
      };
    });
  }

  stop() {
    this.alone();
    this.stopped = true;
    return { kind: "end", reason: "stopped", text: "" };
  }

  /** A word is a token. What the lanes lose is `loss`. */
  compare(lanes, source) {
    this.alone();
    console.debug(`compare ${JSON.stringify(lanes)} ${JSON.stringify(source)}`);
    if (lanes.length === 0) throw new Error("A comparison has one lane or more.");
    let words = (source.text ?? source.prompt).split(/(?<=\s)(?=\S)/).filter((word) => word !== "");
    if (source.mode === "forced") words = words.slice(source.from, source.n > 0 ? source.from + source.n : undefined);
    if (words.length < 1) throw new Error("There is nothing to read.");
    const most = source.mode === "free" ? words.length + source.max_tokens : words.length;
    this.settings = undefined;
    this.comparison = { source, words, most, lanes: lanes.map((settings) => ({ settings, at: 0 })) };
    return { tokens: words.length, shared: lanes.map(({ policy }) => policy !== "recompute") };
  }

  compare_next(attention) {
    return this.busy(async () => {
      if (PLAN.delay) await wait(PLAN.delay);
      const { lanes, most } = this.comparison;
      if (lanes[0].at === PLAN.compareRejectAt) throw new Error("The device was lost. Start again.");
      const timed = lanes[0].at % 16 === 15;
      const steps = lanes.map((lane, index) => {
        if (lane.settings.policy === "recompute" || lane.at === most) return null;
        return this.read(lane, 1, timed, attention?.lane === index ? attention : null);
      });
      const done = lanes.every(({ settings, at }) => settings.policy === "recompute" || at === most);
      return { ms: steps.filter(Boolean).length, lanes: steps, done };
    });
  }

  compare_again(every) {
    return this.busy(async () => {
      if (PLAN.delay) await wait(PLAN.delay);
      const { lanes, most, source, words } = this.comparison;
      const shared = lanes.filter(({ settings }) => settings.policy !== "recompute");
      const ahead = shared.some(({ at }) => at < most) ? Math.max(...shared.map(({ at }) => at)) : most;
      const behind = lanes.filter(({ settings }) => settings.policy === "recompute").sort((a, b) => a.at - b.at)[0];
      if (!behind) return null;
      // Of a forced text it tells the loss of every so many tokens, the first excepted; free, it begins behind the prompt.
      const first = behind.at === 0;
      const tokens = source.mode === "free" ? (first ? words.length : 1) : first ? every + 1 : every;
      if (behind.at + tokens > ahead) return null;
      const step = this.read(behind, tokens, true, null);
      const done = behind.at + (source.mode === "free" ? 1 : every) > most;
      return { ms: 1, lanes: lanes.map((lane) => (lane === behind ? step : null)), done };
    });
  }

  compare_end() {
    this.alone();
    this.comparison = undefined;
  }

  /** Reads the lane's next tokens and tells of the last one. */
  read(lane, tokens, timed, attention) {
    const { source, words, most } = this.comparison;
    const { settings } = lane;
    const free = source.mode === "free";
    const before = lane.at;
    lane.at += tokens;
    const i = lane.at - 1;
    const kept = settings.policy === "dense" ? Number.POSITIVE_INFINITY : settings.sinks + settings.recent;
    const own = settings.sink_text?.length ?? 0;
    const gone = (stream) => Math.max(0, settings.sinks - own) + Math.max(0, stream + own - kept);
    const evicted = gone(lane.at) > gone(before) ? [gone(before), gone(lane.at)] : null;
    const word = (at) => (at < words.length ? words[at] : written(at - words.length, settings, at + own > kept));
    const held = Math.min(lane.at + own, kept);
    const capacity = settings.policy === "dense" ? Math.max(256, lane.at + own) : kept;
    const skips = tokens > 1;
    const next = i + 1 < words.length || free ? word(i + 1) : null;
    const step = {
      i,
      id: id(word(i)),
      text: Array.from({ length: tokens }, (_, at) => word(before + at)).join(""),
      nll: i === 0 || (free && skips) ? null : loss(i, settings, i + own > kept),
      best:
        next === null || skips
          ? null
          : { id: id(next), text: next, p: Math.exp(-loss(i + 1, settings, i + 1 + own > kept)) },
      ended: free && lane.at === most,
      ms: timed ? 1 : null,
      held,
      capacity,
      sinks: Math.min(settings.sinks, held),
      tail: tail(settings, lane.at + own),
      bytes: parts(settings, capacity),
      evicted,
      sink_mass: mass(lane.at, settings.sinks),
      first_mass: mass(lane.at, settings.policy === "window" && lane.at > kept ? 0 : 1),
    };
    if (attention) step.probs = Float32Array.from({ length: held }, () => 1 / held);
    return step;
  }

  free() {}
}

/** The words of a message, each with the space behind it. */
const said = (text) => text.split(/(?<= )/);

/** What a free lane writes: without sinks and with its first word gone, the same again and again. */
function written(at, settings, full) {
  return full && settings.sinks === 0 && settings.policy === "window" ? "x.x " : WORDS[at % WORDS.length];
}

/** A word's id. */
function id(word) {
  let hash = 0;
  for (const character of word) hash = (hash * 31 + character.codePointAt(0)) % 40_000;
  return 1000 + hash;
}

/** -ln p of token `i`: the same in all lanes until one has let a token go; then a window is 2 nats worse, sinks 0.1. */
function loss(i, settings, full) {
  const all = 1 + ((i * 7) % 16) / 8;
  if (!full) return all;
  return all + ({ window: settings.softmax === "one" ? 0.5 : 2, sinks: 0.1, recompute: 0.2 }[settings.policy] ?? 0);
}

/** Bytes of the parts of a cache of `slots`; packed, with groups and a tail of 32 tokens where nothing else is said. */
function parts(settings, slots) {
  const bits = { f32: 32, int8: 8, int4: 4, int2: 2 }[settings.kv] ?? 16;
  const packed = bits < 16;
  const exact = packed ? 16 : bits;
  const group = settings.group ?? 32;
  const sinks = Math.min(settings.sinks, slots);
  const recent = slots - sinks;
  const groups = Math.ceil(recent / group);
  const of = (tokens, bits) => (tokens * PER_TOKEN * bits) / 16;
  return {
    sinks: of(sinks, exact),
    codes: of(recent, bits),
    scales: packed ? groups * 4 * LAYERS * 3 * (64 + group * Math.ceil(64 / group)) : 0,
    tail: packed ? of(settings.tail ?? 32, exact) : 0,
    slack: packed ? of(groups * group - recent, bits) : 0,
  };
}

/** Slots of the tail in use: none where nothing is packed. */
function tail(settings, stream) {
  if (!["int8", "int4", "int2"].includes(settings.kv)) return 0;
  return Math.max(0, stream - settings.sinks) % (settings.tail ?? 32);
}

/** How many words an answer has so far. */
function countOf(text) {
  let count = 0;
  for (let length = 0; length < text.length; count += 1) length += WORDS[count % WORDS.length].length;
  return count;
}

/** Layer `l` gives `l / 40` of its attention to the sinks, wherever the stream stands. */
function mass(_stream, sinks) {
  return Float32Array.from({ length: LAYERS * HEADS }, (_, i) =>
    sinks > 0 ? Math.floor(i / HEADS) / 40 : 0,
  );
}
