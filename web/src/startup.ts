// Where the model will run, found out in this order: secure context, WebGPU, adapter, features and
// limits; then, in a worker and under a watchdog, the module, the device and the self-test. Whatever
// fails on the way, the CPU is tried next, and a sentence says why.

import type { Backend } from "../../crates/wasm/types";
import { type Fault, fault, type Request, type Response } from "./protocol.ts";
import type { Findings, Place } from "./state.ts";
import * as say from "./strings.en.ts";

/** The little of WebGPU that is asked here. */
export interface Gpu {
  requestAdapter(options: { powerPreference: "high-performance" }): Promise<Adapter | null>;
}

interface Adapter {
  readonly features: Iterable<string> & { has(name: string): boolean };
  readonly limits: Readonly<Record<string, unknown>>;
  readonly info?: AdapterInfo;
  /** Where older browsers keep what is in `info` today. */
  readonly isFallbackAdapter?: boolean;
}

interface AdapterInfo {
  readonly vendor?: string;
  readonly architecture?: string;
  readonly description?: string;
  readonly isFallbackAdapter?: boolean;
}

/** Without it the device's start-up panics inside the module, and its promise never settles. */
const FEATURES = ["timestamp-query"];

/** What the kernels were written for: the smallest limits that WebGPU promises. */
const LIMITS: [name: string, least: number][] = [
  ["maxStorageBufferBindingSize", 128 * 1024 * 1024],
  ["maxStorageBuffersPerShaderStage", 8],
  ["maxComputeWorkgroupStorageSize", 16 * 1024],
  ["maxComputeInvocationsPerWorkgroup", 256],
];

const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|software|basic render/i;

/** Seconds that each stage may be silent. The module is downloaded, which takes what it takes. */
const PATIENCE = { adapter: 10, module: 180, device: 20, test: 120 };

/** Looks at the browser; starts nothing. `asked`: the backend that the address forces. */
export async function probe(asked: Backend | null, secure: boolean, gpu: Gpu | undefined): Promise<Place> {
  const cpu = (why: string | null): Place => ({
    backend: "cpu",
    adapter: null,
    software: false,
    offers: null,
    why,
  });
  if (asked === "cpu") return cpu(null);
  if (!secure) return cpu(say.insecure);
  if (gpu === undefined) return cpu(say.noGpu);
  let adapter: Adapter | null;
  try {
    adapter = await within(PATIENCE.adapter, gpu.requestAdapter({ powerPreference: "high-performance" }));
  } catch (caught) {
    return cpu(say.adapterFault(fault("adapter", caught, null).message));
  }
  if (adapter === null) return cpu(say.noAdapter);
  const name = nameOf(adapter.info);
  const software = isSoftware(adapter, name);
  if (asked !== "webgpu" && software) return cpu(say.software(name));
  const feature = FEATURES.find((f) => !adapter.features.has(f));
  if (feature !== undefined) return cpu(say.missingFeature(name, feature));
  for (const [limit, least] of LIMITS) {
    const has = Number(adapter.limits[limit] ?? 0);
    if (has < least) return cpu(say.smallLimit(name, limit, has, least));
  }
  return { backend: "webgpu", adapter: name, software, offers: offers(adapter), why: null };
}

/** For a report; limits lie on the prototype, where only `in` finds them. */
function offers({ features, limits }: Adapter): NonNullable<Place["offers"]> {
  const found: Record<string, number> = {};
  for (const name in limits) {
    if (typeof limits[name] === "number") found[name] = limits[name];
  }
  return { features: [...features].sort(), limits: found };
}

/** A worker whose engine passed its self-test, and where it runs. */
export interface Started {
  worker: Worker;
  place: Place;
  findings: Findings;
}

/** Starts the engine at `place`, or else on the CPU. Rejects with a `Fault` where that fails too. */
export async function start(
  place: Place,
  module: string,
  spawn: () => Worker,
  signal: AbortSignal,
): Promise<Started> {
  if (place.backend === "webgpu") {
    try {
      return { ...(await launch(place, module, spawn, signal)), place };
    } catch (caught) {
      if (signal.aborted) throw caught;
      const { message } = caught as Fault;
      const why = say.gpuFailed(place.adapter ?? say.UNKNOWN, message);
      place = { backend: "cpu", adapter: null, software: false, offers: null, why };
    }
  }
  try {
    return { ...(await launch(place, module, spawn, signal)), place };
  } catch (caught) {
    const { name, message, remedy } = caught as Fault;
    throw { name, message: say.cpuFailed(message), remedy: remedy ?? say.reloadRemedy } satisfies Fault;
  }
}

/** One worker, one try: a device that failed once cannot be started again in the same module. */
function launch(
  place: Place,
  module: string,
  spawn: () => Worker,
  signal: AbortSignal,
): Promise<Omit<Started, "place">> {
  const { backend, software } = place;
  const took: Record<string, number> = {};
  let versions: Record<string, string> = {};
  return new Promise((resolve, reject: (fault: Fault) => void) => {
    const worker = spawn();
    let watchdog = 0;
    let began = performance.now();
    const passed = (stage: keyof typeof say.stages): void => {
      took[stage] = Math.round(performance.now() - began);
      began = performance.now();
    };
    const fail = (fault: Fault): void => {
      clearTimeout(watchdog);
      worker.terminate();
      reject(fault);
    };
    const expect = (stage: keyof typeof say.stages): void => {
      clearTimeout(watchdog);
      const seconds = PATIENCE[stage];
      watchdog = setTimeout(
        () => fail({ name: "silence", message: say.silence(stage, seconds), remedy: null }),
        seconds * 1000,
      );
    };
    worker.onerror = (event): void => {
      event.preventDefault();
      fail({ name: "worker", message: event.message || say.noReason, remedy: null });
    };
    worker.onmessage = ({ data }: MessageEvent<Response>): void => {
      if (data.kind === "module") {
        passed("module");
        ({ versions } = data);
        expect("device");
        whenGone(worker, () => fail({ name: "worker", message: say.killed, remedy: null }));
      } else if (data.kind === "device") {
        passed("device");
        expect("test");
      } else if (data.kind === "failed") fail(data.fault);
      else if (data.kind === "started") {
        const wrong = data.test.checks.filter((check) => !check.ok).map((check) => check.name);
        if (!data.test.ok || wrong.length > 0) {
          fail({ name: "self-test", message: say.selfTest(wrong), remedy: null });
        } else {
          clearTimeout(watchdog);
          passed("test");
          resolve({ worker, findings: { versions, test: data.test, took } });
        }
      }
    };
    signal.addEventListener("abort", () => fail({ name: "cancelled", message: say.cancelled, remedy: null }));
    expect("module");
    const lock = locksOf(navigator) === undefined ? null : lockOf(worker);
    worker.postMessage({ kind: "start", module, backend, software, lock } satisfies Request);
  });
}

const names = new WeakMap<Worker, string>();
let workers = 0;

/** The lock that a worker holds for as long as it lives. */
function lockOf(worker: Worker): string {
  const name = names.get(worker) ?? `sinkstream-worker-${performance.timeOrigin}-${++workers}`;
  names.set(worker, name);
  return name;
}

/** Insecure pages have none. */
const locksOf = (navigator: Navigator): LockManager | undefined => navigator.locks;

/** Calls `act` when the worker is gone, even where it was killed without a word. */
export function whenGone(worker: Worker, act: () => void): void {
  void locksOf(navigator)?.request(lockOf(worker), act);
}

function nameOf(info: AdapterInfo | undefined): string {
  const { vendor = "", architecture = "", description = "" } = info ?? {};
  return (
    [description, `${vendor} ${architecture}`.trim(), "unnamed adapter"].find((name) => name !== "") ?? ""
  );
}

function isSoftware(adapter: Adapter, name: string): boolean {
  const { info } = adapter;
  return (
    info?.isFallbackAdapter === true ||
    adapter.isFallbackAdapter === true ||
    SOFTWARE.test(`${name} ${info?.vendor ?? ""} ${info?.architecture ?? ""}`)
  );
}

function within<T>(seconds: number, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no answer within ${seconds} s`)), seconds * 1000);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
