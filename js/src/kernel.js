// @ts-check
// What the host shows of the kernel: JupyterLab and its like do, others don't.

/** @import {Model} from "../types" */

const OVER = ["dead", "restarting", "autorestarting", "terminating"];

/** @param {Model} model */
export function watchKernel(model) {
  let had = false;

  /** @returns {any} */
  const now = () => /** @type {any} */ (model.widget_manager)?.kernel;

  return {
    /** Whether the host has ever shown one. */
    shown: () => had || Boolean(now()),
    /** @returns {boolean | null} whether it is at work; null where the host won't tell */
    busy() {
      const state = now()?.status;
      return state === "busy" || (state === "idle" ? false : null);
    },
    gone() {
      const { status, connectionStatus } = now() ?? {};
      had ||= Boolean(now());
      return (had && !now()) || // shut down
        OVER.includes(status) ||
        (connectionStatus !== undefined && connectionStatus !== "connected");
    },
  };
}
