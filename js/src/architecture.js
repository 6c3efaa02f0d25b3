// @ts-check
// Choosing an architecture, by name or by its config.json.

import { assign, make } from "./dom.js";

/** @import {Change, Tables} from "../types" */

/** Choose an architecture, by name; its config.json is opened elsewhere. @param {Tables} tables
 * @param {string} uid @param {Change} change @param {() => void} open */
export function architectureControl(tables, uid, change, open) {
  const select = make("select", { id: `${uid}-architecture` });
  let opening = false;
  const custom = make("option");
  select.append(make("option", { value: "" }, "Any (reduced-order)"), custom);
  for (const { name, label } of tables.architectures) {
    select.append(make("option", { value: name }, label));
  }
  select.append(make("option", { value: "open" }, "Open config.json …"));
  select.addEventListener("change", () => {
    if (select.value !== "open") return change({ architecture: select.value });
    opening = true;
    open();
  });
  return {
    select,
    node: make("div", { class: "tm-row" },
      make("label", { for: select.id }, "Architecture"), select),
    /** Show what Python holds again, once the drawer is closed. */
    opened() { opening = false; },
    /** @param {string} name */
    set(name) {
      custom.hidden = name === "" || tables.architectures.some((known) => known.name === name);
      custom.value = custom.hidden ? "-" : name;
      custom.textContent = name;
      if (!opening) assign(select, name);
    },
  };
}
