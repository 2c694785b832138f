// Every word that the page says, in English. Numbers are put in here and nowhere else.

import type { Backend, Policy } from "../../crates/wasm/types";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const share = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });

/** What stands where a number is not known yet. */
export const UNKNOWN = "–";

export const count = (n: number): string => whole.format(n);
export const percent = (part: number): string => share.format(part);
/** Decimal megabytes, as disks and downloads count them. */
export const megabytes = (bytes: number): string => `${tenths.format(bytes / 1e6)} MB`;
export const rate = (perSecond: number): string => `${tenths.format(perSecond)} tokens/s`;

function duration(seconds: number): string {
  const s = Math.max(0, Math.ceil(seconds));
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)} min ${s % 60} s`;
}

// The page's frame.

export const skipToChat = "To the chat";
export const skipToFigures = "To the figures";
export const name = "Sinkstream";
export const heading = "A chat that never ends, and why it can";
export const lead =
  "A language model keeps its past in a cache. When the cache is full, something must go. " +
  "Drop the oldest words and the model breaks; keep its very first words, however dull they are, " +
  "and it goes on for as long as you like.";
export const chat = "Chat";
export const figures = "Figures";
export const conversation = "Conversation";
export const conversationEmpty =
  "Ask something. The model is small: it writes fluent English and gets facts wrong.";
export const message = "Message";
export const messageHint = "Enter sends, Shift and Enter starts a new line, Esc stops the answer.";
export const send = "Send";
export const stop = "Stop";
export const you = "You";
export const model = "Model";

// The model.

export const load = "Load the model";
export const loadTerms = (modelName: string): string =>
  `${modelName}. Nothing is downloaded before you press the button; nothing you write leaves this tab.`;
export const defaultModel = "SmolLM2-135M-Instruct, 98 MB, licence Apache-2.0";
export const otherModel = (url: string): string => `The weights named by the address: ${url}`;
export const cancel = "Cancel";
export const retry = "Retry";
export const startAgain = "Start again";
export const loadBar = "Loading the model";
export function loaded(bytes: number, total: number | null, speed: number | null): string {
  const parts = [total === null ? megabytes(bytes) : `${tenths.format(bytes / 1e6)} of ${megabytes(total)}`];
  if (speed !== null) {
    parts.push(`${megabytes(speed)}/s`);
    if (total !== null && speed > 0) parts.push(`${duration((total - bytes) / speed)} left`);
  }
  return parts.join(" · ");
}

// The status line.

export const checking = "Checking this machine.";
export const idle = (where: string): string => `The model is not here yet. It will run on ${where}.`;
export const starting = (where: string): string => `Starting on ${where} and testing it.`;
export const loading = (quarter: number): string =>
  quarter === 0 ? "Loading the model." : `Loading the model, ${quarter * 25}%.`;
export const ready = (where: string): string => `Ready. The model runs on ${where}.`;
export const writing = "Writing an answer.";
export const cancelled = "The download was cancelled.";
export const loadFirst = "The model is not here yet: load it, then send. Your message stays in the box.";
export const stillWriting = "An answer is being written: stop it, or wait for its end, then send.";
export const emptyMessage = "The message is empty: write something, then send.";
export const restarted =
  "Started again with an empty cache: the model does not see anything above this line.";
export const silent = (seconds: number): string =>
  `Nothing has come from the model for ${seconds} s. It may only be slow; Stop ends it for good.`;
export const endedSilent = "The model had fallen silent and was ended. What was written stays.";
export const startAgainRemedy = "Start again loads the weights anew and begins with an empty cache.";

const CPU = "the CPU, one thread";
export const where = (backend: Backend, adapter: string | null): string =>
  backend === "cpu" ? CPU : `WebGPU (${adapter ?? "adapter without a name"})`;

// Why the CPU.

const slower = "Using the CPU: the same text, slower.";
export const insecure = `This page came over an insecure connection, and browsers keep WebGPU to https and localhost. ${slower}`;
export const noGpu = `This browser has no WebGPU. ${slower} A current Chrome, Edge, Safari or Firefox may have it.`;
export const noAdapter = `This browser has WebGPU, but offers no graphics processor for it. ${slower}`;
export const adapterFault = (message: string): string =>
  `Asking for the graphics processor failed (${message}). ${slower}`;
export const software = (adapter: string): string =>
  `WebGPU is only imitated in software here (${adapter}), which is slower than using the CPU directly. Using the CPU.`;
export const missingFeature = (adapter: string, feature: string): string =>
  `The graphics processor (${adapter}) does not offer “${feature}”, which the model needs. ${slower}`;
export const smallLimit = (adapter: string, limit: string, has: number, needs: number): string =>
  `The graphics processor (${adapter}) allows ${limit} = ${count(has)}; the model needs ${count(needs)}. ${slower}`;
export const gpuFailed = (adapter: string, message: string): string =>
  `WebGPU on ${adapter} could not be used: ${asSentence(message)} ${slower}`;

// Faults.

export const stages = {
  module: "fetching and compiling the module",
  device: "starting the device",
  test: "the self-test",
} as const;
export const silence = (stage: keyof typeof stages, seconds: number): string =>
  `There was no answer from ${stages[stage]} within ${seconds} s.`;
export const selfTest = (failed: readonly string[]): string =>
  `The self-test got wrong numbers in ${failed.join(", ")}.`;
export const cpuFailed = (message: string): string => `The model cannot run here: ${asSentence(message)}`;
export const reloadRemedy = "Reload the page; if that does not help, try another browser.";
export const moduleFault = (url: string, message: string): string =>
  `The module at ${url} could not be used: ${asSentence(message)}`;
export const workerDied = (message: string): string =>
  `The model's worker stopped: ${asSentence(message)} What was written stays.`;
export const stepFailed = (message: string): string =>
  `The answer broke off: ${asSentence(message)} What was written stays.`;
export const network = (url: string, message: string): string =>
  `The model could not be fetched from ${url} (${message}).`;
export const networkRemedy = "Check the connection, then retry.";
export const http = (url: string, status: number, text: string): string =>
  `The server answered ${status}${text === "" ? "" : ` ${text}`} for ${url}.`;
export const httpRemedy = "Check that the weights lie there, then retry.";
export const noReason = "no reason was given";

function asSentence(message: string): string {
  return /[.!?]$/.test(message) ? message : `${message}.`;
}

// The address.

export function badNumber(key: string, value: string, least: number, most: number, isWhole: boolean): string {
  const kind = isWhole ? "a whole number" : "a number";
  return `The address asks for ${key}=${value}, but ${key} is ${kind} from ${count(least)} to ${count(most)}; the default applies.`;
}
export const badChoice = (key: string, value: string, allowed: readonly string[]): string =>
  `The address asks for ${key}=${value}, but ${key} is one of ${allowed.join(", ")}; the default applies.`;
export const unknownParameter = (key: string): string =>
  `The address names “${key}”, which this page does not know; it is left out.`;
export const badModel = (value: string): string =>
  `The address asks for model=${value}, which is not an address; the default applies.`;
export const emptyModel = "The address asks for an empty model=; the default applies.";

// An answer.

export const reading = (done: number, total: number): string =>
  `Reading the message: ${count(done)} of ${count(total)} tokens.`;
export const leftWhileReading = (from: number, to: number): string =>
  `Tokens ${count(from)} to ${count(to - 1)} of the stream left the cache meanwhile.`;
export function ended(tokens: number, reason: "end" | "length" | "stopped"): string {
  const written = tokens === 1 ? "1 token" : `${count(tokens)} tokens`;
  const why = { end: "", length: ", cut at the limit asked for", stopped: ", stopped" };
  return `${written}${why[reason]}`;
}
export const brokeOff = (tokens: number): string => `${count(tokens)} tokens, broke off`;
export const stillAtIt = (tokens: number): string => `Still writing, ${count(tokens)} tokens.`;

// Numbers beside the conversation.

export const facts = {
  held: "In the cache",
  bytes: "Cache memory",
  stream: "Stream position",
  speed: "Speed",
  runs: "Runs on",
};
export const heldOf = (held: number, capacity: number): string => `${count(held)} of ${count(capacity)}`;
export const runs = (backend: Backend, adapter: string | null): string =>
  backend === "cpu" ? "CPU, one thread" : `WebGPU · ${adapter ?? "no name"}`;

// Figures.

export const streamAxis = "stream position (tokens)";
export const firstLeft = "first word left";

export const occupancy = {
  title: "What is in the cache now",
  caption:
    "Top: the whole stream; only the filled parts are still seen. Below: slots in use, which stop growing when the cache is full.",
  axis: "slots",
  capacity: "capacity",
  held: "in use",
  sinks: "sinks",
  recent: "recent",
  kept: "kept",
  gone: "left the cache",
  empty: "The cache is empty.",
  words(held: number, capacity: number, sinks: number, stream: number): string {
    const kept =
      sinks > 0
        ? `the first ${count(sinks)} tokens (sinks) and the last ${count(held - sinks)}`
        : `the last ${count(held)} tokens`;
    const left = stream - held;
    return (
      `${count(held)} of ${count(capacity)} slots are in use. The stream is ${count(stream)} tokens long. ` +
      (left > 0 ? `Kept are ${kept}; ${count(left)} have left.` : "Every token is still in the cache.")
    );
  },
};

export const attention = {
  title: (onSinks: boolean): string =>
    onSinks ? "Attention on the sinks, by layer" : "Attention on the first four slots, by layer",
  caption:
    "Top: the share of attention each layer gave at the last token, mean of its heads. Below: the mean of all layers over the stream.",
  axis: "share",
  layers: "layer",
  empty: "No token has been read yet.",
  words(onSinks: boolean, mean: number, least: [number, number], most: [number, number]): string {
    const target = onSinks ? "the sinks" : "the first four slots";
    return (
      `At the last token ${percent(mean)} of the attention went to ${target}, as the mean of all layers: ` +
      `from ${percent(least[1])} in layer ${least[0]} to ${percent(most[1])} in layer ${most[0]}.`
    );
  },
};

export const memory = {
  title: "Memory of the cache",
  caption: (policy: Policy): string =>
    policy === "dense"
      ? "This cache keeps everything, and takes twice the room whenever it is full."
      : "The cache takes its room once and keeps it. Keeping everything would grow with every token, for ever.",
  axis: "MB",
  cache: "this cache",
  dense: "everything kept, f16",
  empty: "The cache is not built yet.",
  words(bytes: number, dense: number, stream: number): string {
    return (
      `The cache takes ${megabytes(bytes)}, ${count(bytes)} bytes. ` +
      `Keeping all ${count(stream)} tokens in f16 would take ${megabytes(dense)}.`
    );
  },
};
