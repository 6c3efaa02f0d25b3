// @ts-check
// The verdict in words, what would make it fit, and the four numbers.

import { button, make, write } from "./dom.js";

/** @import {Panel, Scope} from "../types" */

const REST_MS = 700; // a result is spoken once it has rested for so long

/** @param {Scope} scope */
export function verdict({ model, link, change }) {
  const headline = make("strong");
  const sentence = make("span");
  const banner = make("div", { class: "tm-banner", tabindex: "-1" }, headline, sentence);
  const spoken = make("div", { class: "tm-hidden", "aria-live": "polite" });
  const fixes = make("div", { class: "tm-fixes" });
  const undo = button("Undo", () => link.ask("undo"));
  const node = make("div", { class: "tm-verdict" }, banner, fixes, spoken);
  const cards = make("div", { class: "tm-cards" });
  let shownFixes = "";
  let toSay = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let speaking;

  /** @param {Panel} panel */
  function paintFixes(panel) {
    const held = /** @type {Document} */ (fixes.getRootNode()).activeElement;
    const within = fixes.contains(held) || held === undo;
    fillFixes(panel);
    if (!within || (held?.isConnected && !held.closest("[hidden]"))) return;
    // What was pressed is gone: on to what it brought, not to the top of the page.
    /** @type {HTMLElement[]} */
    const after = [undo, ...fixes.querySelectorAll("button"), banner];
    after.find((node) => !node.closest("[hidden]"))?.focus();
  }

  /** @param {Panel} panel */
  function fillFixes(panel) {
    const undoable = Number(model.get("_undo"));
    undo.hidden = !undoable;
    fixes.hidden = panel.grade === "fits";
    const now = JSON.stringify([panel.grade, panel.fixes]);
    if (now === shownFixes) return; // a button under the finger stays the same button
    shownFixes = now;
    const chips = panel.fixes.flatMap(({ offer, items }) => [make("span", {}, offer),
      ...items.map((fix) => button(fix.label, () => change(fix.changes)))]);
    const none = panel.grade === "does not fit" ? "No single change fits" : "";
    fixes.replaceChildren(...(chips.length ? chips : [make("span", {}, none)]));
  }

  /** @param {Panel} panel */
  function paintCards(panel) {
    while (cards.children.length < panel.cards.length) {
      cards.append(make("div", {}, make("small"), make("div", {}, make("b"), make("span")),
        make("small")));
    }
    panel.cards.forEach((card, i) => {
      const [title, main, note] = cards.children[i].children;
      write(title, card.title);
      write(main.children[0], card.value);
      write(main.children[1], ` ${card.unit}`);
      write(note, card.note);
    });
  }

  /** Announce a result once it rests. @param {string} text */
  function speak(text) {
    if (text === toSay) return;
    toSay = text;
    clearTimeout(speaking);
    speaking = setTimeout(() => write(spoken, text), REST_MS);
  }

  return {
    node,
    cards,
    undo,
    /** What the buttons depend on. */
    offers: () => shownFixes,

    /** @param {Panel} panel */
    paint(panel) {
      write(headline, panel.headline);
      write(sentence, panel.banner);
      paintFixes(panel);
      paintCards(panel);
      speak(`${panel.headline}. ${panel.banner}`);
    },
    close: () => clearTimeout(speaking),
  };
}
