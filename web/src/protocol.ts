// Everything that crosses between the page and its worker: one union each way, told apart by `kind`.
// The shapes inside are those of the Rust module's boundary, unchanged.

import type {
  AttentionHead,
  Backend,
  CacheSettings,
  CacheState,
  CompareInfo,
  CompareSource,
  CompareStep,
  LaneSettings,
  LoadProgress,
  Message,
  ModelInfo,
  SelfTest,
  SendOptions,
  Step,
} from "../../crates/wasm/types";
import type { LaneHead } from "./run.ts";
import type { Card, ShelfKind } from "./shelf.ts";

/** What went wrong, in words for the person in front of the page. */
export interface Fault {
  /** Short and stable, for tests and reports: `http`, `network`, `engine`, `worker`, `silence`, … */
  name: string;
  /** A sentence that names the thing. */
  message: string;
  /** What to do about it; null where `message` says it already. */
  remedy: string | null;
}

/** What a file must be. With a size, a file of another size is another file, and not held to the hash. */
export interface Check {
  /** In hexadecimal. */
  sha256: string;
  bytes: number | null;
}

/** Where weights come from. */
export type Source =
  /** From the first of these addresses that has them. */
  | { kind: "download"; id: string; name: string; urls: string[]; check: Check | null }
  /** Fetched on an earlier visit. */
  | { kind: "stored"; id: string; name: string }
  /** From the person's disk; it is read where it lies. */
  | { kind: "file"; name: string; file: File };

/** Page to worker. */
export type Request =
  /**
   * Imports the module, starts the device, runs the self-test. First, and once a worker. `lock`: what the worker holds for
   * as long as it lives; null where the browser has no locks.
   */
  | { kind: "start"; module: string; backend: Backend; software: boolean; lock: string | null }
  /** Fetches the weights, builds the model and an empty cache. */
  | { kind: "load"; source: Source; shelf: ShelfKind | null; cache: CacheSettings }
  /** Builds an empty cache. */
  | { kind: "empty"; cache: CacheSettings }
  | { kind: "send"; text: string; options: SendOptions }
  /** Goes on with an answer that was stopped. */
  | { kind: "proceed"; options: SendOptions }
  /** Builds an empty cache for a conversation and reads it again; see `Engine.resume`. */
  | { kind: "resume"; messages: Message[]; options: SendOptions; write: boolean; cache: CacheSettings }
  /** Asks for the next step of the answer; nothing runs that was not asked for. `attention`: with the probs of that head. */
  | { kind: "pull"; attention: AttentionHead | null }
  /** Ends the answer before its next step. */
  | { kind: "stop" }
  /** Begins a comparison, in the place of the conversation's cache. */
  | { kind: "compare"; lanes: LaneSettings[]; source: CompareSource }
  /** Asks for the next step of the comparison. `attention`: with the probs of that head. */
  | { kind: "compare_pull"; attention: LaneHead | null }
  /** Gives the comparison's memory back. */
  | { kind: "compare_end" };

/** Worker to page. */
export type Response =
  /** The module is fetched, compiled and running. */
  | { kind: "module"; versions: Record<string, string> }
  | { kind: "device" }
  | { kind: "started"; test: SelfTest }
  | { kind: "progress"; progress: LoadProgress }
  /** A connection failed; the next try follows in so many milliseconds. */
  | { kind: "retrying"; fault: Fault; pause: number }
  /** `card`: the file as it is kept in the browser; null where it is not, and `notice` then says why. */
  | { kind: "loaded"; model: ModelInfo; cache: CacheState; card: Card | null; notice: string | null }
  | { kind: "emptied"; cache: CacheState }
  /** Stream indices `[from, to)` of each message, null for those left out. */
  | { kind: "resumed"; places: ([number, number] | null)[]; cache: CacheState }
  /** The answer to one `pull`. `attention`: the head that was asked for with it; `memory`: bytes of the module. */
  | { kind: "step"; step: Step; attention: AttentionHead | null; memory: number }
  | { kind: "compared"; info: CompareInfo }
  /** The answer to one `compare_pull`: a step of the lanes, one of a lane that recomputes, or both. The last has `done`. */
  | { kind: "compare_steps"; steps: CompareStep[]; attention: LaneHead | null; memory: number }
  /** The engine did not take the message; it is as it was before. */
  | { kind: "refused"; fault: Fault }
  /** This worker can no longer be used. */
  | { kind: "failed"; fault: Fault };

/** The one conversion of a caught value into a `Fault`. */
export function fault(name: string, caught: unknown, remedy: string | null): Fault {
  const message = caught instanceof Error ? caught.message : String(caught);
  return { name, message: message === "" ? name : message, remedy };
}
