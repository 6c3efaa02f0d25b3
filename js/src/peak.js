// @ts-check
// What is alive at the peak, as small bars.

import { button, make, write } from "./dom.js";

/** @import {Pane, Scope} from "../types" */

/** @param {Scope} scope @returns {Pane} */
export function peak({ model }) {
  const node = make("div", { class: "tm-peak" });
  return {
    title: "What is alive at the peak",
    key: "p",
    button: button("Peak", () => {}),
    node,
    fill() {
      /** @type {import("../types").Part[]} */
      const parts = model.get("_panel").detail;
      while (node.children.length > parts.length) node.lastChild?.remove();
      while (node.children.length < parts.length) {
        node.append(make("div", {}, make("span"), make("i"), make("b"), make("small")));
      }
      parts.forEach(({ name, value, note, share }, i) => {
        const [label, bar, number, words] = node.children[i].children;
        write(label, name);
        /** @type {HTMLElement} */ (bar).style.setProperty("--share", `${100 * share}%`);
        write(number, value);
        write(words, note);
      });
    },
  };
}
