// The form of decoding settings, built from the model's default settings.

import { el } from "./view/element.js";

const LABELS = {
  beam: "Beam size (1 is greedy)", n_best: "Alternatives", sample: "Sample", temperature: "Temperature", top_k: "Top k (0: all)",
  top_p: "Top p (nucleus)", seed: "Seed", length_penalty: "Length penalty", coverage_penalty: "Coverage penalty",
  min_length: "Minimum length", max_length: "Maximum length", no_repeat_ngram: "No repeated n-grams of size", prefix: "Forced prefix",
  stop: "Stop strings (one per line)", truncate_prompt: "Truncate long prompts", repetition_penalty: "Repetition penalty", frequency_penalty: "Frequency penalty",
  replace_unknown: "Replace unknown words", iterations: "Refinement iterations", length_candidates: "Length candidates", collapse: "Collapse repeated tokens",
};
const MAIN_SETTINGS = ["beam", "n_best", "sample", "iterations"]; // always visible
const PROMPT_SETTINGS = ["stop", "truncate_prompt", "repetition_penalty", "frequency_penalty"]; // of language models
const SOURCE_SETTINGS = ["coverage_penalty", "replace_unknown"]; // of models with a source
const PARALLEL_SETTINGS = ["iterations", "length_candidates", "collapse"]; // of non-autoregressive models
const AUTOREGRESSIVE_SETTINGS = ["beam", "n_best", "sample", "temperature", "top_k", "top_p", "seed", "length_penalty", "coverage_penalty", "no_repeat_ngram", "prefix"];

export class SettingsForm {
  constructor(first, more) {
    this.places = [first, more];
    this.fields = [];
  }

  // Shows the settings that apply to a model.
  showSettings({ page_settings: pageSettings, settings, goes_on: goesOn, at_once: atOnce }) {
    const hidden = [...(goesOn ? SOURCE_SETTINGS : PROMPT_SETTINGS), ...(atOnce ? AUTOREGRESSIVE_SETTINGS : PARALLEL_SETTINGS)];
    const known = pageSettings ?? Object.keys(LABELS).filter((name) => !hidden.includes(name));
    const names = known.filter((name) => name in settings);
    this.fields = names.map((name) => createField(name, settings[name]));
    for (const [i, place] of this.places.entries()) {
      const here = this.fields.filter(({ name }) => MAIN_SETTINGS.includes(name) === (i === 0));
      place.replaceChildren(...here.map(({ element }) => element));
    }
    this.places[1].parentElement.hidden = !this.places[1].children.length;
  }

  // The settings that differ from the model's defaults.
  changes() {
    const found = this.fields.map(({ name, own, read }) => [name, own, read()]);
    return Object.fromEntries(found.filter(([, own, now]) => JSON.stringify(now) !== JSON.stringify(own)).map(([name, , now]) => [name, now]));
  }
}

function createField(name, own) {
  if (typeof own === "boolean") {
    const box = el("input", { type: "checkbox" });
    box.checked = own;
    return { name, own, read: () => box.checked, element: el("label", { class: "try-check" }, box, LABELS[name]) };
  }
  const input = own instanceof Array
    ? el("textarea", { rows: 2 })
    : el("input", typeof own === "string" ? { type: "text" } : { type: "number", step: "any", placeholder: own === null ? "automatic" : "" });
  input.value = own instanceof Array ? own.join("\n") : own ?? "";
  const read = () => {
    if (own instanceof Array) return input.value ? input.value.split("\n").filter(Boolean) : [];
    if (typeof own === "string") return input.value;
    return input.value === "" ? own : Number(input.value);
  };
  return { name, own, read, element: el("label", { class: "try-field" }, el("span", {}, LABELS[name]), input) };
}
