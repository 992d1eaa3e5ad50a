// Decoding replayed step by step: attention of each step, next-token probabilities, and the search tree.
// Over an image, maps of other queries can be replayed too: tokens of a question, or glimpses. For navigation, the map of
// the world is shown beside the attention.

import { createBeamTree } from "./beam.js";
import { createEmptyNotice, createMapSelect, listHeadOptions } from "./controls.js";
import { createButton, createSelect, el, setVisible } from "./element.js";
import { MEAN, SIDES, formatShort, formatWeight } from "./model.js";
import { createRouteMap } from "./route_map.js";
import { MAX_FIXATIONS, createStage } from "./stage.js";

const CAPTIONS = { target: "Output", question: "Question", glimpse: "Glimpses" };
const PLAY_INTERVAL = 900; // milliseconds

export function createStepsView(page) {
  const { labels, steps, background, route } = page.data;
  const overPicture = (map) => map.columns === background?.columns && map.rows !== map.columns;
  const usable = (map) => map.rows === "target" || map.rows === "seen" || overPicture(map);
  if (!labels.target?.length) return { element: createEmptyNotice("Empty output", "There are no steps to show."), updateView() {} };
  const view = { page, usable, map: null, steps };
  const writes = el("p", { class: "caption" });
  const output = el("div", { class: "words", role: "group" });
  const attends = el("p", { class: "caption" });
  const slider = el("input", { type: "range", min: 1, step: 1, "aria-label": "Step",
    oninput: () => page.set({ step: Number(slider.value) - 1 }) });
  const place = el("span", { class: "number" });
  const maps = createMapSelect(page, { label: "Attention", fits: usable, chosen: page.state.map, onchoose: page.chooseMap });
  const heads = createSelect("Head", [], MEAN, (value) => page.set({ stepHead: Number(value) }));
  const play = createButton("Play", () => (view.timer ? pause(view) : startPlaying(view)), { class: "primary", "aria-pressed": "false" });
  const box = el("div", { class: "stagebox" });
  const caption = el("p", { class: "hint", id: page.id("caption") });
  const likely = el("div", { class: "likely" });
  const world = route ? createRouteMap(route) : null;
  const beam = createBeamTree(page);
  const cards = el("div", { class: "cards" },
    setVisible(el("section", { class: "card" }, el("h2", {}, "Next token"), likely), steps.length > 0),
    setVisible(el("section", { class: "card wide" }, el("h2", {}, "Search"), beam.element,
      el("p", { class: "hint" }, "Blue: the output; faint: pruned hypotheses. Numbers are log-probabilities.")), beam.hasBeams));
  const element = el("div", { class: "view steps" },
    el("div", { class: "bar" }, el("div", { class: "buttons", role: "group", "aria-label": "Player" },
      createButton("‹", () => moveStep(view, -1), { "aria-label": "Previous step" }), play,
      createButton("›", () => moveStep(view, 1), { "aria-label": "Next step" })), slider, place),
    setVisible(el("div", { class: "bar" }, maps.element, heads.element), page.data.maps.some(usable)),
    writes, output,
    world ? el("div", { class: "beside" }, el("div", {}, attends, box, caption), world.element) : null,
    ...(world ? [] : [attends, box, caption]), cards);
  Object.assign(view, { writes, attends, slider, place, maps, heads, play, box, caption, likely, world, beam, output, cards });
  page.addPanelKeys(element, {
    ArrowRight: () => moveStep(view, 1), ArrowLeft: () => moveStep(view, -1),
    Home: () => page.set({ step: 0 }), End: () => page.set({ step: view.tokens.length - 1 }), " ": () => play.click(),
  });
  page.signal.addEventListener("abort", () => pause(view));
  return { element, update: () => updateView(view), leave: () => pause(view) };
}

function moveStep(view, by) {
  const { page, tokens } = view;
  page.set({ step: Math.max(0, Math.min(tokens.length - 1, page.state.step + by)) });
}

function startPlaying(view) {
  const { page } = view;
  if (page.state.step >= view.tokens.length - 1) page.set({ step: 0 });
  view.timer = setInterval(() => {
    moveStep(view, 1);
    if (page.state.step >= view.tokens.length - 1) pause(view);
  }, PLAY_INTERVAL);
  updatePlayButton(view);
}

function pause(view) {
  clearInterval(view.timer);
  view.timer = null;
  updatePlayButton(view);
}

function updatePlayButton(view) {
  view.play.textContent = view.timer ? "Pause" : "Play";
  view.play.setAttribute("aria-pressed", String(Boolean(view.timer)));
}

// Index of the shown map: the one chosen in other tabs if it is usable here, else the last usable one, or -1.
function findMapIndex({ page, usable }) {
  const all = page.data.maps; // of tokens, also where other tabs show words
  return usable(all[page.state.map] ?? {}) ? page.state.map : all.findLastIndex(usable);
}

// Shows the queries of the map as steps: for most maps, the output tokens.
function showTokens(view, rows) {
  if (view.rows === rows) return;
  const { page, slider, output } = view;
  view.rows = rows;
  view.names = page.data.labels[rows];
  view.tokens = view.names.map((label, i) =>
    createButton(label, () => page.set({ step: i }), { class: "word out", dir: "auto", "aria-label": `Step ${i + 1}: ${label}` }));
  slider.max = String(view.tokens.length);
  output.setAttribute("aria-label", rows === "target" ? "Output" : rows);
  output.replaceChildren(...view.tokens);
  view.writes.textContent = CAPTIONS[rows] ?? rows;
  setVisible(view.cards, rows === "target");
}

function updateView(view) {
  const { page, slider, place } = view;
  const map = page.data.maps[findMapIndex(view)];
  showTokens(view, !map || map.rows === "seen" ? "target" : map.rows);
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
  const attention = showAttention(view, now);
  showNextTokens(view, now);
  view.world?.show(now);
  view.beam.update(now);
  const message = `Step ${now + 1} of ${count}: ${names[now]}${attention}`;
  if (view.message !== undefined && view.message !== message) page.announce(message);
  view.message = message;
}

// Shows the weights of this step; returns a description of the largest one.
function showAttention(view, now) {
  const { page, maps, heads, box, caption } = view;
  const index = findMapIndex(view);
  if (index < 0) {
    box.replaceChildren();
    view.attends.textContent = "";
    caption.textContent = "This model decodes without attention.";
    return "";
  }
  const map = page.data.maps[index];
  const head = page.state.stepHead < map.heads && map.heads > 1 ? page.state.stepHead : map.heads > 1 ? MEAN : 0;
  maps.select.value = String(index);
  heads.setOptions(listHeadOptions(map), head);
  setVisible(heads.element, map.heads > 1);
  if (view.map !== map) {
    view.map = map;
    view.stage = createStage(page, map);
    box.replaceChildren(view.stage.element);
  }
  view.attends.textContent = `Attends to ${SIDES[map.columns] ?? map.columns}`;
  const plane = map.getPlane(head);
  const weights = Array.from({ length: plane.columns }, (_, i) => plane.value(now, i));
  const top = Math.max(...weights);
  const first = Math.max(0, now + 1 - MAX_FIXATIONS);
  const steps = Array.from({ length: now + 1 - first }, (_, i) => first + i);
  const attending = steps.filter((step) => plane.value(step, findPeak(plane, step)) > 0);
  const hidden = map.columns === "seen" ? now + 1 : plane.columns; // later tokens do not exist yet
  view.stage.show(weights, top, top > 0 ? attending.map((step) => findPeak(plane, step)) : [], hidden);
  if (!(top > 0)) {
    caption.textContent = "Attends to nothing.";
    return "";
  }
  const best = findPeak(plane, now);
  const name = map.labels.columns[best];
  caption.textContent = `Attends most to ${name}, with weight ${formatWeight(plane, weights[best])}.`;
  return `, attends to ${name} ${formatShort(weights[best])}`;
}

function findPeak(plane, row) {
  let best = 0;
  for (let i = 1; i < plane.columns; i++) if (plane.value(row, i) > plane.value(row, best)) best = i;
  return best;
}

function showNextTokens(view, now) {
  const step = view.steps[now];
  if (!step) return view.likely.replaceChildren(el("p", { class: "hint" }, "Unknown for this step."));
  const rows = step.next.map(({ token, prob }) => {
    const bar = el("span", { class: "fillbar" });
    bar.style.setProperty("--weight", String(prob));
    return el("tr", { class: token === step.token ? "here" : null }, el("th", { scope: "row" }, el("bdi", {}, token)),
      el("td", {}, bar), el("td", { class: "number" }, `${(100 * prob).toFixed(1)} %`));
  });
  const actual = step.next.some(({ token }) => token === step.token) ? null
    : el("p", { class: "hint" }, `Output: ${step.token}, with ${(100 * Math.exp(step.log_prob)).toPrecision(2)} %.`);
  view.likely.replaceChildren(el("table", { class: "values" }, el("tbody", {}, ...rows)), ...(actual ? [actual] : []));
}
