// Two heads, layers or runs side by side, and their difference.

import { buildPalette } from "./colour.js";
import { createLegend, createMapSelect, createScaleCheckbox, createZoomButtons, listHeadOptions } from "./controls.js";
import { createSelect, el, setVisible } from "./element.js";
import { Heatmap } from "./heat.js";
import { formatWeight } from "./model.js";
import { subtractPlanes } from "./plane.js";
import { Viewport } from "./viewport.js";

const NAMES = { a: "First", b: "Second" };
const KEYS_HINT = "Arrow keys move from cell to cell, plus and minus zoom, zero shows all.";

export function createCompareView(page) {
  const viewport = new Viewport();
  const otherViewport = new Viewport(); // of the second map, if the two have different shapes
  const sides = {
    a: createSide(page, "a", viewport), b: createSide(page, "b", viewport), separate: createSide(page, "b", otherViewport),
  };
  const difference = new Heatmap(page, { label: `First minus second. ${KEYS_HINT}`, viewport, tallest: 0.5 });
  const scale = createLegend(page);
  const note = el("p", { class: "hint", role: "status" });
  const differencePanel = el("section", { class: "panel" }, el("div", { class: "bar head" }, el("h2", {}, "Difference"), scale.element),
    el("p", { class: "hint" }, "Orange: larger weight in the first. Blue: larger weight in the second."), difference.element);
  const element = el("div", { class: "view compare" },
    el("div", { class: "bar" }, createZoomButtons(() => [difference, sides.separate.heat]), createScaleCheckbox(page)), note,
    el("div", { class: "panels" }, sides.a.element, sides.b.element, sides.separate.element, differencePanel));
  let cached = []; // first, second, difference
  const updateNote = () => (note.textContent = describeCursor(viewport.cursor, sides, difference));
  viewport.listeners.add(updateNote);
  const update = () => {
    const colours = { theme: page.theme(), sqrtScale: page.state.sqrtScale };
    const unsigned = buildPalette({ ...colours, signed: false });
    const [first, second] = [getChosenPlane(page, "a"), getChosenPlane(page, "b")];
    const sameShape = first.rows === second.rows && first.columns === second.columns;
    setVisible(sides.b.element, sameShape);
    setVisible(sides.separate.element, !sameShape);
    setVisible(differencePanel, sameShape);
    sides.a.show(first, unsigned);
    (sameShape ? sides.b : sides.separate).show(second, unsigned);
    sides.sameLabels = sameShape && haveSameLabels(first, second);
    if (sameShape) {
      if (cached[0] !== first || cached[1] !== second) cached = [first, second, subtractPlanes(first, second)];
      difference.show(cached[2], buildPalette({ ...colours, signed: true }));
      scale.update(cached[2]);
    }
    sides.sameShape = sameShape;
    updateNote();
  };
  return { element, update };
}

function getChosenPlane(page, name) {
  const { run, map, head } = page.state.compare[name];
  return getRun(page, run).maps[map].getPlane(head);
}

function getRun(page, run) {
  return run === "other" ? page.data.other : page.data;
}

// One of the two compared maps, with its selects for run, attention and head.
function createSide(page, name, viewport) {
  const heat = new Heatmap(page, { label: `${NAMES[name]}. ${KEYS_HINT}`, viewport, tallest: 0.5 });
  const set = (changes) => {
    const before = page.state.compare;
    const after = { ...before[name], ...changes };
    const { heads } = getRun(page, after.run).maps[after.map];
    page.set({ compare: { ...before, [name]: { ...after, head: Math.min(after.head, heads - 1) } } });
  };
  const runs = createSelect("Run", [["this", page.data.title]], "this", (run) => set({ run, map: findMatchingMap(page, run, page.state.compare[name]) }));
  const now = () => page.state.compare[name];
  const maps = createMapSelect(page, { chosen: 0, onchoose: (map) => set({ map }) });
  const heads = createSelect("Head", [], 0, (head) => set({ head: Number(head) }));
  const scale = createLegend(page);
  const other = page.data.other;
  if (other) runs.setOptions([["this", page.data.title || "this"], ["other", other.title || "other"]], "this");
  const title = el("h2", {}, NAMES[name]);
  const element = el("section", { class: "panel", "aria-label": NAMES[name] }, el("div", { class: "bar head" }, title, scale.element),
    el("div", { class: "bar" }, setVisible(runs.element, Boolean(other)), maps.element, heads.element), heat.element);
  const show = (plane, colours) => {
    const { run, map, head } = now();
    const all = getRun(page, run).maps;
    runs.select.value = run;
    maps.setOptions(all.map((one, i) => [i, one.name]), map);
    heads.setOptions(listHeadOptions(all[map]), head);
    heat.show(plane, colours);
    scale.update(plane);
  };
  return { element, heat, show };
}

// Index of the map with the same address in another run, or of its last map.
function findMatchingMap(page, run, { run: old, map }) {
  const { address } = getRun(page, old).maps[map];
  const all = getRun(page, run).maps;
  const found = all.findIndex((one) => one.address === address);
  return found < 0 ? all.length - 1 : found;
}

function haveSameLabels(first, second) {
  return ["rows", "columns"].every((name) => first.labels[name].every((label, i) => label === second.labels[name][i]));
}

function describeCursor(cell, sides, difference) {
  if (!sides.sameShape) return "The two have different shapes: both are shown, without a difference.";
  if (sides.a.heat.plane === sides.b.heat.plane) return "Both are the same: choose another head, layer or run.";
  const warning = sides.sameLabels ? "" : "The two have different tokens: weights are compared by position. ";
  const { plane } = difference;
  if (!cell || cell.row >= plane.rows || cell.column >= plane.columns) return `${warning}Point at a cell to compare its weights.`;
  const { labels } = plane;
  const at = (heat) => formatWeight(heat.plane, heat.plane.value(cell.row, cell.column));
  return `${warning}${labels.rows[cell.row]} → ${labels.columns[cell.column]}: first ${at(sides.a.heat)}, ` +
    `second ${at(sides.b.heat)}, difference ${at(difference)}`;
}
