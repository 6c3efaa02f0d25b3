// @vitest-environment happy-dom
// What the user does, what is asked for, and what painting leaves alone.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model, fire, mount, openPage, press, settle, slide, type } from "./host.js";

let page;
beforeEach(() => { page = openPage(); });
afterEach(() => page.restore());

const asked = (model) => model.of("set").map(({ changes }) => changes);
const visible = (node) => !node.closest("[hidden]");

// -- what is shown

test("shows every field with a label, the result, the numbers and the words", async () => {
  const model = new Model();
  const { root, image } = await mount(model);
  const tables = model.get("_tables");
  for (const { label, choices } of tables.fields) {
    const nodes = root.querySelectorAll(`[aria-label="${label}"]`);
    expect(nodes.length, label).toBeGreaterThan(0);
    if (choices.length) expect(nodes[0].querySelectorAll("input")).toHaveLength(choices.length);
  }
  for (const label of root.querySelectorAll("label[for]")) {
    expect(root.querySelector(`#${label.getAttribute("for")}`)).not.toBeNull();
  }
  expect(root.dataset.fits).toBe("true");
  expect(root.querySelector(".tm-banner").textContent).toContain("✓ Fits");
  expect(image.alt).toBe(model.get("_alt"));
  expect(root.querySelector("table > caption").textContent).toBe("Memory of one training step");
  const rows = [...root.querySelectorAll("table tr")].map((tr) =>
    [...tr.children].map((cell) => cell.textContent));
  expect(rows).toEqual(model.get("_panel").table);
  expect(root.querySelectorAll("table th[scope=row]")).toHaveLength(rows.length);
  const cards = [...root.querySelectorAll(".tm-cards b")].map((node) => node.textContent);
  expect(cards).toEqual(model.get("_panel").cards.map(({ value }) => value));
});

test("data is text, never markup", async () => {
  const model = new Model({ error: "num_gpus: '<img src=x onerror=alert(1)>' is not allowed" });
  model.state._panel.banner = "<script>alert(1)</script>";
  const { root, alert } = await mount(model);
  expect(alert.textContent).toContain("<img");
  expect(root.querySelectorAll("script, img[onerror]")).toHaveLength(0);
  expect(root.querySelector(".tm-banner").textContent).toContain("<script>");
});

test("follows what Python sets, and speaks the result once it rests", async () => {
  const model = new Model();
  const { root, box, slider, spoken } = await mount(model);
  await settle(1_000);
  const first = spoken.textContent;
  expect(first).toContain("Fits");
  model.short();
  await settle();
  expect(root.dataset.fits).toBe("false");
  expect(box("Parameters (B)").value).toBe("70");
  expect(slider("Parameters (B)").getAttribute("aria-valuetext")).toBe("70 billion parameters");
  expect(spoken.textContent).toBe(first); // not in the middle of a drag
  await settle(1_000);
  expect(spoken.textContent).toContain("Out of memory");
});

test("many changes are painted once per animation frame", async () => {
  const model = new Model();
  await mount(model);
  const get = vi.spyOn(model, "get");
  for (let n = 1; n <= 50; n++) model.publish({ num_gpus: n, _undo: n });
  await settle();
  const once = get.mock.calls.filter(([name]) => name === "_panel").length;
  expect(once).toBe(1);
});

test("what the model says is painted, never saved back", async () => {
  const model = new Model();
  await mount(model, { views: 2 });
  for (const event of [...model.handlers.keys()]) {
    model.emit(event, { kind: "done" }, []);
  }
  model.short();
  model.message({ kind: "frame", id: 1, key: "800x1-light", draft: false }, new DataView(
    new ArrayBuffer(4)));
  await settle(2_000);
  expect(model.saves).toBe(0);
});

// -- typed values

test.each([
  ["70.6", 70.6], ["2.5e-3", 0.0025], ["1 000", 1000], ["1 000 000", 1_000_000],
  ["1,5", 1.5], ["70,6", 70.6], ["0,125", 0.125], ["1,000", 1000], ["1,234,567.5", 1234567.5],
  ["70B", 70], ["70 b", 70], ["500M", 0.5], ["1.5T", 1500], ["\uff17\uff10\uff0e\uff16", 70.6],
  [".5", 0.5], ["3.", 3],
  ["1\u202f000", 1000], ["12_500", 12500], [" 64 ", 64], ["-1", -1], ["0", 0],
  // Not numbers: Python shall say what is wrong with the text.
  ["abc", "abc"], ["", ""], ["1 0000", "1 0000"], ["1 2", "1 2"], ["1,2,3", "1,2,3"],
  ["0x10", "0x10"], ["0b1", "0b1"], ["1e", "1e"], ["k", "k"], ["1,0000,000", "1,0000,000"],
  ["Infinity", "Infinity"], ["NaN", "NaN"],
])("typed %j asks for %j", async (text, value) => {
  const model = new Model();
  const { box } = await mount(model);
  type(box("Parameters (B)"), text);
  expect(asked(model)).toEqual([]);
  press(box("Parameters (B)"), "Enter");
  expect(asked(model)).toEqual([{ model_params_b: value }]);
  expect(model.last("set").draft).toBe(false);
  box("Parameters (B)").blur();
  expect(asked(model)).toHaveLength(1); // Enter commits once
});

test.each([
  ["Sequence", "4k", "seq_length", 4096], ["Sequence", "32K", "seq_length", 32768],
  ["Sequence", "1M", "seq_length", 1048576], ["Hidden size", "8k", "hidden_dim", 8192],
  ["GPUs", "1k", "num_gpus", 1000], ["GPUs", "1.5k", "num_gpus", 1500],
  ["Micro-batch", "\uff14", "micro_batch", 4],
])("in %s, %s is %s = %d, and that is said", async (label, text, name, value) => {
  const model = new Model({ micro_batch: 2 });
  const { root, box } = await mount(model);
  type(box(label), text);
  press(box(label), "Enter");
  expect(asked(model)).toEqual([{ [name]: value }]);
  model.publish({ [name]: value });
  model.answer(model.last("set").id);
  await settle();
  expect(box(label).value).toBe(String(value));
  const read = /[a-z]/i.test(text) ? `Read “${text}” as ${value}` : "";
  expect(root.querySelector(".tm-also").textContent).toBe(read);
  type(box("Layers"), "12"); // plain: nothing to say, and the last no longer holds
  press(box("Layers"), "Enter");
  model.publish({ num_layers: 12 });
  await settle();
  expect(root.querySelector(".tm-also").textContent).toBe("");
});

test("blur commits, and an unchanged text asks for nothing", async () => {
  const model = new Model();
  const { box } = await mount(model);
  type(box("GPUs"), "64");
  box("GPUs").blur();
  expect(asked(model)).toEqual([{ num_gpus: 64 }]);
  model.publish({ num_gpus: 64 });
  model.answer(model.last("set").id);
  await settle();
  type(box("GPUs"), "64");
  box("GPUs").blur();
  box("GPUs").focus();
  box("GPUs").blur();
  press(box("GPUs"), "Enter");
  expect(asked(model)).toHaveLength(1);
});

test("the old value can be asked for again before the new one is answered", async () => {
  const model = new Model();
  const { box } = await mount(model);
  for (const text of ["64", "8"]) {
    type(box("GPUs"), text);
    press(box("GPUs"), "Enter");
  }
  expect(asked(model)).toEqual([{ num_gpus: 64 }, { num_gpus: 8 }]);
});

test("Escape restores what Python holds by now", async () => {
  const model = new Model();
  const { box } = await mount(model);
  type(box("GPUs"), "12");
  model.publish({ num_gpus: 16 });
  await settle();
  expect(box("GPUs").value).toBe("12"); // not while typing
  press(box("GPUs"), "Escape");
  expect(box("GPUs").value).toBe("16");
  box("GPUs").blur();
  expect(asked(model)).toEqual([]);
  model.publish({ num_gpus: 32 });
  await settle();
  expect(box("GPUs").value).toBe("32");
});

test("every control of the ten inputs leads from its mark to the words", async () => {
  const model = new Model();
  const { root } = await mount(model);
  for (const { name } of model.get("_tables").fields) {
    const error = `${name}: 4 is not allowed; must be otherwise`;
    model.publish({ error });
    await settle();
    const wrong = [...root.querySelectorAll('[aria-invalid="true"]')];
    expect(wrong.length, name).toBeGreaterThan(0);
    for (const node of wrong) {
      const words = root.querySelector(`#${node.getAttribute("aria-errormessage")}`);
      expect(words?.textContent, `${name}: ${node.localName}`).toContain("must be otherwise");
      expect(visible(words)).toBe(true);
    }
  }
});

test("a refused text stays to be mended, with the reason at its control", async () => {
  const model = new Model();
  const { root, box, alert } = await mount(model);
  expect(visible(alert)).toBe(false);
  type(box("GPUs"), "many");
  press(box("GPUs"), "Enter");
  model.publish({ error: "num_gpus: 'many' is not allowed; must be a whole number" });
  model.answer(model.last("set").id);
  await settle();
  expect(visible(alert)).toBe(true);
  expect(alert.textContent).toContain("whole number");
  expect(box("GPUs").value).toBe("many");
  const wrong = () => [...root.querySelectorAll('[aria-invalid="true"]')];
  expect(wrong()).toEqual([box("GPUs")]);
  expect(root.querySelector(`#${box("GPUs").getAttribute("aria-errormessage")}`)).toBe(alert);
  model.publish({ error: "", num_gpus: 16 });
  await settle();
  expect(visible(alert)).toBe(false);
  expect(wrong()).toEqual([]);
  expect(box("GPUs").value).toBe("16");
});

test("a refused text gives way to Escape, which asks for the good value, and to the slider",
  async () => {
    const model = new Model();
    const { box, slider } = await mount(model);
    const refuse = async () => {
      type(box("GPUs"), "0");
      press(box("GPUs"), "Enter");
      model.publish({ error: "num_gpus: 0 is not allowed; must be a whole number" });
      model.answer(model.last("set").id);
      await settle();
      expect(box("GPUs").value).toBe("0");
    };
    await refuse();
    press(box("GPUs"), "Escape");
    expect(box("GPUs").value).toBe("8");
    expect(model.last("set").changes).toEqual({ num_gpus: 8 });
    model.publish({ error: "" });
    model.answer(model.last("set").id);
    await settle();
    await refuse();
    box("GPUs").blur();
    slide(slider("GPUs"), 10);
    expect(box("GPUs").value).toBe("11");
  });

test.each([
  ["zero_stage", "ZeRO stage"], ["gpu", "GPU memory"], ["gpu_memory_gb", "GPU memory"],
  ["precision_bits", "Precision"], ["seq_length", "Sequence"],
])("an error about %s marks its control", async (name, label) => {
  const model = new Model({ error: `${name}: 4 is not allowed; must be otherwise` });
  const { root } = await mount(model);
  const wrong = [...root.querySelectorAll('[aria-invalid="true"]')];
  expect(wrong.length).toBeGreaterThan(0);
  for (const node of wrong) expect(node.getAttribute("aria-label")).toMatch(`${label}`);
});

test("every control has a name of its own, and its help by pointer, touch and ear", async () => {
  const model = new Model();
  const { root, button } = await mount(model);
  const inputs = [...root.querySelectorAll(".tm-controls :is(input:not([type=radio]), select)")];
  const name = (node) => node.getAttribute("aria-label") ??
    root.querySelector(`label[for="${node.id}"]`).textContent;
  expect(new Set(inputs.map(name)).size).toBe(inputs.length);
  for (const field of model.get("_tables").fields) {
    const nodes = root.querySelectorAll(`[aria-label^="${field.label}"]`);
    for (const node of nodes) {
      const help = root.querySelector(`#${node.getAttribute("aria-describedby")}`);
      expect(help.textContent).toBe(field.help);
      expect(help.closest("[title]").title).toBe(field.help);
    }
    for (const box of root.querySelectorAll(`[type=text][aria-label^="${field.label}"]`)) {
      if (box.id.endsWith("-gpu_memory_gb")) continue; // named by its label, which says the unit
      expect(box.getAttribute("aria-label")).toContain(field.unit);
    }
  }
  const help = button("?");
  for (const shown of [true, false]) {
    help.click();
    expect(root.hasAttribute("data-help")).toBe(shown);
    expect(help.getAttribute("aria-pressed")).toBe(String(shown));
  }
  model.widget_manager.kernel.status = "dead";
  await settle(600);
  expect([help.disabled, button("Reset").disabled]).toEqual([false, true]);
});

test("focus goes on from a chip or Undo that is gone, never to the page", async () => {
  const model = new Model();
  const { root, button } = await mount(model);
  model.short();
  await settle();
  const fits = { grade: "fits", fixes: [] };
  const panel = model.get("_panel");
  button(panel.fixes[0].items[0].label).focus();
  model.publish({ _panel: { ...panel, ...fits }, _undo: 1 });
  await settle();
  expect(document.activeElement).toBe(button("Undo"));
  model.publish({ _panel: panel, _undo: 0 });
  await settle();
  expect(document.activeElement).toBe(button(panel.fixes[0].items[0].label));
  model.publish({ _panel: { ...panel, ...fits } });
  await settle();
  expect(document.activeElement).toBe(root.querySelector(".tm-banner"));
  model.publish({ _panel: panel, _undo: 1 });
  await settle();
  expect(document.activeElement).toBe(root.querySelector(".tm-banner")); // nobody is pulled in
});

test("keys pressed in a control never reach the notebook", async () => {
  const model = new Model();
  const { el, box, slider, radio } = await mount(model);
  const heard = vi.fn();
  el.addEventListener("keydown", heard);
  for (const node of [box("GPUs"), slider("GPUs"), radio("ZeRO stage", "1")]) press(node, "a");
  expect(heard).not.toHaveBeenCalled();
});

test("the browser's undo, which writes into boxes out of use, leaves no box wrong", async () => {
  const model = new Model();
  const { box, slider } = await mount(model);
  slider("GPUs").focus();
  box("GPUs").value = "4";
  fire(box("GPUs"), "input");
  expect(box("GPUs").value).toBe("8");
  model.publish({ num_gpus: 16 });
  await settle();
  expect(box("GPUs").value).toBe("16");
  expect(asked(model)).toEqual([]);
});

test.each([["ctrlKey"], ["metaKey"]])("undo by %s + Z is the widget's, texts apart", async (held) => {
  const model = new Model();
  const { slider, box, radio, root } = await mount(model);
  const heard = vi.fn();
  root.parentElement.addEventListener("keydown", heard);
  const undo = (node, more = {}) => {
    const event = new KeyboardEvent("keydown", { key: "z", [held]: true, bubbles: true,
      cancelable: true, ...more });
    node.dispatchEvent(event);
    return event.defaultPrevented;
  };
  expect([slider("GPUs"), radio("ZeRO stage", "1")].map((node) => undo(node))).toEqual([true, true]);
  expect(model.of("undo")).toHaveLength(2);
  expect(undo(box("GPUs"))).toBe(false);
  expect(undo(slider("GPUs"), { shiftKey: true })).toBe(false);
  expect(undo(slider("GPUs"), { [held]: false })).toBe(false);
  expect(model.of("undo")).toHaveLength(2);
  expect(heard).not.toHaveBeenCalled(); // nor is it the notebook's
});

// -- sliders

test("a slider sends drafts while pressed and the final value on release", async () => {
  const model = new Model();
  const { slider, box } = await mount(model);
  const gpus = slider("GPUs");
  fire(gpus, "pointerdown");
  slide(gpus, 10);
  expect(box("GPUs").value).toBe("11");
  expect(gpus.getAttribute("aria-valuetext")).toBe("11");
  slide(gpus, 11);
  fire(gpus, "pointerup");
  fire(gpus, "change");
  fire(gpus, "blur");
  model.answer(model.of("set")[0].id);
  expect(model.of("set").map(({ changes, draft }) => [changes.num_gpus, draft])).toEqual([
    [11, true], [12, true], [12, false],
  ]);
});

test.each([["pointercancel"], ["blur"], ["change"]])(
  "a drag that ends with %s is final too", async (end) => {
    const model = new Model();
    const { slider } = await mount(model);
    fire(slider("GPUs"), "pointerdown");
    slide(slider("GPUs"), 10);
    fire(slider("GPUs"), end);
    expect(model.last("set")).toMatchObject({ draft: false, changes: { num_gpus: 11 } });
  });

test("a held arrow key is one change, however often it repeats", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  const gpus = slider("GPUs");
  for (let i = 10; i < 20; i++) {
    gpus.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    slide(gpus, i);
    fire(gpus, "change");
    model.answer(model.last("set").id);
  }
  fire(gpus, "keyup");
  expect(model.of("set").filter(({ draft }) => !draft)).toHaveLength(1);
});

test("a press without a move asks for nothing", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  fire(slider("GPUs"), "pointerdown");
  fire(slider("GPUs"), "pointerup");
  press(slider("GPUs"), "Tab");
  expect(asked(model)).toEqual([]);
});

test("painting leaves the slider in use alone and catches up after it", async () => {
  const model = new Model();
  const { slider, box } = await mount(model);
  const gpus = slider("GPUs");
  fire(gpus, "pointerdown");
  slide(gpus, 20);
  const position = gpus.value;
  model.answer(model.last("set").id);
  model.publish({ num_gpus: 3, num_layers: 40 });
  await settle();
  expect(gpus.value).toBe(position);
  expect(box("GPUs").value).not.toBe("3");
  expect(box("Layers").value).toBe("40"); // the others follow
  fire(gpus, "pointerup");
  model.publish({ num_gpus: 5 });
  model.answer(model.last("set").id);
  await settle();
  expect(box("GPUs").value).toBe("5");
  expect(gpus.value).toBe("4");

  fire(gpus, "pointerdown"); // a press without a move, while Python changes the value
  model.publish({ num_gpus: 9 });
  await settle();
  expect(box("GPUs").value).toBe("5");
  fire(gpus, "pointerup");
  await settle();
  expect(box("GPUs").value).toBe("9");
});

test("painting leaves a field with a pending request alone", async () => {
  const model = new Model();
  const { box, slider } = await mount(model);
  type(box("GPUs"), "64");
  press(box("GPUs"), "Enter");
  model.publish({ num_layers: 12 }); // any paint
  await settle();
  expect(box("GPUs").value).toBe("64");
  model.publish({ num_gpus: 64 });
  model.answer(model.last("set").id);
  await settle();
  expect(box("GPUs").value).toBe("64");
  expect(Number(slider("GPUs").value)).toBeGreaterThan(20);
});

test("a typed value between slider positions stays exact", async () => {
  const model = new Model({ model_params_b: 70.6 });
  const { box, slider } = await mount(model);
  expect(box("Parameters (B)").value).toBe("70.6");
  const { values } = model.get("_tables").fields.find((f) => f.name === "model_params_b");
  expect(values).not.toContain(70.6);
  expect(Math.abs(values[Number(slider("Parameters (B)").value)] / 70.6 - 1)).toBeLessThan(0.03);
  expect(slider("Parameters (B)").getAttribute("aria-valuetext")).toBe("70.6 billion parameters");
});

// -- choices, cards, presets, fixes

test("a choice asks for its number", async () => {
  const model = new Model();
  const { radio } = await mount(model);
  for (const [label, text, changes] of [
    ["ZeRO stage", "1", { zero_stage: 1 }],
    ["Precision", "32 bit", { precision_bits: 32 }],
    ["Checkpointing", "off", { grad_ckpt: 0 }],
  ]) {
    radio(label, text).click();
    expect(asked(model).at(-1)).toEqual(changes);
    model.answer(model.last("set").id);
  }
  model.publish({ zero_stage: 2 });
  await settle();
  expect(radio("ZeRO stage", "2").checked).toBe(true);
});

test("choices of two views do not share their radio groups", async () => {
  const model = new Model();
  const { views } = await mount(model, { views: 2 });
  const names = views.map(({ radio }) => radio("ZeRO stage", "1").name);
  expect(names[0]).not.toBe(names[1]);
});

test("a chosen card stays chosen until it is answered", async () => {
  const model = new Model();
  const { select } = await mount(model);
  const card = select("GPU memory");
  expect(card.value).toBe(model.get("gpu"));
  card.value = "H200 · 141 GB";
  fire(card, "change");
  expect(asked(model)).toEqual([{ gpu: "H200 · 141 GB" }]);
  model.publish({ num_layers: 12 });
  await settle();
  expect(card.value).toBe("H200 · 141 GB");
  model.answer(model.last("set").id); // refused, say
  await settle();
  expect(card.value).toBe(model.get("gpu"));
});

test("another size opens a box, ready to type in", async () => {
  const model = new Model();
  const { select, box } = await mount(model);
  expect(visible(box("GPU memory"))).toBe(false);
  select("GPU memory").value = "";
  fire(select("GPU memory"), "change");
  await settle();
  expect(visible(box("GPU memory"))).toBe(true);
  expect(document.activeElement).toBe(box("GPU memory"));
  model.publish({ gpu: "" });
  model.answer(model.last("set").id);
  type(box("GPU memory"), "100");
  press(box("GPU memory"), "Enter");
  expect(asked(model).at(-1)).toEqual({ gpu_memory_gb: 100 });
});

test("a preset is asked for by its name, and shows while Python says so", async () => {
  const model = new Model();
  const { select } = await mount(model);
  const [first, second] = model.get("_tables").presets;
  const publish = (preset) => model.publish({ _panel: { ...model.get("_panel"), preset } });
  expect(select("Preset").value).toBe(first);
  select("Preset").value = second;
  fire(select("Preset"), "change");
  expect(asked(model)).toEqual([{ preset: second }]);
  model.publish({ num_layers: 80 });
  await settle();
  expect(select("Preset").value).toBe(second); // still on its way
  publish(second);
  model.answer(model.last("set").id);
  await settle();
  expect(select("Preset").value).toBe(second);
  publish("");
  await settle();
  expect(select("Preset").selectedOptions[0].textContent).toBe("Custom");
  fire(select("Preset"), "change"); // "Custom" is no preset
  expect(asked(model)).toHaveLength(1);
});

test("each fix is a button that asks for it", async () => {
  const model = new Model();
  const { root, button } = await mount(model);
  expect(visible(root.querySelector(".tm-fixes"))).toBe(false);
  model.short();
  await settle();
  const [{ offer, items }] = model.get("_panel").fixes;
  expect(items.length).toBeGreaterThan(1);
  for (const { label, changes } of items) {
    button(label).click();
    expect(asked(model).at(-1)).toEqual(changes);
    model.answer(model.last("set").id);
  }
  const kept = button(items[0].label);
  model.publish({ _panel: { ...model.get("_panel"), footer: "another footer" } });
  await settle();
  expect(button(items[0].label)).toBe(kept); // the button under the finger
  const may = { offer: "May fit with", items: [{ label: "3 GPUs", changes: { num_gpus: 3 } }] };
  model.publish({ _panel: { ...model.get("_panel"), fixes: [{ offer, items }, may] } });
  await settle();
  const words = [...root.querySelectorAll(".tm-fixes > span")].map((span) => span.textContent);
  expect(words).toEqual(["Fits with", "May fit with"]);
  button("3 GPUs").click();
  expect(asked(model).at(-1)).toEqual({ num_gpus: 3 });
});

test("undo and reset ask Python", async () => {
  const model = new Model();
  const { button } = await mount(model);
  expect(visible(button("Undo"))).toBe(false);
  model.publish({ _undo: 2 });
  await settle();
  expect(visible(button("Undo"))).toBe(true);
  button("Undo").click();
  button("Reset").click();
  expect(model.sent.slice(-2)).toMatchObject([{ kind: "undo" }, { kind: "reset" }]);
});

// -- copy and download

test("there is no curl to copy where the API can't be asked", async () => {
  const model = new Model();
  const { button } = await mount(model);
  expect(visible(button("Copy curl"))).toBe(true);
  const panel = model.get("_panel");
  model.publish({ _panel: { ...panel, curl: "" } });
  await settle();
  expect(visible(button("Copy curl"))).toBe(false);
  expect(visible(button("Copy Python"))).toBe(true);
  model.publish({ _panel: panel });
  await settle();
  expect(visible(button("Copy curl"))).toBe(true);
});

test("copies the Python and the curl of the moment", async () => {
  const model = new Model();
  const { button } = await mount(model);
  const writeText = vi.fn(async () => {});
  vi.stubGlobal("navigator", { clipboard: { writeText } });
  model.short();
  for (const [text, what] of [["Copy Python", "python"], ["Copy curl", "curl"]]) {
    const node = button(text);
    node.click();
    await settle();
    expect(writeText).toHaveBeenLastCalledWith(model.get("_panel")[what]);
    expect(node.textContent).toContain("✓");
    await settle(2_000);
    expect(node.textContent).toBe(text);
  }
});

test.each([[true, "✓"], [false, "Not copied"]])(
  "without a clipboard the old command is tried (%s)", async (works, words) => {
    const model = new Model();
    const { button } = await mount(model);
    vi.stubGlobal("navigator", {});
    let copied = "";
    document.execCommand = (command) => {
      copied = command === "copy" ? document.querySelector("body > textarea").value : "";
      return works;
    };
    const node = button("Copy curl");
    node.click();
    await settle();
    expect(copied).toBe(model.get("_panel").curl);
    expect(node.textContent).toContain(words);
    expect(document.querySelector("body > textarea")).toBeNull();
    delete document.execCommand;
  });

test("downloads the JSON that Python answers, in the view that asked", async () => {
  const model = new Model();
  const { views } = await mount(model, { views: 2 });
  views[1].button("JSON").click();
  expect(model.last("json")).toEqual({ kind: "json" });
  const shown = () => views.map(({ root }) => root.querySelector("pre")?.textContent ?? "");
  expect(shown()).toEqual(["", ""]);
  const answer = { inputs: { num_gpus: 8 }, outputs: { fits: true } };
  model.message({ kind: "json", answer });
  model.message({ kind: "json", answer: {} }); // somebody else's
  expect(shown()).toEqual(["", JSON.stringify(answer, null, 1)]);
  views[1].button("Download").click();
  expect(page.clicks).toHaveLength(1);
  const [{ href, name }] = page.clicks;
  expect(name).toBe("trainmem.json");
  const blob = page.urls.get(href);
  expect(blob.type).toBe("application/json");
  expect(JSON.parse(await blob.text())).toEqual(answer);
  await settle(2_000);
  expect(page.urls.has(href)).toBe(false);
});

// -- several views and models

test("two views of one model stay in step", async () => {
  const model = new Model();
  const { views: [one, two] } = await mount(model, { views: 2 });
  fire(one.slider("GPUs"), "pointerdown");
  slide(one.slider("GPUs"), 10);
  model.publish({ num_gpus: 11 });
  model.answer(model.last("set").id);
  await settle();
  expect(two.box("GPUs").value).toBe("11");
  expect(two.slider("GPUs").value).toBe("10");
  fire(one.slider("GPUs"), "pointerup");
  type(two.box("Layers"), "80");
  press(two.box("Layers"), "Enter");
  model.publish({ num_layers: 80, error: "" });
  model.answer(model.last("set").id);
  await settle();
  expect(one.box("Layers").value).toBe("80");
  expect(new Set(model.of("set").map(({ id }) => id)).size).toBe(model.of("set").length);
});

test("two models on one page know nothing of each other", async () => {
  const [a, b] = [new Model(), new Model()];
  const one = await mount(a);
  const two = await mount(b);
  expect(a.client).not.toBe(b.client);
  type(one.box("GPUs"), "64");
  press(one.box("GPUs"), "Enter");
  expect(b.of("set")).toEqual([]);
  a.widget_manager.kernel.status = "dead";
  await settle(600);
  expect(one.root.dataset.status).toBe("disconnected");
  expect(two.root.dataset.status).toBe("live");
  one.closeAll();
  type(two.box("GPUs"), "32");
  press(two.box("GPUs"), "Enter");
  expect(asked(b)).toEqual([{ num_gpus: 32 }]);
});

test("render before initialize is a clear error", async () => {
  const { default: front } = await import("../src/main.js");
  const el = document.createElement("div");
  expect(() => front().render({ model: new Model(), el })).toThrow("initialize");
});
