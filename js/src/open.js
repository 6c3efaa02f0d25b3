// @ts-check
// Opening the config.json of an architecture.

import { make } from "./dom.js";

/** @import {Pane, Scope, Shown} from "../types" */

/** @param {Scope} scope @param {() => void} done */
export function openFile({ link }, done) {
  const area = make("textarea", { rows: "4", placeholder: "Paste a Hugging Face config.json",
    "aria-label": "config.json" });
  const file = make("input", { type: "file", accept: ".json", "aria-label": "config.json file" });
  let asked = false;
  const given = (/** @type {string} */ text) => {
    if (!text.trim()) return;
    asked = true;
    link.ask("open", { config: text });
  };
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") event.stopPropagation();
  });
  area.addEventListener("change", () => given(area.value));
  file.addEventListener("change", () => void file.files?.[0]?.slice(0, 1 << 20).text().then(given));
  /** @type {Pane} */
  const pane = { title: "Open config.json", node: make("div", { class: "tm-stack" }, area, file),
    fill() {} };
  return {
    pane,
    area,
    /** What was refused is said here; what was taken needs the place no more. @param {Shown} shown */
    paint({ error }) {
      if (!asked || link.busy()) return;
      asked = false;
      if (error) return;
      area.value = "";
      done();
    },
  };
}
