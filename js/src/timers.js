// @ts-check
// Things to do after a while, none of which outlives its view.

/** What is due when the view goes is done at once. */
export function timers() {
  /** @type {Set<() => void>} */
  const due = new Set();
  let over = false;
  return {
    /** @param {() => void} act @param {number} ms */
    later(act, ms) {
      const run = () => {
        clearTimeout(timer);
        due.delete(run);
        act();
      };
      const timer = setTimeout(run, ms);
      due.add(run);
      if (over) run();
    },
    finish() {
      over = true;
      for (const run of due) run();
    },
  };
}
