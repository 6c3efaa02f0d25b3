// @ts-check
// The figure: which picture this view wants, and the newest one that Python drew for it.

import { make, write } from "./dom.js";
import { hostTheme } from "./page.js";

/** @import {Info, Message, Scope, Status} from "../types" */

const PATIENCE_MS = 1_500; // for so long the picture of another theme isn't shown

/** @param {Scope} scope */
export function picture({ model }) {
  const image = make("img", { alt: "", decoding: "sync" });
  const missing = make("p");
  const node = make("div", { class: "tm-figure" }, image, missing);
  image.hidden = true;
  const opened = Date.now();
  const shown = { id: -1, draft: true, key: "" };
  const want = { width: 0, ratio: 1, theme: "light" };
  const key = () => `${want.width}x${want.ratio}-${want.theme}`;
  let good = ""; // the last source that could be shown
  image.addEventListener("load", () => { good = image.src; });
  image.addEventListener("error", () => { if (good && image.src !== good) image.src = good; });

  /** Show a picture, or none where it could not be drawn: an old one would be wrong.
   * @param {DataView} bytes @param {number} [size] */
  function put(bytes, size) {
    write(missing, "");
    if (showPng(image, bytes, size)) place(bytes);
    else good = "";
  }

  /** Give the picture its room, so that a new one moves nothing. @param {DataView} png */
  function place(png) {
    if (png.byteLength < 24) return;
    const ratio = `${png.getUint32(16)} / ${png.getUint32(20)}`; // as its header says
    if (node.style.aspectRatio !== ratio) node.style.aspectRatio = ratio;
  }

  return {
    node,
    want,
    shown,
    key,

    /** Show the picture of the state, as a reopened notebook has it, or say why there is none:
     * at once where it is of this theme, else where no other is to be expected soon.
     * @param {Status} status */
    paint(status) {
      if (!image.hidden) return;
      const saved = model.get("_frame");
      const theme = model.get("_reply")?.key?.endsWith("-dark") ? "dark" : "light";
      const late = status === "disconnected" || Date.now() - opened > PATIENCE_MS;
      if (saved?.byteLength && (late || theme === hostTheme())) put(saved);
      else if (late && status !== "live") {
        write(missing, status === "waiting" ? "The picture follows once the kernel is free."
          : "No picture is stored here.");
      }
    },

    /** @param {string} text */
    describe(text) {
      image.alt = text;
    },

    /** Take a frame; return whether it is the newest of this view.
     * @param {Message} content @param {DataView} bytes */
    take(content, bytes) {
      const { id = 0, draft = false } = content;
      const stale = content.key !== key() || id < shown.id ||
        (id === shown.id && draft && !shown.draft && shown.key === content.key);
      if (stale || !bytes) return false;
      put(bytes, content.size);
      image.dataset.frame = String(id);
      Object.assign(shown, { id, draft, key: content.key });
      return true;
    },

    /** Look how large and of which theme a picture has to be; return whether that changed. */
    measure() {
      const ratio = Math.min(Math.max(globalThis.devicePixelRatio || 1, 0.5), 4);
      const now = { width: Math.round(node.clientWidth), ratio: Math.round(ratio * 100) / 100,
        theme: hostTheme() };
      const before = key();
      Object.assign(want, now);
      return key() !== before;
    },

    /** @returns {Info | null} what is to be drawn, and what is shown */
    info: () => (want.width >= 100
      ? { ...want, frame: shown.draft ? -1 : shown.id, key: shown.key } : null),
  };
}

/** Show a PNG as a URL that needs neither a request nor to be revoked; return whether there is one.
 * @param {HTMLImageElement} image @param {DataView} bytes
 * @param {number} [size] how many of the bytes are the picture */
export function showPng(image, bytes, size = bytes.byteLength) {
  const length = Math.min(size, bytes.byteLength);
  image.hidden = length === 0;
  if (image.hidden) {
    image.removeAttribute("src");
    return false;
  }
  const octets = new Uint8Array(bytes.buffer, bytes.byteOffset, length);
  let text = "";
  for (let i = 0; i < length; i += 8192) text += String.fromCharCode(...octets.subarray(i, i + 8192));
  image.src = `data:image/png;base64,${btoa(text)}`;
  return true;
}
