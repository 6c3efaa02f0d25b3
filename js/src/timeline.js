// @ts-check
// One step over time: drawn on demand, at rest.

import { make } from "./dom.js";
import { showPng } from "./picture.js";

/** @import {Message, Scope} from "../types" */

/** @param {Scope} scope @param {ReturnType<typeof import("./picture.js").picture>} figure */
export function timeline({ link }, figure) {
  const image = make("img", { alt: "", hidden: "" });
  const node = make("details", {}, make("summary", {}, "One step over time"), image);
  const timed = { id: -1, key: "" };

  /** Ask for the picture that belongs to the one shown, unless it is there. */
  function ask() {
    const { shown, want } = figure;
    if (!node.open || node.hidden || shown.draft) return;
    if (timed.id !== shown.id || timed.key !== shown.key) link.ask("timeline", { ...want });
  }
  node.addEventListener("toggle", ask);

  return {
    node,
    ask,
    /** @param {Message} content @param {DataView} bytes */
    take(content, bytes) {
      if (content.key !== figure.key() || !bytes) return;
      Object.assign(timed, { id: content.id, key: content.key });
      showPng(image, bytes);
      image.alt = content.alt ?? "";
    },
  };
}
