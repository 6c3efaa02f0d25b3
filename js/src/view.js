// @ts-check
// One view of the model: its parts put together, painted, and taken down again.

import { assign, button, fill, make, write } from "./dom.js";
import { drawer } from "./drawer.js";
import { foot } from "./foot.js";
import { inputControls } from "./inputs.js";
import { json } from "./json.js";
import { openFile } from "./open.js";
import { hostTheme } from "./page.js";
import { peak } from "./peak.js";
import { picture } from "./picture.js";
import { timeline } from "./timeline.js";
import { timers } from "./timers.js";
import { verdict } from "./verdict.js";

/** @import {Link, Model, Panel, Scope, Shown, Tables, View} from "../types" */

const LATE_MS = 1_501; // by then a picture that isn't there is said to be missing

/**
 * Show one view of the model in `el`; return what takes it down.
 * @param {Model} model @param {HTMLElement} el @param {Link} link
 */
export function show(model, el, link) {
  /** @type {Tables} */
  const tables = model.get("_tables");
  const own = new AbortController();
  const { signal } = own;
  const { later, finish } = timers();
  let read = ""; // how a typed text was understood
  /** @type {Scope} */
  const scope = {
    model, link, tables, later,
    uid: `tm-${Math.random().toString(36).slice(2)}`,
    change(changes, draft, how = "") {
      read = how;
      link.change(changes, draft);
    },
  };

  // -- the elements, top to bottom
  const preset = make("select", { "aria-label": "Preset" });
  for (const name of tables.presets) preset.append(make("option", { value: name }, name));
  const custom = make("option", { value: "" }, "Custom");
  preset.append(custom);
  preset.addEventListener("change", () => {
    if (preset.value) scope.change({ preset: preset.value });
  });
  const state = make("span", { class: "tm-state", role: "status" });
  const reset = button("Reset", () => link.ask("reset"));
  const explain = button("?", () => {
    explain.setAttribute("aria-pressed", String(root.toggleAttribute("data-help")));
  });
  explain.setAttribute("aria-label", "Explain the inputs");
  explain.setAttribute("aria-pressed", "false");
  explain.dataset.offline = "";
  const words = verdict(scope);
  const head = make("div", { class: "tm-head" },
    make("strong", {}, "LLM training memory"), preset, state, explain, words.undo, reset);

  const inputs = inputControls(scope, () => {
    below.open(opening.pane, inputs.architecture.select);
    opening.area.focus();
  });
  const alert = make("p", { class: "tm-error", role: "alert", id: `${scope.uid}-error` });
  const also = make("p", { class: "tm-also", role: "status" });
  const figure = picture(scope);
  const time = timeline(scope, figure);
  const parts = peak(scope);
  const answer = json(scope, figure);
  const opening = openFile(scope, () => below.close());
  const below = drawer([time.pane, parts, answer.pane, opening.pane]);
  const omits = make("span");
  const offer = button("", () => inputs.architecture.select.focus());
  const note = make("p", { class: "tm-note" }, omits, " ", offer);
  const numbers = make("tbody");
  const table = make("table", { class: "tm-hidden" },
    make("caption", {}, "Memory of one training step"), numbers);
  const result = words.node;
  result.append(also, alert);
  inputs.node.append(note);
  const end = foot(scope, [time.pane, parts, answer.pane].flatMap((pane) => pane.button ?? []));

  const root = make("div", { class: "trainmem" }, head,
    make("div", { class: "tm-body" }, inputs.node, result,
      make("div", { class: "tm-result" }, words.cards, figure.node, table)),
    below.node, end.node);
  el.append(root);
  el.style.flexGrow ||= "1"; // in an HBox it takes what room there is
  el.style.minWidth ||= "0";
  el.style.minHeight ||= "max-content"; // as high as it is where a host would have 400 px
  root.addEventListener("keydown", (event) => {
    const undoes = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey &&
      event.key.toLowerCase() === "z";
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("textarea, [type=text]")) return; // texts have an undo of theirs
    const held = event.ctrlKey || event.metaKey || event.altKey || target.matches("select");
    if (undoes) link.ask("undo");
    else if (held || !below.press(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  // What was held back while a control was in use.
  for (const end of ["pointerup", "keyup", "focusout"]) root.addEventListener(end, paint);

  // -- painting: safe to call at any time
  let painting = 0;
  function paint() {
    if (signal.aborted || painting) return;
    painting = requestAnimationFrame(() => {
      painting = 0;
      paintNow();
    });
  }

  let everLive = false;
  function paintNow() {
    if (signal.aborted) return;
    /** @type {Panel} */
    const panel = model.get("_panel");
    const status = link.status();
    everLive ||= status === "live";
    /** @type {Shown} */
    const shown = { panel, status, read, dead: status === "disconnected" || !everLive,
      architecture: model.get("architecture"), error: model.get("error"),
      told: model.get("_told") ?? {} };
    const rests = !model.get("_reply")?.draft; // what is only read at rest waits for it
    root.dataset.theme = hostTheme();
    root.dataset.status = status;
    root.dataset.grade = panel.grade;
    root.dataset.fits = String(panel.fits);
    root.toggleAttribute("data-architecture", shown.architecture !== "");
    paintHead(shown);
    figure.paint(status);
    inputs.paint(shown);
    paintMessages(shown);
    words.paint(panel);
    for (const { button: opener } of [time.pane, parts]) {
      if (opener) opener.hidden = shown.architecture === "";
    }
    opening.paint(shown);
    if (!below.shows(opening.pane)) inputs.architecture.opened();
    if (rests) below.refresh();
    write(omits, panel.note.text);
    write(offer, panel.note.offer);
    note.hidden = panel.note.text === "";
    if (rests) {
      figure.describe(model.get("_alt"));
      fill(numbers, panel.table);
    }
    enable(shown);
    end.paint(shown, rests);
  }

  /** @param {Shown} shown */
  function paintHead({ status, panel }) {
    const copied = status === "disconnected" && !everLive;
    root.toggleAttribute("data-copy", copied);
    write(state, copied ? "Static copy" : { live: "", waiting: "Waiting for the kernel …",
      disconnected: "Disconnected: run the cell again" }[status]);
    custom.hidden = panel.preset !== "";
    if (!link.busy()) assign(preset, panel.preset);
  }

  /** Say what was refused, at its field where that is shown, or what changed beside.
   * @param {Shown} shown */
  function paintMessages({ error, told }) {
    const own = error && below.shows(opening.pane) ? opening.pane.node : null;
    const home = own ?? ((error && told.field && inputs.home(told.field)) || result);
    if (alert.parentElement !== home) home.append(alert);
    write(alert, `${(error && told.error) || error} ${model.get("_undrawn") ?? ""}`.trim());
    alert.hidden = alert.textContent === "";
    write(also, error ? "" : [read, told.also].filter(Boolean).join(" · "));
    also.hidden = also.textContent === "";
  }

  let enabled = "";
  /** Switch the controls on or off, where that or what there is has changed. @param {Shown} shown */
  function enable({ dead, panel: { unavailable } }) {
    const now = `${dead} ${JSON.stringify(unavailable)} ${words.offers()}`;
    if (now === enabled) return;
    enabled = now;
    for (const node of /** @type {NodeListOf<HTMLButtonElement>} */ (
      root.querySelectorAll("input, select, button, textarea"))) {
      node.disabled = dead && node.dataset.offline === undefined;
    }
    inputs.bar(unavailable);
  }

  // -- what this view is to the link
  let visible = true;
  /** @type {View} */
  const view = {
    info: () => (visible && !document.hidden ? figure.info() : null),
    message(content, buffers) {
      if (signal.aborted) return;
      if (content.kind === "frame" && figure.take(content, buffers[0]) && !content.draft) {
        below.refresh();
      }
      if (content.kind === "timeline") time.take(content, buffers[0]);
      if (content.kind === "json") answer.take(content.answer);
    },
    paint,
    gone: () => el.closest(".jupyter-widgets-disconnected") !== null,
  };
  link.views.add(view);

  // -- what changes around it
  function measure() {
    if (!figure.measure()) return;
    paint();
    link.sayHello();
  }
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let measuring;
  const measureSoon = () => {
    clearTimeout(measuring);
    measuring = setTimeout(measure, figure.want.width ? 100 : 0);
  };
  const sizes = new ResizeObserver(measureSoon);
  sizes.observe(figure.node);
  const themes = new MutationObserver(measureSoon);
  for (const node of [document.body, document.documentElement]) {
    themes.observe(node, { attributes: true });
  }
  const live = new MutationObserver(link.tick);
  live.observe(el, { attributes: true, attributeFilter: ["class"] });
  const seen = new IntersectionObserver((entries) => {
    const before = visible;
    visible = entries[entries.length - 1].isIntersecting;
    if (visible !== before) link.sayHello(); // what nobody sees isn't drawn
  });
  seen.observe(root);
  document.addEventListener("visibilitychange", link.sayHello, { signal });
  globalThis.matchMedia?.("(prefers-color-scheme: dark)")
    .addEventListener?.("change", measureSoon, { signal });

  // -- the model speaks
  const watched = tables.watched.map((name) => `change:${name}`);
  for (const event of watched) model.on(event, paint);
  later(paint, LATE_MS);
  paintNow();
  measure();
  link.tick();

  return () => {
    if (signal.aborted) return; // hosts may both call this and abort
    own.abort();
    link.views.delete(view);
    link.sayHello(); // so that nobody draws for this view any more
    for (const event of watched) model.off(event, paint);
    for (const observer of [sizes, themes, live, seen]) observer.disconnect();
    clearTimeout(measuring);
    words.close();
    finish();
    cancelAnimationFrame(painting);
    root.remove();
  };
}
