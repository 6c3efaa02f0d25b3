// @ts-check
// One step over time: drawn on demand, at rest.

import { button, make } from "./dom.js";
import { showPng } from "./picture.js";

/** @import {Message, Pane, Scope} from "../types" */

/** @param {Scope} scope @param {ReturnType<typeof import("./picture.js").picture>} figure */
export function timeline({ link }, figure) {
  const image = make("img", { alt: "", hidden: "" });
  const asked = { id: -1, key: "" }; // the picture that it belongs to
  /** @type {Pane} */
  const pane = {
    title: "One step over time",
    key: "t",
    button: button("Timeline", () => {}),
    node: make("div", {}, image),
    /** Ask for the picture that belongs to the one shown, unless it is there. */
    fill() {
      const { shown, want } = figure;
      if (shown.draft || (asked.id === shown.id && asked.key === shown.key)) return;
      Object.assign(asked, { id: shown.id, key: shown.key });
      link.ask("timeline", { ...want });
    },
  };
  return {
    pane,
    /** @param {Message} content @param {DataView} bytes */
    take(content, bytes) {
      if (content.key !== figure.key() || !bytes) return;
      showPng(image, bytes);
      image.alt = content.alt ?? "";
    },
  };
}
