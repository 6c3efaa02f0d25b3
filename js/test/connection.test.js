// @vitest-environment happy-dom
// Greeting, liveness, the window of numbered requests, and the way by trait.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model, mount, openPage, png, press, settle, slide, type } from "./host.js";

let page;
beforeEach(() => { page = openPage(); });
afterEach(() => page.restore());

const inputs = (root) => [...root.querySelectorAll("input, select")];
const enabled = (root) => inputs(root).filter((node) => !node.disabled).length;

// -- hello and status

test("says hello with what each view wants drawn", async () => {
  const model = new Model();
  page.width = 640;
  globalThis.devicePixelRatio = 2;
  const { root } = await mount(model, { live: false });
  const hello = model.last("hello");
  expect(hello.client).toMatch(/^[a-z0-9]{8,64}$/);
  expect(hello.views).toEqual([
    { width: 640, ratio: 2, theme: "light", frame: -1, key: "" },
  ]);
  expect(root.dataset.status).toBe("waiting");
  globalThis.devicePixelRatio = 1;
});

test("controls are disabled until Python answers; copying works without", async () => {
  const model = new Model();
  const { root, button } = await mount(model, { live: false });
  expect(enabled(root)).toBe(0);
  expect(button("Copy Python").disabled).toBe(false);
  expect(button("JSON").disabled).toBe(true);
  expect(button("Reset").disabled).toBe(true);
  model.greet();
  await settle();
  expect(root.dataset.status).toBe("live");
  expect(enabled(root)).toBe(inputs(root).length);
  expect(button("JSON").disabled).toBe(false);
});

test("greets again every ten seconds while seen, and not while hidden", async () => {
  const model = new Model();
  const { root } = await mount(model);
  const count = () => model.of("hello").length;
  let before = count();
  for (let i = 0; i < 3; i++) {
    await settle(10_600);
    model.greet();
  }
  expect(count()).toBe(before + 3);
  page.Intersection.fire([{ isIntersecting: false }], root);
  before = count();
  expect(model.last("hello").views).toEqual([]); // says so at once
  model.greet();
  await settle(60_000);
  expect(count()).toBe(before);
  page.Intersection.fire([{ isIntersecting: true }], root);
  expect(count()).toBe(before + 1);
  expect(model.last("hello").views).toHaveLength(1);
});

test("a hidden tab wants nothing drawn", async () => {
  const model = new Model();
  await mount(model);
  Object.defineProperty(document, "hidden", { value: true, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
  expect(model.last("hello").views).toEqual([]);
  model.greet();
  delete document.hidden;
  document.dispatchEvent(new Event("visibilitychange"));
  expect(model.last("hello").views).toHaveLength(1);
});

test("a view too narrow to draw in wants nothing drawn", async () => {
  page.width = 0;
  const model = new Model();
  await mount(model, { live: false });
  expect(model.last("hello").views).toEqual([]);
});

test.each([
  ["dead"], ["restarting"], ["autorestarting"], ["terminating"],
])("a %s kernel disconnects", async (status) => {
  const model = new Model();
  const { root, state } = await mount(model);
  model.widget_manager.kernel.status = status;
  await settle(600);
  expect(root.dataset.status).toBe("disconnected");
  expect(state.textContent).toContain("run the cell again");
  expect(enabled(root)).toBe(0);
});

test("a kernel that was shut down disconnects", async () => {
  const model = new Model();
  const { root } = await mount(model);
  model.widget_manager.kernel = null;
  await settle(600);
  expect(root.dataset.status).toBe("disconnected");
});

test("a lost connection disconnects, and greets as soon as it is back", async () => {
  const model = new Model();
  const { root } = await mount(model);
  const { kernel } = model.widget_manager;
  kernel.connectionStatus = "connecting";
  await settle(600);
  expect(root.dataset.status).toBe("disconnected");
  const before = model.sent.length;
  await settle(20_000);
  expect(model.sent.length).toBe(before); // nobody to greet
  kernel.connectionStatus = "connected";
  await settle(600);
  expect(model.sent.length).toBe(before + 1);
  expect(enabled(root)).toBe(0);
  model.greet();
  await settle();
  expect(root.dataset.status).toBe("live");
});

test("the host's mark of a closed comm disconnects without waiting for a timer", async () => {
  const model = new Model();
  const { el, root } = await mount(model);
  el.classList.add("jupyter-widgets-disconnected");
  page.Mutation.fire([], el);
  await settle();
  expect(root.dataset.status).toBe("disconnected");
});

test("a closed comm that throws neither breaks the host's handler nor the widget", async () => {
  const model = new Model();
  const { el, root } = await mount(model);
  model.send = () => { throw new Error("Cannot send"); };
  expect(() => model.emit("comm_live_update")).not.toThrow();
  el.classList.add("jupyter-widgets-disconnected");
  await settle(600);
  expect(root.dataset.status).toBe("disconnected");
});

test("a comm that comes back is greeted at once", async () => {
  const model = new Model();
  const { root } = await mount(model);
  const before = model.of("hello").length;
  model.emit("comm_live_update");
  expect(model.of("hello").length).toBe(before + 1);
  model.greet();
  await settle();
  expect(root.dataset.status).toBe("live");
});

test("a busy kernel is waited for, however long, with the controls alive", async () => {
  const model = new Model();
  const { root, box } = await mount(model);
  model.widget_manager.kernel.status = "busy";
  type(box("GPUs"), "64");
  press(box("GPUs"), "Enter");
  await settle(120_000);
  expect(root.dataset.status).toBe("waiting");
  expect(enabled(root)).toBe(inputs(root).length);
  model.answer(model.last("set").id);
  model.greet();
  await settle();
  expect(root.dataset.status).toBe("live");
});

test("a kernel busy for an hour finds no queue of hellos", async () => {
  const model = new Model();
  const { root } = await mount(model);
  model.widget_manager.kernel.status = "busy";
  const before = model.of("hello").length;
  for (let i = 0; i < 360; i++) {
    page.Intersection.fire([{ isIntersecting: i % 2 === 1 }], root);
    await settle(10_000);
  }
  expect(model.of("hello").length - before).toBeLessThan(20);
  page.Intersection.fire([{ isIntersecting: false }], root);
  model.greet();
  expect(model.last("hello").views).toEqual([]); // the last word is told after the answer
});

test("an idle kernel that stays silent is given up, and stays so until it answers", async () => {
  const model = new Model();
  const { root, box } = await mount(model);
  type(box("GPUs"), "64");
  press(box("GPUs"), "Enter");
  await settle(2_000);
  expect(root.dataset.status).toBe("waiting");
  await settle(3_000);
  expect(root.dataset.status).toBe("disconnected");
  for (let i = 0; i < 60; i++) {
    await settle(500);
    expect(root.dataset.status).toBe("disconnected");
    expect(enabled(root)).toBe(0);
  }
  model.greet();
  await settle();
  expect(root.dataset.status).toBe("live");
  expect(box("GPUs").value).toBe("8"); // what Python holds, not what was asked
});

test("a host that does not tell what its kernel does gets half a minute", async () => {
  const model = new Model({}, undefined);
  delete model.widget_manager.kernel;
  const { root, box } = await mount(model);
  type(box("GPUs"), "64");
  press(box("GPUs"), "Enter");
  await settle(28_000);
  expect(root.dataset.status).toBe("waiting");
  await settle(4_000);
  expect(root.dataset.status).toBe("disconnected");
});

test.each([["undefined", undefined], ["null", null]])(
  "a host without a widget manager (%s) works", async (_name, manager) => {
    const model = new Model();
    model.widget_manager = manager;
    const { root } = await mount(model);
    expect(root.dataset.status).toBe("live");
  });

// -- numbered requests

test("at most two are in flight and the newest waiting wins", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  const gpus = slider("GPUs");
  gpus.dispatchEvent(new Event("pointerdown"));
  for (let i = 10; i < 30; i++) slide(gpus, i);
  let sets = model.of("set");
  expect(sets).toHaveLength(2);
  expect(sets.every(({ draft, client }) => draft && client === model.client)).toBe(true);
  expect(new Set(sets.map(({ id }) => id)).size).toBe(2);
  model.answer(sets[0].id);
  sets = model.of("set");
  expect(sets).toHaveLength(3);
  const values = model.get("_tables").fields.find((f) => f.name === "num_gpus").values;
  expect(sets[2].changes).toEqual({ num_gpus: values[29] });
  gpus.dispatchEvent(new Event("pointerup"));
  expect(model.of("set")).toHaveLength(3); // the final value waits
  model.answer(sets[1].id); // answers all up to it
  sets = model.of("set");
  expect(sets).toHaveLength(4);
  expect(sets[3]).toMatchObject({ draft: false, changes: { num_gpus: values[29] } });
});

test("after a draft the next request waits until that is painted, or half a second", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  const gpus = slider("GPUs");
  gpus.dispatchEvent(new Event("pointerdown"));
  for (let i = 10; i < 20; i++) slide(gpus, i);
  const draft = { kind: "frame", id: 1, key: "800x1-light", draft: true };
  model.answer(model.of("set")[0].id, draft, png());
  expect(model.of("set")).toHaveLength(2);
  await settle(20); // an animation frame
  expect(model.of("set")).toHaveLength(3);
  slide(gpus, 30);
  vi.stubGlobal("requestAnimationFrame", () => 1); // a hidden page
  model.answer(model.of("set")[2].id, { ...draft, id: 2 }, png());
  await settle(100);
  expect(model.of("set")).toHaveLength(3);
  await settle(500);
  expect(model.of("set")).toHaveLength(4);
});

test("waiting changes of different fields are joined, none is lost", async () => {
  const model = new Model();
  const { slider, box } = await mount(model);
  for (let i = 3; i < 7; i++) slide(slider("GPUs"), i);
  type(box("Layers"), "80");
  press(box("Layers"), "Enter");
  expect(model.of("set")).toHaveLength(2);
  model.answer(model.of("set")[0].id);
  expect(model.last("set").changes).toEqual({ num_gpus: 7, num_layers: 80 });
});

test("answers to another front end of the same kernel release nothing", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  for (let i = 3; i < 8; i++) slide(slider("GPUs"), i);
  model.message({ kind: "done", client: "somebody else", answers: 1e9 });
  expect(model.of("set")).toHaveLength(2);
  model.answer(model.of("set")[0].id);
  expect(model.of("set")).toHaveLength(3);
});

test.each([["localhost", true], ["lab.example.org", false]])(
  "on %s, answers in close succession are asked to be padded: %s", async (hostname, near) => {
    window.happyDOM.setURL(`http://${hostname}:8888/lab`);
    const model = new Model();
    const { slider } = await mount(model);
    await settle(1000);
    slide(slider("GPUs"), 3);
    expect(model.last("set").pad).toBeUndefined(); // long after the last answer
    model.answer(model.last("set").id);
    slide(slider("GPUs"), 4);
    expect(model.last("set").pad).toBe(near || undefined);
  });

test("undo, reset and JSON go after the changes that still wait", async () => {
  for (const [text, kind] of [["Reset", "reset"], ["JSON", "json"], ["Undo", "undo"]]) {
    const model = new Model({ _undo: 1 });
    model.short();
    model.publish({ _undo: 1 });
    const { slider, button } = await mount(model);
    for (let i = 3; i < 8; i++) slide(slider("GPUs"), i);
    button(text).click();
    const order = model.sent.slice(-2).map((content) => content.kind);
    expect(order).toEqual(["set", kind]);
    expect(model.last("set").changes).toEqual({ num_gpus: 8 });
  }
});

test("a request brings on no message of its own: acknowledging cost more than it gained", async () => {
  const model = new Model();
  const { slider } = await mount(model);
  const before = model.sent.length;
  slide(slider("GPUs"), 3);
  expect(model.sent.length).toBe(before + 1);
  model.publish({ _panel: { ...model.get("_panel"), footer: "1" } });
  expect(model.sent.length).toBe(before + 1);
});

test.each([
  [undefined], [null], ["text"], [{}], [{ kind: 5 }], [{ kind: "frame" }], [{ kind: "nonsense" }],
  [{ kind: "json" }], [{ kind: "done", answers: "3" }],
])("a message %j is survived", async (content) => {
  const model = new Model();
  const { root } = await mount(model);
  model.message(content);
  await settle();
  expect(root.dataset.status).toBe("live");
});

test.each([[undefined, 1], [{ status: "idle", connectionStatus: "connected" }, 0]])(
  "a trait is saved once a change has come to rest, where no kernel is shown: %o", async (kernel, saved) => {
    const model = new Model({}, kernel ?? null);
    const { slider, button } = await mount(model);
    slider("GPUs").dispatchEvent(new Event("pointerdown"));
    slide(slider("GPUs"), 3);
    model.answer(model.last("set").id);
    await settle();
    expect(model.saves).toBe(0); // not while dragging
    slider("GPUs").dispatchEvent(new Event("pointerup"));
    await settle();
    expect(model.saves).toBe(0); // nor before Python has it
    model.answer(model.last("set").id);
    await settle();
    expect(model.saves).toBe(saved);
    if (saved) expect(model.get("_request")).toMatchObject({ messages: [] });
    button("Reset").click();
    model.answer(model.last("reset").id);
    await settle();
    expect(model.saves).toBe(2 * saved);
  });

// -- the way by trait

test("a host whose messages are never answered is asked through the trait", async () => {
  const model = new Model();
  const { root, slider, box } = await mount(model, { live: false });
  await settle(4_000);
  expect(model.saves).toBeGreaterThan(0);
  const request = () => model.get("_request");
  const hello = request().messages.at(-1);
  expect(hello).toMatchObject({ kind: "hello", client: request().client });
  let replies = 0;
  const reply = (content) => model.publish({ _reply: { ...content, n: ++replies } });
  reply({ kind: "hello" });
  await settle();
  expect(root.dataset.status).toBe("live");
  expect(enabled(root)).toBe(inputs(root).length);

  const sent = model.sent.length;
  slide(slider("GPUs"), 3);
  type(box("Layers"), "80");
  press(box("Layers"), "Enter");
  expect(model.sent.length).toBe(sent); // no message
  // The host may have merged the updates: the last one brings all.
  const [first, second] = request().messages.slice(-2);
  expect(first).toMatchObject({ kind: "set", changes: { num_gpus: 4 } });
  expect(second).toMatchObject({ kind: "set", changes: { num_layers: 80 } });
  expect(second.stamp).toBeGreaterThan(first.stamp);
  expect(first.stamp).toBeGreaterThan(hello.stamp);

  model.publish({ num_gpus: 4, num_layers: 80 });
  reply({ kind: "done", client: request().client, answers: second.id });
  await settle();
  expect(box("GPUs").value).toBe("4");
  for (let i = 0; i < 40; i++) slide(slider("GPUs"), i);
  expect(request().messages.length).toBeLessThanOrEqual(16);
});

test("200 events in 2 s by trait, in a host that merges nothing: the last wins, none queues",
  async () => {
    const model = new Model();
    model.send = () => {}; // a host that never delivers messages
    const { root, slider, box } = await mount(model, { live: false });
    // Python: one request at a time, 70 ms each, newer ones waiting in the host's queue.
    const queue = [];
    const save = model.save_changes.bind(model);
    model.save_changes = () => {
      save();
      queue.push(structuredClone(model.get("_request")));
    };
    let served = 0;
    let replies = 0;
    const serve = ({ client, messages }) => {
      for (const message of messages.filter(({ stamp }) => stamp > served)) {
        served = message.stamp;
        if (message.kind === "hello") model.publish({ _reply: { kind: "hello", n: ++replies } });
        else {
          model.publish(message.changes);
          model.publish({ _reply: { kind: "done", client, answers: message.id, n: ++replies } });
        }
      }
    };
    const python = setInterval(() => queue.length && serve(queue.shift()), 70);
    await settle(4_000);
    expect(root.dataset.status).toBe("live");
    const values = model.get("_tables").fields.find(({ name }) => name === "num_gpus").values;
    const gpus = slider("GPUs");
    gpus.dispatchEvent(new Event("pointerdown"));
    let longest = 0;
    for (let i = 0; i < 200; i++) {
      slide(gpus, i % 60);
      await settle(10);
      longest = Math.max(longest, queue.length);
    }
    slide(gpus, 42);
    gpus.dispatchEvent(new Event("pointerup"));
    const before = model.saves;
    expect(longest).toBeLessThanOrEqual(3);
    await settle(1_000);
    expect(model.saves - before).toBeLessThanOrEqual(2); // the last value's draft, and at rest
    expect(queue).toHaveLength(0);
    expect(model.get("_request").messages.at(-1)).toMatchObject(
      { kind: "set", draft: false, changes: { num_gpus: values[42] } });
    expect(model.get("num_gpus")).toBe(values[42]);
    expect(box("GPUs").value).toBe(String(values[42]));
    clearInterval(python);
  });

test("a picture by trait is shown", async () => {
  const model = new Model();
  const { image } = await mount(model, { live: false });
  await settle(4_000);
  model.publish({ _reply: { kind: "hello", n: 1 } });
  await settle();
  model.publish({ _frame: new DataView(new Uint8Array([1, 2]).buffer),
    _reply: { kind: "frame", n: 2, id: 1, key: "800x1-light", draft: false } });
  await settle();
  expect(image.dataset.frame).toBe("1");
});

test("a slow kernel is not taken for a deaf host", async () => {
  const model = new Model();
  model.widget_manager.kernel.status = "busy";
  await mount(model, { live: false });
  await settle(60_000);
  expect(model.saves).toBe(0);
});
