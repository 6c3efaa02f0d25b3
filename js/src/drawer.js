// @ts-check
// One drawer below the figure: what explains or shows more opens there, one thing at a time.

import { button, make } from "./dom.js";

/** @import {Pane} from "../types" */

/** @param {Pane[]} panes */
export function drawer(panes) {
  /** @type {Pane | null} */
  let shown = null;
  /** @type {HTMLElement | null} */
  let opener = null; // to which the focus returns
  const title = make("strong");
  const shut = button("✕ Esc", () => close());
  shut.setAttribute("aria-label", "Close");
  shut.dataset.offline = "";
  const place = make("div");
  const node = make("section", { class: "tm-drawer", tabindex: "-1" },
    make("div", { class: "tm-head" }, title, shut), place);
  node.hidden = true;

  /** @param {Pane | null} pane */
  function put(pane) {
    shown = pane;
    node.hidden = pane === null;
    for (const each of panes) each.button?.setAttribute("aria-expanded", String(each === pane));
    if (!pane) return;
    title.textContent = pane.title;
    node.setAttribute("aria-label", pane.title);
    place.replaceChildren(pane.node);
    pane.fill();
  }

  /** @param {Pane} pane @param {HTMLElement} [from] what opens it */
  function open(pane, from) {
    opener = from ?? pane.button ?? null;
    put(pane);
    node.focus();
  }

  function close() {
    if (!shown) return;
    put(null);
    opener?.focus();
  }

  for (const pane of panes) {
    pane.button?.setAttribute("aria-expanded", "false");
    pane.button?.setAttribute("aria-keyshortcuts", pane.key ?? "");
    pane.button?.addEventListener("click", () => (shown === pane ? close() : open(pane)));
  }
  node.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the notebook has keys of its own
    if (event.key === "Escape") close();
  });

  return {
    node,
    open,
    close,
    /** @param {Pane} pane */
    shows: (pane) => shown === pane,
    /** Serve a key pressed anywhere in the view; return whether it was one of ours.
     * @param {string} key */
    press(key) {
      const pane = panes.find((each) => each.key === key && each.button && !each.button.hidden &&
        !each.button.disabled);
      if (pane) pane.button?.click();
      else if (key === "Escape" && shown) close();
      else return false;
      return true;
    },
    /** Bring up to date what is open; close what there is no more. */
    refresh() {
      if (shown?.button?.hidden) close();
      else shown?.fill();
    },
  };
}
