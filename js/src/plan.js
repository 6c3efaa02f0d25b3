// @ts-check
// How the step is run: the training stack, and every option of a plan.

import { optionControl } from "./controls.js";
import { assign, make, write } from "./dom.js";

/** @import {Control, Named, Scope, Shown} from "../types" */

/** @param {Scope} scope @param {(field: Named, control: Control) => HTMLElement} add */
export function planControls({ link, tables, uid, change }, add) {
  const stack = make("select", { id: `${uid}-stack` });
  const mixed = make("option", { value: "" }, "Custom");
  stack.append(mixed);
  for (const { name, label } of tables.stacks) stack.append(make("option", { value: name }, label));
  stack.addEventListener("change", () => {
    if (stack.value) change({ stack: stack.value });
  });
  const stackRow = make("div", { class: "tm-row tm-tall" },
    make("label", { for: stack.id }, "Stack"), stack);
  /** @type {Map<string, HTMLElement>} */
  const rows = new Map();
  const layout = make("p", { class: "tm-layout" });
  const line = make("span");
  const node = make("details", { class: "tm-plan" }, make("summary", {}, line, " change…"),
    layout);
  for (const group of new Set(tables.plan.map((option) => option.group))) {
    // One group open at a time.
    const box = make("details", { name: `${uid}-plan` }, make("summary", {}, group));
    for (const option of tables.plan.filter((o) => o.group === group)) {
      box.append(add(option, optionControl(option, uid, change)));
      rows.set(option.name, /** @type {HTMLElement} */ (box.lastElementChild));
    }
    node.append(box);
  }
  const whole = make("fieldset", {}, make("legend", {}, "How the step is run"), stackRow, node);

  return {
    node: whole,
    stackRow,
    /** @param {string} name */
    has: (name) => rows.has(name),

    /** @param {Shown} shown */
    paint({ panel, architecture }) {
      whole.hidden = architecture === "";
      write(line, panel.summary);
      for (const [name, row] of rows) row.hidden = panel.idle.includes(name);
      write(layout, panel.layout);
      mixed.hidden = panel.stack !== "";
      if (!link.busy()) assign(stack, panel.stack);
    },

    /** Let what is inside be seen. @param {Node} inside */
    unfold(inside) {
      if (!node.contains(inside)) return;
      node.open = true;
      const group = /** @type {HTMLElement} */ (inside).closest("details");
      if (group) group.open = true;
    },

    /** Switch off stacks that can't be had. @param {Record<string, string>} reasons */
    bar(reasons) {
      for (const choice of stack.options) {
        const why = reasons[choice.value];
        choice.disabled = why !== undefined;
        choice.title = why ?? "";
      }
    },
  };
}
