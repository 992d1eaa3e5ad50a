// Two heads, layers or runs side by side, and their difference.

import { palette } from "./colour.js";
import { headEntries, legend, mapChoice, spreadBox, zoomButtons } from "./controls.js";
import { choice, el, shown } from "./element.js";
import { Heat } from "./heat.js";
import { shownWeight } from "./model.js";
import { difference } from "./plane.js";
import { Viewport } from "./viewport.js";

const NAMES = { a: "First", b: "Second" };
const LABEL = "Arrow keys walk from cell to cell, plus and minus zoom, zero shows all.";

export function compareView(page) {
  const viewport = new Viewport();
  const own = new Viewport(); // of the second, where the two have different shapes
  const sides = { a: side(page, "a", viewport), b: side(page, "b", viewport), own: side(page, "b", own) };
  const gap = new Heat(page, { label: `First minus second. ${LABEL}`, viewport, tallest: 0.5 });
  const scale = legend(page);
  const note = el("p", { class: "hint", role: "status" });
  const third = el("section", { class: "panel" }, el("div", { class: "bar head" }, el("h2", {}, "Difference"), scale.element),
    el("p", { class: "hint" }, "Orange: the first looks there more. Blue: the second does."), gap.element);
  const element = el("div", { class: "view compare" },
    el("div", { class: "bar" }, zoomButtons(() => [gap, sides.own.heat]), spreadBox(page)), note,
    el("div", { class: "panels" }, sides.a.element, sides.b.element, sides.own.element, third));
  let made = [];
  const told = () => (note.textContent = values(viewport.cursor, sides, gap));
  viewport.listeners.add(told);
  const update = () => {
    const colours = { theme: page.theme(), spread: page.state.spread };
    const plain = palette({ ...colours, signed: false });
    const [first, second] = [chosen(page, "a"), chosen(page, "b")];
    const alike = first.rows === second.rows && first.columns === second.columns;
    shown(sides.b.element, alike);
    shown(sides.own.element, !alike);
    shown(third, alike);
    sides.a.show(first, plain);
    (alike ? sides.b : sides.own).show(second, plain);
    sides.alike = alike && sameLabels(first, second);
    if (alike) {
      if (made[0] !== first || made[1] !== second) made = [first, second, difference(first, second)];
      gap.show(made[2], palette({ ...colours, signed: true }));
      scale.update(made[2]);
    }
    sides.shapes = alike;
    told();
  };
  return { element, update };
}

function chosen(page, name) {
  const { run, map, head } = page.state.compare[name];
  return runOf(page, run).maps[map].plane(head);
}

function runOf(page, run) {
  return run === "other" ? page.data.other : page.data;
}

// One of the two: which run, attention and head it is, and its map.
function side(page, name, viewport) {
  const heat = new Heat(page, { label: `${NAMES[name]}. ${LABEL}`, viewport, tallest: 0.5 });
  const set = (changes) => {
    const before = page.state.compare;
    const after = { ...before[name], ...changes };
    const { heads } = runOf(page, after.run).maps[after.map];
    page.set({ compare: { ...before, [name]: { ...after, head: Math.min(after.head, heads - 1) } } });
  };
  const runs = choice("Run", [["this", page.data.title]], "this", (run) => set({ run, map: matching(page, run, page.state.compare[name]) }));
  const now = () => page.state.compare[name];
  const maps = mapChoice(page, { chosen: 0, onchoose: (map) => set({ map }) });
  const heads = choice("Head", [], 0, (head) => set({ head: Number(head) }));
  const scale = legend(page);
  const other = page.data.other;
  if (other) runs.offer([["this", page.data.title || "this"], ["other", other.title || "other"]], "this");
  const title = el("h2", {}, NAMES[name]);
  const element = el("section", { class: "panel", "aria-label": NAMES[name] }, el("div", { class: "bar head" }, title, scale.element),
    el("div", { class: "bar" }, shown(runs.element, Boolean(other)), maps.element, heads.element), heat.element);
  const show = (plane, colours) => {
    const { run, map, head } = now();
    const all = runOf(page, run).maps;
    runs.select.value = run;
    maps.offer(all.map((one, i) => [i, one.name]), map);
    heads.offer(headEntries(all[map]), head);
    heat.show(plane, colours);
    scale.update(plane);
  };
  return { element, heat, show };
}

// The map of the same place in another run, or its last one.
function matching(page, run, { run: old, map }) {
  const { address } = runOf(page, old).maps[map];
  const all = runOf(page, run).maps;
  const found = all.findIndex((one) => one.address === address);
  return found < 0 ? all.length - 1 : found;
}

function sameLabels(first, second) {
  return ["rows", "columns"].every((name) => first.labels[name].every((label, i) => label === second.labels[name][i]));
}

function values(cell, sides, gap) {
  if (!sides.shapes) return "The two have different shapes: each is shown for itself, without a difference.";
  if (sides.a.heat.plane === sides.b.heat.plane) return "Twice the same: choose another head, layer or run.";
  const warning = sides.alike ? "" : "The two have different tokens: places are compared, not words. ";
  if (!cell || cell.row >= gap.plane.rows || cell.column >= gap.plane.columns) return `${warning}Point at a cell to compare its weights.`;
  const { labels } = gap.plane;
  const at = (heat) => shownWeight(heat.plane, heat.plane.value(cell.row, cell.column));
  return `${warning}${labels.rows[cell.row]} → ${labels.columns[cell.column]}: first ${at(sides.a.heat)}, ` +
    `second ${at(sides.b.heat)}, difference ${at(gap)}`;
}
