// The API reference, built from the OpenAPI description.

import { requestJson } from "./api.js";
import { el } from "./view/element.js";

const EXAMPLES = {
  "/v1/predict": { input: "Tuesday, 5 March 1024", settings: { n_best: 3 } },
  "/v1/attention": { input: "Tuesday, 5 March 1024" },
};

function resolveSchema(schema, whole) {
  const name = schema?.$ref?.split("/").pop();
  return name ? whole.components.schemas[name] : schema;
}

function createDefinitionList(entries) {
  return el("dl", {}, ...entries.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

function describeType(schema) {
  const kinds = schema.anyOf ? schema.anyOf.map(describeType) : [schema.type ?? "any"];
  const bounds = [["minimum", "at least"], ["maximum", "at most"]].filter(([key]) => key in schema);
  return [kinds.join(" or "), ...bounds.map(([key, words]) => `${words} ${schema[key]}`)].join(", ");
}

function listFields(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties).map(([name, entry]) =>
    [required.has(name) ? `${name} (required)` : name, entry.description ?? describeType(entry)]);
}

function createSection(path, method, entry, whole) {
  const contents = entry.requestBody?.content ?? {};
  const body = resolveSchema(contents["application/json"]?.schema, whole);
  const form = contents["multipart/form-data"]?.schema;
  const answers = Object.entries(entry.responses).map(([status, { description }]) => [status, description]);
  const example = EXAMPLES[path];
  const call = `curl ${location.origin}${path}` + (example ? ` -H 'Content-Type: application/json' -d '${JSON.stringify(example)}'` : "");
  const settings = body?.properties.settings;
  return el("section", {}, el("h2", {}, `${method.toUpperCase()} ${path}`), el("p", {}, (entry.description ?? "").replaceAll("`", "")), el("pre", { tabindex: 0 }, call),
    body ? createDefinitionList(listFields(body)) : null,
    form ? el("pre", { tabindex: 0 }, `curl ${location.origin}${path} -F file=@FILE`) : null,
    form ? createDefinitionList(listFields(form).filter(([name]) => !(name in body.properties))) : null,
    settings ? el("details", {}, el("summary", {}, "settings"), createDefinitionList(listFields(settings))) : null,
    el("details", {}, el("summary", {}, "responses"), createDefinitionList(answers)));
}

async function loadApi() {
  const place = document.getElementById("operations");
  try {
    const whole = await requestJson("/openapi.json", null, document.getElementById("token").value);
    const listed = Object.entries(whole.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, entry]) => createSection(path, method, entry, whole)));
    place.replaceChildren(...listed);
  } catch (error) {
    document.getElementById("waiting").textContent = error.message;
    if (error.status !== 401) return;
    document.getElementById("token-form").hidden = false;
    document.getElementById("token").focus();
  }
}

document.getElementById("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  loadApi();
});

loadApi();
