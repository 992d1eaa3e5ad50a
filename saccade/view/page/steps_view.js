// The output, written again step by step: what each step looked at, what was likely next, and the tree of the search.
// Over a picture, whatever else looks at it can be gone through too: the words of a question, or glimpses. Of a walk, the
// map of its world stands beside what was looked at.

import { beamTree } from "./beam.js";
import { empty, headEntries, mapChoice } from "./controls.js";
import { button, choice, el, shown } from "./element.js";
import { MEAN, SIDES, short, shownWeight } from "./model.js";
import { routeMap } from "./route_map.js";
import { TRAIL, stage } from "./stage.js";

const DOING = { target: "Writes", question: "Asks", glimpse: "Glimpses" };
const PACE = 900; // milliseconds from step to step

export function stepsView(page) {
  const { labels, steps, background, route } = page.data;
  const overPicture = (map) => map.columns === background?.columns && map.rows !== map.columns;
  const usable = (map) => map.rows === "target" || map.rows === "seen" || overPicture(map);
  if (!labels.target?.length) return { element: empty("Nothing was written", "There are no steps to show."), update() {} };
  const view = { page, usable, map: null, steps };
  const writes = el("p", { class: "caption" });
  const output = el("div", { class: "words", role: "group" });
  const looking = el("p", { class: "caption" });
  const slider = el("input", { type: "range", min: 1, step: 1, "aria-label": "Step",
    oninput: () => page.set({ step: Number(slider.value) - 1 }) });
  const place = el("span", { class: "number" });
  const maps = mapChoice(page, { label: "Looking through", fits: usable, chosen: page.state.map, onchoose: page.chooseMap });
  const heads = choice("Head", [], MEAN, (value) => page.set({ stepHead: Number(value) }));
  const play = button("Play", () => (view.timer ? pause(view) : start(view)), { class: "primary", "aria-pressed": "false" });
  const box = el("div", { class: "stagebox" });
  const caption = el("p", { class: "hint", id: page.id("caption") });
  const likely = el("div", { class: "likely" });
  const world = route ? routeMap(route) : null;
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
    writes, output,
    world ? el("div", { class: "beside" }, el("div", {}, looking, box, caption), world.element) : null,
    ...(world ? [] : [looking, box, caption]), cards);
  Object.assign(view, { writes, looking, slider, place, maps, heads, play, box, caption, likely, world, beam, output, cards });
  page.panelKeys(element, {
    ArrowRight: () => move(view, 1), ArrowLeft: () => move(view, -1),
    Home: () => page.set({ step: 0 }), End: () => page.set({ step: view.tokens.length - 1 }), " ": () => play.click(),
  });
  page.signal.addEventListener("abort", () => pause(view));
  return { element, update: () => update(view), leave: () => pause(view) };
}

function move(view, by) {
  const { page, tokens } = view;
  page.set({ step: Math.max(0, Math.min(tokens.length - 1, page.state.step + by)) });
}

function start(view) {
  const { page } = view;
  if (page.state.step >= view.tokens.length - 1) page.set({ step: 0 });
  view.timer = setInterval(() => {
    move(view, 1);
    if (page.state.step >= view.tokens.length - 1) pause(view);
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

// Which map is looked through, or -1: the one that is chosen elsewhere, or the last that can be.
function through({ page, usable }) {
  const all = page.data.maps; // tokens, whatever the other views join
  return usable(all[page.state.map] ?? {}) ? page.state.map : all.findLastIndex(usable);
}

// The steps are what looks: in most maps, the output.
function walk(view, rows) {
  if (view.rows === rows) return;
  const { page, slider, output } = view;
  view.rows = rows;
  view.names = page.data.labels[rows];
  view.tokens = view.names.map((label, i) =>
    button(label, () => page.set({ step: i }), { class: "word out", dir: "auto", "aria-label": `Step ${i + 1}: ${label}` }));
  slider.max = String(view.tokens.length);
  output.setAttribute("aria-label", rows === "target" ? "Output" : rows);
  output.replaceChildren(...view.tokens);
  view.writes.textContent = DOING[rows] ?? rows;
  shown(view.cards, rows === "target");
}

function update(view) {
  const { page, slider, place } = view;
  const map = page.data.maps[through(view)];
  walk(view, !map || map.rows === "seen" ? "target" : map.rows);
  const { tokens, names } = view;
  const count = tokens.length;
  const now = Math.min(page.state.step, count - 1);
  slider.value = String(now + 1);
  slider.setAttribute("aria-valuetext", `step ${now + 1} of ${count}, ${names[now]}`);
  place.textContent = `${now + 1} / ${count}`;
  tokens.forEach((token, i) => {
    token.classList.toggle("future", i > now);
    token.setAttribute("aria-current", i === now ? "step" : "false");
  });
  const looked = look(view, now);
  showLikely(view, now);
  view.world?.show(now);
  view.beam.update(now);
  const told = `Step ${now + 1} of ${count}: ${names[now]}${looked}`;
  if (view.told !== undefined && view.told !== told) page.announce(told);
  view.told = told;
}

// The weights of this step on the stage; returns where it looked most, in words.
function look(view, now) {
  const { page, maps, heads, box, caption } = view;
  const index = through(view);
  if (index < 0) {
    box.replaceChildren();
    view.looking.textContent = "";
    caption.textContent = "This model writes without attention.";
    return "";
  }
  const map = page.data.maps[index];
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
  const steps = Array.from({ length: now + 1 - first }, (_, i) => first + i);
  const looked = steps.filter((step) => plane.value(step, peak(plane, step)) > 0);
  const hidden = map.columns === "seen" ? now + 1 : plane.columns; // what comes later is not there yet
  view.stage.show(weights, top, top > 0 ? looked.map((step) => peak(plane, step)) : [], hidden);
  if (!(top > 0)) {
    caption.textContent = "Looks at nothing.";
    return "";
  }
  const best = peak(plane, now);
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
