// Attention snapshots ("moments") of fixed validation inputs: a player over training steps around the attention page.

import { readTheme } from "./brand.js";
import { createButton, createSelect, el, setVisible } from "./element.js";
import { mount } from "./main.js";
import { formatNumber } from "./scale.js";

const PLAY_INTERVAL = 700; // milliseconds

export function createMomentsPanel(source, announce) {
  const note = el("p", { class: "hint" });
  const text = createSelect("Input", [], 0, (value) => set({ text: Number(value) }));
  const slider = el("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Snapshot", oninput: () => (pause(), set({ at: Number(slider.value) })) });
  const step = el("span", { class: "number watch-step" });
  const play = createButton("Play", () => (timer ? pause() : start()), { class: "primary", "aria-pressed": "false" });
  const place = el("div", { class: "watch-attention" });
  const player = el("div", { class: "bar" }, el("div", { class: "buttons", role: "group", "aria-label": "Player" },
    createButton("‹", () => (pause(), move(-1)), { "aria-label": "Previous snapshot" }), play,
    createButton("›", () => (pause(), move(1)), { "aria-label": "Next snapshot" })), slider, step);
  const element = el("section", { class: "watch-part", "aria-label": "Attention during training" },
    el("div", { class: "bar head" }, el("h2", {}, "Attention during training"), text.element), note, player, place);
  const cache = new Map(); // step -> moment
  const state = { at: -1, text: 0, theme: readTheme() };
  let moments = [];
  let timer = null;
  let page = null; // the attention page and the index of its input
  let latestRequest = null;

  const move = (by) => set({ at: Math.max(0, Math.min(moments.length - 1, state.at + by)) });
  const pause = () => {
    clearInterval(timer);
    timer = null;
    updatePlayButton();
  };
  const start = () => {
    if (state.at >= moments.length - 1) set({ at: 0 });
    timer = setInterval(() => (state.at >= moments.length - 1 ? pause() : move(1)), PLAY_INTERVAL);
    updatePlayButton();
  };
  const updatePlayButton = () => {
    play.textContent = timer ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(Boolean(timer)));
  };
  const set = (changes) => {
    Object.assign(state, changes);
    slider.value = String(state.at);
    const message = `step ${formatNumber(moments[state.at])}`;
    step.textContent = message;
    slider.setAttribute("aria-valuetext", message);
    if (!timer) announce(message);
    show().catch((error) => (note.textContent = `No attention to show: ${error.message}`));
  };
  // The latest request wins: responses may arrive in another order.
  const show = async () => {
    const request = (latestRequest = Symbol("request"));
    const key = moments[state.at];
    if (!cache.has(key)) cache.set(key, await source.moment(key));
    if (latestRequest !== request) return;
    const { documents } = cache.get(key);
    if (!text.select.options.length) text.setOptions(documents.map((one, i) => [i, one.input ?? one.output]), state.text);
    const document = documents[state.text];
    if (page?.text === state.text) return page.replace(document);
    const mounted = await mount(place, document, { view: page ? undefined : "matrix", theme: state.theme, heading: false });
    page = { ...mounted, text: state.text };
  };
  const update = (history) => {
    const follow = state.at === moments.length - 1 && !timer; // the latest snapshot is replaced by newer ones
    const before = moments[state.at];
    moments = history.moments;
    for (const one of cache.keys()) if (!moments.includes(one)) cache.delete(one);
    note.textContent = moments.length ? "Attention on the same validation inputs after each of these training steps." : explainAbsence(history);
    for (const part of [player, place, text.element]) setVisible(part, moments.length > 0);
    if (!moments.length) return;
    slider.max = String(moments.length - 1);
    const same = moments.indexOf(before);
    const at = follow || same < 0 ? moments.length - 1 : same;
    if (at !== state.at || moments[at] !== before) set({ at });
    else slider.value = String(at);
  };
  const setTheme = (theme) => {
    state.theme = theme;
    page?.set({ theme });
  };
  return { element, update, setTheme };
}

function explainAbsence({ watched, state }) {
  if (watched) return "No attention was saved yet.";
  return state === "preparing" ? "" : "No attention was saved for this run: train with --watch or train.watch=true.";
}
