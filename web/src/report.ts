// What a bug report needs to know of this machine, and nothing of what was written.

import type { Backend } from "../../crates/wasm/types";
import type { State } from "./state.ts";
import * as say from "./strings.en.ts";

export function report(state: State, asked: Backend | null): string {
  const { findings, place, wanted, model, modelName, memory, notice, fault } = state;
  if (findings === null) return say.noReport;
  return JSON.stringify(
    {
      versions: findings.versions,
      browser: navigator.userAgent,
      secure: isSecureContext,
      backend: { asked, used: place?.backend, software: place?.software, why: place?.why },
      adapter: place?.adapter ?? null,
      features: place?.offers?.features ?? [],
      limits: place?.offers?.limits ?? {},
      milliseconds: findings.took,
      selfTest: findings.test,
      model: model === null ? null : { file: modelName, ...model },
      cache: wanted,
      moduleBytes: memory,
      notice,
      fault,
    },
    null,
    1,
  );
}
