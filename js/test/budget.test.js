// What the shipped text itself promises: small, closed, and confined to its own root.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");
const js = read("widget.js");
const css = read("widget.css").replace(/\/\*[\s\S]*?\*\//g, "");

test("the front end stays under 40 kB", () => {
  expect(Buffer.byteLength(js) + Buffer.byteLength(read("widget.css"))).toBeLessThan(40_000);
});

test("no markup from data, no code from text, no address", () => {
  const forbidden = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?:|(?<!:)\/\/[a-z0-9-]+\.[a-z]/i;
  expect(js).not.toMatch(forbidden);
  expect(js.replace(/^ \* @import .*$/gm, "")).not.toMatch(/\bimport\b/); // types only
  expect(css).not.toMatch(/https?:|@import|url\(/);
});

test("nothing is kept at module level but constants and functions", () => {
  const top = js.split("\n").filter((line) => /^(let|var|const|class)\b/.test(line));
  for (const line of top) expect(line).toMatch(/^const [A-Z_]+ = /);
});

test("every CSS rule is under the root class", () => {
  const selectors = [...css.matchAll(/([^{}]+)\{/g)].map(([, text]) => text.trim())
    .filter((text) => !text.startsWith("@"));
  expect(selectors.length).toBeGreaterThan(40);
  for (const selector of selectors.flatMap(splitList)) expect(selector).toMatch(/^\.trainmem\b/);
});

/** Split a selector list at the commas that aren't inside parentheses. */
function splitList(selector) {
  let depth = 0;
  const parts = [""];
  for (const char of selector) {
    depth += { "(": 1, ")": -1 }[char] ?? 0;
    if (char === "," && depth === 0) parts.push("");
    else parts[parts.length - 1] += char;
  }
  return parts.map((part) => part.trim());
}

test("the root paints both its text and its background", () => {
  const root = css.match(/^\.trainmem \{([\s\S]*?)\}/m)[1];
  expect(root).toMatch(/\n\s*background:/);
  expect(root).toMatch(/\n\s*color:/);
});

test("colours fall back from JupyterLab to VS Code to literals, in both themes", () => {
  for (const name of ["--tm-bg", "--tm-fg", "--tm-soft"]) {
    const found = [...css.matchAll(new RegExp(`${name}: (.*);`, "g"))].map(([, value]) => value);
    expect(found).toHaveLength(2);
    for (const value of found) expect(value).toMatch(/^var\(--jp-.*var\(--vscode-.*, #[0-9a-f]{6}\)\)$/);
  }
});
