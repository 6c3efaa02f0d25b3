// What Python publishes and what front end and Python say to each other: types only, not shipped.

export type { AnyModel as Model } from "@anywidget/types";

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
  gpus: { label: string; gb: number }[];
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
  detail: [string, string, string][];
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
