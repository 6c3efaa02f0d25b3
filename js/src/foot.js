// @ts-check
// Code to copy, what opens in the drawer, the same request to a server, and the facts.

import { button, make, write } from "./dom.js";
import { copy } from "./page.js";

/** @import {Scope, Shown} from "../types" */

/** @param {Scope} scope @param {HTMLElement[]} openers */
export function foot({ model, link, later }, openers) {
  const copyButton = (/** @type {string} */ text, /** @type {"python" | "curl"} */ what) => {
    const node = button(text, () => {
      copy(model.get("_panel")[what]).then(
        () => { node.textContent = "Copied ✓"; },
        () => { node.textContent = "Not copied"; },
      ).finally(() => later(() => { node.textContent = text; }, 1500));
    });
    node.dataset.offline = ""; // it works without a kernel
    return node;
  };
  const run = button("", () => link.ask("remote"));
  const told = make("p", { class: "tm-remote", "aria-live": "polite" });
  const curl = copyButton("Copy curl", "curl");
  const facts = make("span", { class: "tm-facts" });
  const node = make("div", { class: "tm-foot" }, copyButton("Copy Python", "python"), curl,
    ...openers, run, facts, told);

  return {
    node,

    /** @param {Shown} shown @param {boolean} rests */
    paint({ panel, dead, architecture }, rests) {
      curl.hidden = panel.curl === "";
      if (rests) write(facts, panel.footer);
      /** @type {{host?: string, state?: string, text?: string}} */
      const { host = "", state = "", text = "" } = model.get("_remote") ?? {};
      run.hidden = host === "" || architecture !== ""; // servers know the ten inputs
      run.disabled = dead || state === "running";
      write(run, `Run on ${host}`);
      write(told, ({ agrees: "✓ ", differs: "≠ ", failed: "✗ " }[state] ?? "") + text);
      told.hidden = text === "";
      told.dataset.state = state;
    },
  };
}
