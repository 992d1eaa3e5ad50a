// The API reference, built from the OpenAPI description.

import { requestJson } from "./api.js";
import { createCode, formatCurl } from "./request.js";
import { addTop } from "./top.js";
import { el } from "./view/element.js";

const TASK_PATHS = ["/v1/predict", "/v1/attention"];

// Commands for a route: with an example input of the first model whose input has this form.
function formatCommands(path, models, { json, form }) {
  const url = location.origin + path.replace("{model}", encodeURIComponent(models[0]?.name ?? "MODEL"));
  if (!TASK_PATHS.includes(path)) return [`curl ${url}`];
  const [text, media] = [models.find(({ reads }) => reads === "text"), models.find(({ reads }) => reads !== "text")];
  const [example] = media?.examples ?? [];
  const question = media?.asks ? { question: example?.question || "what is it" } : {};
  const token = document.getElementById("token").value;
  return [
    json && (text || !media) ? formatCurl(url, { model: text?.name, input: text?.examples[0]?.input ?? "a text" }, { token }) : null,
    form && (media || !text) ? formatCurl(url, { model: media?.name, ...question }, { file: example?.file ?? "FILE", token }) : null,
  ].filter(Boolean);
}

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

function createSection(path, method, entry, whole, models) {
  const contents = entry.requestBody?.content ?? {};
  const body = resolveSchema(contents["application/json"]?.schema, whole);
  const form = contents["multipart/form-data"]?.schema;
  const answers = Object.entries(entry.responses).map(([status, { description }]) => [status, description]);
  const commands = formatCommands(path, models, { json: body, form });
  const settings = body?.properties.settings;
  return el("section", {}, el("h2", {}, `${method.toUpperCase()} ${path}`), el("p", {}, (entry.description ?? "").replaceAll("`", "")), ...commands.map((command) => createCode("curl", command)),
    body ? createDefinitionList(listFields(body)) : null,
    form ? createDefinitionList(listFields(form).filter(([name]) => !(name in body.properties))) : null,
    settings ? el("details", {}, el("summary", {}, "settings"), createDefinitionList(listFields(settings))) : null,
    el("details", {}, el("summary", {}, "responses"), createDefinitionList(answers)));
}

async function loadApi() {
  const place = document.getElementById("operations");
  try {
    const token = document.getElementById("token").value;
    const whole = await requestJson("/openapi.json", null, token);
    const { models } = await requestJson("/v1/models", null, token);
    const listed = Object.entries(whole.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, entry]) => createSection(path, method, entry, whole, models)));
    place.replaceChildren(...listed);
  } catch (error) {
    document.getElementById("waiting").textContent = error.message;
    if (error.status !== 401) return;
    document.getElementById("token-form").hidden = false;
    document.getElementById("token").focus();
  }
}

addTop(document.getElementById("top"));
document.getElementById("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  loadApi();
});

loadApi();
