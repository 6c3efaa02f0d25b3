// @ts-check
// Numbers as people type them, and where they are on a slider.

/** Find the slider position nearest to a value, by ratio. @param {number[]} values
 * @param {number} value */
export function nearest(values, value) {
  let best = 0;
  const far = (/** @type {number} */ i) => Math.abs(Math.log(values[i] / value));
  for (let i = 1; i < values.length; i++) if (far(i) < far(best)) best = i;
  return best;
}

export const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const POWERS = "KMBT";

/** Take a typed text as a number where it is one; else Python shall say what is wrong. Thousands
 * may be grouped, a comma may be the decimal mark, and k, M, B, T may follow: powers of 1024 for
 * counts of tokens and widths, as people say them, else of 1000. Parameters are in billions.
 * @param {string} text @param {string} [name] the field's */
export function typed(text, name = "") {
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
