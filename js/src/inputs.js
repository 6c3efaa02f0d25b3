// @ts-check
// All controls: the ten inputs, the architecture, and how the step is run.

import { architectureControl } from "./architecture.js";
import { choiceControl, gpuControl, sliderControl } from "./controls.js";
import { make, write } from "./dom.js";
import { planControls } from "./plan.js";

/** @import {Control, Field, Named, Panel, Scope, Shown} from "../types" */

/** @param {Scope} scope @param {() => void} open what asks for a config.json */
export function inputControls(scope, open) {
  const { link, model, tables, uid, change } = scope;
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

  /** @param {Field} field */
  const controlOf = (field) => {
    if (field.name === "gpu_memory_gb") {
      return gpuControl(field, uid, change, tables, () => model.get("gpu"));
    }
    return (field.choices.length ? choiceControl : sliderControl)(field, uid, change);
  };

  const architecture = architectureControl(tables, uid, change, open);
  const node = make("div", { class: "tm-controls", role: "group", "aria-label": "Inputs" });
  for (const group of new Set(tables.fields.map((field) => field.group))) {
    const box = make("fieldset", {}, make("legend", {}, group));
    for (const field of tables.fields.filter((f) => f.group === group)) {
      if (!controls.size) box.append(architecture.node); // before all others
      box.append(add(field, controlOf(field)));
    }
    node.append(box);
  }
  const plan = planControls(scope, add);
  node.append(plan.node);

  return {
    node,
    controls,
    architecture,

    /** @param {Shown} shown */
    paint(shown) {
      const { panel, error, told, architecture: named } = shown;
      for (const [name, control] of controls) {
        const names = name === "gpu_memory_gb" ? [name, "gpu"] : [name]; // one control for both
        const wrong = error !== "" &&
          names.some((n) => told.field === n || error.startsWith(`${n}:`));
        control.invalid(wrong);
        // An option may share its name with an output; without architecture it has no value.
        const value = plan.has(name) ? panel.plan[name] : model.get(name);
        // Exact, but not to be typed in: a parameter count of an architecture is long.
        const long = named && tables.derived.includes(name) && !Number.isInteger(value);
        const text = long ? Number(value.toPrecision(4)) : value;
        if (value !== undefined && !names.some(link.pending)) control.set(value, text);
      }
      if (!link.pending("architecture")) architecture.set(named);
      plan.paint(shown);
    },

    /** Where the refusal of a field is said; null where no control of it is shown.
     * @param {string} field @returns {HTMLElement | null} */
    home(field) {
      /** @type {Record<string, HTMLElement | undefined>} */
      const others = { gpu: controls.get("gpu_memory_gb")?.node, architecture: architecture.node,
        stack: plan.stackRow };
      const at = others[field] ?? controls.get(field)?.node;
      if (!at || at.closest("[hidden]")) return null;
      plan.unfold(at);
      return at;
    },

    /** Switch off what can't be had, and say why. @param {Panel["unavailable"]} unavailable */
    bar(unavailable) {
      for (const { name, help } of tables.fields) {
        const { node: at } = /** @type {Control} */ (controls.get(name));
        const reasons = unavailable[name] ?? {};
        const text = [help, ...Object.entries(reasons).map(([value, why]) =>
          (value ? `${value}: ${why}` : why))].join(" ");
        write(/** @type {Element} */ (at.querySelector(".tm-help")), text);
        at.title = reasons[""] ?? help;
        for (const input of at.querySelectorAll("input")) {
          const why = reasons[""] ?? (input.type === "radio" ? reasons[input.value] : undefined);
          if (why !== undefined) input.disabled = true;
          if (input.type === "radio") input.title = why ?? "";
        }
      }
      plan.bar(unavailable.stack ?? {});
    },
  };
}
