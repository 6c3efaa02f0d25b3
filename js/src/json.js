// @ts-check
// The answer as JSON, to read and to save.

import { button, make, write } from "./dom.js";
import { download } from "./page.js";

/** @import {Pane, Scope} from "../types" */

/** @param {Scope} scope @param {ReturnType<typeof import("./picture.js").picture>} figure */
export function json({ link, later }, figure) {
  const text = make("pre", { tabindex: "0" });
  const save = button("Download", () => download(text.textContent ?? "", "trainmem.json", later));
  save.dataset.offline = "";
  let asked = -2; // the picture that the text belongs to
  let waiting = false;
  /** @type {Pane} */
  const pane = {
    title: "The answer as JSON",
    key: "j",
    button: button("JSON", () => {}),
    node: make("div", {}, text, save),
    fill() {
      if (asked === figure.shown.id || waiting) return;
      waiting = true;
      asked = figure.shown.id;
      link.ask("json");
    },
  };
  return {
    pane,
    /** Show an answer where this view asked for it. @param {unknown} answer */
    take(answer) {
      if (!waiting) return;
      waiting = false;
      write(text, JSON.stringify(answer, null, 1));
    },
  };
}
