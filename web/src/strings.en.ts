// Every word that the page says, in English. Numbers are put in here and nowhere else.

import type { RecordedEntry } from "../../crates/wasm/run";
import type { Backend, LaneSettings, Policy, Storage } from "../../crates/wasm/types";
import type { MarkKind } from "./run.ts";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const share = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });

/** What stands where a number is not known yet. */
export const UNKNOWN = "–";

export const count = (n: number): string => whole.format(n);
const SMALL = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"];
/** In words where it is small. */
const number = (n: number): string => SMALL[n] ?? count(n);
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
export const skipToCompare = "To the comparison";
export const skipToFigures = "To the figures";
export const skipToAnswer = "To the answer";
export const name = "Sinkstream";
export const heading = "A chat that never ends, and why it can";
export const lead =
  "A language model keeps its past in a cache. When the cache is full, something must go. " +
  "Drop the oldest words and the model breaks; keep its very first words, however dull they are, " +
  "and it goes on for as long as you like.";
export const noScripts = "The model runs in your browser, which needs JavaScript: switch it on and reload.";
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
export const noFigures = (message: string): string =>
  `The figures could not be fetched (${message}): reload the page for them.`;
export const conversation = "Conversation";
export const conversationEmpty =
  "Ask something. The model is small: it writes fluent English and gets facts wrong.";
export const message = "Message";
export const messageLanes = "Message to all lanes";
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
export const notRead = "is not in the cache";
export const endRead = "only its end is in the cache";
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
export const comparing = "The model runs the lanes of the comparison.";
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
  wordless: "Refilled from the text, without the question that has no answer.",
  compared: "Refilled from the text: lanes were compared meanwhile.",
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
export const moduleRemedy =
  "Check the connection, then reload the page; on a server of your own, see that the file is there.";
export const moduleFault = (url: string, message: string): string =>
  `The module at ${url} could not be used: ${asSentence(message)}`;
export const workerDied = (message: string): string =>
  `The model's worker stopped: ${asSentence(message)} What was written stays.`;
export const stepFailed = (message: string): string =>
  `The answer broke off: ${asSentence(message)} What was written stays.`;
export const cacheRefused = (message: string): string =>
  `The cache that the settings ask for cannot be: ${asSentence(message)}`;
export const cacheRemedy = "Change the settings, then load the model again.";
export const comparisonFailed = (message: string): string =>
  `The comparison broke off: ${asSentence(message)} What was read stays.`;
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
  `Tokens ${count(from)} to ${count(to - 1)} of the stream left the cache while the message was read.`;
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
  "Of the chat; lanes have their own. Each change takes effect at once. Those of the cache empty it and read the conversation again.";
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
export const wordsTitle = "Words";
export const wordList: [string, string][] = [
  ["sinks 4+124", "keeps the first 4 tokens and the last 124"],
  ["dense", "keeps every token"],
  ["recompute", "reads the last tokens again for each word"],
  ["nat", "of surprise: 1 is a chance of 37%"],
  ["perplexity", "among how many words it hesitates"],
  ["int4, int2", "a number of the cache in 4 or 2 bits"],
  ["head", "one of several in each layer that look back"],
];
export const keysTitle = "Keys";
export const keyList: [string, string][] = [
  ["Enter", "send the message"],
  ["Shift + Enter", "a new line"],
  ["Esc", "close what is open, else stop the answer"],
  ["Space, ←, →", "on the player: play or pause, one token back or on"],
  ["?", "this help, outside of a text field"],
];
export const copyReport = "Copy the self-test's result";
export const reportIntro =
  "For a bug report: browser, adapter, limits, features, timings, versions. Nothing that you wrote.";
export const noReport = "The self-test runs when a model is loaded.";

// Compare.

export const acts = {
  sinks: "Take the sinks away",
  start: "Run it",
  live: "Run it live",
  pause: "Pause",
  on: "Go on",
  again: "Again",
};
export const whatHappened = "What happened?";
export function happened(mass: number | null, ago: number | null, sinks: number): string {
  const part = mass === null ? "a large part" : percent(mass);
  const first = `${sinks === 1 ? "the very first token" : `the first ${number(sinks)} tokens`}`;
  const lost =
    ago === null
      ? "The window lane still has all of its tokens; it will lose these first."
      : `The window lane lost them ${ago === 0 ? "just now" : `${tokensOf(ago, null)} ago`}; the sinks lane kept them, and gave up as many recent tokens instead.`;
  return (
    `The model sends ${part} of its attention to ${first}, whatever they say, because attention must add up to one ` +
    `and has to go somewhere. We call those tokens sinks. ${lost}`
  );
}
export const recordedBadge = (by: string, date: string, commit: string, only: boolean, loaded: boolean): string =>
  `Recorded run · made by ${by} on ${date}${by.includes(commit) ? "" : `, ${commit.slice(0, 7)}`}.` +
  (only ? " It is there as a recording only." : loaded ? "" : " Load the model to run it here.");
export const liveBadge = (place: string, perSecond: number | null): string =>
  `Live · running on ${place}${perSecond === null ? "" : `, ${rate(perSecond)}`}.`;
export const honestNow =
  "Sinks keep the text readable. They do not give back what was forgotten: the model sees only what is in the cache.";

export const player = "Player";
export const play = "Play";
export const pause = "Pause";
export const stepBack = "Back one token";
export const stepOn = "On one token";
export const position = "Position in the run";
export const pace = "Pace";
export const paces = { slow: "Slow", reading: "Reading pace", fast: "Fast", rush: "Very fast" };
export const tokensOf = (at: number, of: number | null): string =>
  of === null ? (at === 1 ? "1 token" : `${count(at)} tokens`) : `${count(at)} of ${count(of)} tokens`;

export const textOf = (lane: string): string => `Text of ${lane}`;
export const wholeText = "Whole text";
export const lessText = "Less";
export const moreLanes = (lanes: number): string => (lanes === 1 ? "Show 1 more lane" : `Show ${lanes} more lanes`);
export const numbersOnly = "This run carries numbers only: its text is not ours to give out.";
/** What was asked, without the marks of a chat's turns. */
export const question = (prompt: string): string => /<\|im_start\|>user\n(.*?)<\|im_end\|>/s.exec(prompt)?.[1] ?? prompt;
export const leftHere = "first word left here";
export const leftHereKept = "first word left here, sinks stay";
export const willLeave = (tokens: number): string =>
  tokens > 0 ? `The first word leaves in ${tokens === 1 ? "1 token" : `${count(tokens)} tokens`}.` : "";
export const nextWord = (text: string): string => `Sure of “${text.trim() === "" ? "↵" : text.trim()}”, the word behind the mark:`;
const precise = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 1 });
export const sure = (p: number): string => (p >= 0.01 ? percent(p) : precise.format(p));
export const laneFacts = {
  perplexity: (tokens: number): string => `Perplexity (${count(tokens)})`,
  surprise: "Own surprise",
  memory: "Memory",
  time: "Time a token",
};
const threeDigits = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
export const perplexity = (value: number): string => (value < 1000 ? threeDigits.format(value) : count(value));
export const natsOf = (value: number): string => `${inNats(value)} nats`;
export const milliseconds = (ms: number): string => `${tenths.format(ms)} ms`;
export function health(
  kind: "steady" | "repeating" | "losing",
  since: number,
  leftAgo: number | null,
  { sinks, behind, ended, past }: { sinks: boolean; behind: number; ended: boolean; past: boolean },
): string {
  const how = {
    steady: "● steady",
    repeating: `▲ repeating itself since token ${count(since)}`,
    losing: `▲ losing the thread since token ${count(since)}`,
  }[kind];
  const left = leftAgo === null ? "all words kept" : sinks ? "sinks kept" : `first word left ${tokensOf(leftAgo, null)} ago`;
  return [how, ...(past ? ["past its trained length"] : []), left, ...(behind > 0 ? [`${count(behind)} tokens behind`] : []), ...(ended ? [leftAgo === null ? "has ended, before any word left" : "has ended"] : [])].join(" · ");
}
/** What is spoken when it happens. */
export function happens(kind: MarkKind, lane: string | null): string {
  const who = lane ?? "every lane";
  switch (kind) {
    case "first_left":
      return "The first word has left.";
    case "trained":
      return "The trained length is passed.";
    case "setting":
      return "You changed a setting.";
    case "refilled":
      return "Refilled from the text.";
    case "repeating":
      return `${who} repeats itself.`;
    case "losing":
      return `${who} is losing the thread.`;
  }
}
export const readAgain = (tokens: number): string => `Read the last ${count(tokens)} again`;

export const ownSummary = "Another text, and runs as files";
export const ownText = "Your own text";
export const ownTextHint = "It never leaves this tab. You can also drop a text file anywhere on the page.";
export const whatLanesDo = "What the lanes do";
export const modes = { forced: "All lanes read it", free: "Each lane answers it" };
export const useText = "Use this text";
export const saveRun = "Save this run";
export const openRun = "Open a run";
export const nothingToSave = "There is no run to save yet.";
export const noText = "There is no text to read: write or drop one, then start again.";
export const noLanes = "There is no lane to run.";
export const lanesNeedModel = "These lanes have no recorded run: load the model to run them here.";
export const textNeedsModel = "Only the model can read your text: load it, then press the button.";
export const againNeedsModel = "Reading again takes the model: load it, then press the button.";
export const modelBusy = "The model is busy with the conversation: wait for it, or stop it, then press again.";
export const noRun = (file: string): string => `The recorded run ${file} is not here.`;

// Experiments.

export const experimentsMenu = "Experiments";
export const experimentsIntro =
  "Each is a link: send it to somebody, and they see the same. They play a recording, and run live once the model is here.";
export const firstStory = "The first story";
export const firstStoryWhat = "Two lanes write the same story, until one loses its first word.";
export const lookAt = (what: string): string => `Look at ${what}`;
export const paper = "In the paper";
export const oursHere = "Here";
/** Perplexities of a recorded run, by range. */
export function ours({ lanes }: RecordedEntry): string[] {
  const ranges = lanes[0]?.summary ?? [];
  return ranges.flatMap(({ from, to }, k) => {
    // The first is of all; the others say what the run is about.
    if (k === 0 && ranges.length > 1) return [];
    const values = lanes.flatMap(({ name: lane, summary }) => {
      const value = summary[k]?.perplexity ?? null;
      return value === null ? [] : [`${lane} ${perplexity(value)}`];
    });
    return values.length === 0 ? [] : [`${values.join(", ")} (perplexity, tokens ${count(from)} to ${count(to)})`];
  });
}

/** By name, in the order of the menu. */
export const experiments = {
  "take-sinks-away": {
    title: "Take the sinks away",
    what: "The window lane forgets its first word at the dashed mark and soon predicts far worse. The sinks lane forgets as much, and costs far less.",
    why: "Most heads in the upper layers had parked their attention on that word, and now they must spread it over words that mean something.",
    look: "the cost figure: it is flat until the mark, then one line bends at once, and the other a little.",
    paper: "Llama-2-13B, cache of 1,024: perplexity 5,158 without sinks, 5.40 with.",
  },
  hero: {
    title: "One word decides",
    what: "The same story with a cache of 256: at the dashed mark the first word leaves, and the very next word is told from “Hour after” alone by a lane that has kept its sinks.",
    why: "At the mark all lanes have just read “Hour after”, and have read that pair before. The window can no longer use it: its attention has lost the place where it rests when there is nothing to look for.",
    look: "the bars under the lanes, just behind the mark: how sure each was of that word.",
    paper: "The jump at the first eviction is figure 3 of StreamingLLM; it shows perplexity, not one word.",
  },
  "how-many": {
    title: "One sink or eight",
    what: "One kept word works about as well as eight.",
    why: "This model puts its weight on the very first token alone; models trained without a fixed first token share it out, which is why the paper keeps four.",
    look: "the lines of the sinks lanes, which you can hardly tell apart.",
    paper: "Llama-2-7B: 11.88 with one sink, 9.59 with four, 9.54 with eight.",
  },
  newlines: {
    title: "Four newlines as sinks",
    what: "Four line breaks stand before the story and are kept as sinks; it works.",
    why: "The place matters, not the word: the first tokens are seen by all later ones, so they are a safe spot to leave attention.",
    look: "the attention map, dark over four empty lines.",
    paper: "Llama-2-13B: 5.60 with line breaks, 5.40 with the text's own first tokens.",
  },
  softmax1: {
    title: "A softmax that may say nothing",
    what: "One is added to the softmax's denominator, so heads may attend to nothing; the window lane wins back much of its loss, though the model was never trained for this.",
    why: "A sink is the model's way of doing nothing; give it another way and it misses the sink less.",
    look: "the gap between the window lane with and without it.",
    paper: "160M parameters trained so from scratch: 29,214 with no kept token, 19.90 with one.",
  },
  "stream-positions": {
    title: "Original positions",
    what: "Almost nothing happens for a long time.",
    why: "Only the distance to the sinks differs: here it grows with the stream, with slot positions it stays at the cache's length.",
    look: "the two sinks lines, which lie on each other.",
    paper: "Positions inside the cache are what lets it run to 4 million tokens.",
  },
  "two-bits": {
    title: "A two-bit cache",
    what: "With eight and four bits for each number nothing is lost; with two, four levels in all, a little is.",
    why: "Scales are taken along channels for keys and along tokens for values, where the numbers are alike; sinks and the newest tokens stay exact.",
    look: "the cells, which shrink from lane to lane, and at the cost, which rises in the last one only.",
    paper: "KIVI, Llama-2-13B, CoQA: 66.4 at 16 bits, 66.2 at 2.",
  },
  tiny: {
    title: "A window smaller than a sentence",
    what: "With sixteen tokens the window lane falls behind at once, and four sinks with twelve words still hold.",
    why: "With so few words to lean on, losing the resting place is everything.",
    look: "the tints of the two texts, then at the numbers: this is the collapse of the paper's headline.",
    paper: "Llama-2-13B, cache of 1,024: perplexity 5,158 without sinks, 5.40 with.",
  },
  "past-8192": {
    title: "Past the trained length",
    what: "Keeping everything is best for ten thousand tokens, then it turns bad. This is a recording only: it takes an hour, and the book is not ours to give out.",
    why: "The model has never seen positions past 8,192 and slowly loses its sense of place.",
    look: "the dense line: nothing at the mark, level with sinks some two thousand tokens later, worse after.",
    paper: "Keeping everything fails past the trained length.",
  },
  "wrong-axis": {
    title: "Scales the wrong way round",
    what: "The same two bits, grouped along the other axis, ruin the text; at four bits you would not notice. This is a recording only: no cache of this page packs so.",
    why: "A few key channels are always large, and a scale shared across channels rounds all the small ones to nothing.",
    look: "the strip of key channels below the memory, a few of which are wide; then the two int2 lanes, which take the same memory.",
    paper: "KIVI, Llama-2-7B, CoQA: 59.1 the right way, 1.3 the wrong way, 63.9 at 16 bits.",
  },
};

// Recorded runs.

export const notARun = (file: string, why: string): string => `${file} cannot be played: ${why}.`;
export const noRunFormat = "it does not say “sinkstream-run”";
export const newerRun = (version: unknown, known: number): string =>
  `it has version ${String(version)}, and this page knows ${known}`;
export const wrongPlace = (place: string): string => `“${place}” is missing or is not as it must be`;

/** A lane by its settings, as the program's tables name it: "window 128", "sinks 4+124 int4". */
export function laneName({ policy, sinks, recent, kv, ...other }: LaneSettings): string {
  const size = { dense: "", window: ` ${recent}`, recompute: ` ${recent}`, sinks: ` ${sinks}+${recent}` }[policy];
  const [keys, values] = [other.kv_k ?? kv, other.kv_v ?? kv];
  return [
    `${policy}${size}`,
    ...(keys !== values ? [`K ${keys} V ${values}`] : keys === "f16" ? [] : [keys]),
    ...((other.group ?? 32) === 32 ? [] : [`group ${other.group}`]),
    ...((other.tail ?? 32) === 32 ? [] : [`tail ${other.tail}`]),
    ...(other.positions === "stream" ? ["stream"] : []),
    ...(other.softmax === "one" ? ["softmax1"] : []),
    ...(other.zero_sinks === true ? ["zero sinks"] : []),
    ...(other.sink_text ? [`text ${JSON.stringify(other.sink_text)}`] : []),
  ].join(" ");
}

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

const hundredths = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const upToHundredths = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const shareTenths = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });

const minus = (text: string): string => text.replace("-", "\u2212");
const inNats = (value: number): string => minus(hundredths.format(value));
const inMs = (ms: number): string => `${tenths.format(ms)} ms`;
const inBytes = (bytes: number): string => `${count(bytes)} ${bytes === 1 ? "byte" : "bytes"}`;
/** A share so small that whole percents would say nothing of it. */
const smallShare = (part: number): string => (part < 0.1 ? shareTenths : share).format(part);
/** A token in quotes, so that spaces and line breaks in it can be told. */
const quoted = (token: string): string => `“${token.replaceAll("\n", "⏎")}”`;

function list(parts: readonly string[]): string {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1) ?? ""}`;
}

export const axisNumber = (value: number): string => minus(upToHundredths.format(value));
export const shareTick = (value: number): string => (value === 0 || value >= 0.01 ? String(value) : `${value * 100}%`);
export const tokensAxis = "tokens";
export const nats = "nats";
export const linear = "Linear";
export const log = "Log";
export const linearAxis = "Linear axis";
export const logAxis = "Log axis";
export const noToken = "No token has been read yet.";
export const ofLane = (lane: string): string => `${lane}: `;
export const showLane = (lane: string): string => `Show the lane ${lane}`;
export const trainedLength = (tokens: number): string => `trained length, ${count(tokens)}`;
export const marks = {
  first_left: "first word left",
  trained: "trained length",
  setting: "you changed a setting",
  refilled: "refilled from the text",
  repeating: "▲ repeating itself",
  losing: "▲ losing the thread",
  state: "▲",
};
export const binned = (from: number, width: number): string =>
  `From row ${from} on, losses are not known one by one: each is the mean over ${width} positions.`;

/** When the first word left each lane. */
export function leftSentence(lanes: readonly { name: string; at: number }[]): string {
  const [first] = lanes;
  if (first === undefined) return "No word has left yet.";
  if (lanes.every(({ at }) => at === first.at)) return `The first word left at token ${count(first.at)}.`;
  return `The first word left ${list(lanes.map(({ name: lane, at }) => `the ${lane} lane at token ${count(at)}`))}.`;
}

interface Reading {
  name: string;
  /** Loss on that token alone; null where it is not known. */
  own: number | null;
  /** What the curve says there. */
  value: number | null;
}

export const cost = {
  option: "Extra cost",
  title: (evicts: boolean): string => (evicts ? "Extra cost since the first word left" : "Extra cost of each lane"),
  /** `reference`: the lane at zero, where that is not the one that keeps everything. */
  caption: (reference: string | null, evicts: boolean): string =>
    `All lanes read the same text. Zero means as good as ${reference ?? "keeping everything"}. ` +
    (evicts ? "Watch which line bends at the dashed mark." : "Watch which line leaves the others."),
  words(tokens: number, reference: string, lanes: readonly { name: string; nats: number }[]): string {
    const costs = lanes.map(({ name: lane, nats: value }, i) =>
      i === 0 ? `the ${lane} lane has cost ${inNats(value)} nats more than ${reference}` : `the ${lane} lane ${inNats(value)}`,
    );
    return `After ${count(tokens)} tokens ${costs.length === 0 ? "there is nothing to compare" : list(costs)}.`;
  },
  reading(at: number, token: string | null, lanes: readonly Reading[], isCost: boolean, roll: number): string {
    const parts = lanes.map(({ name: lane, own, value }) => {
      const curve = value === null ? null : isCost ? `extra cost ${inNats(value)}` : `mean of ${count(roll)} ${inNats(value)}`;
      return `${lane} ${[own === null ? null : `${inNats(own)} nats`, curve].filter((n) => n !== null).join(", ")}`;
    });
    const where = `token ${count(at)}${token === null ? "" : `, ${quoted(token)}`}`;
    return parts.length === 0 ? `${where}: nothing is known` : `${where}: ${parts.join("; ")}`;
  },
};

export const loss = {
  option: "Loss",
  title: (roll: number): string => `Loss of each lane (mean of the last ${count(roll)} tokens)`,
  caption:
    "Lower is better; one nat is a factor of 2.7 in probability. The lines lie on each other until the mark.",
  freeTitle: "Surprise at its own words",
  freeCaption: "Falls when a lane repeats itself; not a measure of quality.",
  roll: (tokens: number): string => `Mean of the last ${count(tokens)} tokens`,
  words(tokens: number, roll: number, lanes: readonly { name: string; nats: number }[], forced: boolean): string {
    if (lanes.length === 0) return noToken;
    const what = forced ? "lost" : "was surprised by";
    const parts = lanes.map(({ name: lane, nats: value }) => `${lane} ${inNats(value)}`);
    return `Over the last ${count(Math.min(roll, tokens))} of ${count(tokens)} tokens each lane ${what}, in nats a token: ${list(parts)}.`;
  },
};

export const cache = {
  title: "What is in the cache now",
  caption: (packed: boolean, sinks: boolean): string =>
    [
      `Cells are tokens in reading order${packed ? ", as high as the memory they take; a line ends each packed group" : ""}.`,
      ...(sinks ? ["Ringed cells never leave."] : []),
      "Below: slots in use.",
    ].join(" "),
  inUse: "in use",
  each: (slots: number): string => `a cell stands for ${count(slots)} slots`,
  kinds: {
    sink: "sink",
    packed: "packed",
    tail: "tail, exact",
    exact: "recent",
    masked: "left, its group is not",
    evicted: "just left",
    empty: "empty",
  },
  packedAs: (kv: string): string => `packed ${kv}`,
  slot(slot: number, capacity: number, token: string | null, position: number | null, kind: string, bytes: number | null): string {
    return [
      `slot ${count(slot)} of ${count(capacity)}`,
      ...(token === null ? [] : [quoted(token)]),
      position === null ? "not of the stream" : `stream ${count(position)}`,
      kind,
      ...(bytes === null ? [] : [`${inBytes(bytes)} in all layers`]),
    ].join(", ");
  },
  emptySlot: (slot: number, capacity: number): string => `slot ${count(slot)} of ${count(capacity)}, empty`,
  leftSlot: (position: number, masked: boolean): string =>
    masked ? `stream ${count(position)}, has left; its group has not` : `stream ${count(position)}, has just left`,
  several: (first: string, last: string): string => `from ${first}; to ${last}`,
  none: "The cache is empty.",
  words(now: {
    held: number;
    capacity: number;
    sinks: number;
    packed: number;
    as: string;
    exact: number;
    came: number;
    left: readonly [number, number] | null;
    bytes: number;
  }): string {
    const parts = [
      ...(now.sinks > 0 ? [`${count(now.sinks)} ${now.sinks === 1 ? "sink" : "sinks"}`] : []),
      ...(now.packed > 0 ? [`${count(now.packed)} packed in ${now.as}`] : []),
      ...(now.exact > 0 ? [`${count(now.exact)} exact`] : []),
    ];
    const moved =
      now.left === null
        ? `token ${count(now.came)} came, none left`
        : now.left[1] - now.left[0] === 1
          ? `token ${count(now.came)} came, token ${count(now.left[0])} left`
          : `token ${count(now.came)} came, tokens ${count(now.left[0])} to ${count(now.left[1] - 1)} left`;
    return `${count(now.held)} of ${count(now.capacity)} slots: ${parts.join(", ")}; ${moved}; ${megabytes(now.bytes)}.`;
  },
};

export const attention = {
  title: (onSinks: boolean): string =>
    onSinks ? "Attention on the sinks, by layer and head" : "Attention on the first slots, by layer and head",
  caption: (opens: boolean): string =>
    `Strong cells look at the first words: the first two layers read the text, most later heads lean on the sinks.${opens ? " Open a cell to see where it looks." : ""}`,
  headCaption: "Each bar is one slot, in reading order; ringed ones are sinks. The bars add up to one.",
  layer: "layer",
  head: "head",
  overTime: "mean of all heads, over the stream",
  back: "Back to the mean",
  looks: (layer: number, head: number, lane: string | null): string =>
    `Where layer ${layer}, head ${head} looks now${lane === null ? "" : ` (${lane})`}`,
  waiting: "Comes with the next token.",
  ended: "Run ended: start it again.",
  noMap: "No map by head is known here.",
  /** `first`: tokens after which the first map was recorded. */
  noHeads: (recorded: boolean, first: number | null): string =>
    first !== null ? `first map at token ${count(first)}` : recorded ? "not recorded" : "not measured yet",
  notRecorded: "Not recorded: run it live.",
  slotAxis: (slots: number, each: number, sinks: number): string =>
    `${sinks > 0 ? "◂ sinks · " : ""}${count(slots)} slots${each > 1 ? `, ${each} a bar` : ""}`,
  cell: (lane: string | null, layer: number, head: number, value: number | null): string =>
    `${lane === null ? "" : `${lane}, `}layer ${layer}, head ${head}: ${value === null ? "not known" : smallShare(value)}`,
  words(
    lane: string | null,
    at: number | null,
    sinks: number | null,
    mean: number,
    least: readonly [number, number],
    most: readonly [number, number],
  ): string {
    const where = [...(lane === null ? [] : [`in the ${lane} lane`]), ...(at === null ? [] : [`at token ${count(at)}`]), "on average"].join(", ");
    const target = sinks === null ? "the first four slots" : sinks === 1 ? "the one sink" : `the ${count(sinks)} sinks`;
    return (
      `${where.charAt(0).toUpperCase()}${where.slice(1)} ${smallShare(mean)} of attention goes to ${target}; by layer from ` +
      `${smallShare(least[1])} (layer ${least[0]}) to ${smallShare(most[1])} (layer ${most[0]}).`
    );
  },
  headWords(
    layer: number,
    head: number,
    onFirst: number,
    most: { slot: number; token: string | null; share: number } | null,
  ): string {
    const other =
      most === null
        ? ""
        : ` Of the rest it looks most at slot ${count(most.slot)}${most.token === null ? "" : `, ${quoted(most.token)}`}: ${smallShare(most.share)}.`;
    return `Layer ${layer}, head ${head} gives ${smallShare(onFirst)} to the first slots.${other}`;
  },
};

export const memory = {
  title: "Memory of the cache",
  caption: (dense: boolean, channels: boolean): string =>
    (dense
      ? "This cache keeps everything, and takes twice the room whenever it is full."
      : "Keeping everything grows for ever: an hour at 20 tokens a second would need 1.66 GB. The cache is the flat part.") +
    (channels ? " Below: how far each channel of the keys ranges; a few are always wide." : ""),
  keysOf: (layer: number): string => `Key channels of layer ${layer}`,
  keys: (layer: number, widest: number, median: number): string => `Keys, layer ${layer}: widest ${widest}, median ${median}`,
  channels: (layer: number, all: number, { widest, median }: { widest: number; median: number }): string =>
    `Of the ${all} key channels of layer ${layer} the widest ranges over ${widest}, the middle one over ${median}.`,
  axis: "MB",
  cache: "cache",
  everything: "all kept",
  window: "in f16",
  floats: "recent tokens",
  parts: { sinks: "sinks", codes: "codes", scales: "scales", tail: "tail", slack: "slack" },
  saved: (bytes: number, part: number): string => `Saved so far: ${megabytes(bytes)} (${percent(part)})`,
  nothingSaved: "Saved so far: nothing yet",
  arrow: (bytes: number): string => `↗ ${megabytes(bytes)}`,
  empty: "The cache is not built yet.",
  words(bytes: number, dense: number, tokens: number, parts: readonly { name: string; bytes: number }[]): string {
    const by = list(parts.map(({ name: part, bytes: of }) => `${part} ${count(of)}`));
    const saved = dense > bytes ? ` That is ${megabytes(dense - bytes)} (${percent((dense - bytes) / dense)}) saved.` : "";
    return (
      `The cache takes ${megabytes(bytes)}, ${inBytes(bytes)}: ${by}. ` +
      `Keeping all ${count(tokens)} tokens in f16 would take ${megabytes(dense)}.${saved}`
    );
  },
  reading: (at: number, bytes: number | null, dense: number | null): string =>
    `token ${count(at)}: the cache ${bytes === null ? UNKNOWN : megabytes(bytes)}, everything ${dense === null ? UNKNOWN : megabytes(dense)}`,
};

export const time = {
  title: "Time for one token",
  caption: (recompute: boolean): string =>
    `It must not creep up with the length of the stream once the cache is full.${recompute ? " Recompute pays for its window again at every token." : ""}`,
  axis: "ms",
  empty: "No token was timed.",
  words: (lanes: readonly { name: string; now: number; start: number }[]): string =>
    lanes
      .map(
        ({ name: lane, now, start }) =>
          `${lane}: ${inMs(now)} now, ${inMs(start)} at the start, ${hundredths.format(now / start)} times that.`,
      )
      .join(" "),
  reading: (at: number, lanes: readonly { name: string; ms: number }[]): string =>
    `token ${count(at)}: ${lanes.length === 0 ? "not timed" : lanes.map(({ name: lane, ms }) => `${lane} ${inMs(ms)}`).join("; ")}`,
};

export const knows = {
  title: "What it still knows",
  caption:
    "Grey struck-through text has left the cache. Ringed words are the sinks. What stands in <| |> marks the turns for the model. Ask about the grey part and see.",
  laneCaption: "Grey struck-through text has left the cache. Ringed words are the sinks.",
  kinds: { sinks: "sinks", left: "left", kept: "kept" },
  headings: { sinks: "Sinks, kept for ever", left: "Left the cache", kept: "Still in the cache" },
  earlier: "… ",
  leftOut: "What was said before, and not read again. ",
  words(tokens: number, parts: readonly { kind: "sinks" | "left" | "kept"; from: number; to: number }[]): string {
    const says = parts.map(({ kind, from, to }) => {
      const which = to - from === 1 ? `token ${count(from)}` : `tokens ${count(from)} to ${count(to - 1)}`;
      return `${which} ${{ sinks: "are sinks", left: "have left", kept: "are kept" }[kind]}`;
    });
    return `Of ${count(tokens)} tokens, ${list(says)}.`;
  },
};

/** Of so many tries each, how often the model knew the fact: `cargo xtask bench --facts`. */
const known = { kept: 11, left: 0, pinned: 6, of: 20 };
const times = (n: number): string => (n === 0 ? "never" : `${count(n)} times`);

export const exercise = {
  heading: "The forgotten fact",
  known,
  intro:
    `Tell the model something, talk until it has left the cache, and ask. The model is small: of ${known.of} tries each it knew the fact ` +
    `${times(known.kept)} while the cache had it, ${times(known.left)} after it had left, and ${times(known.pinned)} where it lay among 64 sinks.`,
  plant: "Plant: “The password is heron.”",
  talk: "Talk past it",
  ask: "Ask",
  messages: {
    plant: "Remember this: the password is heron. Just say yes.",
    talk: "Tell me a long story about a lighthouse keeper.",
    goOn: "Go on with the story.",
    ask: "What is the password?",
  },
  answer: /heron/i,
  planted: "Planted. Now talk past it, or ask at once.",
  toGo: (tokens: number): string => `${count(tokens)} tokens until it has left the cache.`,
  hasLeft: "It has left the cache. Ask.",
  pinned: "It lies among the sinks and will never leave. Ask.",
  notNow: "The chat cannot take a message now: load the model, or wait for the answer's end.",
  stopped: "Stopped.",
  table: "What came of it",
  columns: ["Cache", "Tokens since", "Still in the cache", "Answer", "Knew it"],
  yes: "yes",
  no: "no",
};

/** What stands around every figure. */
export const frame = {
  tools: (figure: string): string => `Tools of “${figure}”`,
  lead: "Make it the lead figure",
  table: "Show it as a table",
  picture: "Show it as a picture",
  menu: "Save or copy",
  svg: "Save as SVG",
  png: "Save as PNG",
  csv: "Save as CSV",
  link: "Copy a link to this",
  text: "Copy as text",
  last: (tokens: number): string => `Curves: last ${count(tokens)} tokens only`,
  sampled: (shown: number, all: number): string =>
    `${count(shown)} of ${count(all)} rows, evenly apart; all of them are in the CSV.`,
  settings(
    run: string | null,
    modelName: string | null,
    lanes: readonly string[],
    tokens: number,
    made: { by: string; commit: string; date: string } | null,
  ): string {
    return [
      ...(run === null ? [] : [run]),
      ...(modelName === null ? [] : [modelName]),
      `${count(tokens)} tokens`,
      lanes.join(" · "),
      made === null ? "made in the browser by Sinkstream" : `made by ${made.by} on ${made.date}, commit ${made.commit}`,
    ].join("; ");
  },
};
