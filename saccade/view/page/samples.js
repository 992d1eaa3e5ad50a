// What the model wrote for validation texts: all of them at one step, or one of them as it changed.

import { choice, el, shown } from "./element.js";
import { written } from "./scale.js";

export function samplesPart() {
  const state = { shown: "" }; // "" is the newest step, "step 500" one of them, "text 2" one text through all steps
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Samples" });
  const which = choice("Show", [], "", (value) => {
    state.shown = value;
    draw();
  });
  const note = el("p", { class: "hint" });
  const element = el("section", { class: "watch-part", "aria-label": "What it writes" }, el("div", { class: "bar head" },
    el("h2", {}, "What it writes"), which.element), note, body);
  let all = [];
  const draw = () => {
    const [kind, number] = state.shown.split(" ");
    const index = Number(number);
    body.replaceChildren(all.length ? kind === "text" ? through(all, index) : at(all.find(({ step }) => step === index) ?? all.at(-1)) : "");
  };
  const update = ({ samples }) => {
    all = samples.filter(({ samples: some }) => some.length);
    shown(body, all.length > 0);
    shown(which.element, all.length > 0);
    note.textContent = all.length ? "Validation texts that it never learned from, written greedily." : "Nothing was written for validation texts yet.";
    if (!all.length) return;
    if (document.activeElement !== which.select) which.offer(entries(all), state.shown);
    draw();
  };
  return { element, update };
}

function entries(all) {
  const steps = all.map(({ step }) => [`step ${step}`, `step ${written(step)}`]).reverse();
  const texts = all.at(-1).samples.map(({ input }, i) => [`text ${i}`, `through all steps: ${cut(input)}`]);
  return [["", "the newest"], ...texts, ...steps];
}

function cut(text) {
  const letters = [...text];
  return letters.length > 40 ? `${letters.slice(0, 39).join("")}…` : text;
}

function table(names, rows) {
  return el("table", { class: "values samples" }, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows));
}

function cell(name, text, attributes = {}) {
  return el("td", { dir: "auto", "data-name": name, ...attributes }, text || "(nothing)");
}

function at({ samples }) {
  return table(["Input", "Reference", "Output"], samples.map(({ input, reference, output }) =>
    el("tr", {}, cell("Input", input), cell("Reference", reference), cell("Output", output, { class: output === reference ? "right" : null }))));
}

function through(all, index) {
  const { input, reference } = all.at(-1).samples[index];
  const head = el("dl", { class: "texts" }, el("div", {}, el("dt", {}, "Input"), el("dd", { dir: "auto" }, input)),
    el("div", {}, el("dt", {}, "Wanted"), el("dd", { dir: "auto" }, reference)));
  const rows = all.map(({ step, samples }) => el("tr", {}, el("th", { scope: "row", class: "number" }, written(step)),
    cell("Output", samples[index]?.output, { class: samples[index]?.output === reference ? "right" : null })));
  return el("div", {}, head, table(["Step", "Output"], rows));
}
