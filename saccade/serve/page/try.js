// The page "try the model": asks the API of the server that it comes from, and shows what it says.

import { ask, events } from "./api.js";
import { button, el, shown } from "./view/element.js";
import { FileField } from "./files.js";
import { SettingsForm } from "./settings.js";

const part = (id) => document.getElementById(id);
const settings = new SettingsForm(part("first"), part("settings"));
const files = new FileField(part("file-field"));
const ASKED = { encode: "Text with [MASK] where a word is missing" };
let models = [];
let asking = null; // what is going on now, to be stopped

function model() {
  return models.find((entry) => entry.name === part("model").value);
}

async function begin() {
  try {
    models = (await ask("/v1/models", null, token())).models;
  } catch (error) {
    tell(error);
    return;
  }
  tell(null);
  part("model").replaceChildren(...models.map((entry) => el("option", { value: entry.name }, entry.name)));
  shown(part("model-field"), models.length > 1);
  chosen();
}

function chosen() {
  const entry = model();
  settings.offer(entry);
  part("about").textContent = `${entry.name}: ${entry.goes_on ? "goes on from a prompt" : entry.task}`;
  part("input-name").textContent = entry.goes_on ? "Prompt" : entry.asks ? "Question" : ASKED[entry.task] ?? "Text";
  asking?.abort();
  files.offer(entry.reads);
  for (const id of ["input", "input-label"]) shown(part(id), entry.reads === "text" || entry.asks);
  clear();
}

// What is asked of a model: JSON with a text, or a form with a file. None where there is nothing to ask about.
function asked(entry, more = {}) {
  const input = part("input").value;
  if (entry.reads !== "text") return files.form({ model: entry.name, ...(entry.asks ? { question: input } : {}), ...more });
  return input.trim() || entry.goes_on ? { model: entry.name, input, ...more } : null;
}

async function run() {
  if (!models.length) await begin();
  const entry = model();
  if (!entry) return;
  if (asked(entry) === null) {
    if (entry.reads !== "text") tell(new Error(`Choose a ${entry.reads} file first.`));
    return;
  }
  asking?.abort();
  const mine = (asking = new AbortController());
  busy(true);
  clear();
  const began = performance.now();
  try {
    const wanted = settings.changes();
    await (streams(entry, wanted) ? streamed(entry, wanted, mine) : answered(entry, wanted, mine));
    part("took").textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`;
    await attention(asked(entry, { settings: wanted, packed: true }), mine); // found once more, with each step of the search
  } catch (error) {
    if (error.name !== "AbortError") tell(error);
  } finally {
    if (asking === mine) busy(false);
  }
}

// Tokens come one by one from a language model that writes a single output.
function streams(entry, wanted) {
  const { sample, beam, n_best: best } = { ...entry.settings, ...wanted };
  return entry.goes_on && best === 1 && (sample || beam === 1);
}

async function streamed(entry, wanted, { signal }) {
  const body = asked(entry, { settings: wanted, stream: true });
  let output = "";
  for await (const { name, data } of events("/v1/predict", body, token(), signal)) {
    if (name === "error") throw new Error(data.error);
    if (name === "done") break;
    output += data.text;
    write(body.input, output);
  }
}

async function answered(entry, wanted, mine) {
  const body = asked(entry, { settings: wanted });
  const [result] = (await ask("/v1/predict", body, token(), mine.signal)).results;
  write(entry.goes_on ? body.input : "", said(result));
  const rows = result.candidates?.length > 1 ? result.candidates : classes(result);
  const look = (output) => attention(asked(entry, { settings: wanted, packed: true, output }), mine);
  if (rows.length) alternatives(rows, result.candidates ? look : null);
}

// What a model says: an output, what comes after a prompt, a class, what to do, a number or tags.
function said(result) {
  return String(result.output ?? result.completion ?? result.label ?? result.action ?? result.value ?? result.tags?.join(" ") ?? "");
}

// The classes that were chosen from, best first.
function classes({ label, probabilities }) {
  const all = label === undefined ? [] : Object.entries(probabilities).map(([name, probability]) => ({ label: name, probability }));
  return all.sort((a, b) => b.probability - a.probability);
}

// A prompt stands before what was written, told apart by its colour.
function write(prompt, output) {
  part("output").replaceChildren(el("span", { class: "try-prompt" }, prompt), output);
}

// Best first; where attention can be looked at, by pressing an output.
function alternatives(rows, look) {
  const scored = rows[0].score !== undefined;
  const head = ["No.", "Output", ...(scored ? ["Score"] : []), "Probability"].map((name) => el("th", { scope: "col" }, name));
  const cell = (text) => el("td", { class: "try-number" }, text);
  const body = rows.map((one, i) => {
    const text = said(one);
    const shown = look ? button(text || "(nothing)", () => look(text).catch(tell), { class: "try-look", title: "What it looks at while it writes this" }) : text;
    return el("tr", {}, el("th", { scope: "row" }, String(i + 1)), el("td", { dir: "auto" }, shown),
      scored ? cell(one.score.toFixed(3)) : null, cell(percent(one.probability ?? Math.exp(one.log_prob))));
  });
  const table = el("table", {}, el("caption", {}, "Alternatives, best first"),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
  shown(part("alternatives"), true).replaceChildren(table);
}

function percent(share) {
  return share >= 0.0005 ? `${(100 * share).toFixed(1)} %` : share.toExponential(1);
}

async function attention(body, { signal }) {
  try {
    const found = await ask("/v1/attention", body, token(), signal);
    const { mount } = await import("./view/main.js");
    const place = el("div");
    shown(part("attention-problem"), false);
    shown(part("attention-part"), true);
    part("attention").replaceChildren(place);
    await mount(place, found, { heading: false });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    shown(part("attention-part"), true);
    shown(part("attention-problem"), true).textContent = `Nothing to show: ${error.message}`;
  }
}

function clear() {
  tell(null);
  part("output").replaceChildren();
  part("took").textContent = "";
  part("attention").replaceChildren();
  for (const id of ["alternatives", "attention-part", "attention-problem"]) shown(part(id), false);
}

function tell(error) {
  shown(part("problem"), error !== null).textContent = error?.message ?? "";
  if (error?.status !== 401) return;
  shown(part("token-field"), true);
  part("token").focus();
}

function busy(now) {
  part("output").setAttribute("aria-busy", String(now));
  part("go").disabled = now;
  shown(part("stop"), now);
  if (!now) asking = null;
}

function token() {
  return part("token").value;
}

part("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
part("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) part("ask").requestSubmit();
});
part("model").addEventListener("change", chosen);
part("stop").addEventListener("click", () => {
  asking?.abort();
  busy(false);
});
begin();
