// The form of decoding settings: made from what a model says of its own, so that every setting of a recipe can be tried.

import { el } from "./view/element.js";

const NAMES = {
  beam: "Beams (1 is greedy)", n_best: "Alternatives", sample: "Draw at random", temperature: "Temperature", top_k: "Best k tokens (0: all)",
  top_p: "Best share of probability", seed: "Seed", length_penalty: "Length penalty", coverage: "Coverage penalty",
  min_length: "Shortest, in tokens", max_length: "Longest, in tokens", no_repeat: "No n-gram of this size twice", prefix: "Begin with",
  stop: "Stop before (one a line)", slide: "Cut long prompts", repetition: "Repetition penalty", frequency: "Frequency penalty",
  replace_unknown: "Replace unknown words", iterations: "Passes", lengths: "Lengths to try", collapse: "Join equal neighbours",
};
const FIRST = ["beam", "n_best", "sample", "iterations"]; // always in sight
const PROMPTED = ["stop", "slide", "repetition", "frequency"]; // of models that go on from a prompt
const READING = ["coverage", "replace_unknown"]; // of models that read something else first
const AT_ONCE = ["iterations", "lengths", "collapse"]; // of models that write all tokens at once
const ONLY = { label: [], interact: [], encode: ["n_best"] }; // of tasks in which nothing is searched step by step
const STEPWISE = ["beam", "n_best", "sample", "temperature", "top_k", "top_p", "seed", "length_penalty", "coverage", "no_repeat", "prefix"];

export class SettingsForm {
  constructor(first, more) {
    this.places = [first, more];
    this.fields = [];
  }

  // The settings that mean something to a model.
  offer({ task, settings, goes_on: goesOn, at_once: atOnce }) {
    const left = [...(goesOn ? READING : PROMPTED), ...(atOnce ? STEPWISE : AT_ONCE)];
    const known = ONLY[task] ?? Object.keys(NAMES).filter((name) => !left.includes(name));
    const names = known.filter((name) => name in settings);
    this.fields = names.map((name) => field(name, settings[name]));
    for (const [i, place] of this.places.entries()) {
      const here = this.fields.filter(({ name }) => FIRST.includes(name) === (i === 0));
      place.replaceChildren(...here.map(({ element }) => element));
    }
    this.places[1].parentElement.hidden = !this.places[1].children.length;
  }

  // What differs from the model's own settings.
  changes() {
    const found = this.fields.map(({ name, own, read }) => [name, own, read()]);
    return Object.fromEntries(found.filter(([, own, now]) => JSON.stringify(now) !== JSON.stringify(own)).map(([name, , now]) => [name, now]));
  }
}

function field(name, own) {
  if (typeof own === "boolean") {
    const box = el("input", { type: "checkbox" });
    box.checked = own;
    return { name, own, read: () => box.checked, element: el("label", { class: "try-check" }, box, NAMES[name]) };
  }
  const input = own instanceof Array
    ? el("textarea", { rows: 2 })
    : el("input", typeof own === "string" ? { type: "text" } : { type: "number", step: "any", placeholder: own === null ? "as it needs" : "" });
  input.value = own instanceof Array ? own.join("\n") : own ?? "";
  const read = () => {
    if (own instanceof Array) return input.value ? input.value.split("\n").filter(Boolean) : [];
    if (typeof own === "string") return input.value;
    return input.value === "" ? own : Number(input.value);
  };
  return { name, own, read, element: el("label", { class: "try-field" }, el("span", {}, NAMES[name]), input) };
}
