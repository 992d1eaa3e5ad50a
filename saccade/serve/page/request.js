// The request of the page as a curl command and as a Python program, each with a button that copies it.

import { createButton, el } from "./view/element.js";

// A button that copies a text; without access to the clipboard (plain HTTP), it says so.
export function createCopyButton(what, getText) {
  const button = createButton("Copy", async () => {
    try {
      await navigator.clipboard.writeText(getText());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }, { class: "try-copy", "aria-label": `Copy ${what}` });
  return button;
}

export function createCode(name, text) {
  return el("figure", { class: "try-code" }, el("figcaption", {}, name, createCopyButton(name, () => text)), el("pre", {}, text));
}

// `fields` are the keys of a JSON body, or, with `file`, those of a form beside the file of that name.
export function formatCurl(url, fields, { file, token } = {}) {
  const auth = token ? ` -H "Authorization: Bearer $SACCADE_TOKEN"` : "";
  if (!file) return `curl ${url}${auth} -H 'Content-Type: application/json' -d ${quote(JSON.stringify(fields))}`;
  const form = Object.entries(fields).map(([name, value]) => ` -F ${quote(`${name}=${toField(value)}`)}`).join("");
  return `curl ${url}${auth} -F ${quote(`file=@${file}`)}${form}`;
}

export function formatPython(url, fields, { file, token } = {}) {
  const headers = token ? ', headers={"Authorization": "Bearer " + os.environ["SACCADE_TOKEN"]}' : "";
  const form = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, toField(value)]));
  const body = file ? `files={"file": open(${toPython(file)}, "rb")}, data=${toPython(form)}` : `json=${toPython(fields)}`;
  return [...(token ? ["import os"] : []), "import requests", "",
    `answer = requests.post(${toPython(url)}, ${body}${headers})`, 'print(answer.json()["results"][0])'].join("\n");
}

function toField(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function toPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(toPython).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${toPython(key)}: ${toPython(one)}`).join(", ")}}`;
  return JSON.stringify(value); // of texts and numbers, Python reads the same
}
