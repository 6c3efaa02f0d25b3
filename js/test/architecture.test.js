// @vitest-environment happy-dom
// The switch to the architecture-aware model: what it shows, asks for and keeps.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model, fire, mount, openPage, png, press, settle, type } from "./host.js";

let page;
beforeEach(() => { page = openPage(); });
afterEach(() => page.restore());

const asked = (model) => model.of("set").map(({ changes }) => changes);
const chosen = ({ panel = {}, ...more } = {}) => {
  const model = new Model({ architecture: "Llama-3-8B", plan: { loss_head: "chunked" },
    checkpointing: true, ...more });
  const plan = Object.fromEntries(model.get("_tables").plan.map((o) => [o.name, o.default]));
  Object.assign(model.state._panel, {
    plan: { ...plan, loss_head: "chunked", ...panel.plan }, stack: panel.stack ?? "",
    layout: panel.layout ?? "", preset: panel.preset ?? "",
    unavailable: { ...Object.fromEntries(model.get("_tables").derived.map((name) =>
      [name, { "": "Follows from Llama-3-8B" }])), ...panel.unavailable },
    architecture: "Llama-3-8B", grade: "uncertain", curl: "", note: { text: "", offer: "" },
    detail: [{ name: "Peak", value: "74.684 GB", note: "in the loss", share: 0.9 }],
    summary: "attention: flash · AdamW", idle: panel.idle ?? [],
  });
  return model;
};

const openFile = (root) => {
  const select = root.querySelector("select[id$=architecture]");
  select.value = "open";
  fire(select, "change");
};

test("the reduced model says what it leaves out and offers the other", async () => {
  const model = new Model();
  const { root, button } = await mount(model);
  const note = root.querySelector(".tm-note");
  expect(note.hidden).toBe(false);
  expect(note.textContent).toContain("loss head");
  note.querySelector("button").click();
  expect(document.activeElement.id).toMatch(/architecture$/);
  expect(root.querySelector(".tm-plan").closest("[hidden]")).not.toBeNull();
  for (const text of ["Timeline", "Peak"]) expect(button(text).hidden).toBe(true);
});

test("choosing an architecture asks for it; its geometry can't be moved", async () => {
  const model = new Model();
  const { root } = await mount(model);
  const select = root.querySelector("select[id$=architecture]");
  expect([...select.options].map((option) => option.value)).toContain("Llama-3-70B");
  select.value = "Llama-3-8B";
  fire(select, "change");
  expect(asked(model)).toEqual([{ architecture: "Llama-3-8B" }]);
  const other = await mount(chosen());
  for (const label of ["Parameters (B)", "Layers", "Hidden size"]) {
    expect(other.box(label).disabled).toBe(true);
    expect(other.slider(label).disabled).toBe(true);
  }
  expect(other.box("Sequence").disabled).toBe(false);
  expect(other.root.querySelector(".tm-note").hidden).toBe(true);
  expect(other.root.dataset.grade).toBe("uncertain");
  other.button("Peak").click();
  expect(other.root.querySelector(".tm-peak").textContent).toContain("74.684 GB");
});

test("what can't be had is off, and says why by pointer and by ear", async () => {
  const reasons = { 2: "Megatron-Core has stage 1 alone", 3: "Megatron-Core has stage 1 alone" };
  const model = chosen({ zero_stage: 1, panel: { unavailable: { zero_stage: reasons } } });
  const { root, radio, box } = await mount(model);
  const help = (node) => root.querySelector(`#${node.getAttribute("aria-describedby")}`).textContent;
  expect(["0", "1", "2", "3"].map((stage) => radio("ZeRO stage", stage).disabled))
    .toEqual([false, false, true, true]);
  expect(radio("ZeRO stage", "2").title).toBe(reasons[2]);
  expect(help(radio("ZeRO stage", "2").closest("[role]"))).toContain(`2: ${reasons[2]}`);
  expect(help(box("Layers"))).toContain("Follows from Llama-3-8B");
  expect(box("Layers").closest("[title]").title).toBe("Follows from Llama-3-8B");
  const panel = model.get("_panel");
  model.publish({ _panel: { ...panel, unavailable: {} } });
  await settle();
  expect(radio("ZeRO stage", "2").disabled).toBe(false);
  expect(radio("ZeRO stage", "2").title).toBe("");
  expect(help(box("Layers"))).not.toContain("Follows");
});

test("a stack that the architecture can't be run with is off, with the reason", async () => {
  const lacking = { stack: { "llm.c": "Kernels are GPT-2's" } };
  const model = chosen({ panel: { unavailable: lacking } });
  const { root } = await mount(model);
  const of = (name) => root.querySelector(`select[id$=stack] option[value="${name}"]`);
  expect([of("llm.c").disabled, of("llm.c").title]).toEqual([true, "Kernels are GPT-2's"]);
  expect([of("torchtitan").disabled, of("torchtitan").title]).toEqual([false, ""]);
  model.publish({ _panel: { ...model.get("_panel"), unavailable: {} } });
  await settle();
  expect(of("llm.c").disabled).toBe(false);
});

test("a refusal stands at its field, in the words of the screen", async () => {
  const said = "Tensor parallel 8 needs more GPUs";
  const model = chosen({ error: "tp 8 needs", _told: { field: "tp", error: said, also: "" } });
  const { root, alert } = await mount(model);
  const tp = root.querySelector("input[id$=-tp]");
  expect(alert.textContent).toBe(said);
  expect(alert.parentElement).toBe(tp.parentElement);
  expect(tp.getAttribute("aria-invalid")).toBe("true");
  expect(root.querySelector(".tm-plan").open).toBe(true); // nothing is said behind a fold
  model.publish({ architecture: "", _told: { field: "tp", error: said, also: "" } });
  await settle();
  expect(alert.closest("[hidden]")).toBeNull();
});

test("what a choice brought along is told", async () => {
  const model = chosen();
  const { root } = await mount(model);
  const also = root.querySelector(".tm-also");
  expect(also.hidden).toBe(true);
  model.publish({ _told: { field: "", error: "", also: "Also changed: Kernels → torchtitan" } });
  await settle();
  expect([also.hidden, also.textContent]).toEqual([false, "Also changed: Kernels → torchtitan"]);
  expect(also.getAttribute("role")).toBe("status");
  model.publish({ _told: { field: "", error: "", also: "" } });
  await settle();
  expect(also.hidden).toBe(true);
});

test("a parameter count is written short, whole numbers in full", async () => {
  const { box, slider } = await mount(chosen({ model_params_b: 405.853388, hidden_dim: 16384 }));
  expect(box("Parameters (B)").value).toBe("405.9");
  expect(slider("Parameters (B)").getAttribute("aria-valuetext")).toBe("405.853388 billion parameters");
  expect(box("Hidden size").value).toBe("16384");
});

test("every option of the plan is a control, and asks for itself alone", async () => {
  const model = chosen();
  const { root } = await mount(model);
  const options = model.get("_tables").plan;
  for (const { name } of options) expect(root.querySelector(`[id$="-${name}"]`)).not.toBeNull();
  const head = root.querySelector("select[id$=loss_head]");
  expect(JSON.parse(head.value)).toBe("chunked");
  const kept = root.querySelector("select[id$=-checkpointing]"); // also the name of an output
  expect(JSON.parse(kept.value)).toBe(options.find((o) => o.name === "checkpointing").default);
  head.value = JSON.stringify("fused");
  fire(head, "change");
  const chunk = root.querySelector("input[id$=loss_chunk]");
  expect(chunk.value).toBe(String(options.find((o) => o.name === "loss_chunk").default));
  type(chunk, "2048");
  fire(chunk, "blur");
  expect(asked(model)).toEqual([{ loss_head: "fused" }, { loss_chunk: 2048 }]);
});

test("an error of an option marks its control", async () => {
  const model = chosen({ error: "loss_chunk: 0 is not allowed" });
  const { root } = await mount(model);
  expect(root.querySelector("input[id$=loss_chunk]").getAttribute("aria-invalid")).toBe("true");
  expect(root.querySelector("select[id$=loss_head]").getAttribute("aria-invalid")).toBe("false");
});

test("a pasted config.json is sent as text", async () => {
  const model = new Model();
  const { root, alert } = await mount(model);
  const select = root.querySelector("select[id$=architecture]");
  const drawer = root.querySelector(".tm-drawer");
  expect([drawer.hidden, root.querySelector("textarea")]).toEqual([true, null]);
  select.value = "open";
  fire(select, "change");
  expect(asked(model)).toEqual([]);
  const area = root.querySelector("textarea");
  expect([drawer.hidden, document.activeElement]).toEqual([false, area]);
  area.value = '{"model_type": "llama"}';
  fire(area, "change");
  expect(model.of("open")).toMatchObject([{ kind: "open", config: '{"model_type": "llama"}' }]);
  // What is wrong with it is said where it was pasted, and the text stays to be mended.
  model.publish({ error: "config.json: why", _told: { field: "", error: "Why", also: "" } });
  model.answer(model.last("open").id);
  await settle();
  expect(drawer.contains(alert)).toBe(true);
  expect([alert.textContent, drawer.hidden]).toEqual(["Why", false]);
  fire(area, "change");
  model.publish({ error: "", architecture: "mine" });
  model.answer(model.last("open").id);
  await settle();
  expect([drawer.hidden, select.value]).toEqual([true, "mine"]);
  expect(document.activeElement).toBe(select);
});

test("keys pressed in the paste box never reach the notebook", async () => {
  const { el, root } = await mount(new Model());
  const heard = vi.fn();
  el.addEventListener("keydown", heard);
  openFile(root);
  press(root.querySelector("textarea"), "Enter");
  press(root.querySelector("textarea"), "a");
  expect(heard).not.toHaveBeenCalled();
});

test("of a chosen file at most a mebibyte is read", async () => {
  const model = new Model();
  const { root } = await mount(model);
  openFile(root);
  const file = root.querySelector("input[type=file]");
  const choose = async (text) => {
    const files = [new File([text], "config.json", { type: "application/json" })];
    Object.defineProperty(file, "files", { value: files, configurable: true });
    fire(file, "change");
    await vi.waitFor(() => expect(model.last("open")?.config[0]).toBe(text[0]));
    return model.last("open").config;
  };
  expect(await choose('{"model_type": "llama"}')).toBe('{"model_type": "llama"}');
  const large = "x".repeat(3 * 2 ** 20);
  expect(await choose(large)).toBe(large.slice(0, 2 ** 20));
  Object.defineProperty(file, "files", { value: [] });
  fire(file, "change"); // the dialog was cancelled
  await settle();
  expect(model.of("open")).toHaveLength(2);
});

test("an opened architecture has its own entry", async () => {
  const { root } = await mount(chosen({ architecture: "custom llama" }));
  const select = root.querySelector("select[id$=architecture]");
  expect(select.value).toBe("custom llama");
  expect(select.selectedOptions[0].textContent).toBe("custom llama");
});

test("another stack is no longer the preset", async () => {
  const { select } = await mount(chosen({ panel: { stack: "transformers+liger" } }));
  expect(select("Preset").selectedOptions[0].textContent).toBe("Custom");
});

test("options show what is in force, whichever control says it", async () => {
  const model = chosen({ grad_ckpt: 0, precision_bits: 32, panel: {
    plan: { checkpointing: "none", precision: "fp32" } } });
  const { root, radio } = await mount(model);
  const shown = (name) => root.querySelector(`select[id$="-${name}"]`).selectedOptions[0].textContent;
  expect(radio("Checkpointing", "off").checked).toBe(true);
  expect(shown("checkpointing")).toBe("none");
  expect(shown("precision")).toBe("everything in fp32");
});

test("one step over time is asked for when opened, at rest, and once a picture", async () => {
  const model = chosen();
  const { root, button } = await mount(model);
  const time = root.querySelector(".tm-drawer");
  const { width, ratio, theme } = model.last("hello").views[0];
  const frame = { kind: "frame", id: 5, key: `${width}x${ratio}-${theme}`, draft: false };
  model.message(frame, png());
  await settle();
  expect(model.of("timeline")).toEqual([]);
  button("Timeline").click();
  await settle();
  expect(model.of("timeline")).toHaveLength(1);
  model.message({ kind: "timeline", id: 5, key: frame.key, alt: "peak in the loss" }, png(2));
  await settle();
  expect(time.querySelector("img").src).toMatch(/^data:image\/png/);
  expect(time.querySelector("img").alt).toBe("peak in the loss");
  button("Timeline").click(); // closed, and opened again
  expect(time.hidden).toBe(true);
  button("Timeline").click();
  expect(model.of("timeline")).toHaveLength(1);
  model.message({ ...frame, id: 6 }, png(3));
  await settle();
  expect(model.of("timeline")).toHaveLength(2);
  const none = new DataView(new ArrayBuffer(0));
  model.message({ kind: "timeline", id: 6, key: frame.key, alt: "" }, none); // not to be drawn
  await settle();
  expect(time.querySelector("img").hasAttribute("src")).toBe(false);
  expect(time.querySelector("img").hidden).toBe(true);
});

test("one step over time belongs to a picture of this view", async () => {
  const model = chosen();
  const { root, button } = await mount(model);
  const time = root.querySelector(".tm-drawer");
  const { width, ratio, theme } = model.last("hello").views[0];
  const frame = { kind: "frame", id: 5, key: `${width}x${ratio}-${theme}`, draft: false };
  model.message(frame, png());
  button("Timeline").click();
  await settle();
  expect(model.last("timeline")).toEqual({ kind: "timeline", width, ratio, theme });
  const steps = time.querySelector("img");
  // Another view of the same model asked for its own.
  model.message({ kind: "timeline", id: 5, key: `${width + 1}x${ratio}-${theme}`, alt: "theirs" },
    png(2));
  await settle();
  expect(steps.getAttribute("src")).toBeNull();
  expect(steps.alt).toBe("");
  model.message({ kind: "timeline", id: 5, key: frame.key, alt: "ours" }, png(3));
  await settle();
  expect(steps.alt).toBe("ours");
  // The same numbers at another width: a picture of its own.
  page.width = width - 100;
  page.Resize.fire([]);
  await settle(200);
  model.message({ ...frame, key: `${width - 100}x${ratio}-${theme}` }, png(4));
  await settle();
  expect(model.of("timeline")).toHaveLength(2);
  expect(model.last("timeline").width).toBe(width - 100);
});

test("a stack is asked for by its name, and shows while Python says so", async () => {
  const model = chosen();
  const { root } = await mount(model);
  const stack = root.querySelector("select[id$=stack]");
  expect(stack.selectedOptions[0].textContent).toBe("Custom");
  stack.value = "megatron-full";
  fire(stack, "change");
  expect(asked(model)).toEqual([{ stack: "megatron-full" }]);
  const other = chosen({ panel: { stack: "megatron-full", layout: "tp 8 × dp 8 = 64 GPUs" } });
  const again = await mount(other);
  expect(again.root.querySelector("select[id$=stack]").value).toBe("megatron-full");
  expect(again.root.querySelector(".tm-plan").textContent).toContain("tp 8 × dp 8 = 64 GPUs");
});

test("the drawer shows one thing at a time, by button and key, and Esc gives the focus back", async () => {
  const { root, button, slider, box } = await mount(chosen());
  const drawer = root.querySelector(".tm-drawer");
  const title = () => (drawer.hidden ? "" : drawer.querySelector("strong").textContent);
  button("Peak").focus();
  button("Peak").click();
  expect([title(), document.activeElement]).toEqual(["What is alive at the peak", drawer]);
  press(slider("GPUs"), "j");
  expect(title()).toBe("The answer as JSON");
  expect(["Peak", "JSON"].map((text) => button(text).getAttribute("aria-expanded")))
    .toEqual(["false", "true"]);
  press(drawer, "Escape");
  expect([title(), document.activeElement]).toEqual(["", button("JSON")]);
  press(box("GPUs"), "j"); // a letter of a text
  press(root.querySelector("select"), "p"); // a choice by its first letter
  expect(title()).toBe("");
});

test("what makes no difference isn't shown, and the plan is one line", async () => {
  const { root } = await mount(chosen({ panel: { idle: ["loss_chunk"] } }));
  const row = (name) => root.querySelector(`[id$="-${name}"]`).closest(".tm-row");
  expect([row("loss_chunk").hidden, row("loss_head").hidden]).toEqual([true, false]);
  expect(root.querySelector(".tm-plan summary").textContent).toBe("attention: flash · AdamW change…");
});
