// @ts-check
// The front end of `trainmem.TrainingMemoryWidget`: it paints what Python publishes and asks for
// changes. Python is the source of truth; nothing here computes memory.

import { connect } from "./link.js";
import { show } from "./view.js";
import "./widget.css";

/** @import {Link, Model} from "../types" */

// A function, so that every model has a link of its own: hosts share this module.
export default () => {
  /** @type {Link | undefined} */
  let link;
  return {
    /** @param {{model: Model, signal?: AbortSignal}} context */
    initialize({ model, signal }) {
      const own = new AbortController();
      const close = () => own.abort();
      signal?.addEventListener("abort", close, { signal: own.signal });
      link = connect(model, own.signal);
      return close;
    },
    /** @param {{model: Model, el: HTMLElement, signal?: AbortSignal}} context */
    render({ model, el, signal }) {
      if (!link) throw new Error("initialize() has not run");
      const takeDown = show(model, el, link);
      const close = () => {
        signal?.removeEventListener("abort", close);
        takeDown();
      };
      signal?.addEventListener("abort", close);
      return close;
    },
  };
};
