// @ts-check
// What the page around the widget offers: its theme, the clipboard, files.

import { make } from "./dom.js";

/** @returns {"light" | "dark"} the theme of the host, or of the system */
export function hostTheme() {
  const { body, documentElement: root } = document;
  const system = (/** @type {string} */ query) => Boolean(globalThis.matchMedia?.(query).matches);
  const dark = () => (system("(prefers-color-scheme: dark)") ? "dark" : "light");
  if (system("(forced-colors: active)")) return dark(); // the page has the system's colours
  const light = body.dataset.jpThemeLight; // JupyterLab, Notebook 7
  if (light) return light === "true" ? "light" : "dark";
  const kind = body.dataset.vscodeThemeKind ?? ""; // VS Code
  if (kind) return kind.includes("light") ? "light" : "dark";
  for (const node of [body, root]) {
    const named = [...node.classList, node.dataset.theme, node.getAttribute("theme")];
    if (named.includes("dark")) return "dark"; // marimo, Colab
    if (named.includes("light")) return "light";
  }
  return dark();
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser refused");
  }
}

/** Offer a text as a file. @param {string} text @param {string} name
 * @param {(act: () => void, ms: number) => void} later */
export function download(text, name, later) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: name }).click();
  later(() => URL.revokeObjectURL(url), 1000);
}
