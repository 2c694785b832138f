// Everything that crosses between the page and its worker: one union each way, told apart by `kind`.
// The shapes inside are those of the Rust module's boundary, unchanged.

import type {
  AttentionHead,
  Backend,
  CacheSettings,
  CacheState,
  LoadProgress,
  ModelInfo,
  SelfTest,
  SendOptions,
  Step,
} from "../../crates/wasm/types";

/** What went wrong, in words for the person in front of the page. */
export interface Fault {
  /** Short and stable, for tests and reports: `http`, `network`, `engine`, `worker`, `silence`, … */
  name: string;
  /** A sentence that names the thing. */
  message: string;
  /** What to do about it; null where `message` says it already. */
  remedy: string | null;
}

/** Page to worker. */
export type Request =
  /** Imports the module, starts the device, runs the self-test. First, and once a worker. */
  | { kind: "start"; module: string; backend: Backend; software: boolean }
  /** Fetches the weights, builds the model and an empty cache. */
  | { kind: "load"; url: string; cache: CacheSettings }
  | { kind: "send"; text: string; options: SendOptions }
  /** Asks for the next step of the answer; nothing runs that was not asked for. `attention`: with the probs of that head. */
  | { kind: "pull"; attention?: AttentionHead | null }
  /** Ends the answer before its next step. */
  | { kind: "stop" };

/** Worker to page. */
export type Response =
  /** The module is fetched, compiled and running. */
  | { kind: "module"; versions: Record<string, string> }
  | { kind: "device" }
  | { kind: "started"; test: SelfTest }
  | { kind: "progress"; progress: LoadProgress }
  | { kind: "loaded"; model: ModelInfo; cache: CacheState }
  /** The answer to one `pull`. */
  | { kind: "step"; step: Step }
  /** The engine did not take the message; it is as it was before. */
  | { kind: "refused"; fault: Fault }
  /** This worker can no longer be used. */
  | { kind: "failed"; fault: Fault };

/** The one conversion of a caught value into a `Fault`. */
export function fault(name: string, caught: unknown, remedy: string | null): Fault {
  const message = caught instanceof Error ? caught.message : String(caught);
  return { name, message: message === "" ? name : message, remedy };
}
