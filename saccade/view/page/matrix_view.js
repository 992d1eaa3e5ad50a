// All heads as thumbnails, layer by layer; or one of them large, with labels, zoom and a table of its weights.

import { buildPalette } from "./colour.js";
import { createLegend, createMapSelect, createScaleCheckbox, createWordsCheckbox, createZoomButtons, describePrecision, getPartName, listHeadOptions } from "./controls.js";
import { createButton, createSelect, el, setVisible } from "./element.js";
import { Heatmap } from "./heat.js";
import { PARTS, formatShort, formatWeight, getHeadName } from "./model.js";
import { findStrongest } from "./plane.js";
import { Pyramid } from "./pyramid.js";
import { createValuesTable } from "./table.js";

const MAX_THUMBNAIL_CELLS = 128; // larger planes are downsampled

export function createMatrixView(page) {
  const overview = createThumbnails(page);
  const detail = createDetail(page);
  const element = el("div", { class: "view matrix" }, overview.element, detail.element);
  const update = () => {
    const { large } = page.state;
    setVisible(overview.element, !large);
    setVisible(detail.element, large);
    (large ? detail : overview).update();
  };
  return { element, update };
}

function createThumbnails(page) {
  const sections = el("div", { class: "parts" });
  const element = el("div", {}, el("div", { class: "bar" }, createScaleCheckbox(page), createWordsCheckbox(page)),
    el("p", { class: "hint" }, "Every head of every layer: rows attend to columns, and each heatmap has its own scale. Choose one to enlarge it."),
    sections);
  let drawnState = null;
  const update = () => {
    const now = [page.maps, page.theme(), page.state.sqrtScale];
    if (drawnState?.every((part, i) => part === now[i])) return;
    drawnState = now;
    const colours = buildPalette({ theme: page.theme(), signed: false, sqrtScale: page.state.sqrtScale });
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        paintThumbnail(target, page.maps[target.dataset.map].getPlane(Number(target.dataset.head)), colours);
      }
    }, { rootMargin: "300px" });
    page.signal.addEventListener("abort", () => observer.disconnect());
    const parts = Object.keys(PARTS).map((part) => createSection(page, part, observer));
    sections.replaceChildren(...parts.filter(Boolean));
  };
  return { element, update };
}

function createSection(page, part, observer) {
  const rows = page.maps.map((map, index) => [map, index]).filter(([map]) => map.part === part);
  if (!rows.length) return null;
  return el("section", { "aria-label": PARTS[part] }, el("h2", {}, PARTS[part]),
    ...rows.map(([map, index]) => el("div", { class: "layer" }, el("span", { class: "caption" }, `Layer ${map.layer}`),
      el("div", { class: "thumbs" }, ...Array.from({ length: map.heads }, (_, head) => {
        const canvas = el("canvas", { "data-map": index, "data-head": head, "aria-hidden": "true" });
        observer.observe(canvas);
        const open = () => page.set({ map: index, head, large: true, focus: ".heat canvas" });
        return createButton(canvas, open, { class: "thumb", "aria-label": `${map.name}, ${getHeadName(head, map.heads)}`, title: getHeadName(head, map.heads) });
      })))));
}

function paintThumbnail(canvas, plane, colours) {
  const pyramid = new Pyramid(plane);
  let index = 0;
  while (Math.max(pyramid.getLevel(index).rows, pyramid.getLevel(index).columns) > MAX_THUMBNAIL_CELLS) index += 1;
  pyramid.setColours(colours);
  const tile = pyramid.getTile(index, 0, 0);
  canvas.width = tile.width;
  canvas.height = tile.height;
  canvas.getContext("2d").drawImage(tile, 0, 0);
}

function createDetail(page) {
  const back = () => page.set({ large: false, focus: `.thumb` });
  const heat = new Heatmap(page, {
    label: "Attention matrix. Arrow keys move from cell to cell, with Shift by ten; plus and minus zoom, zero shows all, Escape goes back.",
    onleave: back,
  });
  const maps = createMapSelect(page, { chosen: page.state.map, onchoose: page.chooseMap });
  const heads = createSelect("Head", [], 0, (value) => page.set({ head: Number(value) }));
  const step = (by) => () => page.set({ head: Math.max(0, Math.min(page.map().heads - 1, page.state.head + by)) });
  const scale = createLegend(page);
  const aside = el("aside", { class: "side", "aria-label": "Selected cell" });
  const note = el("p", { class: "hint" });
  const table = createValuesTable(page);
  const headButtons = el("div", { class: "buttons", role: "group", "aria-label": "Other heads" },
    createButton("‹", step(-1), { "aria-label": "Previous head" }), createButton("›", step(1), { "aria-label": "Next head" }));
  const element = el("div", {},
    el("div", { class: "bar" }, createButton("← All heads", back, { class: "quiet" }), maps.element, heads.element, headButtons,
      createZoomButtons(() => [heat])),
    el("div", { class: "bar" }, scale.element, createScaleCheckbox(page), createWordsCheckbox(page)),
    el("div", { class: "split" }, heat.element, aside), note, table.element);
  let shownKey = "";
  const updateAside = () => aside.replaceChildren(...describeRow(page, heat));
  heat.viewport.listeners.add(updateAside);
  const update = () => {
    const map = page.map();
    const head = Math.min(page.state.head, map.heads - 1);
    const plane = map.getPlane(head);
    maps.select.value = String(page.state.map);
    heads.setOptions(listHeadOptions(map), head);
    setVisible(heads.element, map.heads > 1);
    setVisible(headButtons, map.heads > 1);
    const key = [page.state.map, head, plane.rows, plane.columns].join(" ");
    if (key !== shownKey) {
      shownKey = key;
      heat.viewport.cursor = null;
      heat.viewport.fit();
    }
    heat.show(plane, buildPalette({ theme: page.theme(), signed: false, sqrtScale: page.state.sqrtScale }));
    scale.update(plane);
    note.textContent = `${getPartName(map)}. ${describePrecision(map)} Drag to move, pinch or hold Ctrl and turn the wheel to zoom. ` +
      "Zoomed out, a pixel shows the largest weight under it.";
    table.update(plane);
    updateAside();
  };
  return { element, update };
}

// Builds a table with the largest weights of the row under the cursor.
function describeRow(page, heat) {
  const cell = heat.viewport.cursor;
  const plane = heat.plane;
  if (!plane || !cell || cell.row >= plane.rows) {
    return [el("p", { class: "hint" }, "Point at a cell for its weight, or use the arrow keys.")];
  }
  const rows = findStrongest(plane, { row: cell.row }, 6).map(([i, weight]) =>
    el("tr", { class: i === cell.column ? "here" : null }, el("th", { scope: "row" }, el("bdi", {}, plane.labels.columns[i])),
      el("td", { class: "number" }, formatShort(weight))));
  return [el("h2", {}, el("bdi", {}, plane.labels.rows[cell.row]), " attends to"),
    el("p", { class: "hint" }, `row ${cell.row + 1}, column ${cell.column + 1}: ${formatWeight(plane, plane.value(cell.row, cell.column))}`),
    el("table", { class: "values" }, el("tbody", {}, ...rows))];
}
