// The page of a run from a server that reads its files: asked again and again, it says when nothing is new.

import { ask } from "./api.js";
import { watch } from "./view/watch.js";

let mark = ""; // the version of the history that is shown

async function run() {
  const response = await fetch("/v1/run", { headers: mark ? { "If-None-Match": mark } : {}, cache: "no-store" }).catch(() => null);
  if (response?.status === 304) return null;
  if (!response?.ok) throw new Error("The server does not answer; is the training over?");
  mark = response.headers.get("ETag");
  return response.json();
}

watch(document.getElementById("run"), { live: true, run, moment: (step) => ask(`/v1/moments/${step}`) });
