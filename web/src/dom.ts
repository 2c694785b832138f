// Elements, made and changed.

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string>,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A button that does `act`. */
export function button(
  text: string,
  act: () => void,
  attributes: Record<string, string> = {},
): HTMLButtonElement {
  const element = el("button", { type: "button", ...attributes }, text);
  element.addEventListener("click", act);
  return element;
}

/** A field for files that a button stands for: hidden, and each choice is handed on. */
export function fileInput(accept: string, take: (file: File) => void): HTMLInputElement {
  const input = el("input", { type: "file", accept, hidden: "" });
  input.addEventListener("change", () => {
    const chosen = input.files?.[0];
    // The same file may be chosen again.
    input.value = "";
    if (chosen !== undefined) take(chosen);
  });
  return input;
}

/** Writes only what differs, so that nothing is laid out or read aloud twice. */
export function setText(element: Element, text: string): boolean {
  if (element.textContent === text) return false;
  element.textContent = text;
  return true;
}

export function keys<T extends object>(object: T): (keyof T)[] {
  return Object.keys(object) as (keyof T)[];
}

/** Hands a file to the person. */
export function download(name: string, type: string, content: string | Blob): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  // The browser has the bytes by then; at once would be too early for some.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
