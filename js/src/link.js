// @ts-check
// The link to one Python model, for all its views: liveness, numbered requests, answers.

import { watchKernel } from "./kernel.js";

/** @import {Message, Model, Status, View} from "../types" */

const MAX_IN_FLIGHT = 2; // one is drawn while the one before is painted
const MAX_OUTBOX = 16; // requests repeated to a host without messages
const HELLO_MS = 10_000;
const TRAIT_MS = 3_000; // an idle kernel silent for so long may only hear traits
const WAITING_MS = 1_500; // unanswered for so long: the kernel is busy
const LOST_MS = 4_000; // the same with a kernel known to be idle: nobody is there
const SILENT_MS = 30_000; // the same where the host doesn't tell what its kernel does
const LOOPBACK = /^(localhost|127\..*|\[::1\]|.*\.localhost)$/;
const CLOSE_MS = 150; // between two requests in close succession

/**
 * Talk to one Python model, for all its views: liveness, numbered requests, answers.
 * @param {Model} model
 * @param {AbortSignal} signal
 */
export function connect(model, signal) {
  const client = Math.random().toString(36).slice(2) + Date.now().toString(36);
  /** @type {Set<View>} */
  const views = new Set();
  /** @type {Map<number, {since: number, fields: string[]}>} */
  const flying = new Map();
  /** @type {{changes: Record<string, unknown>, draft: boolean} | null} */
  let next = null;
  let number = 0;
  let landed = 0; // the last one answered
  let landing = 0; // the animation frame that comes after its picture, or 0
  let hello = 0; // when the unanswered hello was sent, or 0
  let again = false; // whether another is due after its answer
  let tries = 0; // how many stayed unanswered
  let heard = 0; // when Python last answered
  let byTrait = false;
  let closed = false;
  const kernel = watchKernel(model);
  let untold = false; // whether something was asked for that `tell` has to follow
  let replied = false; // whether a reply by trait is to be read
  /** @type {Record<string, unknown>[]} */
  let outbox = [];
  /** @type {Status} */
  let status = "waiting";

  /** @param {Record<string, unknown>} content */
  function post(content) {
    try {
      send(content);
    } catch {
      // A closed comm throws, and the silence that follows tells enough.
    }
  }

  /** @param {Record<string, unknown>} content */
  function send(content) {
    if (byTrait) {
      // The host merges what it can't send at once, so each request brings the last few.
      outbox = [...outbox, { ...content, stamp: ++number }].slice(-MAX_OUTBOX);
      model.set("_request", { client, messages: outbox });
      model.save_changes();
      return;
    }
    model.send(content);
  }

  /** Tell what the views want; where a hello is unanswered, once it is. */
  function sayHello() {
    if (closed) return;
    again = hello !== 0;
    if (again) return; // a kernel busy for an hour shall not find a queue of them
    const seen = [...views].map((view) => view.info()).filter((info) => info !== null);
    hello = Date.now();
    post({ kind: "hello", client, n: Date.now(), views: seen });
  }

  /** @param {boolean} [full] whether to send even what has to wait */
  function pump(full = false) {
    if (!next || status === "disconnected" || (flying.size >= MAX_IN_FLIGHT && !full)) return;
    const { changes, draft } = next;
    next = null;
    const now = Date.now();
    flying.set(++number, { since: now, fields: Object.keys(changes) });
    untold ||= !draft;
    // In close succession TCP would hold small answers back; see `PADDING` in widget/shell.py.
    const pad = now - heard < CLOSE_MS && LOOPBACK.test(globalThis.location?.hostname ?? "");
    post({ kind: "set", client, id: number, changes, draft, ...(pad && { pad }) });
  }

  const gone = () => kernel.gone() || [...views].some((view) => view.gone());

  function judge() {
    const oldest = Math.min(hello || Infinity, ...[...flying.values()].map((f) => f.since));
    const silent = Date.now() - oldest;
    const busy = kernel.busy();
    const lost = busy === null ? silent > SILENT_MS : !busy && silent > LOST_MS;
    /** @type {Status} */
    let now = "live";
    if (gone() || lost) now = "disconnected";
    else if (!heard) now = status === "disconnected" ? status : "waiting"; // until it answers
    else if (silent > WAITING_MS) now = "waiting";
    if (now === status) return;
    status = now;
    if (now === "disconnected") {
      flying.clear();
      next = null;
      heard = 0;
      hello = 0;
    }
    for (const view of views) view.paint();
  }

  function tick() {
    if (landing) land(); // a page that nobody sees has no animation frames
    judge();
    if (gone()) return; // nobody to greet
    const anyone = [...views].some((view) => view.info() !== null);
    const age = Date.now() - (hello || heard);
    const deaf = !heard && kernel.busy() === false && status === "waiting";
    const patience = deaf ? TRAIT_MS : HELLO_MS * 2 ** Math.min(tries, 5);
    if ((anyone && age > patience) || (!heard && !hello)) {
      // A host that never answers messages gets the same question through a trait.
      if (!heard && hello && !kernel.busy()) byTrait = !byTrait;
      if (hello) tries++;
      hello = 0;
      sayHello();
    }
  }

  /** @param {Message} content @param {DataView[]} buffers */
  function receive(content, buffers) {
    if (!content || typeof content.kind !== "string") return;
    heard = Date.now();
    tries = 0;
    if (content.kind === "hello") {
      hello = 0;
      if (again) sayHello();
    }
    // Every front end of the kernel hears every answer, and numbers its own requests.
    const answered = content.client === client ? content.answers : undefined;
    for (const view of views) view.message(content, buffers);
    if (typeof answered === "number") {
      landed = Math.max(landed, answered);
      // What follows a draft goes out once that is painted: more would be drawn than shown.
      if (content.kind === "frame" && content.draft) landing ||= requestAnimationFrame(land);
      else land();
    }
    judge();
    pump();
  }

  /** Take the answered requests as done. */
  function land() {
    cancelAnimationFrame(landing);
    landing = 0;
    for (const id of flying.keys()) if (id <= landed) flying.delete(id);
    pump();
    if (untold && !next && !flying.size) tell();
    for (const view of views) view.paint();
  }

  /** Save a trait once all is answered: marimo runs the cells that read the widget after that
   * alone. Hosts that show a kernel have no such cells, and a request by trait is one already. */
  function tell() {
    untold = false;
    if (byTrait || kernel.shown()) return;
    model.set("_request", { client, messages: [], told: number });
    model.save_changes();
  }

  /** Read a reply with the picture that came along: hosts may set one trait after the other, in
   * any order, so wait until all of the update are there. */
  const onReply = () => {
    if (replied) return;
    replied = true;
    queueMicrotask(() => {
      replied = false;
      if (!closed) receive(model.get("_reply"), [model.get("_frame")]);
    });
  };
  const onLive = () => {
    heard = 0;
    hello = 0;
    tick();
  };
  model.on("msg:custom", receive);
  model.on("change:_reply", onReply);
  model.on("comm_live_update", onLive);
  const timer = setInterval(tick, 500);
  signal.addEventListener("abort", () => {
    closed = true;
    clearInterval(timer);
    cancelAnimationFrame(landing);
    model.off("msg:custom", receive);
    model.off("change:_reply", onReply);
    model.off("comm_live_update", onLive);
  });

  return {
    views,
    sayHello,
    tick,
    /** Ask for something else than new values, after those that still wait.
     * @param {"undo" | "reset" | "json" | "remote" | "open" | "timeline"} kind
     * @param {Record<string, unknown>} [more] */
    ask(kind, more = {}) {
      pump(true);
      if (!["undo", "reset", "open"].includes(kind)) return post({ ...more, kind });
      untold = true;
      flying.set(++number, { since: Date.now(), fields: [] });
      post({ ...more, kind, client, id: number });
    },
    status: () => status,
    /** Whether a change is on its way. */
    busy: () => next !== null || flying.size > 0,
    /** @param {string} name */
    pending: (name) => (next !== null && name in next.changes) ||
      [...flying.values()].some((f) => f.fields.includes(name)),
    /** Ask for new values. A draft may be dropped for a newer one; the last always goes out.
     * @param {Record<string, unknown>} changes @param {boolean} [draft] */
    change(changes, draft = false) {
      next = { changes: { ...next?.changes, ...changes }, draft };
      pump();
    },
  };
}
