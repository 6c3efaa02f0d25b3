// @ts-check
// One control for each kind of field: it asks for changes, and shows what Python holds.

import { assign, make } from "./dom.js";
import { NUMBER, nearest, typed } from "./numbers.js";

/** @import {Change, Control, Field, Named, Option, Tables} from "../types" */

/** @param {Named} field @param {string} uid @param {Change} change
 * @returns {HTMLInputElement & {put: (value: unknown) => void,
 *   invalid: (bad: boolean) => void}} */
export function textbox(field, uid, change) {
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
export function sliderControl(field, uid, change) {
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
export function choiceControl(field, uid, change) {
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
export function gpuControl(field, uid, change, tables, chosen) {
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
export function optionControl(option, uid, change) {
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
