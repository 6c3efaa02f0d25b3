// @vitest-environment happy-dom
// After teardown nothing is left: listeners, timers, observers, object URLs, elements.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model, mount, openPage, png, press, settle, slide, type } from "./host.js";

let page;
beforeEach(() => { page = openPage(); });
afterEach(() => page.restore());

/** Leave as much under way as a user can. */
async function use(model, { slider, box, button }) {
  model.short();
  await settle();
  slider("GPUs").dispatchEvent(new Event("pointerdown"));
  slide(slider("GPUs"), 5);
  type(box("Layers"), "80");
  press(box("Layers"), "Enter");
  model.message({ kind: "frame", id: 1, key: "800x1-light", draft: false }, png());
  await settle();
  model.message({ kind: "frame", id: 2, key: "800x1-light", draft: true }, png());
  vi.stubGlobal("navigator", { clipboard: { writeText: async () => {} } });
  button("Copy Python").click();
  button("JSON").click();
  model.message({ kind: "json", answer: {} });
  button("Download").click();
  page.width = 700;
  page.Resize.fire([]);
  await settle(1);
  model.publish({ num_gpus: 7 });
}

function leftOver(model, signals = []) {
  return {
    model: model.listeners,
    document: page.doc.live.size,
    media: page.mediaCount.live.size,
    signals: signals.reduce((sum, { live }) => sum + live.size, 0),
    observers: page.Resize.live.size + page.Mutation.live.size + page.Intersection.live.size,
    urls: page.urls.size,
    timers: vi.getTimerCount(),
    elements: document.querySelectorAll(".trainmem").length,
  };
}
const NOTHING = { model: 0, document: 0, media: 0, signals: 0, observers: 0, urls: 0, timers: 0,
  elements: 0 };

test("everything counted here is there while the view lives", async () => {
  const model = new Model();
  await use(model, await mount(model, { signals: true }));
  const now = leftOver(model);
  for (const [name, count] of Object.entries(now)) {
    if (name !== "signals") expect(count, name).toBeGreaterThan(0);
  }
});

test.each([
  ["the returned cleanups", ({ close, closeModel }) => { close(); closeModel(); }, false],
  ["the signals", ({ ends }) => { for (const { abort } of ends.toReversed()) abort(); }, true],
  ["both, as anywidget does", ({ ends, close, closeModel }) => {
    for (const { abort } of ends.toReversed()) abort();
    close();
    closeModel();
  }, true],
  ["the cleanups, with signals never aborted", ({ close, closeModel }) => {
    close();
    closeModel();
  }, true],
  ["the model before its view", ({ close, closeModel }) => { closeModel(); close(); }, false],
])("%s leave nothing", async (_name, end, signals) => {
  const model = new Model();
  const mounted = await mount(model, { signals });
  await use(model, mounted);
  end(mounted);
  await settle(0);
  expect(leftOver(model, mounted.ends)).toEqual(NOTHING);
  expect(new Set(page.revoked).size).toBe(page.revoked.length); // each exactly once
  const sent = model.sent.length;
  await settle(60_000);
  expect(model.sent.length).toBe(sent);
  expect(model.saves).toBe(0);
});

test("one of two views goes, the other stays alive", async () => {
  const model = new Model();
  const { views: [one, two], closeModel } = await mount(model, { views: 2 });
  const both = model.listeners;
  one.close();
  expect(model.listeners).toBeLessThan(both);
  expect(one.el.childElementCount).toBe(0);
  expect(model.last("hello").views).toHaveLength(1); // nobody draws for it any more
  model.greet();
  model.publish({ num_gpus: 64 });
  await settle();
  expect(two.box("GPUs").value).toBe("64");
  two.close();
  closeModel();
  await settle(0);
  expect(leftOver(model)).toEqual(NOTHING);
});

test("mounting and closing time and again leaves nothing", { timeout: 60_000 }, async () => {
  const model = new Model();
  for (let i = 0; i < 12; i++) {
    const { closeAll } = await mount(model, { views: 1 + (i % 2) });
    model.message({ kind: "frame", id: i, key: "800x1-light", draft: false }, png());
    await settle();
    closeAll();
  }
  await settle(0);
  expect(leftOver(model)).toEqual(NOTHING);
});

test("a message after the end does nothing", async () => {
  const model = new Model();
  const handlers = () => [...model.handlers.values()].flat();
  const { closeAll } = await mount(model);
  const old = handlers();
  closeAll();
  for (const handler of old) handler({ kind: "frame", id: 9, key: "800x1-light" }, [png()]);
  await settle(0);
  expect(leftOver(model)).toEqual(NOTHING);
});
