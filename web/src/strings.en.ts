// Every word that the page says, in English. Numbers are put in here and nowhere else.

import type { Backend, Policy, Storage } from "../../crates/wasm/types";

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
export const skipToAnswer = "To the answer";
export const name = "Sinkstream";
export const heading = "A chat that never ends, and why it can";
export const lead =
  "A language model keeps its past in a cache. When the cache is full, something must go. " +
  "Drop the oldest words and the model breaks; keep its very first words, however dull they are, " +
  "and it goes on for as long as you like.";
export const chat = "Chat";
export const compare = "Compare";
export const views = "Views";
export const menu = "Menu";
export const newChat = "New chat";
export const chats = "Chats";
export const models = "Models";
export const settings = "Settings";
export const help = "Help";
export const close = "Close";
export const themes = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
export const dropHere = "Drop a GGUF file to load it. It is read where it lies, not copied.";
export const title = (tokens: number | null): string =>
  tokens === null ? "Sinkstream: a chat that never ends" : `▶ ${count(tokens)} · Sinkstream`;
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
export const prompts = [
  "Tell me a long story about a lighthouse keeper",
  "Explain rain to a child",
  "Keep talking for as long as you like",
];
export const examples = "Examples";
export const copy = "Copy";
export const copied = "Copied.";
export const copyFailed = "The browser did not let the page use the clipboard: select the text and copy it by hand.";
export const edit = "Edit";
export const regenerate = "Write again";
export const proceed = "Go on";
export const nth = (action: string, n: number): string => `${action}, turn ${n}`;
export const editing = "You are changing an earlier message. Sending it takes away everything after it.";
export const stopEditing = "Leave it as it was";
export const showEarlier = (turns: number): string => `Show ${turns === 1 ? "1 earlier turn" : `${turns} earlier turns`}`;
export const showBeginning = "Show the beginning of this answer";
export const leftTheCache = "has left the cache";
export const partLeft = (tokens: number): string =>
  `${tokens === 1 ? "its first token has" : `its first ${count(tokens)} tokens have`} left the cache`;

// The model.

export const load = "Load the model";
export const loadTerms = (modelName: string): string =>
  `${modelName}. Nothing is downloaded before you press the button; nothing you write leaves this tab.`;
export const defaultModel = "SmolLM2-135M-Instruct, 98 MB, licence Apache-2.0";
export const otherModel = (url: string): string => `The weights named by the address: ${url}`;
export const useFile = "Use a file";
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

export const stillLoaded = "Kept in this browser; works offline afterwards.";
export const retrying = (message: string): string => `${message} Trying again.`;
export const stalled = (seconds: number): string => `no byte came for ${seconds} s`;
export const endedEarly = (url: string, have: number, total: number): string =>
  `The download from ${url} stopped at ${tenths.format(have / 1e6)} of ${megabytes(total)}.`;
export const otherFile = (url: string): string => `The file at ${url} has changed since the download began.`;
export const goesOn = (have: number, total: number): string =>
  `${tenths.format(have / 1e6)} of ${megabytes(total)} are kept: Retry goes on from there.`;
export const wrongHash = (url: string, found: string, wanted: string): string =>
  `Wrong bytes came from ${url}: the file's SHA-256 is ${found}, not ${wanted}.`;
export const wrongHashRemedy = "They were thrown away. Retry fetches the file again, or use another source.";
export const damaged = (modelName: string, message: string): string =>
  `The copy of ${modelName} in this browser cannot be used: ${asSentence(message)} It was removed.`;
export const damagedRemedy = "Retry fetches it again.";
export const gone = (modelName: string): string => `${modelName} is no longer in this browser.`;
export const goneRemedy = "Retry fetches it again.";
export const notKept =
  "This browser keeps no files for this page, as in some private windows: the model stays until you close the tab.";
export const notKeptBecause = (message: string): string =>
  `The model could not be kept (${message}): it stays until you close the tab.`;
export const noRoom = "This browser gave no room to keep the model; it stays until you close the tab.";
export const fileFault = (fileName: string): string =>
  `${fileName} is not a GGUF file by its name: drop or choose one that ends in .gguf.`;
export const loadFile = (fileName: string): string => `The file ${fileName} on this machine`;

// The status line.

export const checking = "Checking this machine.";
export const idle = (where: string): string => `The model is not here yet. It will run on ${where}.`;
export const starting = (where: string): string => `Starting on ${where} and testing it.`;
export const loading = (quarter: number): string =>
  quarter === 0 ? "Loading the model." : `Loading the model, ${quarter * 25}%.`;
export const ready = (where: string): string => `Ready. The model runs on ${where}.`;
export const writing = "Writing an answer.";
export const refilling = "Reading the conversation again.";
export const cancelled = "The download was cancelled. What came is kept; loading goes on from there.";
export const loadFirst = "The model is not here yet. Your message stays in the box.";
export const loadAndSend = "Load it and send";
export const notNow = "Not now";
export const sentLater = "Your message is sent as soon as the model is ready.";
export const stillWriting = "An answer is being written: stop it, or wait for its end, then send.";
export const emptyMessage = "The message is empty: write something, then send.";
export const silent = (seconds: number): string =>
  `Nothing has come from the model for ${seconds} s. It may only be slow; Stop ends it and starts it anew.`;
export const endedSilent = "The model had fallen silent and was ended. What was written stays.";
export const startAgainRemedy = "Start again loads the weights anew and reads the conversation again.";
export const recovering = (message: string): string => `${message} Starting again from the text.`;
export const goingOn = (tokens: number, where: string): string => `Going on at token ${count(tokens)} on ${where}.`;
export const tooOften = "It broke twice without a word in between, so it is not started a third time by itself.";
export const loopGuard =
  "This page was reloaded several times within a minute, so the model is not loaded by itself.";
export const takenOver = "Another tab is using the model now. The text stays here.";
export const otherTab = "Another tab is using the model. Use it here instead?";
export const useHere = "Use it here";
export const refilled = {
  settings: "Refilled from the text: you changed a setting.",
  loaded: "Refilled from the text: the model was loaded again.",
  opened: "Refilled from the text: you opened this chat.",
  changed: "Refilled from the text: the conversation was changed.",
};
export const refilledAt = (tokens: number): string => `Refilled from the text at token ${count(tokens)}.`;
export const rereading = (done: number, total: number): string =>
  `Reading the conversation again: ${count(done)} of ${count(total)} tokens.`;
export const chatsNotKept = (message: string): string =>
  `This browser does not keep chats here (${message}): export what you want to keep.`;

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
export const gpuBroke = (adapter: string): string => `WebGPU on ${adapter} broke off twice. ${slower}`;
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
export const cacheRefused = (message: string): string =>
  `The cache that the settings ask for cannot be: ${asSentence(message)}`;
export const cacheRemedy = "Change the settings, then load the model again.";
export const network = (url: string, message: string): string =>
  `The model could not be fetched from ${url} (${message}).`;
export const networkRemedy = "Check the connection, then retry.";
export const http = (url: string, status: number, text: string): string =>
  `The server answered ${status}${text === "" ? "" : ` ${text}`} for ${url}.`;
export const webPage = (url: string): string => `A web page came from ${url} in place of the weights.`;
export const httpRemedy = "Check that the weights lie there, then retry.";
export const killed = "the browser ended it";
export const noReason = "no reason was given";

function asSentence(message: string): string {
  return /[.!?]$/.test(message) ? message : `${message}.`;
}

// The address.

export function badNumber(key: string, value: string, least: number, most: number, isWhole: boolean): string {
  const kind = isWhole ? "a whole number" : "a number";
  return `The address asks for ${key}=${value}, but ${key} is ${kind} from ${count(least)} to ${count(most)}; the default applies.`;
}
export const badPacking = (why: string): string => `The address asks for packing that cannot be: ${why} The defaults apply.`;
export const badChoice = (key: string, value: string, allowed: readonly string[]): string =>
  `The address asks for ${key}=${value}, but ${key} is one of ${allowed.join(", ")}; the default applies.`;
export const unknownParameter = (key: string): string =>
  `The address names “${key}”, which this page does not know; it is left out.`;
export const badLane = (value: string): string =>
  `The address asks for lane=${value}, but a lane is written like window:128, sinks:4+124:f16 or dense; it is left out.`;
export const tooManyLanes = "The address asks for more than four lanes; the first four stay.";
export const badHash = (value: string): string =>
  `The address asks for sha256=${value}, but that takes 64 hexadecimal digits; the file is not checked.`;
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
export const oldestLeave = "The cache is full: from now on its oldest words leave, and the chat goes on.";
export const stillAtIt = (tokens: number): string => `Still writing, ${count(tokens)} tokens.`;

// Chats.

export const untitled = "New chat";
export const turnsOf = (n: number): string => (n === 1 ? "1 turn" : `${count(n)} turns`);
export const openChat = (chatTitle: string): string => `Open ${chatTitle}`;
export const current = "open now";
export const remove = "Remove";
export const removeNamed = (what: string): string => `Remove ${what}`;
export const exportChat = "Export this chat";
export const importChat = "Import";
export const imported = (chatTitle: string): string => `“${chatTitle}” was imported.`;
export const notAChat = (fileName: string, why: string): string =>
  `${fileName} is not a chat that this page exported: ${why}.`;
export const notJson = "it is not JSON";
export const noFormat = "it does not say “sinkstream-chat”";
export const newerVersion = (version: unknown): string => `it has version ${String(version)}, and this page knows 1`;
export const noTurns = "its turns are not a list of who said what";
export const finishFirst = "An answer is being written: stop it first.";
export const noChats = "There is no other chat.";
export const chatsIntro = "Chats are kept in this browser and nowhere else.";

// Models.

export const modelsIntro = "A model is kept in this browser once it is loaded. Nothing you write leaves the tab.";
export const getModel = "Get a model";
export const useDefault = "The default: SmolLM2-135M-Instruct (98 MB)";
export const keptModels = "In this browser";
export const noModels = "No model is kept in this browser yet.";
export const use = "Use";
export const useNamed = (what: string): string => `Use ${what}`;
export const unfinished = (bytes: number | null): string =>
  bytes === null ? "unfinished" : `unfinished, of ${megabytes(bytes)}`;
export const keptSince = (bytes: number, iso: string): string =>
  `${megabytes(bytes)}, ${new Date(iso).toLocaleDateString("en", { dateStyle: "medium" })}`;
export const fromAddress = "Address of a GGUF file";
export const fetchIt = "Fetch";
export const fileDrop = "Or drop a file anywhere on the page: it is read where it lies, without a copy.";
export const room = (used: number, quota: number): string =>
  `${megabytes(used)} used of ${tenths.format(quota / 1e9)} GB that the browser allows.`;
export const clearStorage = "Clear storage";
export const clearConfirm = "This removes every model and every chat from this browser. There is no way back.";
export const clearYes = "Remove everything";
export const cleared = "Everything was removed from this browser.";

// Settings.

export const settingNames = {
  policy: "What stays in the cache",
  sinks: "Sinks: first tokens, kept for ever",
  recent: "Recent: last tokens kept",
  kv: "Storage of one value",
  kv_k: "Keys",
  kv_v: "Values",
  group: "Group: how many share a scale",
  tail: "Tail: last tokens, not packed yet",
  positions: "Position of a sink",
  temperature: "Temperature",
  top_k: "Top k",
  top_p: "Top p",
  min_p: "Min p",
  penalty: "Repetition penalty",
  seed: "Seed",
  max: "Longest answer, tokens (0: no limit)",
  backend: "Runs on",
  system: "System prompt (empty: the model's own)",
};
export const awake = "Keep the screen on";
export const spokenAnswers = "Answers for screen readers";
export const spokenNames = { sentences: "by sentence", finished: "when finished", never: "never" };
export const awakeFailed = (message: string): string =>
  `The browser does not keep the screen on (${message}). It is asked again when you come back to this tab.`;
export const cacheGroup = "Cache";
export const samplerGroup = "Choice of words";
export const placeGroup = "Where and who";
export const policies: Record<Policy, string> = {
  sinks: "sinks and recent tokens",
  window: "recent tokens only",
  dense: "everything",
  recompute: "nothing: recent tokens are read again",
};
export const positionNames = { slot: "its slot in the cache", stream: "its place in the stream" };
export const kvNames: Record<Storage, string> = {
  f16: "f16, 2 bytes a value",
  f32: "f32, 4 bytes",
  bf16: "bf16, 2 bytes",
  int8: "packed to 8 bits",
  int4: "packed to 4 bits",
  int2: "packed to 2 bits",
};
export const asAll = "as above";
export const backendNames = { auto: "WebGPU where it works", webgpu: "WebGPU", cpu: "CPU" };
export const settingsIntro =
  "Each change takes effect at once. Those of the cache empty it and read the conversation again.";
export const commandLine = "The same on the command line";
export const copyCommand = "Copy the command";
export const outOfRange = (key: string, least: number, most: number): string =>
  `${key} must be from ${count(least)} to ${count(most)}; the old value applies.`;
export const badGroup = (group: number): string => `The group is ${count(group)}: use a multiple of 8, like 32.`;
export const badTail = (tail: number, group: number): string =>
  `The tail is ${count(tail)} and the group ${count(group)}: make the tail a multiple of the group.`;
export const oldValue = (why: string): string => `${why} The old value applies.`;
export const waitForEnd = "An answer is being written: the change takes effect when it has ended.";

// Help and the report.

export const helpText = [
  "The model runs in this tab. Its cache keeps the first tokens, the sinks, and the last ones; what lies between leaves, and the chat goes on.",
  "Sinks keep the text readable. They do not give back what was forgotten: the model sees only what is in the cache.",
];
export const keysTitle = "Keys";
export const keyList: [string, string][] = [
  ["Enter", "send the message"],
  ["Shift + Enter", "a new line"],
  ["Esc", "close what is open, else stop the answer"],
  ["?", "this help, outside of a text field"],
];
export const copyReport = "Copy the self-test's result";
export const reportIntro =
  "For a bug report: browser, adapter, limits, features, timings, versions. Nothing that you wrote.";
export const noReport = "The self-test runs when a model is loaded.";

// Compare.

export const compareHeading = "The same text, several caches";
export const compareIntro =
  "Up to four lanes read the same text at the same pace, each with a cache of its own. They are not built yet; this is what each will show.";
export const lanes: [name: "window" | "sinks" | "dense" | "recompute", label: string, what: string][] = [
  ["window", "Window", "keeps the last tokens only, and breaks when the first word leaves"],
  ["sinks", "Sinks", "keeps the first four tokens too, and goes on"],
  ["dense", "Everything", "keeps all, and grows with every token"],
  ["recompute", "Recompute", "reads the last tokens again at every step: right, and slow"],
];
export const honest =
  "Sinks keep the text readable. They do not give back what was forgotten: the model sees only what is in the cache.";

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
