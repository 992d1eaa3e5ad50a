// The output, written again step by step: what each step looked at, what was likely next, and the tree of the search.

import { beamTree } from "./beam.js";
import { empty, headEntries, mapChoice } from "./controls.js";
import { button, choice, el, shown } from "./element.js";
import { MEAN, SIDES, short, shownWeight } from "./model.js";
import { TRAIL, stage } from "./stage.js";

const PACE = 900; // milliseconds from step to step

export function stepsView(page) {
  const { labels, steps } = page.data;
  const count = labels.target?.length ?? 0;
  const usable = (map) => map.rows === "target" || map.rows === "seen";
  if (!count) return { element: empty("Nothing was written", "There are no steps to show."), update() {} };
  const view = { page, count, usable, map: null, steps };
  const tokens = labels.target.map((label, i) =>
    button(label, () => page.set({ step: i }), { class: "word out", dir: "auto", "aria-label": `Step ${i + 1}: ${label}` }));
  const output = el("div", { class: "words", role: "group", "aria-label": "Output" }, ...tokens);
  const looking = el("p", { class: "caption" });
  const slider = el("input", { type: "range", min: 1, max: count, step: 1, "aria-label": "Step",
    oninput: () => page.set({ step: Number(slider.value) - 1 }) });
  const place = el("span", { class: "number" });
  const maps = mapChoice(page, { label: "Looking through", fits: usable, chosen: page.state.map, onchoose: page.chooseMap });
  const heads = choice("Head", [], MEAN, (value) => page.set({ stepHead: Number(value) }));
  const play = button("Play", () => (view.timer ? pause(view) : start(view)), { class: "primary", "aria-pressed": "false" });
  const box = el("div", { class: "stagebox" });
  const caption = el("p", { class: "hint", id: page.id("caption") });
  const likely = el("div", { class: "likely" });
  const beam = beamTree(page);
  const cards = el("div", { class: "cards" },
    shown(el("section", { class: "card" }, el("h2", {}, "Next token"), likely), steps.length > 0),
    shown(el("section", { class: "card wide" }, el("h2", {}, "Search"), beam.element,
      el("p", { class: "hint" }, "Blue became the output; faint candidates were dropped. Numbers are log-probabilities.")), beam.there));
  const element = el("div", { class: "view steps" },
    el("div", { class: "bar" }, el("div", { class: "buttons", role: "group", "aria-label": "Player" },
      button("‹", () => move(view, -1), { "aria-label": "Step back" }), play,
      button("›", () => move(view, 1), { "aria-label": "Step on" })), slider, place),
    shown(el("div", { class: "bar" }, maps.element, heads.element), page.data.maps.some(usable)),
    el("p", { class: "caption" }, "Writes"), output, looking, box, caption, cards);
  Object.assign(view, { looking, tokens, slider, place, maps, heads, play, box, caption, likely, beam, output });
  page.panelKeys(element, {
    ArrowRight: () => move(view, 1), ArrowLeft: () => move(view, -1),
    Home: () => page.set({ step: 0 }), End: () => page.set({ step: count - 1 }), " ": () => play.click(),
  });
  page.signal.addEventListener("abort", () => pause(view));
  return { element, update: () => update(view), leave: () => pause(view) };
}

function move(view, by) {
  const { page, count } = view;
  page.set({ step: Math.max(0, Math.min(count - 1, page.state.step + by)) });
}

function start(view) {
  const { page, count } = view;
  if (page.state.step >= count - 1) page.set({ step: 0 });
  view.timer = setInterval(() => {
    move(view, 1);
    if (page.state.step >= count - 1) pause(view);
  }, PACE);
  label(view);
}

function pause(view) {
  clearInterval(view.timer);
  view.timer = null;
  label(view);
}

function label(view) {
  view.play.textContent = view.timer ? "Pause" : "Play";
  view.play.setAttribute("aria-pressed", String(Boolean(view.timer)));
}

function update(view) {
  const { page, tokens, slider, place, count } = view;
  const now = Math.min(page.state.step, count - 1);
  slider.value = String(now + 1);
  slider.setAttribute("aria-valuetext", `step ${now + 1} of ${count}, ${page.data.labels.target[now]}`);
  place.textContent = `${now + 1} / ${count}`;
  tokens.forEach((token, i) => {
    token.classList.toggle("future", i > now);
    token.setAttribute("aria-current", i === now ? "step" : "false");
  });
  const looked = look(view, now);
  showLikely(view, now);
  view.beam.update(now);
  const told = `Step ${now + 1} of ${count}: ${page.data.labels.target[now]}${looked}`;
  if (view.told !== undefined && view.told !== told) page.announce(told);
  view.told = told;
}

// The weights of this step on the stage; returns where it looked most, in words.
function look(view, now) {
  const { page, usable, maps, heads, box, caption } = view;
  const all = page.data.maps; // tokens, whatever the other views join
  if (!all.some(usable)) {
    box.replaceChildren();
    view.looking.textContent = "";
    caption.textContent = "This model writes without attention.";
    return "";
  }
  const index = usable(all[page.state.map]) ? page.state.map : all.findLastIndex(usable);
  const map = all[index];
  const head = page.state.stepHead < map.heads && map.heads > 1 ? page.state.stepHead : map.heads > 1 ? MEAN : 0;
  maps.select.value = String(index);
  heads.offer(headEntries(map), head);
  shown(heads.element, map.heads > 1);
  if (view.map !== map) {
    view.map = map;
    view.stage = stage(page, map);
    box.replaceChildren(view.stage.element);
  }
  view.looking.textContent = `Looks at ${SIDES[map.columns] ?? map.columns}`;
  const plane = map.plane(head);
  const weights = Array.from({ length: plane.columns }, (_, i) => plane.value(now, i));
  const top = Math.max(...weights);
  const first = Math.max(0, now + 1 - TRAIL);
  const fixations = Array.from({ length: now + 1 - first }, (_, i) => peak(plane, first + i));
  const hidden = map.columns === "seen" ? now + 1 : plane.columns; // what comes later is not there yet
  view.stage.show(weights, top, fixations, hidden);
  const best = fixations.at(-1);
  const name = map.labels.columns[best];
  caption.textContent = `Looks most at ${name}, with ${shownWeight(plane, weights[best])} of its attention.`;
  return `, looks at ${name} ${short(weights[best])}`;
}

function peak(plane, row) {
  let best = 0;
  for (let i = 1; i < plane.columns; i++) if (plane.value(row, i) > plane.value(row, best)) best = i;
  return best;
}

function showLikely(view, now) {
  const step = view.steps[now];
  if (!step) return view.likely.replaceChildren(el("p", { class: "hint" }, "Not known for this step."));
  const rows = step.next.map(({ token, prob }) => {
    const bar = el("span", { class: "fillbar" });
    bar.style.setProperty("--weight", String(prob));
    return el("tr", { class: token === step.token ? "here" : null }, el("th", { scope: "row" }, el("bdi", {}, token)),
      el("td", {}, bar), el("td", { class: "number" }, `${(100 * prob).toFixed(1)} %`));
  });
  const written = step.next.some(({ token }) => token === step.token) ? null
    : el("p", { class: "hint" }, `Written was ${step.token}, with ${(100 * Math.exp(step.log_prob)).toPrecision(2)} %.`);
  view.likely.replaceChildren(el("table", { class: "values" }, el("tbody", {}, ...rows)), ...(written ? [written] : []));
}
