// The page of a run, polled from a server that reads its files; the server answers 304 if nothing has changed.

import { requestJson } from "./api.js";
import { watch } from "./view/watch.js";

let etag = ""; // version of the shown history

async function fetchHistory() {
  const response = await fetch("/v1/run", { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" }).catch(() => null);
  if (response?.status === 304) return null;
  if (!response?.ok) throw new Error("The server does not answer; is the training over?");
  etag = response.headers.get("ETag");
  return response.json();
}

watch(document.getElementById("run"), { live: true, run: fetchHistory, moment: (step) => requestJson(`/v1/moments/${step}`) });
