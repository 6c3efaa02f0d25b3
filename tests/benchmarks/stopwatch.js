// Times what a page shows: from an input event to the frame in which new pixels are painted.
window.stopwatch = (() => {
  const channel = new MessageChannel();
  const waiting = [];
  channel.port1.onmessage = () => {
    const now = performance.now();
    for (const act of waiting.splice(0)) act(now);
  };
  /** From within an animation frame: call back with the time of the first task after it. */
  const after = (act) => {
    waiting.push(act);
    channel.port2.postMessage(0);
  };
  /** Call back with the time once what the document holds now is painted. */
  const painted = (act) => requestAnimationFrame(() => after(act));
  /** Call back in each animation frame that paints another source of an image. */
  const onNewSource = (image, act) => {
    let due = false;
    const plan = () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        if (image.complete && image.naturalWidth) act(); // else its load tells
      });
    };
    const observer = new MutationObserver(plan);
    observer.observe(image, { attributeFilter: ["src"] });
    image.addEventListener("load", plan);
    return () => {
      observer.disconnect();
      image.removeEventListener("load", plan);
    };
  };

  let pressed = 0;
  addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);

  let changed = () => {}; // what a change of any watched picture calls, with its name
  const watch = {
    img(node, name) {
      onNewSource(node, () => changed(name, after));
    },
    text(node, name) {
      new MutationObserver(() => changed(name)).observe(node, { childList: true, subtree: true });
    },
    output(node, name) { // JupyterLab makes a new image, or gives the old one a new source
      new MutationObserver(() => {
        const image = node.querySelector("img");
        const shown = () => node.contains(image) && changed(name);
        image?.decode().then(shown, () => {});
      }).observe(node, { childList: true, subtree: true, attributeFilter: ["src"] });
    },
    canvas(node, name) {
      const context = node.getContext("2d");
      const draw = context.drawImage;
      const look = () => new Uint32Array(
        context.getImageData(0, 0, node.width, node.height).data.buffer);
      let before = look();
      context.drawImage = (...args) => {
        draw.apply(context, args);
        const now = look(); // ipympl also repaints what it has
        if (now.some((pixel, i) => pixel !== before[i])) changed(name);
        before = now;
      };
    },
  };

  let trial = { took: 0, last: 0 };
  return {
    watch: (kind, selector, name) => watch[kind](document.querySelector(selector), name),
    /** Await one change of a picture; its time from the next key press is `trial().took`. */
    arm(name) {
      trial = { took: 0, last: performance.now() };
      pressed = 0;
      changed = (which, soon = painted) => {
        if (which !== name) return;
        trial.last = performance.now();
        if (pressed && !trial.took) {
          trial.took = -1;
          soon((now) => { trial.took = now - pressed; });
        }
      };
    },
    took: () => trial.took > 0 && trial.took,
    quiet: (ms) => performance.now() - trial.last > ms,

    /** Drag a slider over `count` positions at `hz`; return when each value was asked and shown. */
    async drag(slider, picture, from, count, hz) {
      const control = document.querySelector(slider), image = document.querySelector(picture);
      const label = () => image.dataset.frame ?? image.dataset.value;
      const asked = [], shown = [];
      let seen = label();
      let last = 0;
      const look = () => {
        const now = label();
        if (now === seen) return;
        seen = now;
        last = performance.now();
        after((time) => shown.push([now, time]));
      };
      const stop = onNewSource(image, look);
      control.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
      const start = performance.now();
      for (let i = 0; i < count; i++) {
        const wait = start + (1000 * i) / hz - performance.now();
        if (wait > 0) await new Promise((done) => setTimeout(done, wait));
        control.value = String(from + i);
        asked.push(performance.now());
        control.dispatchEvent(new Event("input", { bubbles: true }));
      }
      control.dispatchEvent(new PointerEvent("pointerup", { bubbles: true }));
      last = performance.now();
      const still = () => performance.now() - last > (shown.length ? 1500 : 15_000);
      while (!still()) await new Promise((done) => setTimeout(done, 50));
      stop();
      return { asked, shown, final: label() };
    },
  };
})();
