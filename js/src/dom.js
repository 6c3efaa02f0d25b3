// @ts-check
// Elements of a page, made and changed as little as may be.

/** Build an element. @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, string>} [attributes] @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[T]} */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Set text only where it differs, so that live regions speak once. @param {Node} node
 * @param {string} text */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set the value of a control only where it differs: browsers look through all controls of a page
 * after each. @param {{value: string}} control @param {string} value */
export function assign(control, value) {
  if (control.value !== value) control.value = value;
}

/** Write rows of texts into a table; each row's first cell is its head.
 * @param {Element} body @param {string[][]} rows */
export function fill(body, rows) {
  if (body.children.length !== rows.length) {
    body.replaceChildren(...rows.map((cells) => make("tr", {}, ...cells.map((_, i) =>
      (i ? make("td") : make("th", { scope: "row" }))))));
  }
  rows.forEach((cells, i) => cells.forEach((text, j) => write(body.children[i].children[j], text)));
}

/** Build a button. @param {string} text @param {() => void} act */
export function button(text, act) {
  const node = make("button", { type: "button" }, text);
  node.addEventListener("click", act);
  return node;
}
