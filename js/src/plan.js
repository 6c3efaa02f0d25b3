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
  const stackRow = make("div", { class: "tm-row" },
    make("label", { for: stack.id }, "Stack"), stack);
  const layout = make("p", { class: "tm-layout" });
  const node = make("details", { class: "tm-plan" }, make("summary", {}, "How the step is run"),
    stackRow, layout);
  for (const group of new Set(tables.plan.map((option) => option.group))) {
    const box = make("fieldset", {}, make("legend", {}, group));
    for (const option of tables.plan.filter((o) => o.group === group)) {
      box.append(add(option, optionControl(option, uid, change)));
    }
    node.append(box);
  }
  const names = new Set(tables.plan.map(({ name }) => name));

  return {
    node,
    stackRow,
    /** @param {string} name */
    has: (name) => names.has(name),

    /** @param {Shown} shown */
    paint({ panel, architecture }) {
      node.hidden = architecture === "";
      write(layout, panel.layout);
      mixed.hidden = panel.stack !== "";
      if (!link.busy()) assign(stack, panel.stack);
    },

    /** Let what is inside be seen. @param {Node} inside */
    unfold(inside) {
      if (node.contains(inside)) node.open = true;
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
