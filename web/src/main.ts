// Ties the page together: wishes go to the worker, its answers to the state, the state to the view.

import { type Fault, fault, type Request, type Response } from "./protocol.ts";
import { MODEL, parse } from "./settings.ts";
import { Speech } from "./speech.ts";
import { type Gpu, probe, start } from "./startup.ts";
import { type Action, initial, reduce, SILENCE } from "./state.ts";
import * as say from "./strings.en.ts";
import { View } from "./view.ts";

/** Pulls on their way at once: the worker goes on while the page takes in what came. */
const PULLS = 2;

const address = new URLSearchParams(location.search);
const settings = parse(address, crypto.getRandomValues(new Uint32Array(1))[0] ?? 0);
if (!URL.canParse(settings.model, document.baseURI)) {
  settings.complaints.push(say.badModel(settings.model));
  settings.model = MODEL;
}
const weights = new URL(settings.model, document.baseURI).href;
const module = new URL("pkg/wasm.js", document.baseURI).href;
const terms = say.loadTerms(settings.model !== MODEL ? say.otherModel(weights) : say.defaultModel);

let state = initial(settings.cache, settings.complaints);
let worker: Worker | null = null;
/** Ends the start that is under way. */
let starting = new AbortController();
let frame = 0;
let listening = 0;

const view = new View(document.body, { load, cancel, send, stop }, terms);
const speech = new Speech(view.region);

frame = requestAnimationFrame(paint);
dispatch({
  kind: "planned",
  place: await probe(settings.backend, isSecureContext, (navigator as { gpu?: Gpu }).gpu),
});
if (settings.load) load();

function dispatch(action: Action): void {
  const before = state;
  state = reduce(state, action);
  const answer = state.turns.at(-1);
  if (answer?.who === "model") {
    if (state.phase === "writing") speech.follow(answer.text, answer.tokens, performance.now());
    else if (before.phase === "writing") speech.end(answer.text, performance.now());
  }
  if (frame === 0) frame = requestAnimationFrame(paint);
}

function paint(now: number): void {
  frame = view.draw(state, now) ? requestAnimationFrame(paint) : 0;
}

function load(): void {
  if (state.place === null || (state.phase !== "idle" && state.phase !== "failed")) return;
  const { signal } = (starting = new AbortController());
  dispatch({ kind: "starting" });
  start(state.place, module, spawn, signal).then(
    (started) => {
      worker = started.worker;
      worker.onmessage = ({ data }: MessageEvent<Response>): void => receive(data);
      worker.onerror = (event): void => {
        event.preventDefault();
        const message = say.workerDied(event.message || say.noReason);
        fail({ name: "worker", message, remedy: say.startAgainRemedy });
      };
      dispatch({ kind: "started", place: started.place });
      post({ kind: "load", url: weights, cache: settings.cache });
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

// Ending the worker ends its download too, and gives all its memory back.
function cancel(): void {
  if (state.phase !== "starting" && state.phase !== "loading") return;
  discard();
  dispatch({ kind: "cancelled" });
}

function send(text: string): void {
  if (state.phase === "writing") dispatch({ kind: "hint", text: say.stillWriting });
  else if (state.phase !== "ready") dispatch({ kind: "hint", text: say.loadFirst });
  else if (text.trim() === "") dispatch({ kind: "hint", text: say.emptyMessage });
  else {
    view.clear();
    speech.begin();
    dispatch({ kind: "asked", text });
    post({ kind: "send", text, options: settings.send });
    for (let i = 0; i < PULLS; i += 1) post({ kind: "pull" });
    listen();
  }
}

function stop(): void {
  if (state.phase !== "writing") return;
  // A silent worker may never come to its next step, where it would read the wish to stop.
  if (state.silent) fail({ name: "silence", message: say.endedSilent, remedy: say.startAgainRemedy });
  else post({ kind: "stop" });
}

function receive(response: Response): void {
  switch (response.kind) {
    case "progress":
      dispatch({ kind: "progress", progress: response.progress, at: performance.now() });
      break;
    case "loaded":
      dispatch({ kind: "loaded", model: response.model, cache: response.cache });
      break;
    case "step":
      dispatch({ kind: "step", step: response.step, at: performance.now() });
      if (state.phase === "writing") {
        post({ kind: "pull" });
        listen();
      } else clearTimeout(listening);
      break;
    case "refused":
      clearTimeout(listening);
      dispatch({ kind: "refused", fault: response.fault });
      if (state.returned !== null) view.giveBack(state.returned);
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

function fail(fault: Fault): void {
  discard();
  dispatch({ kind: "failed", fault });
}

function discard(): void {
  starting.abort();
  clearTimeout(listening);
  worker?.terminate();
  worker = null;
}

/** Says so when the model falls silent; it may only be slow, so nothing is ended. */
function listen(): void {
  clearTimeout(listening);
  listening = setTimeout(() => dispatch({ kind: "silent" }), SILENCE * 1000);
}

function post(request: Request): void {
  worker?.postMessage(request);
}
