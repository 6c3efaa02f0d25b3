// What Python publishes and what front end and Python say to each other: types only, not shipped.

import type { AnyModel as Model } from "@anywidget/types";
import type { connect } from "./src/link.js";

export type { Model };

export type Field = {
  name: string;
  label: string;
  help: string;
  unit: string;
  group: string;
  choices: { value: number; label: string }[];
  values: number[];
};

export type Named = { name: string; label: string; help: string };

/** One option of a plan: a choice, or a number where there are no choices. */
export type Option = Named & {
  group: string;
  choices: { value: unknown; label: string }[];
  default: unknown;
};

export type Tables = {
  fields: Field[];
  presets: string[];
  architectures: { name: string; label: string }[];
  derived: string[];
  stacks: { name: string; label: string }[];
  plan: Option[];
  gpus: { label: string }[];
  /** Traits that a painting reads. */
  watched: string[];
};

export type Panel = {
  fits: boolean;
  grade: "fits" | "uncertain" | "does not fit";
  note: { text: string; offer: string };
  preset: string;
  stack: string;
  plan: Record<string, unknown>;
  /** Why inputs ("" for the whole) or their choices can't be had. */
  unavailable: Record<string, Record<string, string>>;
  layout: string;
  detail: Part[];
  /** The plan in one line. */
  summary: string;
  /** Options that make no difference as things are. */
  idle: string[];
  headline: string;
  banner: string;
  footer: string;
  python: string;
  curl: string;
  fixes: { offer: string; items: { label: string; changes: Record<string, unknown> }[] }[];
  cards: { title: string; value: string; unit: string; note: string }[];
  table: [string, string][];
};

export type Message = {
  kind: string;
  id?: number;
  n?: number;
  key?: string;
  draft?: boolean;
  size?: number;
  client?: string;
  answers?: number;
  answer?: unknown;
  alt?: string;
};

export type Status = "waiting" | "live" | "disconnected";

/** What a view wants drawn, and which picture it shows; null while nobody sees it. */
export type Info = {
  width: number;
  ratio: number;
  theme: string;
  frame: number;
  key: string;
};

export type View = {
  info: () => Info | null;
  message: (content: Message, buffers: DataView[]) => void;
  paint: () => void;
  gone: () => boolean;
};

export type Link = ReturnType<typeof connect>;

/** Ask for new values: a draft may be dropped; `read` says how a typed text was understood. */
export type Change = (changes: Record<string, unknown>, draft?: boolean, read?: string) => void;

/** A control for one field: `node` to show, `set` to paint it unless it is in use. */
export type Control = {
  node: HTMLElement;
  set: (value: any, text?: any) => void;
  invalid: (bad: boolean) => void;
};

/** A row of what is alive at the peak; its share of the longest bar. */
export type Part = { name: string; value: string; note: string; share: number };

/** What opens in the drawer; `fill` brings it up to date. */
export type Pane = {
  title: string;
  node: HTMLElement;
  fill: () => void;
  button?: HTMLButtonElement;
  key?: string;
};

/** What all parts of one view share. */
export type Scope = {
  model: Model;
  link: Link;
  tables: Tables;
  /** Begins the id of each element. */
  uid: string;
  change: Change;
  /** Do something after a while, or when the view goes. */
  later: (act: () => void, ms: number) => void;
};

/** What one painting shows. */
export type Shown = {
  panel: Panel;
  status: Status;
  dead: boolean;
  architecture: string;
  error: string;
  told: { field?: string; error?: string; also?: string };
  /** How the last typed text was understood. */
  read: string;
};
