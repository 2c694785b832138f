// What opens beside or above the conversation: settings in a drawer, chats, models and help in dialogs.

import type { Backend, CacheSettings, SendOptions } from "../../crates/wasm/types";
import type { Summary } from "./chats.ts";
import { button, el, fileInput, keys, setText } from "./dom.ts";
import { badPacking, command, PACKING, packs, RANGES, withoutDefaults } from "./settings.ts";
import type { Card } from "./shelf.ts";
import type { Spoken } from "./speech.ts";
import type { State } from "./state.ts";
import * as say from "./strings.en.ts";

export interface SettingsWishes {
  settings(cache: CacheSettings, options: SendOptions): void;
  backend(backend: Backend | null): void;
  system(text: string): void;
  awake(wanted: boolean): void;
  spoken(when: Spoken): void;
  copy(text: string): void;
}

type Field = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;
type FieldName = keyof typeof say.settingNames;

/** Settings that say something only where values are packed. */
const OF_PACKING = ["kv_k", "kv_v", "group", "tail"] as const;

/** The settings. Not modal: the conversation and the figures can be seen and used beside it. */
export class Drawer {
  readonly element: HTMLElement;
  private readonly fields: Record<FieldName, Field>;
  private readonly awake = el("input", { type: "checkbox", id: "set-awake" });
  private readonly spoken: HTMLSelectElement;
  private readonly command = el("code", { class: "command" });
  private opener: HTMLElement | null = null;
  /** Where the focus goes when it is closed. */
  private back: HTMLElement | null = null;
  private state: State | null = null;

  constructor(
    private readonly wishes: SettingsWishes,
    private asked: Backend | null,
  ) {
    const number = (key: keyof typeof RANGES, step = 1): HTMLInputElement => {
      const [least, most, whole] = RANGES[key];
      return el("input", {
        type: "number",
        min: String(least),
        max: String(most),
        step: whole ? String(step) : "any",
        inputmode: whole ? "numeric" : "decimal",
      });
    };
    const select = (choices: Record<string, string>): HTMLSelectElement =>
      el("select", {}, ...keys(choices).map((key) => el("option", { value: String(key) }, choices[key] ?? "")));
    this.fields = {
      policy: select(say.policies),
      sinks: number("sinks"),
      recent: number("recent"),
      kv: select(say.kvNames),
      kv_k: select({ "": say.asAll, ...say.kvNames }),
      kv_v: select({ "": say.asAll, ...say.kvNames }),
      group: number("group", 8),
      tail: number("tail", 8),
      positions: select(say.positionNames),
      temperature: number("temperature"),
      top_k: number("top_k"),
      top_p: number("top_p"),
      min_p: number("min_p"),
      penalty: number("penalty"),
      seed: number("seed"),
      max: number("max"),
      backend: select(say.backendNames),
      system: el("textarea", { rows: "2" }),
    };
    const group = (legend: string, names: FieldName[], ...more: Node[]): HTMLElement =>
      el(
        "fieldset",
        {},
        el("legend", {}, legend),
        ...names.map((name) => {
          const field = this.fields[name];
          field.id = `set-${name}`;
          field.addEventListener("change", () => this.changed(name, field));
          return el("div", { class: "field" }, el("label", { for: field.id }, say.settingNames[name]), field);
        }),
        ...more,
      );
    this.awake.addEventListener("change", () => wishes.awake(this.awake.checked));
    const awake = el("div", { class: "field check" }, this.awake, el("label", { for: this.awake.id }, say.awake));
    awake.hidden = !("wakeLock" in navigator);
    this.spoken = select(say.spokenNames);
    this.spoken.id = "set-spoken";
    this.spoken.addEventListener("change", () => wishes.spoken(this.spoken.value as Spoken));
    const spoken = el("div", { class: "field" }, el("label", { for: this.spoken.id }, say.spokenAnswers), this.spoken);
    this.element = el(
      "aside",
      { class: "drawer", "aria-label": say.settings, id: "settings" },
      el("div", { class: "head" }, el("h2", {}, say.settings), button(say.close, () => this.close())),
      el("p", { class: "muted" }, say.settingsIntro),
      group(say.cacheGroup, ["policy", "sinks", "recent", "kv", ...OF_PACKING, "positions"]),
      group(say.samplerGroup, ["temperature", "top_k", "top_p", "min_p", "penalty", "seed", "max"]),
      group(say.placeGroup, ["backend", "system"], spoken, awake),
      el("h3", {}, say.commandLine),
      this.command,
      button(say.copyCommand, () => wishes.copy(this.command.textContent ?? "")),
    );
    this.element.hidden = true;
  }

  get isOpen(): boolean {
    return !this.element.hidden;
  }

  toggle(opener: HTMLElement, back: HTMLElement): void {
    if (this.isOpen) return this.close();
    [this.opener, this.back] = [opener, back];
    this.element.hidden = false;
    opener.setAttribute("aria-expanded", "true");
    this.fields.policy.focus();
  }

  close(): void {
    if (!this.isOpen) return;
    this.element.hidden = true;
    this.opener?.setAttribute("aria-expanded", "false");
    this.back?.focus();
  }

  showAwake(wanted: boolean): void {
    this.awake.checked = wanted;
  }

  showSpoken(when: Spoken): void {
    this.spoken.value = when;
  }

  draw(state: State): void {
    const { wanted, options, chat, place } = state;
    if (this.state !== null && this.state.wanted === wanted && this.state.options === options) {
      if (this.state.chat === chat && this.state.place === place) return;
    }
    this.state = state;
    const { sampler } = options;
    const values: Record<FieldName, string | number> = {
      policy: wanted.policy,
      sinks: wanted.sinks,
      recent: wanted.recent,
      kv: wanted.kv,
      kv_k: wanted.kv_k ?? "",
      kv_v: wanted.kv_v ?? "",
      group: wanted.group ?? PACKING.group,
      tail: wanted.tail ?? PACKING.tail,
      positions: wanted.positions ?? "slot",
      temperature: sampler.temperature,
      top_k: sampler.top_k,
      top_p: sampler.top_p,
      min_p: sampler.min_p,
      penalty: sampler.repetition_penalty,
      seed: sampler.seed,
      max: options.max_tokens,
      backend: this.asked ?? "auto",
      system: chat.system,
    };
    for (const key of keys(this.fields)) {
      const field = this.fields[key];
      // What is being typed is left alone, and so is what has to be put right.
      if (document.activeElement !== field && !field.hasAttribute("aria-invalid")) field.value = String(values[key]);
    }
    for (const key of OF_PACKING) this.fields[key].parentElement?.toggleAttribute("hidden", !packs(wanted));
    this.fields.sinks.disabled = wanted.policy !== "sinks";
    this.fields.positions.disabled = wanted.policy !== "sinks";
    this.fields.recent.disabled = wanted.policy === "dense";
    setText(this.command, command(wanted, options, place?.backend ?? "cpu"));
  }

  private changed(name: FieldName, field: Field): void {
    const { state } = this;
    if (state === null) return;
    this.complain(field, null);
    const { value } = field;
    if (name === "system") return this.wishes.system(value.trim());
    if (name === "backend") {
      this.asked = value === "auto" ? null : (value as Backend);
      return this.wishes.backend(this.asked);
    }
    const cache = { ...state.wanted };
    const options: SendOptions = { ...state.options, sampler: { ...state.options.sampler } };
    if (name === "policy") {
      cache.policy = value as CacheSettings["policy"];
      cache.sinks = cache.policy !== "sinks" ? 0 : Math.max(cache.sinks, 4);
    } else if (name === "kv") cache.kv = value as CacheSettings["kv"];
    else if (name === "positions") cache.positions = value === "stream" ? value : "slot";
    else if (name === "kv_k" || name === "kv_v") cache[name] = value === "" ? cache.kv : (value as CacheSettings["kv"]);
    else {
      const [least, most, whole] = RANGES[name];
      const n = value.trim() === "" ? Number.NaN : Number(value);
      if (!(n >= least && n <= most && (!whole || Number.isInteger(n)))) {
        return this.complain(field, say.outOfRange(say.settingNames[name], least, most));
      }
      if (name === "group" || name === "tail") {
        // The two must fit each other, so what stands in both fields is taken together.
        const { group, tail } = this.fields;
        [cache.group, cache.tail] = [Number(group.value), Number(tail.value)];
        const why = badPacking(cache);
        if (why !== null) return this.complain(field, say.oldValue(why));
        for (const other of [group, tail]) this.complain(other, null);
      } else if (name === "sinks" || name === "recent") cache[name] = n;
      else if (name === "max") options.max_tokens = n;
      else if (name === "penalty") options.sampler.repetition_penalty = n;
      else options.sampler[name] = n;
    }
    this.wishes.settings(withoutDefaults(cache), options);
  }

  /** Says below a field what is wrong with it; null where nothing is. */
  private complain(field: Field, why: string | null): void {
    const id = `${field.id}-wrong`;
    document.getElementById(id)?.remove();
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
    if (why === null) return;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", id);
    field.after(el("p", { class: "error", role: "alert", id }, why));
  }
}

/** A dialog with a title and a button that closes it. */
export class Panel {
  readonly element: HTMLDialogElement;

  constructor(id: string, title: string, ...children: (Node | string)[]) {
    this.element = el(
      "dialog",
      { id, "aria-labelledby": `${id}-title` },
      el(
        "div",
        { class: "head" },
        el("h2", { id: `${id}-title` }, title),
        button(say.close, () => this.element.close()),
      ),
      ...children,
    );
    // A click outside of it lands on the dialog itself.
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.element.close();
    });
  }

  show(): void {
    this.element.showModal();
  }
}

export interface ChatsWishes {
  newChat(): void;
  openChat(id: string): void;
  removeChat(id: string): void;
  exportChat(): void;
  importChat(file: File): void;
}

export class ChatsPanel extends Panel {
  private readonly list: HTMLElement;

  constructor(private readonly wishes: ChatsWishes) {
    const list = el("ul", { class: "rows" });
    const file = fileInput(".json,application/json", (chosen) => {
      this.element.close();
      wishes.importChat(chosen);
    });
    super(
      "chats",
      say.chats,
      el("p", { class: "muted" }, say.chatsIntro),
      el(
        "div",
        { class: "buttons" },
        button(say.exportChat, () => wishes.exportChat()),
        button(say.importChat, () => file.click()),
        file,
      ),
      list,
    );
    this.list = list;
  }

  draw(chats: readonly Summary[], current: string): void {
    const rows = chats.map(({ id, title, changed, turns }) => {
      const open = button(title, () => {
        this.element.close();
        this.wishes.openChat(id);
      });
      open.setAttribute("aria-label", say.openChat(title));
      open.className = "row";
      if (id === current) open.setAttribute("aria-current", "true");
      const remove = button(say.remove, () => this.wishes.removeChat(id), { class: "small" });
      remove.setAttribute("aria-label", say.removeNamed(title));
      const when = new Date(changed).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
      const facts = [when, say.turnsOf(turns), ...(id === current ? [say.current] : [])].join(" · ");
      return el("li", {}, el("div", {}, open, el("p", { class: "muted numbers" }, facts)), remove);
    });
    this.list.replaceChildren(...(rows.length > 0 ? rows : [el("li", { class: "muted" }, say.noChats)]));
  }
}

export interface ModelsWishes {
  useCard(card: Card): void;
  removeCard(card: Card): void;
  useDefault(): void;
  useAddress(url: string): void;
  useFile(file: File): void;
  clearStorage(): void;
}

export class ModelsPanel extends Panel {
  private readonly list: HTMLElement;
  private readonly room: HTMLElement;
  readonly file: HTMLInputElement;

  constructor(private readonly wishes: ModelsWishes) {
    const list = el("ul", { class: "rows" });
    const room = el("p", { class: "muted numbers" });
    const file = fileInput(".gguf", (chosen) => {
      this.element.close();
      wishes.useFile(chosen);
    });
    const url = el("input", { type: "url", id: "model-url", required: "", placeholder: "https://…/model.gguf" });
    const form = el(
      "form",
      { class: "field" },
      el("label", { for: "model-url" }, say.fromAddress),
      el("div", { class: "line" }, url, el("button", { type: "submit" }, say.fetchIt)),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.element.close();
      wishes.useAddress(url.value);
    });
    const sure = el(
      "div",
      { class: "sure" },
      el("p", {}, say.clearConfirm),
      el(
        "div",
        { class: "buttons" },
        button(say.clearYes, () => {
          sure.hidden = true;
          this.element.close();
          wishes.clearStorage();
        }),
        button(say.cancel, () => (sure.hidden = true)),
      ),
    );
    sure.hidden = true;
    super(
      "models",
      say.models,
      el("p", { class: "muted" }, say.modelsIntro),
      el("h3", {}, say.keptModels),
      list,
      room,
      el("h3", {}, say.getModel),
      el(
        "div",
        { class: "buttons" },
        button(say.useDefault, () => {
          this.element.close();
          wishes.useDefault();
        }),
        button(say.useFile, () => file.click()),
        file,
      ),
      el("p", { class: "muted" }, say.fileDrop),
      form,
      button(say.clearStorage, () => (sure.hidden = false)),
      sure,
    );
    [this.list, this.room, this.file] = [list, room, file];
  }

  draw(cards: readonly Card[], used: number | undefined, quota: number | undefined): void {
    const rows = cards.map((card) => {
      const whole = card.added !== null && card.bytes !== null;
      const facts = whole ? say.keptSince(card.bytes ?? 0, card.added ?? "") : say.unfinished(card.bytes);
      const use = button(say.use, () => {
        this.element.close();
        this.wishes.useCard(card);
      });
      use.setAttribute("aria-label", say.useNamed(card.name));
      use.disabled = !whole;
      const remove = button(say.remove, () => this.wishes.removeCard(card));
      remove.setAttribute("aria-label", say.removeNamed(card.name));
      return el(
        "li",
        {},
        el("div", {}, el("p", {}, card.name), el("p", { class: "muted numbers" }, facts)),
        el("div", { class: "buttons" }, use, remove),
      );
    });
    this.list.replaceChildren(...(rows.length > 0 ? rows : [el("li", { class: "muted" }, say.noModels)]));
    setText(this.room, used === undefined || quota === undefined ? "" : say.room(used, quota));
  }
}

const terms = (list: [string, string][], shown: (term: string) => Node | string): HTMLElement =>
  el("dl", { class: "keys" }, ...list.map(([term, says]) => el("div", {}, el("dt", {}, shown(term)), el("dd", {}, says))));

export class HelpPanel extends Panel {
  private readonly report: HTMLElement;

  constructor(copy: (text: string) => void) {
    const report = el("pre", { class: "report", tabindex: "0", role: "region", "aria-label": say.reportIntro });
    super(
      "help",
      say.help,
      ...say.helpText.map((text) => el("p", {}, text)),
      el("h3", {}, say.wordsTitle),
      terms(say.wordList, (word) => word),
      el("h3", {}, say.keysTitle),
      terms(say.keyList, (key) => el("kbd", {}, key)),
      el("p", { class: "muted" }, say.reportIntro),
      button(say.copyReport, () => copy(report.textContent ?? "")),
      report,
    );
    this.report = report;
  }

  draw(report: string): void {
    setText(this.report, report);
  }
}
