// A plane as an HTML table: all weights of a small one, the largest weights of each row of a large one.

import { createButton, el } from "./element.js";
import { formatShort } from "./model.js";
import { findStrongest } from "./plane.js";

const MAX_FULL_TABLE_CELLS = 1200;
const ROWS_PER_PAGE = 50;
const STRONGEST_COLUMNS = 5; // listed per row of a large plane

export function createValuesTable(page) {
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Weights as a table" });
  const element = el("details", {}, el("summary", {}, "Weights as a table"), body);
  let plane = null;
  let first = 0;
  const fill = () => element.open && plane && body.replaceChildren(...buildContent(plane, first, turn));
  const turn = (by) => {
    first = Math.max(0, Math.min(first + by, Math.floor((plane.rows - 1) / ROWS_PER_PAGE) * ROWS_PER_PAGE));
    fill();
    page.announce(`rows from ${first + 1} on`);
  };
  element.addEventListener("toggle", fill, { signal: page.signal });
  const update = (now) => {
    if (now !== plane) first = 0;
    plane = now;
    fill();
  };
  return { element, update };
}

function buildContent(plane, first, turn) {
  const last = Math.min(plane.rows, first + ROWS_PER_PAGE);
  const rows = Array.from({ length: last - first }, (_, i) => first + i);
  const whole = plane.rows * plane.columns <= MAX_FULL_TABLE_CELLS;
  const table = whole ? buildFullTable(plane, rows) : buildStrongestTable(plane, rows);
  if (plane.rows <= ROWS_PER_PAGE) return [table];
  const pages = el("div", { class: "bar" }, createButton("Previous rows", () => turn(-ROWS)), createButton("Next rows", () => turn(ROWS_PER_PAGE)),
    el("span", {}, `rows ${first + 1} to ${last} of ${plane.rows}`));
  return [pages, table];
}

function buildFullTable(plane, rows) {
  const head = el("tr", {}, el("td", {}), ...plane.labels.columns.map((label) => el("th", { scope: "col" }, el("bdi", {}, label))));
  return el("table", { class: "values whole" }, el("thead", {}, head), el("tbody", {}, ...rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, plane.labels.rows[row])), ...plane.labels.columns.map((_, column) =>
      el("td", { class: "number" }, formatShort(plane.value(row, column))))))));
}

function buildStrongestTable(plane, rows) {
  const names = ["Row", "attends most to", ...Array.from({ length: STRONGEST_COLUMNS - 1 }, (_, i) => `rank ${i + 2}`)];
  return el("table", { class: "values" }, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, plane.labels.rows[row])),
      ...findStrongest(plane, { row }, STRONGEST_COLUMNS).map(([i, weight]) =>
        el("td", {}, el("bdi", {}, plane.labels.columns[i]), ` ${formatShort(weight)}`))))));
}
