// All heads as thumbnails, layer by layer; one of them large, with labels, zoom and the numbers as a table.

import { palette } from "./colour.js";
import { headEntries, legend, mapChoice, partName, precision, spreadBox, wordsBox, zoomButtons } from "./controls.js";
import { button, choice, el, shown } from "./element.js";
import { Heat } from "./heat.js";
import { PARTS, headName, short, shownWeight } from "./model.js";
import { strongest } from "./plane.js";
import { Pyramid } from "./pyramid.js";
import { valuesTable } from "./table.js";

const THUMB = 128; // cells of a thumbnail at most

export function matrixView(page) {
  const overview = thumbnails(page);
  const detail = zoomed(page);
  const element = el("div", { class: "view matrix" }, overview.element, detail.element);
  const update = () => {
    const { large } = page.state;
    shown(overview.element, !large);
    shown(detail.element, large);
    (large ? detail : overview).update();
  };
  return { element, update };
}

function thumbnails(page) {
  const sections = el("div", { class: "parts" });
  const element = el("div", {}, el("div", { class: "bar" }, spreadBox(page), wordsBox(page)),
    el("p", { class: "hint" }, "Every head of every layer: rows look at columns, and each picture has its own scale. Choose one to see it large."),
    sections);
  let made = null;
  const update = () => {
    const now = [page.maps, page.theme(), page.state.spread];
    if (made?.every((part, i) => part === now[i])) return;
    made = now;
    const colours = palette({ theme: page.theme(), signed: false, spread: page.state.spread });
    const drawn = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        drawn.unobserve(target);
        paint(target, page.maps[target.dataset.map].plane(Number(target.dataset.head)), colours);
      }
    }, { rootMargin: "300px" });
    page.signal.addEventListener("abort", () => drawn.disconnect());
    const parts = Object.keys(PARTS).map((part) => section(page, part, drawn));
    sections.replaceChildren(...parts.filter(Boolean));
  };
  return { element, update };
}

function section(page, part, drawn) {
  const rows = page.maps.map((map, index) => [map, index]).filter(([map]) => map.part === part);
  if (!rows.length) return null;
  return el("section", { "aria-label": PARTS[part] }, el("h2", {}, PARTS[part]),
    ...rows.map(([map, index]) => el("div", { class: "layer" }, el("span", { class: "caption" }, `Layer ${map.layer}`),
      el("div", { class: "thumbs" }, ...Array.from({ length: map.heads }, (_, head) => {
        const canvas = el("canvas", { "data-map": index, "data-head": head, "aria-hidden": "true" });
        drawn.observe(canvas);
        const open = () => page.set({ map: index, head, large: true, focus: ".heat canvas" });
        return button(canvas, open, { class: "thumb", "aria-label": `${map.name}, ${headName(head, map.heads)}`, title: headName(head, map.heads) });
      })))));
}

function paint(canvas, plane, colours) {
  const pyramid = new Pyramid(plane);
  let index = 0;
  while (Math.max(pyramid.at(index).rows, pyramid.at(index).columns) > THUMB) index += 1;
  pyramid.recolour(colours);
  const tile = pyramid.tile(index, 0, 0);
  canvas.width = tile.width;
  canvas.height = tile.height;
  canvas.getContext("2d").drawImage(tile, 0, 0);
}

function zoomed(page) {
  const back = () => page.set({ large: false, focus: `.thumb` });
  const heat = new Heat(page, {
    label: "Attention matrix. Arrow keys walk from cell to cell, with Shift by ten; plus and minus zoom, zero shows all, Escape goes back.",
    onleave: back,
  });
  const maps = mapChoice(page, { chosen: page.state.map, onchoose: page.chooseMap });
  const heads = choice("Head", [], 0, (value) => page.set({ head: Number(value) }));
  const step = (by) => () => page.set({ head: Math.max(0, Math.min(page.map().heads - 1, page.state.head + by)) });
  const scale = legend(page);
  const aside = el("aside", { class: "side", "aria-label": "What is pointed at" });
  const note = el("p", { class: "hint" });
  const table = valuesTable(page);
  const turning = el("div", { class: "buttons", role: "group", "aria-label": "Other heads" },
    button("‹", step(-1), { "aria-label": "Head before" }), button("›", step(1), { "aria-label": "Next head" }));
  const element = el("div", {},
    el("div", { class: "bar" }, button("← All heads", back, { class: "quiet" }), maps.element, heads.element, turning,
      zoomButtons(() => [heat])),
    el("div", { class: "bar" }, scale.element, spreadBox(page), wordsBox(page)),
    el("div", { class: "split" }, heat.element, aside), note, table.element);
  let shownPlace = "";
  const told = () => aside.replaceChildren(...beside(page, heat));
  heat.viewport.listeners.add(told);
  const update = () => {
    const map = page.map();
    const head = Math.min(page.state.head, map.heads - 1);
    const plane = map.plane(head);
    maps.select.value = String(page.state.map);
    heads.offer(headEntries(map), head);
    shown(heads.element, map.heads > 1);
    shown(turning, map.heads > 1);
    const place = [page.state.map, head, plane.rows, plane.columns].join(" ");
    if (place !== shownPlace) {
      shownPlace = place;
      heat.viewport.cursor = null;
      heat.viewport.fit();
    }
    heat.show(plane, palette({ theme: page.theme(), signed: false, spread: page.state.spread }));
    scale.update(plane);
    note.textContent = `${partName(map)}. ${precision(map)} Drag to move, pinch or hold Ctrl and turn the wheel to zoom. ` +
      "From afar a point shows the largest weight under it.";
    table.update(plane);
    told();
  };
  return { element, update };
}

// Where the row under the cursor looks most.
function beside(page, heat) {
  const cell = heat.viewport.cursor;
  const plane = heat.plane;
  if (!plane || !cell || cell.row >= plane.rows) {
    return [el("p", { class: "hint" }, "Point at a cell for its weight, or walk with the arrow keys.")];
  }
  const rows = strongest(plane, { row: cell.row }, 6).map(([i, weight]) =>
    el("tr", { class: i === cell.column ? "here" : null }, el("th", { scope: "row" }, el("bdi", {}, plane.labels.columns[i])),
      el("td", { class: "number" }, short(weight))));
  return [el("h2", {}, el("bdi", {}, plane.labels.rows[cell.row]), " looks at"),
    el("p", { class: "hint" }, `row ${cell.row + 1}, column ${cell.column + 1}: ${shownWeight(plane, plane.value(cell.row, cell.column))}`),
    el("table", { class: "values" }, el("tbody", {}, ...rows))];
}
