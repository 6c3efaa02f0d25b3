// What the shipped text itself promises: small, closed, and confined to its own root.
import { readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { expect, test } from "vitest";

const here = (name) => new URL(`../${name}`, import.meta.url);
const read = (name) => readFileSync(here(name), "utf8");
const bundle = read("../src/trainmem/static/widget.js");
const sources = readdirSync(here("src")).filter((name) => name.endsWith(".js"));
const css = read("src/widget.css").replace(/\/\*[\s\S]*?\*\//g, "");

test("the bundle is that of the sources, and small", async () => {
  const { output } = await build({ root: fileURLToPath(here(".")), logLevel: "error",
    build: { write: false } });
  expect(output.map(({ fileName }) => fileName).sort()).toEqual(["widget.css", "widget.js"]);
  let size = 0;
  for (const { fileName, code, source } of output) {
    const sent = read(`../src/trainmem/static/${fileName}`);
    expect(sent === (code ?? source), `${fileName} is stale: npm run build`).toBe(true);
    size += Buffer.byteLength(sent);
  }
  expect(size).toBeLessThan(36_000);
});

test("no markup from data, no code from text, no address", () => {
  const forbidden = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?:|(?<!:)\/\/[a-z0-9-]+\.[a-z]/i;
  expect(bundle).not.toMatch(forbidden);
  expect(bundle).not.toMatch(/\bimport\b/);
  expect(css).not.toMatch(/https?:|@import|url\(/);
});

test("nothing is kept at module level but constants and functions", () => {
  expect(sources.length).toBeGreaterThan(10);
  for (const name of sources) {
    const top = read(`src/${name}`).split("\n")
      .filter((line) => /^(export )?(let|var|const|class)\b/.test(line));
    for (const line of top) expect(line, name).toMatch(/^(export )?const [A-Z_]+ = /);
  }
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
