// The list of the API, made from its description.

import { ask } from "./api.js";
import { el } from "./view/element.js";

const EXAMPLES = {
  "/v1/predict": { input: "Tuesday, 5 March 1024", settings: { n_best: 3 } },
  "/v1/attention": { input: "Tuesday, 5 March 1024" },
};

function resolved(schema, whole) {
  const name = schema?.$ref?.split("/").pop();
  return name ? whole.components.schemas[name] : schema;
}

function pairs(entries) {
  return el("dl", {}, ...entries.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

function kind(schema) {
  const kinds = schema.anyOf ? schema.anyOf.map(kind) : [schema.type ?? "any"];
  const bounds = [["minimum", "at least"], ["maximum", "at most"]].filter(([key]) => key in schema);
  return [kinds.join(" or "), ...bounds.map(([key, words]) => `${words} ${schema[key]}`)].join(", ");
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties).map(([name, entry]) =>
    [required.has(name) ? `${name} (needed)` : name, entry.description ?? kind(entry)]);
}

function operation(path, method, entry, whole) {
  const contents = entry.requestBody?.content ?? {};
  const body = resolved(contents["application/json"]?.schema, whole);
  const form = contents["multipart/form-data"]?.schema;
  const answers = Object.entries(entry.responses).map(([status, { description }]) => [status, description]);
  const example = EXAMPLES[path];
  const call = `curl ${location.origin}${path}` + (example ? ` -H 'Content-Type: application/json' -d '${JSON.stringify(example)}'` : "");
  const settings = body?.properties.settings;
  return el("section", {}, el("h2", {}, `${method.toUpperCase()} ${path}`), el("p", {}, (entry.description ?? "").replaceAll("`", "")), el("pre", { tabindex: 0 }, call),
    body ? pairs(fields(body)) : null,
    form ? el("pre", { tabindex: 0 }, `curl ${location.origin}${path} -F file=@FILE`) : null,
    form ? pairs(fields(form).filter(([name]) => !(name in body.properties))) : null,
    settings ? el("details", {}, el("summary", {}, "settings"), pairs(fields(settings))) : null,
    el("details", {}, el("summary", {}, "answers"), pairs(answers)));
}

async function begin() {
  const place = document.getElementById("operations");
  try {
    const whole = await ask("/openapi.json");
    const listed = Object.entries(whole.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, entry]) => operation(path, method, entry, whole)));
    place.replaceChildren(...listed);
  } catch (error) {
    document.getElementById("waiting").textContent = error.message;
  }
}

begin();
