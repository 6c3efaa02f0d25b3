// @vitest-environment happy-dom
// Frames: which are shown, which are dropped, and where they come from.
import { afterEach, beforeEach, expect, test } from "vitest";
import { Model, mount, openPage, png, settle } from "./host.js";

let page;
beforeEach(() => { page = openPage(); });
afterEach(() => page.restore());

const KEY = "800x1-light";
const frame = (id, draft = false, key = KEY) => ({ kind: "frame", id, key, draft });

/** @returns {number[]} the bytes that an image shows */
const bytes = ({ src }) => {
  expect(src).toMatch(/^data:image\/png;base64,/);
  return [...atob(src.split(",")[1])].map((letter) => letter.charCodeAt(0));
};

test("shows one frame after another, and needs no object URL for it", async () => {
  const model = new Model();
  const { image } = await mount(model);
  for (let id = 1; id <= 20; id++) {
    model.message(frame(id, id % 2 === 0), png(id));
    await settle();
    expect(image.dataset.frame).toBe(String(id));
    expect(bytes(image)).toEqual([id, 2, 3]);
  }
  expect(page.urls.size).toBe(0);
});

test("a frame comes with the numbers, in one update", async () => {
  const model = new Model();
  const { image } = await mount(model);
  model.publish({ _frame: png(4), _reply: { ...frame(4), n: 1 } });
  await settle();
  expect(bytes(image)).toEqual([4, 2, 3]);
  model.publish({ _reply: { ...frame(5), n: 2 } }); // the same picture of other numbers
  await settle();
  expect(image.dataset.frame).toBe("5");
});

test("a host that sets one trait after the other shows the picture of the new numbers", async () => {
  const model = new Model();
  const { image } = await mount(model);
  model.publish({ _frame: png(4), _reply: { ...frame(4), n: 1 } });
  await settle();
  model.publish({ _reply: { ...frame(5), n: 2 } }); // as marimo does, in any order
  model.publish({ _frame: png(5) });
  await settle();
  expect(image.dataset.frame).toBe("5");
  expect(bytes(image)).toEqual([5, 2, 3]);
});

test("padding is left out, and a size that lies harms nothing", async () => {
  const model = new Model();
  const { image } = await mount(model);
  const padded = new DataView(new Uint8Array([9, 1, 7, 8, 0, 0, 0, 0]).buffer, 1, 6);
  model.message({ ...frame(1), size: 3 }, padded);
  expect(bytes(image)).toEqual([1, 7, 8]);
  model.message({ ...frame(2), size: 1e9 }, png(2));
  expect(bytes(image)).toEqual([2, 2, 3]);
});

test("the picture has its room before it is decoded", async () => {
  const model = new Model();
  const { image } = await mount(model);
  const header = new DataView(new ArrayBuffer(33));
  header.setUint32(16, 650);
  header.setUint32(20, 312);
  model.message(frame(1), header);
  expect(image.parentElement.style.aspectRatio).toBe("650 / 312");
});

test.each([
  ["an older frame", frame(4)],
  ["another width's", frame(6, false, "801x1-light")],
  ["another theme's", frame(6, false, "800x1-dark")],
  ["another ratio's", frame(6, false, "800x2-light")],
  ["a draft of the picture at rest", frame(5, true)],
])("ignores %s", async (_name, content) => {
  const model = new Model();
  const { image } = await mount(model);
  model.message(frame(5), png());
  await settle();
  const { src } = image;
  model.message(content, png(9));
  await settle();
  expect(image.src).toBe(src);
});

test("the picture at rest replaces the draft of the same numbers", async () => {
  const model = new Model();
  const { image } = await mount(model);
  model.message(frame(5, true), png(1));
  await settle();
  model.message(frame(5), png(2));
  await settle();
  expect(bytes(image)).toEqual([2, 2, 3]);
});

test("a broken picture leaves the last good one", async () => {
  const model = new Model();
  const { image } = await mount(model);
  let { src } = image; // happy-dom takes every source for good
  Object.defineProperty(image, "src", { get: () => src, set: (value) => { src = value; } });
  model.message(frame(1), png(1));
  image.dispatchEvent(new Event("load"));
  model.message(frame(2), png(2));
  image.dispatchEvent(new Event("error"));
  expect(bytes(image)).toEqual([1, 2, 3]);
  image.dispatchEvent(new Event("error")); // not even that one: no endless loop
  model.message(frame(3)); // no picture at all
  await settle();
  expect(bytes(image)).toEqual([1, 2, 3]);
});

test("a reopened notebook shows its last picture, and asks for a fresh one", async () => {
  const model = new Model({ _frame: png(7) });
  const { image, close } = await mount(model, { live: false });
  expect(bytes(image)).toEqual([7, 2, 3]);
  expect(model.last("hello").views[0]).toMatchObject({ frame: -1 });
  model.greet();
  model.message(frame(0), png(8));
  await settle();
  expect(image.dataset.frame).toBe("0");
  expect(bytes(image)).toEqual([8, 2, 3]);
  close();
});

test("no broken picture: none is shown before there is one, and why is said", async () => {
  const model = new Model();
  const { root, image, state } = await mount(model, { live: false });
  model.widget_manager.kernel.status = "busy";
  const figure = root.querySelector(".tm-figure");
  expect(image.hidden).toBe(true);
  expect(figure.textContent).toBe(""); // usually it is there in a moment
  await settle(2_000);
  expect(image.hidden).toBe(true);
  expect(figure.textContent).toContain("once the kernel is free");
  model.greet();
  model.message(frame(1), png());
  await settle();
  expect([image.hidden, figure.textContent, state.textContent]).toEqual([false, "", ""]);
});

test.each([[png(7), ""], [new DataView(new ArrayBuffer(0)), "No picture is stored here."]])(
  "without a kernel it is a static copy of the stored picture", async (_frame, said) => {
    const model = new Model({ _frame }, null);
    const { el, root, image, state } = await mount(model, { live: false });
    el.classList.add("jupyter-widgets-disconnected");
    await settle(600);
    expect(root.dataset.status).toBe("disconnected");
    expect(state.textContent).toBe("Static copy");
    expect(image.hidden).toBe(said !== "");
    expect(root.querySelector(".tm-figure").textContent).toBe(said);
  });

test("a stored picture of another theme waits for one of this, but not for ever", async () => {
  document.body.dataset.jpThemeLight = "false";
  const { image } = await mount(new Model({ _frame: png(7) }), { live: false });
  expect(image.hidden).toBe(true);
  await settle(2_000);
  expect(bytes(image)).toEqual([7, 2, 3]);
  const key = "800x1-dark";
  const other = await mount(new Model({ _frame: png(8), _reply: { key } }), { live: false });
  expect(bytes(other.image)).toEqual([8, 2, 3]);
});

test("the next hello tells which picture is shown", async () => {
  const model = new Model();
  const { root } = await mount(model);
  const again = () => {
    page.Intersection.fire([{ isIntersecting: false }], root);
    model.greet();
    page.Intersection.fire([{ isIntersecting: true }], root);
    model.greet();
    return model.last("hello").views[0];
  };
  model.message(frame(3), png());
  await settle();
  expect(again()).toMatchObject({ frame: 3, key: KEY });
  model.message(frame(4, true), png());
  await settle();
  expect(again()).toMatchObject({ frame: -1 }); // a draft is still to be replaced
});

test("each view takes its own frames", async () => {
  const model = new Model();
  const { views: [one, two] } = await mount(model, { views: 2 });
  page.width = 500;
  page.Resize.fire([], two.el.querySelector(".tm-figure"));
  await settle(200);
  model.greet();
  model.message(frame(1, false, "800x1-light"), png(1));
  model.message(frame(1, false, "500x1-light"), png(2));
  await settle();
  expect(bytes(one.image)[0]).toBe(1);
  expect(bytes(two.image)[0]).toBe(2);
});

test("a resize is told once it rests, and the old picture stays until then", async () => {
  const model = new Model();
  const { root, image } = await mount(model);
  model.message(frame(1), png());
  await settle();
  const { src } = image;
  const before = model.of("hello").length;
  for (let width = 790; width > 700; width -= 10) {
    page.width = width;
    page.Resize.fire([], root.querySelector(".tm-figure"));
    await settle(20);
  }
  expect(model.of("hello").length).toBe(before);
  await settle(200);
  expect(model.of("hello").length).toBe(before + 1);
  expect(model.last("hello").views[0].width).toBe(710);
  expect(image.src).toBe(src);
  model.greet();
  model.message(frame(1, false, "710x1-light"), png(2));
  await settle();
  expect(image.src).not.toBe(src);
});

test.each([[0.1, 0.5], [1.25, 1.25], [1.3333333, 1.33], [9, 4], [0, 1]])(
  "a device ratio of %d is asked for as %d", async (ratio, wanted) => {
    globalThis.devicePixelRatio = ratio;
    const model = new Model();
    await mount(model, { live: false });
    expect(model.last("hello").views[0].ratio).toBe(wanted);
    globalThis.devicePixelRatio = 1;
  });

// -- theme

const { body, documentElement: html } = document;
test.each([
  ["JupyterLab light", () => { body.dataset.jpThemeLight = "true"; }, true, "light"],
  ["JupyterLab dark", () => { body.dataset.jpThemeLight = "false"; }, false, "dark"],
  ["VS Code light", () => { body.dataset.vscodeThemeKind = "vscode-light"; }, true, "light"],
  ["VS Code dark", () => { body.dataset.vscodeThemeKind = "vscode-dark"; }, false, "dark"],
  ["VS Code contrast", () => { body.dataset.vscodeThemeKind = "vscode-high-contrast"; }, false,
    "dark"],
  ["VS Code light contrast", () => {
    body.dataset.vscodeThemeKind = "vscode-high-contrast-light";
  }, true, "light"],
  ["marimo dark", () => body.classList.add("dark"), false, "dark"],
  ["marimo light", () => body.classList.add("light"), true, "light"],
  ["a dark data-theme", () => { html.dataset.theme = "dark"; }, false, "dark"],
  ["a light data-theme", () => { html.dataset.theme = "light"; }, true, "light"],
  ["Colab dark", () => html.setAttribute("theme", "dark"), false, "dark"],
  ["a dark system", () => {}, true, "dark"],
  ["a light system", () => {}, false, "light"],
])("theme of %s", async (_name, host, systemDark, theme) => {
  page.dark = systemDark;
  host();
  const model = new Model();
  const { root } = await mount(model, { live: false });
  expect(root.dataset.theme).toBe(theme);
  expect(model.last("hello").views[0].theme).toBe(theme);
});

test.each([[true, "dark"], [false, "light"]])(
  "forced colours are the system's, whatever the host says", async (systemDark, theme) => {
    page.forced = true;
    page.dark = systemDark;
    body.dataset.jpThemeLight = String(systemDark);
    const { root } = await mount(new Model(), { live: false });
    expect(root.dataset.theme).toBe(theme);
  });

test("a change of theme repaints and asks for another picture", async () => {
  const model = new Model();
  const { root, image } = await mount(model);
  model.message(frame(1), png());
  await settle();
  body.dataset.jpThemeLight = "false";
  page.Mutation.fire([], body);
  await settle(200);
  expect(root.dataset.theme).toBe("dark");
  expect(model.last("hello").views[0]).toMatchObject({ theme: "dark", frame: 1, key: KEY });
  const { src } = image;
  model.message(frame(1, false, "800x1-dark"), png(2));
  await settle();
  expect(image.src).not.toBe(src);
});

test("a change of the system's theme is followed", async () => {
  const model = new Model();
  const { root } = await mount(model);
  page.dark = true;
  for (const { type, handler } of [...page.mediaCount.live]) {
    expect(type).toBe("change");
    handler(new Event("change"));
  }
  await settle(200);
  expect(root.dataset.theme).toBe("dark");
});

test("what could not be drawn leaves no picture, and a sentence", async () => {
  const model = new Model();
  const { root, image } = await mount(model);
  const alert = root.querySelector("[role=alert]");
  model.message(frame(1), png(1));
  image.dispatchEvent(new Event("load"));
  const none = new DataView(new ArrayBuffer(0));
  model.publish({ _undrawn: "The picture could not be drawn: why" });
  model.message({ ...frame(2), size: 0 }, none);
  await settle();
  expect(image.hidden).toBe(true);
  expect(image.hasAttribute("src")).toBe(false);
  image.dispatchEvent(new Event("error")); // nor does the last good one come back
  expect(image.hasAttribute("src")).toBe(false);
  expect([alert.hidden, alert.textContent]).toEqual([false, "The picture could not be drawn: why"]);
  model.publish({ _undrawn: "" });
  model.message(frame(3), png(3));
  await settle();
  expect(image.hidden).toBe(false);
  expect(bytes(image)).toEqual([3, 2, 3]);
  expect(alert.hidden).toBe(true);
});
