// @ts-check
/**
 * The front end of `trainmem.TrainingMemoryWidget`: it paints what Python publishes and asks
 * for changes. Python is the source of truth; nothing here computes memory.
 *
 * @import {Field, Message, Model, Named, Option, Panel, Status, Tables, View} from "./types"
 */

const MAX_IN_FLIGHT = 2; // one is drawn while the one before is painted
const MAX_OUTBOX = 16; // requests repeated to a host without messages
const HELLO_MS = 10_000;
const TRAIT_MS = 3_000; // an idle kernel silent for so long may only hear traits
const WAITING_MS = 1_500; // unanswered for so long: the kernel is busy
const LOST_MS = 4_000; // the same with a kernel known to be idle: nobody is there
const SILENT_MS = 30_000; // the same where the host doesn't tell what its kernel does
const LOOPBACK = /^(localhost|127\..*|\[::1\]|.*\.localhost)$/;
const CLOSE_MS = 150; // between two requests in close succession
const INPUTS = ["num_gpus", "model_params_b", "gpu_memory_gb", "micro_batch", "seq_length",
  "num_layers", "hidden_dim", "precision_bits", "zero_stage", "grad_ckpt", "gpu",
  "architecture", "plan"];

/**
 * Talk to one Python model, for all its views: liveness, numbered requests, answers.
 * @param {Model} model
 * @param {AbortSignal} signal
 */
function connect(model, signal) {
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
  let hadKernel = false; // whether the host has shown one
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

  /** @returns {boolean | null} whether the kernel is at work; null where the host won't tell */
  function kernelBusy() {
    const state = kernel()?.status;
    return state === "busy" || (state === "idle" ? false : null);
  }

  /** @returns {any} */
  function kernel() {
    return /** @type {any} */ (model.widget_manager)?.kernel;
  }

  function kernelGone() {
    const { status: state, connectionStatus } = kernel() ?? {};
    hadKernel ||= Boolean(kernel());
    return (
      (hadKernel && !kernel()) || // shut down
      ["dead", "restarting", "autorestarting", "terminating"].includes(state) ||
      (connectionStatus !== undefined && connectionStatus !== "connected") ||
      [...views].some((view) => view.gone())
    );
  }

  function judge() {
    const oldest = Math.min(hello || Infinity, ...[...flying.values()].map((f) => f.since));
    const silent = Date.now() - oldest;
    const busy = kernelBusy();
    const lost = busy === null ? silent > SILENT_MS : !busy && silent > LOST_MS;
    /** @type {Status} */
    let now = "live";
    if (kernelGone() || lost) now = "disconnected";
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
    if (kernelGone()) return; // nobody to greet
    const anyone = [...views].some((view) => view.info() !== null);
    const age = Date.now() - (hello || heard);
    const deaf = !heard && kernelBusy() === false && status === "waiting";
    const patience = deaf ? TRAIT_MS : HELLO_MS * 2 ** Math.min(tries, 5);
    if ((anyone && age > patience) || (!heard && !hello)) {
      // A host that never answers messages gets the same question through a trait.
      if (!heard && hello && !kernelBusy()) byTrait = !byTrait;
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
    if (byTrait || hadKernel || kernel()) return;
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

/** Build an element. @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, string>} [attributes] @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[T]} */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Set text only where it differs, so that live regions speak once. @param {Node} node
 * @param {string} text */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set the value of a control only where it differs: browsers look through all controls of a page
 * after each. @param {{value: string}} control @param {string} value */
function assign(control, value) {
  if (control.value !== value) control.value = value;
}

/** Write rows of texts into a table; each row's first cell is its head.
 * @param {Element} body @param {string[][]} rows */
function fill(body, rows) {
  if (body.children.length !== rows.length) {
    body.replaceChildren(...rows.map((cells) => make("tr", {}, ...cells.map((_, i) =>
      (i ? make("td") : make("th", { scope: "row" }))))));
  }
  rows.forEach((cells, i) => cells.forEach((text, j) => write(body.children[i].children[j], text)));
}

/** @returns {"light" | "dark"} the theme of the host, or of the system */
function hostTheme() {
  const { body, documentElement: root } = document;
  const system = (/** @type {string} */ query) => Boolean(globalThis.matchMedia?.(query).matches);
  const dark = () => (system("(prefers-color-scheme: dark)") ? "dark" : "light");
  if (system("(forced-colors: active)")) return dark(); // the page has the system's colours
  const light = body.dataset.jpThemeLight; // JupyterLab, Notebook 7
  if (light) return light === "true" ? "light" : "dark";
  const kind = body.dataset.vscodeThemeKind ?? ""; // VS Code
  if (kind) return kind.includes("light") ? "light" : "dark";
  for (const node of [body, root]) {
    const named = [...node.classList, node.dataset.theme, node.getAttribute("theme")];
    if (named.includes("dark")) return "dark"; // marimo, Colab
    if (named.includes("light")) return "light";
  }
  return dark();
}

/** Find the slider position nearest to a value, by ratio. @param {number[]} values
 * @param {number} value */
function nearest(values, value) {
  let best = 0;
  const far = (/** @type {number} */ i) => Math.abs(Math.log(values[i] / value));
  for (let i = 1; i < values.length; i++) if (far(i) < far(best)) best = i;
  return best;
}

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const POWERS = "KMBT";

/** Take a typed text as a number where it is one; else Python shall say what is wrong. Thousands
 * may be grouped, a comma may be the decimal mark, and k, M, B, T may follow: powers of 1024 for
 * counts of tokens and widths, as people say them, else of 1000. Parameters are in billions.
 * @param {string} text @param {string} [name] the field's */
function typed(text, name = "") {
  let plain = text.normalize("NFKC").trim().replace(/(?<=\d)[\s_](?=\d{3}(?!\d))/g, "");
  if (/^[-+]?[1-9]\d{0,2}(,\d{3})+(?!\d)/.test(plain)) plain = plain.replaceAll(",", "");
  else plain = plain.replace(/^([-+]?\d+),(\d+)(?![\d.])/, "$1.$2");
  const [, digits, letter] = /^(.*?)\s*([kmbtg]?)$/i.exec(plain) ?? [];
  if (!NUMBER.test(digits ?? "")) return text;
  const base = /seq|hidden|chunk/.test(name) ? 1024 : 1000;
  let power = POWERS.indexOf((letter || " ").toUpperCase().replace("G", "B")) + 1;
  if (letter && name === "model_params_b") power -= 3;
  if (letter && name === "gpu_memory_gb") power -= 3;
  const value = Number(digits) * base ** power;
  return Number.isFinite(value) ? Number(value.toPrecision(15)) : text;
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser refused");
  }
}

/**
 * Write a PNG as a URL that needs neither a request nor to be revoked.
 * @param {DataView} bytes @param {number} [size] how many of them are the picture
 */
function dataUrl(bytes, size = bytes.byteLength) {
  const length = Math.min(size, bytes.byteLength);
  const octets = new Uint8Array(bytes.buffer, bytes.byteOffset, length);
  let text = "";
  for (let i = 0; i < length; i += 8192) text += String.fromCharCode(...octets.subarray(i, i + 8192));
  return `data:image/png;base64,${btoa(text)}`;
}

/** Offer a text as a file. @param {string} text @param {string} name
 * @param {(act: () => void, ms: number) => void} later */
function download(text, name, later) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: name }).click();
  later(() => URL.revokeObjectURL(url), 1000);
}

/**
 * A control for one field: `node` to show, `set(value)` to paint unless it is in use.
 * @typedef {{node: HTMLElement, set: (value: any, text?: any) => void,
 *   invalid: (bad: boolean) => void}} Control
 * @typedef {(changes: Record<string, unknown>, draft?: boolean, read?: string) => void} Change
 */

/** @param {Named} field @param {string} uid @param {Change} change
 * @returns {HTMLInputElement & {put: (value: unknown) => void,
 *   invalid: (bad: boolean) => void}} */
function textbox(field, uid, change) {
  const box = make("input", {
    id: `${uid}-${field.name}`, type: "text", inputmode: "decimal", autocomplete: "off",
    "aria-label": field.label, spellcheck: "false",
    "aria-errormessage": `${uid}-error`,
  });
  let before = ""; // what Python holds, or was asked for
  let asked = ""; // the text last asked for, which stays if it is refused
  let wrong = false;
  let editing = false;
  const commit = () => {
    if (!editing) return;
    editing = false;
    if (box.value === before) return;
    asked = before = box.value;
    const value = typed(before, field.name);
    const read = typeof value === "number" && /[,a-z]/i.test(before) && !NUMBER.test(before);
    change({ [field.name]: value }, false, read ? `Read “${before.trim()}” as ${value}` : "");
  };
  box.addEventListener("focus", () => box.select());
  box.addEventListener("input", () => {
    editing = box.matches(":focus");
    if (!editing) box.value = before; // the browser's undo writes into any box of the page
  });
  box.addEventListener("blur", commit);
  box.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the notebook has keys of its own
    if (event.key === "Enter") commit();
    else if (event.key === "Escape") {
      box.value = before;
      editing = false;
      if (wrong && asked) change({ [field.name]: typed(before) }); // the good one: no error any more
    }
  });
  return Object.assign(box, {
    put(/** @type {unknown} */ value) {
      before = String(value);
      if (!wrong) asked = "";
      if (!editing && !asked) assign(box, before);
    },
    invalid(/** @type {boolean} */ bad) {
      wrong = bad;
      box.setAttribute("aria-invalid", String(bad));
    },
  });
}

/** @param {Field} field @param {string} uid @param {Change} change @returns {Control} */
function sliderControl(field, uid, change) {
  const { values, name } = field;
  const slider = make("input", {
    type: "range", min: "0", max: String(values.length - 1), step: "1",
    "aria-label": field.label,
  });
  const unit = field.unit && ` ${field.unit}`;
  const exact = `${field.label}, exact value${unit && " in"}${unit}`; // two controls, two names
  const box = textbox({ ...field, label: exact }, uid, change);
  /** @type {"" | "pointer" | "key"} */
  let active = ""; // what holds it
  /** @type {number | null} */
  let sent = null;
  const show = (/** @type {number} */ value) => {
    slider.style.setProperty("--fill", `${(100 * Number(slider.value)) / (values.length - 1)}%`);
    slider.setAttribute("aria-valuetext", value + unit);
  };
  const ask = (/** @type {boolean} */ draft) => {
    const value = values[Number(slider.value)];
    box.invalid(false);
    box.put(value);
    show(value);
    sent = draft ? value : null;
    change({ [name]: value }, draft);
  };
  const release = () => {
    active = "";
    if (sent !== null) ask(false);
  };
  slider.addEventListener("pointerdown", () => { active = "pointer"; });
  slider.addEventListener("keydown", (event) => {
    event.stopPropagation();
    active ||= "key";
  });
  for (const end of ["pointerup", "pointercancel", "keyup", "blur"]) {
    slider.addEventListener(end, release);
  }
  // Where the pointer was let go outside; a held key changes at every repeat, so not for keys.
  slider.addEventListener("change", () => active === "pointer" && release());
  slider.addEventListener("input", () => ask(active !== ""));
  return {
    node: make("div", { class: "tm-row" },
      make("label", { for: box.id }, field.label), slider, box),
    set(value, text = value) {
      if (active) return;
      box.put(text);
      assign(slider, String(nearest(values, value)));
      show(value);
    },
    invalid: box.invalid,
  };
}

/** @param {Field} field @param {string} uid @param {Change} change @returns {Control} */
function choiceControl(field, uid, change) {
  const group = make("div", { class: "tm-choice", role: "radiogroup", "aria-label": field.label,
    "aria-errormessage": `${uid}-error` });
  const radios = field.choices.map(({ value, label }) => {
    const radio = make("input", { type: "radio", name: `${uid}-${field.name}`,
      value: String(value) });
    radio.addEventListener("keydown", (event) => event.stopPropagation());
    radio.addEventListener("change", () => change({ [field.name]: value }));
    group.append(make("label", {}, radio, make("span", {}, label)));
    return radio;
  });
  return {
    node: make("div", { class: "tm-row" }, make("span", {}, field.label), group),
    set(value) {
      for (const radio of radios) {
        if (radio.checked !== (Number(radio.value) === value)) radio.checked = !radio.checked;
      }
    },
    invalid: (bad) => group.setAttribute("aria-invalid", String(bad)),
  };
}

/** @param {Field} field @param {string} uid @param {Change} change @param {Tables} tables
 * @param {() => string} chosen @returns {Control} */
function gpuControl(field, uid, change, tables, chosen) {
  const select = make("select", { id: `${uid}-gpu`, "aria-label": field.label,
    "aria-errormessage": `${uid}-error` });
  for (const gpu of tables.gpus) select.append(make("option", { value: gpu.label }, gpu.label));
  select.append(make("option", { value: "" }, "Other size …"));
  const box = textbox({ ...field, label: `${field.label}: Size (GB)` }, uid, change);
  const other = make("div", { class: "tm-row" },
    make("label", { for: box.id }, "Size (GB)"), make("span"), box);
  select.addEventListener("change", () => {
    change({ gpu: select.value });
    if (select.value) return;
    other.hidden = false;
    box.focus();
  });
  return {
    node: make("div", { class: "tm-stack" }, make("div", { class: "tm-row" },
      make("label", { for: select.id }, field.label), select), other),
    set(value) {
      assign(select, chosen());
      other.hidden = chosen() !== "";
      box.put(value);
    },
    invalid(bad) {
      select.setAttribute("aria-invalid", String(bad));
      box.invalid(bad);
    },
  };
}

/** @param {Option} option @param {string} uid @param {Change} change @returns {Control} */
function optionControl(option, uid, change) {
  const { name, label, choices } = option;
  const head = make("label", { for: `${uid}-${name}` }, label);
  if (!choices.length) {
    const box = textbox(option, uid, change);
    return { node: make("div", { class: "tm-row" }, head, make("span"), box), set: box.put,
      invalid: box.invalid };
  }
  const select = make("select", { id: `${uid}-${name}` });
  for (const { value, label: text } of choices) {
    select.append(make("option", { value: JSON.stringify(value) }, text));
  }
  select.addEventListener("change", () => change({ [name]: JSON.parse(select.value) }));
  return {
    node: make("div", { class: "tm-row" }, head, select),
    set(value) { assign(select, JSON.stringify(value)); },
    invalid: (bad) => select.setAttribute("aria-invalid", String(bad)),
  };
}

/** Choose an architecture, by name or by its config.json. @param {Tables} tables
 * @param {string} uid @param {Change} change @param {(text: string) => void} open */
function architectureControl(tables, uid, change, open) {
  const select = make("select", { id: `${uid}-architecture` });
  const custom = make("option");
  select.append(make("option", { value: "" }, "Any (reduced-order)"), custom);
  for (const { name, label } of tables.architectures) {
    select.append(make("option", { value: name }, label));
  }
  select.append(make("option", { value: "open" }, "Open config.json …"));
  const area = make("textarea", { rows: "3", placeholder: "Paste a Hugging Face config.json",
    "aria-label": "config.json" });
  const file = make("input", { type: "file", accept: ".json", "aria-label": "config.json file" });
  const paste = make("div", { class: "tm-stack" }, area, file);
  paste.hidden = true;
  const given = (/** @type {string} */ text) => {
    const inside = paste.matches(":focus-within");
    paste.hidden = text.trim() !== "";
    if (!paste.hidden) return;
    if (inside) select.focus();
    open(text);
  };
  select.addEventListener("change", () => {
    paste.hidden = select.value !== "open";
    if (paste.hidden) change({ architecture: select.value });
    else area.focus();
  });
  area.addEventListener("keydown", (event) => event.stopPropagation());
  area.addEventListener("change", () => given(area.value));
  file.addEventListener("change", () => void file.files?.[0]?.slice(0, 1 << 20).text().then(given));
  return {
    select,
    node: make("div", { class: "tm-stack" }, make("div", { class: "tm-row" },
      make("label", { for: select.id }, "Architecture"), select), paste),
    /** @param {string} name */
    set(name) {
      custom.hidden = name === "" || tables.architectures.some((known) => known.name === name);
      custom.value = custom.hidden ? "-" : name;
      custom.textContent = name;
      if (paste.hidden) assign(select, name);
    },
  };
}

/**
 * Show one view of the model in `el`; return what takes it down.
 * @param {Model} model @param {HTMLElement} el @param {ReturnType<typeof connect>} link
 */
function show(model, el, link) {
  /** @type {Tables} */
  const tables = model.get("_tables");
  const uid = `tm-${Math.random().toString(36).slice(2)}`;
  const own = new AbortController();
  const { signal } = own;
  let read = ""; // how a typed text was understood
  const change = /** @type {Change} */ ((changes, draft, how = "") => {
    read = how;
    link.change(changes, draft);
  });
  const button = (/** @type {string} */ text, /** @type {() => void} */ act) => {
    const node = make("button", { type: "button" }, text);
    node.addEventListener("click", act);
    return node;
  };
  /** @type {Set<() => void>} */
  const due = new Set(); // what timers will do; done at once when the view goes
  const later = (/** @type {() => void} */ act, /** @type {number} */ ms) => {
    const run = () => {
      clearTimeout(timer);
      due.delete(run);
      act();
    };
    const timer = setTimeout(run, ms);
    due.add(run);
    if (signal.aborted) run();
  };

  // -- the elements, top to bottom
  const preset = make("select", { "aria-label": "Preset" });
  for (const name of tables.presets) preset.append(make("option", { value: name }, name));
  const custom = make("option", { value: "" }, "Custom");
  preset.append(custom);
  preset.addEventListener("change", () => {
    if (preset.value) change({ preset: preset.value });
  });
  const state = make("span", { class: "tm-state", role: "status" });
  const reset = button("Reset", () => link.ask("reset"));
  const explain = button("?", () => {
    explain.setAttribute("aria-pressed", String(root.toggleAttribute("data-help")));
  });
  explain.setAttribute("aria-label", "Explain the inputs");
  explain.setAttribute("aria-pressed", "false");
  const head = make("div", { class: "tm-head" },
    make("strong", {}, "LLM training memory"), preset, state, explain, reset);

  /** @type {Map<string, Control>} */
  const controls = new Map();
  /** Keep a control, with its help: by pointer, by touch, and for those who listen.
   * @param {Named} field @param {Control} control */
  const add = ({ name, help }, control) => {
    const text = make("p", { class: "tm-help", id: `${uid}-${name}-help` }, help);
    control.node.title = help;
    control.node.append(text);
    for (const node of control.node.querySelectorAll("select, [role], [type=range], [type=text]")) {
      node.setAttribute("aria-describedby", text.id);
    }
    controls.set(name, control);
    return control.node;
  };
  const groups = make("div", { class: "tm-controls", role: "group", "aria-label": "Inputs" });
  const architecture = architectureControl(tables, uid, change,
    (text) => link.ask("open", { config: text }));
  for (const group of ["Model", "Batch", "Cluster", "Training"]) {
    const box = make("fieldset", {}, make("legend", {}, group));
    if (group === "Model") box.append(architecture.node);
    for (const field of tables.fields.filter((f) => f.group === group)) {
      let control;
      if (field.name === "gpu_memory_gb") {
        control = gpuControl(field, uid, change, tables, () => model.get("gpu"));
      } else if (field.choices.length) control = choiceControl(field, uid, change);
      else control = sliderControl(field, uid, change);
      box.append(add(field, control));
    }
    groups.append(box);
  }
  const stack = make("select", { id: `${uid}-stack` });
  const mixed = make("option", { value: "" }, "Custom");
  stack.append(mixed);
  for (const { name, label } of tables.stacks) stack.append(make("option", { value: name }, label));
  stack.addEventListener("change", () => {
    if (stack.value) change({ stack: stack.value });
  });
  const layout = make("p", { class: "tm-layout" });
  const planned = new Set(tables.plan.map(({ name }) => name));
  const plan = make("details", { class: "tm-plan" }, make("summary", {}, "How the step is run"),
    make("div", { class: "tm-row" }, make("label", { for: stack.id }, "Stack"), stack), layout);
  for (const group of new Set(tables.plan.map((option) => option.group))) {
    const box = make("fieldset", {}, make("legend", {}, group));
    for (const option of tables.plan.filter((o) => o.group === group)) {
      box.append(add(option, optionControl(option, uid, change)));
    }
    plan.append(box);
  }
  groups.append(plan);

  const alert = make("p", { class: "tm-error", role: "alert", id: `${uid}-error` });
  const headline = make("strong");
  const sentence = make("span");
  const also = make("p", { class: "tm-also", role: "status" });
  const banner = make("div", { class: "tm-banner", tabindex: "-1" }, headline, sentence);
  const spoken = make("div", { class: "tm-hidden", "aria-live": "polite" });
  const fixes = make("div", { class: "tm-fixes" });
  const undo = button("Undo", () => link.ask("undo"));
  const cards = make("div", { class: "tm-cards" });
  const image = make("img", { alt: "", decoding: "sync" });
  const missing = make("p");
  const figure = make("div", { class: "tm-figure" }, image, missing);
  image.hidden = true;
  const numbers = make("tbody");
  const table = make("table", { class: "tm-hidden" },
    make("caption", {}, "Memory of one training step"), numbers);
  const steps = make("img", { alt: "", hidden: "" });
  const time = make("details", {}, make("summary", {}, "One step over time"), steps);
  time.addEventListener("toggle", askTime);
  const alive = make("tbody");
  const detail = make("details", {}, make("summary", {}, "What is alive at the peak"),
    make("table", { class: "tm-detail" }, alive));
  const omits = make("span");
  const offer = button("", () => architecture.select.focus());
  const note = make("p", { class: "tm-note" }, omits, " ", offer);
  const result = make("div", { class: "tm-result" }, alert, also, banner, spoken, fixes, cards, figure,
    time, detail, note, table);

  const footer = make("span", { class: "tm-facts" });
  const copyButton = (/** @type {string} */ text, /** @type {"python" | "curl"} */ what) => {
    const node = button(text, () => {
      copy(model.get("_panel")[what]).then(
        () => { node.textContent = "Copied ✓"; },
        () => { node.textContent = "Not copied"; },
      ).finally(() => later(() => { node.textContent = text; }, 1500));
    });
    return node;
  };
  const json = button("JSON", () => {
    wantsJson = true;
    link.ask("json");
  });
  let wantsJson = false;
  const run = button("", () => link.ask("remote"));
  const told = make("p", { class: "tm-remote", "aria-live": "polite" });
  const curl = copyButton("Copy curl", "curl");
  const foot = make("div", { class: "tm-foot" }, copyButton("Copy Python", "python"), curl, json,
    run, footer, told);

  const root = make("div", { class: "trainmem" }, head,
    make("div", { class: "tm-body" }, groups, result), foot);
  el.append(root);
  el.style.flexGrow ||= "1"; // in an HBox it takes what room there is
  el.style.minWidth ||= "0";
  el.style.minHeight ||= "max-content"; // as high as it is where a host would have 400 px
  root.addEventListener("keydown", (event) => {
    const undoes = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey &&
      event.key.toLowerCase() === "z";
    const target = /** @type {HTMLElement} */ (event.target);
    if (!undoes || target.matches("textarea, [type=text]")) return; // texts have an undo of theirs
    event.preventDefault();
    event.stopPropagation();
    link.ask("undo");
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

  function paintNow() {
    if (signal.aborted) return;
    /** @type {Panel} */
    const panel = model.get("_panel");
    const status = link.status();
    root.dataset.theme = hostTheme();
    root.dataset.status = status;
    root.dataset.grade = panel.grade;
    root.dataset.fits = String(panel.fits);
    everLive ||= status === "live";
    const dead = status === "disconnected" || !everLive;
    const copied = status === "disconnected" && !everLive;
    root.toggleAttribute("data-copy", copied);
    write(state, copied ? "Static copy" : { live: "", waiting: "Waiting for the kernel …",
      disconnected: "Disconnected: run the cell again" }[status]);
    if (image.hidden) paintMissing(status);
    const error = model.get("error");
    const told = model.get("_told") ?? {};
    const named = model.get("architecture");
    /** @type {Record<string, unknown>} */
    const options = panel.plan;
    for (const [name, control] of controls) {
      const names = name === "gpu_memory_gb" ? [name, "gpu"] : [name]; // one control for both
      const wrong = error !== "" && names.some((n) => told.field === n || error.startsWith(`${n}:`));
      control.invalid(wrong);
      // An option may share its name with an output; without architecture it has no value.
      const value = planned.has(name) ? options[name] : model.get(name);
      // Exact, but not to be typed in: a parameter count of an architecture is long.
      const long = named && tables.derived.includes(name) && !Number.isInteger(value);
      const text = long ? Number(value.toPrecision(4)) : value;
      if (value !== undefined && !names.some(link.pending)) control.set(value, text);
    }
    write(layout, panel.layout);
    if (!link.pending("architecture")) architecture.set(named);
    custom.hidden = panel.preset !== "";
    mixed.hidden = panel.stack !== "";
    if (!link.busy()) {
      assign(preset, panel.preset);
      assign(stack, panel.stack);
    }
    plan.hidden = time.hidden = detail.hidden = named === "";
    placeAlert(error && told.field);
    write(alert, `${(error && told.error) || error} ${model.get("_undrawn") ?? ""}`.trim());
    alert.hidden = alert.textContent === "";
    const aside = [read, told.also].filter(Boolean).join(" · ");
    write(also, error ? "" : aside);
    also.hidden = also.textContent === "";
    write(headline, panel.headline);
    write(sentence, panel.banner);
    paintFixes(panel);
    paintCards(panel);
    curl.hidden = panel.curl === "";
    write(omits, panel.note.text);
    write(offer, panel.note.offer);
    note.hidden = panel.note.text === "";
    fill(alive, panel.detail);
    if (!model.get("_reply")?.draft) { // what is only read at rest
      image.alt = model.get("_alt");
      fill(numbers, panel.table);
      write(footer, panel.footer);
    }
    enable(dead, panel.unavailable);
    paintRemote(dead);
    speak(`${panel.headline}. ${panel.banner}`);
  }
  let everLive = false;

  /** Put the alert where its field is. @param {string} field */
  function placeAlert(field) {
    const at = { gpu: controls.get("gpu_memory_gb")?.node, architecture: architecture.node,
      stack: stack.parentElement }[field] ?? controls.get(field)?.node;
    const home = at && !at.closest("[hidden]") ? at : result;
    if (alert.parentElement === home) return;
    if (home === result) result.prepend(alert);
    else home.append(alert);
    if (plan.contains(alert)) plan.open = true;
  }

  let enabled = "";
  /** Switch the controls on or off, where that or what there is has changed; say why those that
   * can't be had can't. @param {boolean} dead @param {Panel["unavailable"]} unavailable */
  function enable(dead, unavailable) {
    const now = `${dead} ${JSON.stringify(unavailable)} ${shownFixes}`;
    if (now === enabled) return;
    enabled = now;
    for (const node of /** @type {NodeListOf<HTMLButtonElement>} */ (
      root.querySelectorAll("input, select, button, textarea"))) {
      node.disabled = dead && node !== explain && (node === json || !node.closest(".tm-foot"));
    }
    for (const { name, help } of tables.fields) {
      const node = /** @type {Control} */ (controls.get(name)).node;
      const reasons = unavailable[name] ?? {};
      const text = [help, ...Object.entries(reasons).map(([value, why]) =>
        (value ? `${value}: ${why}` : why))].join(" ");
      write(/** @type {Element} */ (node.querySelector(".tm-help")), text);
      node.title = reasons[""] ?? help;
      for (const input of node.querySelectorAll("input")) {
        const why = reasons[""] ?? (input.type === "radio" ? reasons[input.value] : undefined);
        if (why !== undefined) input.disabled = true;
        if (input.type === "radio") input.title = why ?? "";
      }
    }
    for (const choice of stack.options) {
      const why = unavailable.stack?.[choice.value];
      choice.disabled = why !== undefined;
      choice.title = why ?? "";
    }
  }

  /** @param {boolean} dead */
  function paintRemote(dead) {
    /** @type {{host?: string, state?: string, text?: string}} */
    const { host = "", state: outcome = "", text = "" } = model.get("_remote") ?? {};
    run.hidden = host === "" || model.get("architecture") !== ""; // servers know the ten inputs
    run.disabled = dead || outcome === "running";
    write(run, `Run on ${host}`);
    write(told, ({ agrees: "✓ ", differs: "≠ ", failed: "✗ " }[outcome] ?? "") + text);
    told.hidden = text === "";
    told.dataset.state = outcome;
  }

  let shownFixes = "";
  /** @param {Panel} panel */
  function paintFixes(panel) {
    const held = /** @type {Document} */ (root.getRootNode()).activeElement;
    const within = fixes.contains(held);
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
    fixes.hidden = panel.grade === "fits" && !undoable;
    const now = JSON.stringify([panel.grade, panel.fixes]);
    if (now === shownFixes) return; // a button under the finger stays the same button
    shownFixes = now;
    const chips = panel.fixes.flatMap(({ offer, items }) => [make("span", {}, offer),
      ...items.map((fix) => button(fix.label, () => change(fix.changes)))]);
    const none = panel.grade === "does not fit" ? "No single change fits" : "";
    fixes.replaceChildren(...(chips.length ? chips : [make("span", {}, none)]), undo);
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

  let toSay = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let speaking;
  /** Announce a result once it rests. @param {string} text */
  function speak(text) {
    if (text === toSay) return;
    toSay = text;
    clearTimeout(speaking);
    speaking = setTimeout(() => write(spoken, text), 700);
  }

  // -- the picture
  const shown = { id: -1, draft: true, key: "" };
  let visible = true;
  let good = ""; // the last source that could be shown
  image.addEventListener("load", () => { good = image.src; });
  image.addEventListener("error", () => { if (good && image.src !== good) image.src = good; });
  const want = { width: 0, ratio: 1, theme: "light" };
  const key = () => `${want.width}x${want.ratio}-${want.theme}`;

  /** Give the picture its room, so that a new one moves nothing. @param {DataView} png */
  function place(png) {
    if (png.byteLength < 24) return;
    const ratio = `${png.getUint32(16)} / ${png.getUint32(20)}`; // as its header says
    if (figure.style.aspectRatio !== ratio) figure.style.aspectRatio = ratio;
  }

  /** Show a picture, or none where it could not be drawn: an old one would be wrong.
   * @param {HTMLImageElement} node @param {DataView} bytes @param {number} [size] */
  function put(node, bytes, size) {
    node.hidden = !bytes.byteLength || size === 0;
    if (node === image) write(missing, "");
    if (node.hidden) {
      node.removeAttribute("src");
      if (node === image) good = "";
      return;
    }
    if (node === image) place(bytes);
    node.src = dataUrl(bytes, size);
  }

  const opened = Date.now();
  /** Show the picture of the state, as a reopened notebook has it, or say why there is none: at
   * once where it is of this theme, else where no other is to be expected soon.
   * @param {Status} status */
  function paintMissing(status) {
    const saved = model.get("_frame");
    const theme = model.get("_reply")?.key?.endsWith("-dark") ? "dark" : "light";
    const late = status === "disconnected" || Date.now() - opened > WAITING_MS;
    if (saved?.byteLength && (late || theme === hostTheme())) put(image, saved);
    else if (late && status !== "live") {
      write(missing, status === "waiting" ? "The picture follows once the kernel is free."
        : "No picture is stored here.");
    }
  }

  /** @param {Message} content @param {DataView} bytes */
  function frame(content, bytes) {
    const { id = 0, draft = false } = content;
    const stale = signal.aborted || content.key !== key() || id < shown.id ||
      (id === shown.id && draft && !shown.draft && shown.key === content.key);
    if (stale || !bytes) return;
    put(image, bytes, content.size);
    image.dataset.frame = String(id);
    Object.assign(shown, { id, draft, key: content.key });
    if (!draft) askTime();
  }

  // -- one step over time: drawn on demand, at rest
  const timed = { id: -1, key: "" };
  function askTime() {
    if (!time.open || time.hidden || shown.draft) return;
    if (timed.id !== shown.id || timed.key !== shown.key) link.ask("timeline", { ...want });
  }

  /** @param {Message} content @param {DataView} bytes */
  function showTime(content, bytes) {
    if (content.key !== key() || signal.aborted || !bytes) return;
    Object.assign(timed, { id: content.id, key: content.key });
    put(steps, bytes);
    steps.alt = content.alt ?? "";
  }

  function measure() {
    const ratio = Math.min(Math.max(globalThis.devicePixelRatio || 1, 0.5), 4);
    const now = { width: Math.round(figure.clientWidth), ratio: Math.round(ratio * 100) / 100,
      theme: hostTheme() };
    if (now.width === want.width && now.ratio === want.ratio && now.theme === want.theme) return;
    Object.assign(want, now);
    paint();
    link.sayHello();
  }

  /** @type {View} */
  const view = {
    info: () => (visible && !document.hidden && want.width >= 100
      ? { ...want, frame: shown.draft ? -1 : shown.id, key: shown.key } : null),
    message(content, buffers) {
      if (content.kind === "frame") void frame(content, buffers[0]);
      if (content.kind === "timeline") showTime(content, buffers[0]);
      if (content.kind === "json" && wantsJson) {
        wantsJson = false;
        download(JSON.stringify(content.answer, null, 1), "trainmem.json", later);
      }
    },
    paint,
    gone: () => el.closest(".jupyter-widgets-disconnected") !== null,
  };
  link.views.add(view);

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let measuring;
  const measureSoon = () => {
    clearTimeout(measuring);
    measuring = setTimeout(measure, want.width ? 100 : 0);
  };
  const sizes = new ResizeObserver(measureSoon);
  sizes.observe(figure);
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
  const watched = [...INPUTS, "_panel", "_frame", "_alt", "_undrawn", "_undo", "_remote", "_told",
    "error"].map((n) => `change:${n}`);
  for (const event of watched) model.on(event, paint);
  later(paint, WAITING_MS + 1);
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
    clearTimeout(speaking);
    for (const run of due) run();
    cancelAnimationFrame(painting);
    root.remove();
  };
}

// A function, so that every model has a connection of its own: hosts share this module.
export default () => {
  /** @type {ReturnType<typeof connect> | undefined} */
  let link;
  return {
    /** @param {{model: Model, signal?: AbortSignal}} context */
    initialize({ model, signal }) {
      const own = new AbortController();
      const close = () => own.abort();
      signal?.addEventListener("abort", close, { signal: own.signal });
      link = connect(model, own.signal);
      return close;
    },
    /** @param {{model: Model, el: HTMLElement, signal?: AbortSignal}} context */
    render({ model, el, signal }) {
      if (!link) throw new Error("initialize() has not run");
      const takeDown = show(model, el, link);
      const close = () => {
        signal?.removeEventListener("abort", close);
        takeDown();
      };
      signal?.addEventListener("abort", close);
      return close;
    },
  };
};
