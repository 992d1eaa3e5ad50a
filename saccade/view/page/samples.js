// Sample outputs for validation inputs: all of them at one step, or one of them over all steps.

import { createSelect, el, setVisible } from "./element.js";
import { formatNumber } from "./scale.js";

export function createSamplesPanel() {
  const state = { shown: "" }; // "": the latest step, "step 500": one step, "text 2": one input over all steps
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Samples" });
  const which = createSelect("Show", [], "", (value) => {
    state.shown = value;
    draw();
  });
  const note = el("p", { class: "hint" });
  const element = el("section", { class: "watch-part", "aria-label": "Sample outputs" }, el("div", { class: "bar head" },
    el("h2", {}, "Sample outputs"), which.element), note, body);
  let all = [];
  const draw = () => {
    const [kind, number] = state.shown.split(" ");
    const index = Number(number);
    body.replaceChildren(all.length ? kind === "text" ? createHistory(all, index) : createStepTable(all.find(({ step }) => step === index) ?? all.at(-1)) : "");
  };
  const update = ({ samples }) => {
    all = samples.filter(({ samples: some }) => some.length);
    setVisible(body, all.length > 0);
    setVisible(which.element, all.length > 0);
    note.textContent = all.length ? "Greedy outputs for validation inputs, which are not in the training data." : "No samples yet.";
    if (!all.length) return;
    if (document.activeElement !== which.select) which.setOptions(listOptions(all), state.shown);
    draw();
  };
  return { element, update };
}

function listOptions(all) {
  const steps = all.map(({ step }) => [`step ${step}`, `step ${formatNumber(step)}`]).reverse();
  const texts = all.at(-1).samples.map(({ input }, i) => [`text ${i}`, `all steps: ${truncate(input)}`]);
  return [["", "latest step"], ...texts, ...steps];
}

function truncate(text) {
  const letters = [...text];
  return letters.length > 40 ? `${letters.slice(0, 39).join("")}…` : text;
}

function createTable(names, rows) {
  return el("table", { class: "values samples" }, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows));
}

function createCell(name, text, attributes = {}) {
  return el("td", { dir: "auto", "data-name": name, ...attributes }, text || "(empty)");
}

function createStepTable({ samples }) {
  return createTable(["Input", "Reference", "Output"], samples.map(({ input, reference, output }) =>
    el("tr", {}, createCell("Input", input), createCell("Reference", reference), createCell("Output", output, { class: output === reference ? "right" : null }))));
}

function createHistory(all, index) {
  const { input, reference } = all.at(-1).samples[index];
  const head = el("dl", { class: "texts" }, el("div", {}, el("dt", {}, "Input"), el("dd", { dir: "auto" }, input)),
    el("div", {}, el("dt", {}, "Reference"), el("dd", { dir: "auto" }, reference)));
  const rows = all.map(({ step, samples }) => el("tr", {}, el("th", { scope: "row", class: "number" }, formatNumber(step)),
    createCell("Output", samples[index]?.output, { class: samples[index]?.output === reference ? "right" : null })));
  return el("div", {}, head, createTable(["Step", "Output"], rows));
}
