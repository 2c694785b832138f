// Ties the page together: wishes go to the worker, its answers to the state, the state to the view.

import type { Backend } from "../../crates/wasm/types";
import { Awake } from "./awake.ts";
import { Chats, exported, imported, newChat, titleOf } from "./chats.ts";
import { Comparison } from "./comparison.ts";
import { download, keys } from "./dom.ts";
import { experimentOf } from "./experiments.ts";
import { FIGURES, type FigureId } from "./figures/figure.ts";
import type { Figures } from "./figures/index.ts";
import { prepare } from "./prose.ts";
import { type Fault, fault, type Request, type Response, type Source } from "./protocol.ts";
import { report } from "./report.ts";
import { chatBegins, chatStep, emptyRun, type Mark, reduceRun, type RunState, type RunStep } from "./run.ts";
import { defaults, format, MODEL, parse, type Theme, type ViewName } from "./settings.ts";
import { findShelf, type ShelfKind, shelf } from "./shelf.ts";
import { addressSource, defaultSource, nearest, terms } from "./sources.ts";
import { Speech } from "./speech.ts";
import { type Gpu, probe, start, whenGone } from "./startup.ts";
import { type Action, brokenOff, type Chat, initial, lastSaid, leftOut, messages, reduce, SILENCE, type State } from "./state.ts";
import * as say from "./strings.en.ts";
import { View } from "./view.ts";

/** Pulls on their way at once: the worker goes on while the page takes in what came. */
const PULLS = 2;
/** Milliseconds between two savings of a growing answer. */
const SAVE = 2000;
/** Times that a model which broke is started again by itself, without a word of it in between. */
const MOST_LOSSES = 2;
/** A page that was reloaded so often within so many milliseconds, and never got to its model, waits for a click. */
const LOOP = { most: 3, within: 60_000 };
const THEME = "sinkstream-theme";
const CHAT = "sinkstream-chat";
/** Set while a model is kept in this browser, so that a page which opens knows at once. */
const KEPT = "sinkstream-kept";
/** How an address behind `#` begins that carries a text of the person's own. */
const OWN = "#text=";
/** Longest such text, characters: addresses must stay fit to be sent. */
const LONGEST_OWN = 4000;
const LOADS = "sinkstream-loads";
const AWAKE = "sinkstream-awake";
const SPOKEN = "sinkstream-spoken";

const address = new URLSearchParams(location.search);
const seed = crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
const settings = parse(address, seed);
if (!URL.canParse(settings.model, document.baseURI)) {
  settings.complaints.push(say.badModel(settings.model));
  settings.model = MODEL;
}
const ours = defaultSource(document.baseURI);
let source: Source =
  settings.model === MODEL ? ours : addressSource(new URL(settings.model, document.baseURI).href, settings.sha256);
const module = new URL("pkg/wasm.js", document.baseURI).href;

let state = initial(settings);
/** Null until they are fetched. */
let figures: Figures | null = null;
/** The conversation as the figures see it. */
let talk: RunState = reduceRun(emptyRun(), chatBegins(null, settings.cache));
let shown: ViewName = settings.view ?? firstView();
let worker: Worker | null = null;
/** Ends the start that is under way. */
let starting = new AbortController();
let frame = 0;
let listening = 0;
let keep: ShelfKind | null = null;
let losses = 0;
/** What follows when the model is back: the broken answer is gone on with, or the conversation is read only. */
let unfinished = false;
/** The model is about to be loaded, unless another tab has it. */
let claiming = false;
/** The message in the box waits for the model. */
let waiting = false;
/** What waits for the end of the answer. */
let later: (() => void) | null = null;
let saving = 0;
/** Another tab has the model. */
let elsewhere = false;
/** Gives the model to other tabs. */
let release: (() => void) | null = null;
/** The chat of which it was said that its cache is full. */
let overflowed = "";
/** When the title was last written. */
let titled = 0;
/** What the address asked for when it was last read or written. */
let query = location.search;
/** Marks of the comparison that were spoken. */
let told: readonly Mark[] = [];
/** Who waits for the answer that is being written. */
let answered: ((answer: string | null) => void) | null = null;

const comparison = new Comparison(settings, {
  loaded: () => worker !== null && state.model !== null,
  ready: () => state.phase === "ready",
  sampler: () => {
    const wanted = state.options.sampler;
    const plain = defaults(seed).send.sampler;
    const named = Object.entries(wanted).filter(([key, value]) => plain[key as keyof typeof plain] !== value);
    return { wanted, named: Object.fromEntries(named) };
  },
  about,
  moves: () => !matchMedia("(prefers-reduced-motion: reduce)").matches,
  post,
  take: () => dispatch({ kind: "comparing" }),
  giveBack: () => {
    clearTimeout(listening);
    if (state.phase === "comparing") refill(say.refilled.compared);
  },
  hint: (text) => dispatch({ kind: "hint", text }),
  moved: writeAddress,
  wake: schedule,
});
if (location.hash.startsWith(OWN)) comparison.own = decoded(location.hash.slice(OWN.length));

const view = new View(
  document.body,
  {
    load: () => void load(false),
    loadAndSend: () => {
      waiting = true;
      void load(false);
    },
    useHere: () => void load(true),
    cancel,
    send,
    stop,
    regenerate,
    proceed: goOn,
    copy: (text) => void copy(text),
    settings: changeSettings,
    backend: (backend) => afterAnswer(() => void changeBackend(backend)),
    system: (text) => afterAnswer(() => changeSystem(text)),
    awake: keepAwake,
    spoken: setSpoken,
    newChat: () => afterStop(() => openChat(newChat())),
    openChat: (id) => afterStop(() => void openKept(id)),
    removeChat: (id) => void removeChat(id),
    exportChat: () => download(`${fileName(state)}.json`, "application/json", exported(chatOf(state))),
    importChat: (file) => afterStop(() => void importChat(file)),
    useCard: ({ id, name }) => afterStop(() => reload({ kind: "stored", id, name })),
    removeCard: ({ id }) => void removeCard(id),
    useDefault: () => afterStop(() => reload(ours)),
    useAddress: (url) => afterStop(() => reload(addressSource(url, null))),
    useFile: (file) => afterStop(() => useFile(file)),
    clearStorage: () => afterStop(() => void clearStorage()),
    openPanel: (panel) => void fillPanel(panel),
    theme: setTheme,
    view: (name) => {
      settings.view = name;
      show(name);
      writeAddress();
    },
    experiment,
    address: (name) => (name === null ? "?view=compare" : `?x=${name}`),
    compare: {
      press: () => comparison.press(),
      toggle: () => comparison.toggle(),
      seek: (steps) => comparison.seek(steps),
      pace: (pace) => comparison.setPace(pace),
      readAgain: (lane) => comparison.readAgain(lane),
      useText: (text, mode) => comparison.useText(text, mode),
      saveRun: () => void saveRun(),
      openRun: (file) => void openRun(file),
      cursor: (at) => change({ kind: "cursor", at }),
    },
  },
  settings,
  shown,
);
const speech = new Speech(view.region);
const awake = new Awake((reason) => dispatch({ kind: "hint", text: say.awakeFailed(reason) }));
const lead = FIGURES.find((id) => id === settings.compare.fig) ?? "cost";
// They come right behind the page, which can be read without them.
const drawn = import("./figures/index.ts").then(({ mountFigures }) => {
  figures = mountFigures(
    view.figures,
    {
      run: shownRun,
      ask: (lane, layer, head) => change({ kind: "probs", lane, layer, head }),
      cursor: (at) => change({ kind: "cursor", at }),
      roll: (tokens) => change({ kind: "roll", tokens }),
      lead: (id) => {
        settings.compare.fig = id === "cost" ? null : id;
        writeAddress();
      },
      link: linkTo,
      wake: schedule,
      say: (text) => dispatch({ kind: "hint", text }),
      send: (text) => answerTo(text),
    },
    lead,
  );
  schedule();
});
drawn.catch((caught: unknown) => dispatch({ kind: "hint", text: say.noFigures(fault("figures", caught, null).message) }));
if (shown === "compare") void comparison.open();
void comparison.readIndex();
watchDrops();
addEventListener("popstate", () => {
  // A link within the page comes here as well.
  if (location.search === query) return;
  query = location.search;
  const back = parse(new URLSearchParams(location.search), seed);
  settings.compare = back.compare;
  settings.view = back.view;
  if (location.hash.startsWith(OWN)) comparison.own = decoded(location.hash.slice(OWN.length));
  show(back.view ?? firstView());
  if (shown === "compare") void comparison.open();
});

setTheme(settings.theme ?? storedTheme());
keepAwake(stored(localStorage, AWAKE) === "1");
setSpoken(stored(localStorage, SPOKEN));
frame = requestAnimationFrame(paint);

// Without what reads Markdown an answer stays as it was written.
const [chats] = await Promise.all([Chats.open(), prepare().catch(() => {})]);
if (chats.refusal !== null) settings.complaints.push(say.chatsNotKept(chats.refusal));
dispatch({ kind: "opened", chat: await lastChat() });
const [place, kind] = await Promise.all([
  probe(settings.backend, isSecureContext, (navigator as { gpu?: Gpu }).gpu),
  findShelf(),
]);
keep = kind;
await readShelf();
dispatch({ kind: "planned", place });
// What is kept already comes without a click: nothing is downloaded for it.
if (settings.load || nearest(source, state.cards).kind === "stored") {
  if (looping()) dispatch({ kind: "hint", text: say.loopGuard });
  else void load(false);
} else if (waiting) view.offerToLoad();
document.addEventListener("visibilitychange", () => {
  if (document.hidden) void save();
  else {
    document.title = say.title(null);
    schedule();
  }
});
addEventListener("pagehide", () => void save());
void keepPage();

function dispatch(action: Action): void {
  const before = state;
  state = reduce(state, action);
  follow(action);
  if (answered !== null && before.phase === "writing" && state.phase !== "writing") {
    const last = state.turns.at(-1);
    answered(action.kind === "step" && last !== undefined ? last.text : null);
    answered = null;
  }
  const answer = state.turns.at(-1);
  if (answer?.who === "model") {
    if (state.phase === "writing") speech.follow(answer.text, answer.tokens);
    else if (before.phase === "writing") speech.end(answer.text);
  }
  if (talk.lanes[0]?.first_left != null && state.chat.id !== overflowed) {
    overflowed = state.chat.id;
    speech.tell(say.oldestLeave);
  }
  if (before.turns !== state.turns || before.chat !== state.chat) {
    if (before.phase === state.phase && state.phase === "writing") saveSoon();
    else void save();
  }
  schedule();
}

/** The conversation's run goes the way of its state. */
function follow(action: Action): void {
  switch (action.kind) {
    case "settings":
      // With a model its cache is emptied, and says so.
      if (state.model !== null) break;
      talk = reduceRun(talk, chatBegins(null, state.wanted));
      break;
    case "loaded":
    case "emptied":
    case "resumed":
      talk = reduceRun(talk, chatBegins(state.model, state.wanted));
      break;
    case "step": {
      const { step } = action;
      const read = chatStep(step, action.attention);
      if (read !== null) talk = reduceRun(talk, read);
      // When all is read again it is known of the last turn too.
      if (state.rereading && step.kind === "prompt" && step.done === step.total && leftOut(state)) {
        talk = reduceRun(talk, { kind: "left_out" });
      }
      break;
    }
  }
}

/** The run of the view that is shown. */
function shownRun(): RunState {
  return shown === "compare" ? comparison.run : talk;
}

/** Changes what is looked at in the figures of the view that is shown. */
function change(step: Extract<RunStep, { kind: "cursor" | "roll" | "probs" }>): void {
  if (shown === "compare") comparison.change(step);
  else {
    talk = reduceRun(talk, step);
    schedule();
  }
}

function schedule(): void {
  if (frame === 0) frame = requestAnimationFrame(paint);
}

function paint(now: number): void {
  frame = 0;
  let waiting = view.draw(state, now, terms(source, state.cards, source === ours), elsewhere);
  if (shown === "compare") {
    waiting = comparison.tick(now) || waiting;
    tell();
    waiting = view.drawCompare(comparison, experimentOf(comparison.name), state, now) || waiting;
  }
  // A figure of nothing would have another size than that of the run which is on its way.
  view.figures.classList.toggle("unseen", shown === "compare" && comparison.isEmpty);
  waiting = (figures?.draw(shownRun(), now) ?? false) || waiting;
  if (waiting) schedule();
}

// The comparison.

/** Speaks what happens in the lanes while they go on, once. */
function tell(): void {
  const { marks, lanes } = comparison.run;
  if (marks === told) return;
  const fresh = marks.filter((mark) => !told.includes(mark));
  told = marks;
  if (fresh.length === 0 || !comparison.moves) return;
  const words = fresh.map(({ kind, lane }) => say.happens(kind, lane === null ? null : (lanes[lane]?.name ?? null)));
  speech.tell([...new Set(words)].join(" "));
}

/** Who has a model comes for the conversation; who has none, or was sent an experiment, sees it first. */
function firstView(): ViewName {
  const { x, lanes, run, text } = settings.compare;
  if (x !== null || lanes.length > 0 || run !== null || text !== null) return "compare";
  return settings.load || stored(localStorage, KEPT) !== null ? "chat" : "compare";
}

function show(name: ViewName): void {
  const before = shown;
  shown = name;
  view.showView(name);
  if (name === "chat") comparison.leave();
  else if (before === "chat" && comparison.run.lanes.length === 0) void comparison.open();
  schedule();
}

function experiment(name: string | null): void {
  settings.compare = { ...defaults(seed).compare, x: name, fig: settings.compare.fig };
  settings.view = name === null ? "compare" : null;
  history.pushState(null, "", location.href);
  writeAddress();
  show("compare");
  void comparison.open();
}

/** An address that shows a figure again. */
function linkTo(id: FigureId): string {
  const { t, ...compare } = settings.compare;
  const at = shown === "compare" ? comparison.run.cursor : t;
  const params = format({ ...settings, view: shown, compare: { ...compare, t: at, fig: id } }, seed);
  return new URL(`${location.pathname}?${params}`, location.href).href;
}

/** What a recording of a live run says of its making. */
function about(): ReturnType<ConstructorParameters<typeof Comparison>[1]["about"]> {
  const { model, place, findings, modelName } = state;
  if (model === null || place === null) return null;
  const version = findings?.versions["sinkstream"] ?? "";
  return {
    made: {
      by: `sinkstream ${version} on the page`.replace("  ", " "),
      commit: version,
      date: new Date().toISOString().slice(0, 10),
      backend: place.backend,
      adapter: place.adapter,
      command: location.href,
    },
    model: { ...model, file: modelName ?? model.name, sha256: source.kind === "download" ? (source.check?.sha256 ?? "") : "" },
  };
}

async function saveRun(): Promise<void> {
  const file = await comparison.file();
  if (file === null) dispatch({ kind: "hint", text: say.nothingToSave });
  else download(file.name, "application/json", file.text);
}

async function openRun(file: File): Promise<void> {
  try {
    comparison.openFile(await file.text(), file.name);
    settings.view = "compare";
    show("compare");
    writeAddress();
  } catch (caught) {
    dispatch({ kind: "hint", text: fault("run", caught, null).message, stays: true });
  }
}

/** Sends a message for somebody else; null where that is not possible now, or there was no answer. */
function answerTo(text: string): Promise<string | null> {
  if (state.phase !== "ready" || answered !== null) return Promise.resolve(null);
  return new Promise((resolve) => {
    answered = resolve;
    ask(text);
  });
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The model.

async function load(steal: boolean): Promise<void> {
  if (state.place === null || (state.phase !== "idle" && state.phase !== "failed")) return;
  claiming = true;
  elsewhere = !(await claim(steal));
  claiming = false;
  if (elsewhere) return dispatch({ kind: "hint", text: say.otherTab });
  if (steal) await refreshChat();
  unfinished = false;
  dispatch({ kind: "starting" });
  void navigator.storage?.persist?.().catch(() => false);
  launch();
}

function launch(): void {
  const { place } = state;
  if (place === null) return;
  noteLoad(true);
  const { signal } = (starting = new AbortController());
  start(place, module, spawn, signal).then(
    (started) => {
      const mine = (worker = started.worker);
      mine.onmessage = ({ data }: MessageEvent<Response>): void => receive(data);
      mine.onerror = (event): void => {
        event.preventDefault();
        died(event.message || say.noReason);
      };
      whenGone(mine, () => {
        if (worker === mine) died(say.killed);
      });
      dispatch({ kind: "found", findings: started.findings });
      dispatch({ kind: "started", place: started.place });
      const from = nearest(source, state.cards);
      post({ kind: "load", source: from, shelf: keep, cache: state.wanted });
    },
    (caught: unknown) => {
      if (!signal.aborted)
        fail(caught instanceof Error ? fault("page", caught, say.reloadRemedy) : (caught as Fault));
    },
  );
}

function spawn(): Worker {
  return new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "model" });
}

function died(reason: string): void {
  fail({ name: "worker", message: say.workerDied(reason), remedy: say.startAgainRemedy });
}

// Ending the worker ends its download too, and gives all its memory back.
function cancel(): void {
  if (state.phase !== "starting" && state.phase !== "loading") return;
  discard();
  waiting = false;
  noteLoad(false);
  dispatch({ kind: "cancelled" });
  void readShelf();
}

/** Takes another model in place of the one that is there. */
function reload(other: Source): void {
  discard();
  source = other;
  dispatch({ kind: "cancelled" });
  dispatch({ kind: "hint", text: "" });
  void load(false);
}

function useFile(file: File): void {
  if (!/\.gguf$/i.test(file.name)) return dispatch({ kind: "hint", text: say.fileFault(file.name) });
  reload({ kind: "file", name: file.name, file });
}

/** Has the model to itself: two tabs would take twice the memory and write over each other's chat. */
async function claim(steal: boolean): Promise<boolean> {
  const { locks } = navigator as { locks?: LockManager };
  if (locks === undefined || release !== null) return true;
  return new Promise((resolve) => {
    locks
      .request("sinkstream-model", steal ? { steal } : { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        if (lock === null) return undefined;
        return new Promise<void>((let_go) => (release = let_go));
      })
      // The only way for a lock to end by itself is that another tab takes it.
      .catch(() => {
        release = null;
        elsewhere = true;
        void save();
        discard();
        dispatch({ kind: "cancelled" });
        dispatch({ kind: "hint", text: say.takenOver });
      });
  });
}

function receive(response: Response): void {
  switch (response.kind) {
    case "progress":
      dispatch({ kind: "progress", progress: response.progress, at: performance.now() });
      break;
    case "retrying":
      dispatch({ kind: "retrying", fault: response.fault });
      break;
    case "loaded":
      noteLoad(false);
      dispatch({
        kind: "loaded",
        model: response.model,
        cache: response.cache,
        name: source.name,
        notice: response.notice,
      });
      void readShelf();
      void keepPage();
      if (unfinished) resumeAnswer();
      else if (!sendWaiting()) refill(say.refilled.loaded);
      break;
    case "emptied":
      dispatch({ kind: "emptied", cache: response.cache });
      break;
    case "resumed":
      dispatch({ kind: "resumed", places: response.places, cache: response.cache });
      break;
    case "step": {
      const { step, attention, memory } = response;
      if (step.kind === "token") losses = 0;
      dispatch({ kind: "step", step, attention, memory, at: performance.now() });
      showInTitle();
      if (state.phase === "writing" || state.phase === "refilling") {
        post({ kind: "pull", attention: talk.asked });
        listen();
      } else rest();
      break;
    }
    case "compared":
    case "compare_steps":
      comparison.receive(response);
      if (state.silent) dispatch({ kind: "comparing" });
      if (comparison.running?.running === true) listen();
      else clearTimeout(listening);
      break;
    case "refused":
      if (state.phase === "comparing") comparison.broke();
      dispatch({ kind: "refused", fault: response.fault });
      if (state.returned !== null) view.giveBack(state.returned);
      rest();
      break;
    case "failed":
      fail(response.fault);
      break;
    // Stages of the start, which `start` has already heard.
    case "module":
    case "device":
    case "started":
      break;
  }
}

/** The answer is over. */
function rest(): void {
  clearTimeout(listening);
  const act = later;
  later = null;
  act?.();
  if (state.phase === "ready") sendWaiting();
}

/** The text stays. A model that was there comes back by itself, unless it breaks again and again. */
function fail(problem: Fault, goOnAfter = true): void {
  const { phase, model } = state;
  const was = ["writing", "refilling", "comparing", "ready"].includes(phase);
  // A worker may be killed while it takes the place of one that was killed.
  const coming = (phase === "starting" || phase === "loading") && problem.name === "worker";
  discard();
  noteLoad(false);
  dispatch({ kind: "failed", fault: problem });
  void save();
  void readShelf();
  const again = model !== null && (was || coming);
  // A message that nothing will come for stays in the box, to be sent anew.
  if (!again || losses >= MOST_LOSSES) waiting = false;
  if (!again) return;
  if (losses >= MOST_LOSSES) return dispatch({ kind: "hint", text: say.tooOften });
  losses += 1;
  unfinished = (phase === "writing" && goOnAfter) || (coming && unfinished);
  dispatch({ kind: "recovering", sentence: say.recovering(problem.message) });
  launch();
}

function discard(): void {
  comparison.broke();
  starting.abort();
  clearTimeout(listening);
  worker?.terminate();
  worker = null;
  later = null;
}

/** Says so when the model falls silent; it may only be slow, so nothing is ended. */
function listen(): void {
  clearTimeout(listening);
  listening = setTimeout(() => dispatch({ kind: "silent" }), SILENCE * 1000);
}

function post(request: Request): void {
  worker?.postMessage(request);
}

function pulls(): void {
  for (let i = 0; i < PULLS; i += 1) post({ kind: "pull", attention: talk.asked });
  listen();
}

// The conversation.

/** Sends a message to the model, or to all lanes where these are shown. */
function send(text: string, from: number | null): void {
  if (state.phase === "writing") dispatch({ kind: "hint", text: say.stillWriting });
  else if (text.trim() === "") {
    waiting = false;
    dispatch({ kind: "hint", text: say.emptyMessage });
  } else if ((state.phase === "idle" || state.phase === "failed") && !claiming) {
    dispatch({ kind: "hint", text: say.loadFirst });
    view.offerToLoad();
  } else if (state.phase !== "ready" && !(shown === "compare" && state.phase === "comparing")) {
    dispatch({ kind: "hint", text: say.sentLater });
    waiting = true;
  } else {
    waiting = false;
    view.clear();
    if (shown === "compare") return comparison.useText(text, "free");
    if (from !== null) dispatch({ kind: "kept", turns: from });
    ask(text);
  }
}

/** True where a message had waited. */
function sendWaiting(): boolean {
  const sends = waiting && view.hasMessage;
  waiting = false;
  if (sends) view.send();
  return sends;
}

function ask(text: string): void {
  const { options, wanted: cache, turns } = state;
  // An answer without a word would stay in the cache as an empty turn, which the model then copies.
  const wordless = turns[lastSaid(turns)]?.text === "";
  const known = state.synced && !wordless && (state.chat.system === "" || turns.length > 0);
  speech.begin();
  dispatch({ kind: "asked", text, why: state.synced && wordless ? say.refilled.wordless : null });
  if (known) post({ kind: "send", text, options });
  else post({ kind: "resume", messages: messages(state), options, write: true, cache });
  pulls();
}

function regenerate(): void {
  const asked = state.turns.findLastIndex(({ who }) => who === "you");
  const text = state.turns[asked]?.text;
  if (state.phase !== "ready" || text === undefined) return;
  dispatch({ kind: "kept", turns: asked });
  ask(text);
}

function goOn(): void {
  if (state.phase !== "ready") return;
  if (!state.synced) return resumeAnswer();
  speech.proceed(state.turns[lastSaid(state.turns)]?.text.length ?? 0);
  dispatch({ kind: "proceeding", reread: false });
  post({ kind: "proceed", options: state.options });
  pulls();
}

/** Reads the conversation again and goes on with its last answer. */
function resumeAnswer(): void {
  const { options, wanted: cache, place, turns } = state;
  const last = turns[lastSaid(turns)];
  if (last?.who !== "model") return refill(say.refilled.loaded);
  speech.proceed(last.text.length);
  dispatch({ kind: "proceeding", reread: true });
  if (place !== null) {
    dispatch({ kind: "hint", text: say.goingOn(last.tokens, say.where(place.backend, place.adapter)) });
  }
  post({ kind: "resume", messages: messages(state), options, write: true, cache });
  pulls();
}

/** Reads the conversation into an empty cache. `why` is written into it. */
function refill(why: string): void {
  const { options, wanted: cache } = state;
  const known = messages(state);
  // A question that was not answered is read with its answer.
  while (known.at(-1)?.role === "user") known.pop();
  if (!known.some(({ role }) => role === "assistant")) return post({ kind: "empty", cache });
  dispatch({ kind: "refilling", why });
  post({ kind: "resume", messages: known, options, write: false, cache });
  pulls();
}

function stop(): void {
  if (state.phase === "comparing") return comparison.pause();
  if (state.phase !== "writing" && state.phase !== "refilling") return;
  // A silent worker may never come to its next step, where it would read the wish to stop.
  if (state.silent) fail({ name: "silence", message: say.endedSilent, remedy: say.startAgainRemedy }, false);
  else post({ kind: "stop" });
}

/** Now, or when the answer has ended. */
function afterAnswer(act: () => void): void {
  if (state.phase !== "writing" && state.phase !== "refilling") return act();
  dispatch({ kind: "hint", text: say.waitForEnd });
  later = act;
}

/** Now, or not at all while an answer is written. */
function afterStop(act: () => void): void {
  if (state.phase === "writing") return dispatch({ kind: "hint", text: say.finishFirst });
  if (state.phase !== "refilling") return act();
  later = act;
  post({ kind: "stop" });
}

function changeSettings(cache: State["wanted"], options: State["options"]): void {
  const rebuild = JSON.stringify(cache) !== JSON.stringify(state.wanted);
  dispatch({ kind: "settings", cache, options });
  [settings.cache, settings.send] = [cache, options];
  writeAddress();
  if (rebuild && worker !== null && state.model !== null) {
    afterAnswer(() => {
      if (state.phase === "ready") refill(say.refilled.settings);
    });
  }
}

async function changeBackend(backend: Backend | null): Promise<void> {
  settings.backend = backend;
  writeAddress();
  const running = worker !== null;
  discard();
  const place = await probe(backend, isSecureContext, (navigator as { gpu?: Gpu }).gpu);
  dispatch({ kind: "planned", place });
  unfinished = false;
  if (!running) return;
  dispatch({ kind: "starting" });
  launch();
}

function changeSystem(text: string): void {
  dispatch({ kind: "system", text });
  if (state.phase === "ready") refill(say.refilled.settings);
}

// Chats.

function openChat(chat: Chat): void {
  void save();
  dispatch({ kind: "opened", chat });
  remember(chat.id);
  if (state.phase === "ready") refill(say.refilled.opened);
}

async function openKept(id: string): Promise<void> {
  await save();
  const chat = await chats.get(id);
  if (chat !== null) openChat(chat);
}

async function removeChat(id: string): Promise<void> {
  if (id === state.chat.id) {
    if (state.phase === "writing") return dispatch({ kind: "hint", text: say.finishFirst });
    await chats.remove(id);
    dispatch({ kind: "opened", chat: newChat() });
    if (state.phase === "ready") refill(say.refilled.opened);
  } else await chats.remove(id);
  await fillPanel("chats");
}

async function importChat(file: File): Promise<void> {
  try {
    const chat = imported(await file.text(), file.name);
    openChat(chat);
    dispatch({ kind: "hint", text: say.imported(titleOf(chat)) });
  } catch (caught) {
    dispatch({ kind: "hint", text: fault("import", caught, null).message });
  }
}

/** The chat as it is kept: should the tab be closed now, its answer has broken off. */
function chatOf(state: State): Chat {
  const { chat, turns } = state.phase === "writing" ? brokenOff(state) : state;
  return { ...chat, turns };
}

function fileName(state: State): string {
  const title = titleOf(state).replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-|-$/g, "");
  return `sinkstream-${title.toLowerCase()}`;
}

async function save(): Promise<void> {
  clearTimeout(saving);
  saving = 0;
  if (state.chat.id === "" || (state.turns.length === 0 && state.chat.system === "")) return;
  remember(state.chat.id);
  await chats.put(chatOf(state)).catch((caught: unknown) => {
    dispatch({ kind: "hint", text: say.chatsNotKept(fault("storage", caught, null).message) });
  });
}

function saveSoon(): void {
  if (saving === 0) saving = setTimeout(() => void save(), SAVE);
}

async function lastChat(): Promise<Chat> {
  const id = stored(sessionStorage, CHAT) ?? stored(localStorage, CHAT);
  const chat = id === null ? null : await chats.get(id).catch(() => null);
  return chat ?? newChat();
}

/** What the other tab wrote last. */
async function refreshChat(): Promise<void> {
  const chat = await chats.get(state.chat.id).catch(() => null);
  if (chat !== null) dispatch({ kind: "opened", chat });
}

function remember(id: string): void {
  for (const storage of [sessionStorage, localStorage]) put(storage, CHAT, id);
}

// What is kept in this browser.

async function readShelf(): Promise<void> {
  const cards = keep === null ? [] : await shelf(keep).list().catch(() => []);
  dispatch({ kind: "cards", cards });
  put(localStorage, KEPT, cards.some(({ added }) => added !== null) ? "1" : null);
}

async function removeCard(id: string): Promise<void> {
  if (keep !== null) await shelf(keep).remove(id);
  await readShelf();
  await fillPanel("models");
}

async function clearStorage(): Promise<void> {
  discard();
  if (keep !== null) await shelf(keep).clear();
  await chats.clear();
  for (const storage of [sessionStorage, localStorage]) {
    for (const key of [THEME, CHAT, LOADS]) put(storage, key, null);
  }
  keepAwake(false);
  setSpoken(null);
  source = source.kind === "stored" ? ours : source;
  dispatch({ kind: "opened", chat: newChat() });
  dispatch({ kind: "cancelled" });
  dispatch({ kind: "hint", text: say.cleared });
  await readShelf();
}

async function fillPanel(panel: "chats" | "models" | "help"): Promise<void> {
  if (panel === "help") view.help.draw(report(state, settings.backend));
  else if (panel === "chats") {
    await save();
    view.chats.draw(await chats.list(), state.chat.id);
  } else {
    const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
    view.models.draw(state.cards, usage, quota);
  }
}

// The page.

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    dispatch({ kind: "hint", text: say.copied });
  } catch {
    dispatch({ kind: "hint", text: say.copyFailed });
  }
}

function setTheme(theme: Theme): void {
  put(localStorage, THEME, theme === "system" ? null : theme);
  view.showTheme(theme);
}

function keepAwake(wanted: boolean): void {
  put(localStorage, AWAKE, wanted ? "1" : null);
  view.drawer.showAwake(wanted);
  awake.want(wanted);
}

function setSpoken(wanted: string | null): void {
  const spoken = keys(say.spokenNames).find((name) => name === wanted) ?? "sentences";
  put(localStorage, SPOKEN, spoken === "sentences" ? null : spoken);
  view.drawer.showSpoken(spoken);
  speech.spoken = spoken;
}

function storedTheme(): Theme {
  const theme = stored(localStorage, THEME);
  return theme === "light" || theme === "dark" ? theme : "system";
}

function writeAddress(): void {
  const params = format(settings, seed).toString();
  query = params === "" ? "" : `?${params}`;
  const { own, compare } = comparison;
  const given = compare.text === "own" && own !== "" && own.length <= LONGEST_OWN;
  const kept = location.hash.startsWith(OWN) ? "" : location.hash;
  const hash = given ? `${OWN}${encodeURIComponent(own)}` : kept;
  history.replaceState(null, "", `${location.pathname}${query}${hash}`);
}

/** Whoever comes back without a connection gets the page from the service worker. */
async function keepPage(): Promise<void> {
  try {
    await navigator.serviceWorker?.register("sw.js");
    const ready = await navigator.serviceWorker?.ready;
    // What came before it was there.
    const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
    const engine = state.model === null ? [] : [module, new URL("wasm_bg.wasm", module).href];
    ready?.active?.postMessage([new URL("./", location.href).href, ...loaded.filter(isOurs), ...engine]);
  } catch {
    // A page that a browser does not keep needs a connection; all else works.
  }
}

function isOurs(url: string): boolean {
  return url.startsWith(location.origin) && !url.endsWith(".gguf");
}

/** A tab in the background says in its title how far it is; a second apart at least. */
function showInTitle(): void {
  if (!document.hidden || performance.now() - titled < 1000) return;
  titled = performance.now();
  document.title = say.title(state.phase === "writing" ? (state.turns.at(-1)?.tokens ?? 0) : null);
}

function watchDrops(): void {
  const files = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") === true;
  document.addEventListener("dragover", (event) => {
    if (!files(event)) return;
    event.preventDefault();
    document.body.dataset["drop"] = say.dropHere;
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) delete document.body.dataset["drop"];
  });
  document.addEventListener("drop", (event) => {
    delete document.body.dataset["drop"];
    const file = event.dataTransfer?.files[0];
    if (file === undefined) return;
    event.preventDefault();
    if (/\.json$/i.test(file.name)) void useJson(file);
    else if (/^text\//.test(file.type) || /\.(txt|md)$/i.test(file.name)) void useTextFile(file);
    else afterStop(() => useFile(file));
  });
}

/** A recorded run, or else a chat. */
async function useJson(file: File): Promise<void> {
  if (/"format"\s*:\s*"sinkstream-run"/.test(await file.slice(0, 1000).text())) await openRun(file);
  else afterStop(() => void importChat(file));
}

/** A text for the lanes to read. */
async function useTextFile(file: File): Promise<void> {
  const text = await file.text();
  settings.view = "compare";
  show("compare");
  comparison.useText(text, "forced");
}

/** Loads that were begun and did not come to their end count as a loop when there are many. */
function looping(): boolean {
  return loads().length >= LOOP.most;
}

function noteLoad(begun: boolean): void {
  put(sessionStorage, LOADS, begun ? JSON.stringify([...loads(), Date.now()]) : null);
}

function loads(): number[] {
  try {
    const found: unknown = JSON.parse(stored(sessionStorage, LOADS) ?? "[]");
    if (!Array.isArray(found)) return [];
    return found.filter((at): at is number => typeof at === "number" && Date.now() - at < LOOP.within);
  } catch {
    return [];
  }
}

/** A browser may refuse these, as with cookies switched off. */
function stored(storage: Storage, key: string): string | null {
  try {
    return storage.getItem(key);
  } catch {
    return null;
  }
}

function put(storage: Storage, key: string, value: string | null): void {
  try {
    if (value === null) storage.removeItem(key);
    else storage.setItem(key, value);
  } catch {
    // Then it is not remembered.
  }
}
