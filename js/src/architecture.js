// @ts-check
// Choosing an architecture, by name or by its config.json.

import { assign, make } from "./dom.js";

/** @import {Change, Tables} from "../types" */

/** Choose an architecture, by name or by its config.json. @param {Tables} tables
 * @param {string} uid @param {Change} change @param {(text: string) => void} open */
export function architectureControl(tables, uid, change, open) {
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
