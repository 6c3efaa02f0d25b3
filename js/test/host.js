// A host for the front end: a model as anywidget hands it over, and a page whose every
// listener, observer, timer and object URL is counted.
import { vi } from "vitest";
import front from "../src/main.js";
import states from "./state.json";

/** A model that behaves as Backbone's: `change:` events on a difference, in `set`. */
export class Model {
  constructor(state = {}, kernel = { status: "idle", connectionStatus: "connected" }) {
    this.state = { ...structuredClone(states.fits), _frame: new DataView(new ArrayBuffer(0)),
      _reply: {}, _request: {}, ...state };
    this.handlers = new Map();
    this.sent = []; // custom messages
    this.callbacks = [];
    this.saves = 0;
    this.greeted = 0;
    this.widget_manager = { kernel };
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    const old = this.state[name];
    this.state[name] = value;
    if (JSON.stringify(old) !== JSON.stringify(value)) this.emit(`change:${name}`);
  }

  on(event, handler) {
    this.handlers.set(event, [...(this.handlers.get(event) ?? []), handler]);
  }

  off(event, handler) {
    this.handlers.set(event, (this.handlers.get(event) ?? []).filter((h) => h !== handler));
  }

  emit(event, ...args) {
    for (const handler of this.handlers.get(event) ?? []) handler(...args);
  }

  save_changes() {
    this.saves++;
  }

  send(content, callbacks) {
    this.sent.push(structuredClone(content));
    this.callbacks.push(callbacks);
  }

  // -- what Python does

  /** Publish traits in one update. */
  publish(state) {
    const before = { ...this.state };
    Object.assign(this.state, state);
    for (const name of Object.keys(state)) {
      if (JSON.stringify(before[name]) !== JSON.stringify(state[name])) this.emit(`change:${name}`);
    }
  }

  short() {
    this.publish(structuredClone(states.short));
  }

  message(content, ...buffers) {
    this.emit("msg:custom", content, buffers);
  }

  /** Answer every hello, those included that the answers bring on. */
  greet() {
    while (this.greeted < this.of("hello").length) {
      this.message({ kind: "hello", n: this.of("hello")[this.greeted++].n });
    }
  }

  answer(id, content = { kind: "done" }, ...buffers) {
    this.message({ ...content, client: this.client, answers: id }, ...buffers);
  }

  // -- what the browser did

  of(kind) {
    return this.sent.filter((content) => content.kind === kind);
  }

  last(kind) {
    return this.of(kind).at(-1);
  }

  get client() {
    return this.last("hello").client;
  }

  get listeners() {
    return [...this.handlers.values()].flat().length;
  }
}

/** Observers of one kind that are watching something. */
function observer() {
  return class Fake {
    static live = new Set();
    constructor(callback) {
      this.callback = callback;
      this.nodes = new Set();
    }
    observe(node, options) {
      this.nodes.add(node);
      this.options = options;
      Fake.live.add(this);
    }
    disconnect() {
      this.nodes.clear();
      Fake.live.delete(this);
    }
    static fire(entries, node) {
      for (const one of [...Fake.live]) {
        if (!node || one.nodes.has(node)) one.callback(entries, one);
      }
    }
  };
}

/** Count the listeners of a target, with `signal`, `once` and removal as the DOM has them. */
function counted(target) {
  const live = new Set();
  const { addEventListener: add, removeEventListener: remove } = target;
  target.addEventListener = (type, handler, options) => {
    const entry = { type, handler };
    if (options?.signal?.aborted) return;
    live.add(entry);
    options?.signal?.addEventListener("abort", () => live.delete(entry));
    add?.call(target, type, handler, options);
  };
  target.removeEventListener = (type, handler) => {
    for (const entry of live) {
      if (entry.type === type && entry.handler === handler) live.delete(entry);
    }
    remove?.call(target, type, handler);
  };
  return { live, restore: () => Object.assign(target, { addEventListener: add,
    removeEventListener: remove }) };
}

/** Set the page up; `page.restore()` undoes it. */
export function openPage() {
  vi.useFakeTimers({ now: 1_700_000_000_000, toFake: ["setTimeout", "clearTimeout",
    "setInterval", "clearInterval", "Date", "requestAnimationFrame", "cancelAnimationFrame"] });
  const page = { urls: new Map(), revoked: [], width: 800, dark: false, forced: false, clicks: [] };
  page.doc = counted(document);
  page.media = { matches: false };
  page.mediaCount = counted(page.media);
  page.Resize = observer();
  page.Mutation = observer();
  page.Intersection = observer();
  vi.stubGlobal("ResizeObserver", page.Resize);
  vi.stubGlobal("MutationObserver", page.Mutation);
  vi.stubGlobal("IntersectionObserver", page.Intersection);
  vi.stubGlobal("matchMedia", (query) => {
    if (query === "(forced-colors: active)") return { matches: page.forced };
    if (query !== "(prefers-color-scheme: dark)") throw new Error(query);
    page.media.matches = page.dark;
    return page.media;
  });
  let count = 0;
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => {
    const url = `blob:test/${++count}`;
    page.urls.set(url, blob);
    return url;
  });
  vi.spyOn(URL, "revokeObjectURL").mockImplementation((url) => {
    page.revoked.push(url);
    page.urls.delete(url);
  });
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockImplementation(() => page.width);
  vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function click() {
    page.clicks.push({ href: this.href, name: this.download });
  });
  page.restore = () => {
    page.doc.restore();
    document.body.replaceChildren();
    for (const node of [document.body, document.documentElement]) {
      for (const { name } of [...node.attributes]) node.removeAttribute(name);
    }
    vi.useRealTimers();
    vi.unstubAllGlobals();
    vi.restoreAllMocks();
  };
  return page;
}

/** Let promises settle and the next animation frame be painted. */
export async function settle(ms = 20) {
  await vi.advanceTimersByTimeAsync(ms);
}

/** Mount views of a model, as a host does. */
export async function mount(model, { views = 1, live = true, signals = false } = {}) {
  const definition = front();
  const ends = [];
  const scope = (context) => {
    if (!signals) return context;
    const controller = new AbortController();
    ends.push({ abort: () => controller.abort(), live: counted(controller.signal).live });
    return { ...context, signal: controller.signal };
  };
  const closeModel = definition.initialize(scope({ model }));
  const mounted = [];
  for (let i = 0; i < views; i++) {
    const el = document.createElement("div");
    document.body.append(el);
    mounted.push(view(el, definition.render(scope({ model, el }))));
  }
  await settle();
  if (live) {
    model.greet();
    await settle();
  }
  return { ...mounted[0], views: mounted, closeModel, ends,
    closeAll: () => { for (const { close } of mounted) close(); closeModel(); } };
}

function view(el, close) {
  const root = el.querySelector(".trainmem");
  const labelled = (label, type) =>
    root.querySelector(`input[type="${type}"][aria-label="${label}"]`);
  return {
    el, root, close,
    slider: (label) => labelled(label, "range"),
    box: (label) => root.querySelector(`input[type="text"][aria-label^="${label}"]`),
    select: (label) => root.querySelector(`select[aria-label="${label}"]`),
    radio: (label, text) => [...root.querySelectorAll(`[role=radiogroup][aria-label="${label}"] label`)]
      .find((node) => node.textContent === text).querySelector("input"),
    button: (text) => [...root.querySelectorAll("button")]
      .find((node) => node.textContent.startsWith(text)),
    image: root.querySelector("img"),
    alert: root.querySelector("[role=alert]"),
    state: root.querySelector("[role=status]"),
    spoken: root.querySelector("[aria-live]"),
  };
}

/** Type into a box, key by key as the browser reports it. */
export function type(box, text) {
  box.focus();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Press a key on a control. */
export function press(node, key) {
  node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  node.dispatchEvent(new KeyboardEvent("keyup", { key, bubbles: true }));
}

/** Move a slider to a position. */
export function slide(slider, position) {
  slider.value = String(position);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}

export const fire = (node, name) => node.dispatchEvent(new Event(name, { bubbles: true }));

export const png = (n = 1) => new DataView(new Uint8Array([n, 2, 3]).buffer);
