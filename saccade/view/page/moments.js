// What fixed texts are attended to, moment by moment: a player over steps around the attention page.

import { button, choice, el, shown } from "./element.js";
import { mount } from "./main.js";
import { written } from "./scale.js";

const PACE = 700; // milliseconds from moment to moment

export function momentsPart(source, announce) {
  const note = el("p", { class: "hint" });
  const text = choice("Text", [], 0, (value) => set({ text: Number(value) }));
  const slider = el("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Moment", oninput: () => (pause(), set({ at: Number(slider.value) })) });
  const step = el("span", { class: "number watch-step" });
  const play = button("Play", () => (timer ? pause() : start()), { class: "primary", "aria-pressed": "false" });
  const place = el("div", { class: "watch-attention" });
  const player = el("div", { class: "bar" }, el("div", { class: "buttons", role: "group", "aria-label": "Player" },
    button("‹", () => (pause(), move(-1)), { "aria-label": "Moment before" }), play,
    button("›", () => (pause(), move(1)), { "aria-label": "Next moment" })), slider, step);
  const element = el("section", { class: "watch-part", "aria-label": "What it attends to" },
    el("div", { class: "bar head" }, el("h2", {}, "What it attends to"), text.element), note, player, place);
  const kept = new Map(); // step -> moment
  const state = { at: -1, text: 0 };
  let moments = [];
  let timer = null;
  let page = null; // the attention page, and the text that it is of
  let asked = null;

  const move = (by) => set({ at: Math.max(0, Math.min(moments.length - 1, state.at + by)) });
  const pause = () => {
    clearInterval(timer);
    timer = null;
    label();
  };
  const start = () => {
    if (state.at >= moments.length - 1) set({ at: 0 });
    timer = setInterval(() => (state.at >= moments.length - 1 ? pause() : move(1)), PACE);
    label();
  };
  const label = () => {
    play.textContent = timer ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(Boolean(timer)));
  };
  const set = (changes) => {
    Object.assign(state, changes);
    slider.value = String(state.at);
    const told = `step ${written(moments[state.at])}`;
    step.textContent = told;
    slider.setAttribute("aria-valuetext", told);
    if (!timer) announce(told);
    show().catch((error) => (note.textContent = `Nothing to show: ${error.message}`));
  };
  // The newest request wins: answers may come in another order.
  const show = async () => {
    const mine = (asked = Symbol("asked"));
    const wanted = moments[state.at];
    if (!kept.has(wanted)) kept.set(wanted, await source.moment(wanted));
    if (asked !== mine) return;
    const { documents } = kept.get(wanted);
    if (!text.select.options.length) text.offer(documents.map((one, i) => [i, one.input ?? one.output]), state.text);
    const document = documents[state.text];
    if (page?.text === state.text) return page.replace(document);
    const made = await mount(place, document, { view: page ? undefined : "matrix", heading: false });
    page = { ...made, text: state.text };
  };
  const update = (history) => {
    const follow = state.at === moments.length - 1 && !timer; // whoever looks at the newest goes on with the newest
    const before = moments[state.at];
    moments = history.moments;
    for (const one of kept.keys()) if (!moments.includes(one)) kept.delete(one);
    note.textContent = moments.length ? "The same validation texts at every moment, as the weights of that moment attend to them." : absent(history);
    for (const part of [player, place, text.element]) shown(part, moments.length > 0);
    if (!moments.length) return;
    slider.max = String(moments.length - 1);
    const same = moments.indexOf(before);
    const at = follow || same < 0 ? moments.length - 1 : same;
    if (at !== state.at || moments[at] !== before) set({ at });
    else slider.value = String(at);
  };
  return { element, update };
}

function absent({ watched, state }) {
  if (watched) return "No attention was kept yet.";
  return state === "preparing" ? "" : "No attention was kept of this run: train with --watch, or train.watch=true.";
}
