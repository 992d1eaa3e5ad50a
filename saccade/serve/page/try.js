// The page "try the model": sends requests to the API of its server and shows the results.

import { requestFile, requestJson, streamEvents } from "./api.js";
import { createButton, el, setVisible } from "./view/element.js";
import { FileField } from "./files.js";
import { createCode, createCopyButton, formatCurl, formatPython } from "./request.js";
import { SettingsForm } from "./settings.js";
import { addTop } from "./top.js";
import { readTheme } from "./view/brand.js";

const getElement = (id) => document.getElementById(id);
const settings = new SettingsForm(getElement("first"), getElement("settings"));
const files = new FileField(getElement("file-field"));
let models = [];
let asking = null; // AbortController of the current request
let attention = null; // the attention page
let nextExample = 0; // of the model's validation examples
let answered = ""; // the output, without the prompt

function getModel() {
  return models.find((entry) => entry.name === getElement("model").value);
}

async function loadModels() {
  try {
    models = (await requestJson("/v1/models", null, getToken())).models;
  } catch (error) {
    showError(error);
    return;
  }
  showError(null);
  getElement("model").replaceChildren(...models.map((entry) => el("option", { value: entry.name }, entry.name)));
  setVisible(getElement("model-field"), models.length > 1);
  handleModelChange();
}

function handleModelChange() {
  const entry = getModel();
  settings.showSettings(entry);
  getElement("about").textContent = `${entry.name}: ${entry.goes_on ? "language model" : entry.task}`;
  const [source, target] = entry.languages;
  getElement("input-name").textContent = (entry.goes_on ? "Prompt" : entry.asks ? "Question" : entry.input_label) + nameLanguage(source);
  getElement("output-name").textContent = `Output${nameLanguage(target)}`;
  getElement("input").placeholder = getPlaceholder(entry);
  getElement("input").lang = source ?? "";
  getElement("output").lang = target ?? source ?? "";
  nextExample = 0;
  setVisible(getElement("example"), entry.examples.length > 0);
  setVisible(getElement("example-note"), false);
  asking?.abort();
  files.setMedium(entry.reads);
  for (const id of ["input", "input-label"]) setVisible(getElement(id), entry.reads === "text" || entry.asks);
  clear();
}

// " in German", from the code of a language; nothing where it is not known.
function nameLanguage(code) {
  if (!code) return "";
  try {
    return ` in ${new Intl.DisplayNames(["en"], { type: "language" }).of(code)}`;
  } catch {
    return ` in ${code}`;
  }
}

function getPlaceholder({ examples: [example], goes_on: goesOn, asks, input_label: label }) {
  const text = asks ? example?.question : example?.input;
  if (text) return text;
  return goesOn ? "The beginning of a text" : asks ? "A question about the image" : label;
}

// Fills the form with the next validation example of the model.
async function showExample() {
  const { name, examples, asks, reads } = getModel();
  const example = examples[nextExample];
  const number = nextExample + 1;
  nextExample = number % examples.length;
  try {
    if (reads !== "text") files.choose(await requestFile(`/v1/examples/${encodeURIComponent(name)}`, example.file, getToken()));
    if (reads === "text" || asks) getElement("input").value = asks ? example.question : example.input;
  } catch (error) {
    showError(error);
    return;
  }
  const place = examples.length > 1 ? ` ${number} of ${examples.length}` : "";
  const reference = example.reference ? `; its reference: ${example.reference}` : "";
  setVisible(getElement("example-note"), true).textContent = `Validation example${place}${reference}`;
}

// Builds the request for a model: JSON with a text, or a form with a file; null if the input is missing.
function buildRequest(entry, more = {}) {
  const input = getElement("input").value;
  if (entry.reads !== "text") return files.form({ model: entry.name, ...(entry.asks ? { question: input } : {}), ...more });
  return input.trim() || entry.goes_on ? { model: entry.name, input, ...more } : null;
}

async function run() {
  if (!models.length) await loadModels();
  const entry = getModel();
  if (!entry) return;
  if (buildRequest(entry) === null) {
    if (entry.reads !== "text") showError(new Error(`Choose a ${entry.reads} file first.`));
    return;
  }
  asking?.abort();
  const mine = (asking = new AbortController());
  setBusy(true);
  clear();
  const began = performance.now();
  showRequest(entry, settings.changes());
  try {
    const changes = settings.changes();
    await (canStream(entry, changes) ? predictStream(entry, changes, mine) : predictAll(entry, changes, mine));
    getElement("took").textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`;
    await showAttention(buildRequest(entry, { settings: changes, packed: true }), mine); // decodes again, recording each step of the search
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    if (asking === mine) setBusy(false);
  }
}

// Shows how programs send the same request.
function showRequest(entry, changes) {
  const input = getElement("input").value;
  const common = { model: entry.name, ...(Object.keys(changes).length ? { settings: changes } : {}) };
  const file = entry.reads === "text" ? "" : files.name;
  const fields = file ? { ...common, ...(entry.asks ? { question: input } : {}) } : { ...common, input };
  const options = { file, token: getToken() };
  const url = `${location.origin}/v1/predict`;
  getElement("request-code").replaceChildren(createCode("curl", formatCurl(url, fields, options)), createCode("Python", formatPython(url, fields, options)));
  setVisible(getElement("request"), true);
}

// Whether tokens can be streamed: a language model with a single hypothesis.
function canStream(entry, changes) {
  const { sample, beam, n_best: best } = { ...entry.settings, ...changes };
  return entry.goes_on && best === 1 && (sample || beam === 1);
}

async function predictStream(entry, changes, { signal }) {
  const body = buildRequest(entry, { settings: changes, stream: true });
  let output = "";
  for await (const { name, data } of streamEvents("/v1/predict", body, getToken(), signal)) {
    if (name === "error") throw new Error(data.error);
    if (name === "done") break;
    output += data.text;
    showOutput(body.input, output);
  }
}

async function predictAll(entry, changes, mine) {
  const body = buildRequest(entry, { settings: changes });
  const [result] = (await requestJson("/v1/predict", body, getToken(), mine.signal)).results;
  showOutput(entry.goes_on ? body.input : "", getOutputText(result));
  const rows = result.candidates?.length > 1 ? result.candidates : listClasses(result);
  const onSelect = (output) => showAttention(buildRequest(entry, { settings: changes, packed: true, output }), mine);
  if (rows.length) showAlternatives(rows, result.candidates ? onSelect : null);
}

// The output of a model: text, completion, class, action, value or tags.
function getOutputText(result) {
  const found = result.output ?? result.completion ?? result.label ?? result.action ?? result.value ?? result.tags?.join(" ") ?? "";
  return typeof found === "number" ? String(Number(found.toPrecision(4))) : String(found);
}

// All classes, most probable first.
function listClasses({ label, probabilities }) {
  const all = label === undefined ? [] : Object.entries(probabilities).map(([name, probability]) => ({ label: name, probability }));
  return all.sort((a, b) => b.probability - a.probability);
}

// Shows the output after the prompt, which has another colour.
function showOutput(prompt, output) {
  answered = output;
  setVisible(copyButton, output !== "");
  getElement("output").replaceChildren(el("span", { class: "try-prompt" }, prompt), output);
}

// Shows all hypotheses, best first; pressing one shows its attention.
function showAlternatives(rows, onSelect) {
  const scored = rows[0].score !== undefined;
  const head = ["No.", "Output", ...(scored ? ["Score"] : []), "Probability"].map((name) => el("th", { scope: "col" }, name));
  const cell = (text) => el("td", { class: "try-number" }, text);
  const body = rows.map((one, i) => {
    const text = getOutputText(one);
    const content = onSelect ? createButton(text || "(empty)", () => onSelect(text).catch(showError), { class: "try-select", title: "Show the attention for this output" }) : text;
    return el("tr", {}, el("th", { scope: "row" }, String(i + 1)), el("td", { dir: "auto" }, content),
      scored ? cell(one.score.toFixed(2).replace(/^-0\.00$/, "0.00")) : null, cell(formatPercent(one.probability ?? Math.exp(one.log_prob))));
  });
  const table = el("table", {}, el("caption", {}, "Alternatives, best first"),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
  setVisible(getElement("alternatives"), true).replaceChildren(table);
}

function formatPercent(share) {
  return share >= 0.001 || share === 0 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";
}

async function showAttention(body, { signal }) {
  try {
    const found = await requestJson("/v1/attention", body, getToken(), signal);
    const { mount } = await import("./view/main.js");
    const place = el("div");
    setVisible(getElement("attention-problem"), false);
    setVisible(getElement("attention-part"), true);
    getElement("attention").replaceChildren(place);
    attention = await mount(place, found, { heading: false, theme: readTheme() });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setVisible(getElement("attention-part"), true);
    setVisible(getElement("attention-problem"), true).textContent = `No attention to show: ${error.message}`;
  }
}

function clear() {
  showError(null);
  getElement("output").replaceChildren();
  getElement("took").textContent = "";
  getElement("attention").replaceChildren();
  attention = null;
  setVisible(copyButton, false);
  for (const id of ["alternatives", "attention-part", "attention-problem", "request"]) setVisible(getElement(id), false);
}

function showError(error) {
  setVisible(getElement("problem"), error !== null).textContent = error?.message ?? "";
  if (error?.status !== 401) return;
  setVisible(getElement("token-field"), true);
  getElement("token").focus();
}

function setBusy(now) {
  getElement("output").setAttribute("aria-busy", String(now));
  getElement("go").disabled = now;
  setVisible(getElement("stop"), now);
  if (!now) asking = null;
}

function getToken() {
  return getElement("token").value;
}

getElement("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
getElement("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) getElement("ask").requestSubmit();
});
getElement("example").addEventListener("click", showExample);
getElement("model").addEventListener("change", handleModelChange);
getElement("stop").addEventListener("click", () => {
  asking?.abort();
  setBusy(false);
});
const copyButton = setVisible(createCopyButton("output", () => answered), false);
getElement("output-head").append(copyButton);
addTop(getElement("top"), (theme) => attention?.set({ theme }));
loadModels();
