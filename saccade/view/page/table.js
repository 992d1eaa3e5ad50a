// A matrix as an HTML table: the whole of a small one, and of a large one the strongest columns of each row.

import { button, el } from "./element.js";
import { short } from "./model.js";
import { strongest } from "./plane.js";

const SMALL = 1200; // cells
const ROWS = 50; // of one page of the table
const STRONG = 5; // columns told of each row of a large matrix

export function valuesTable(page) {
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Weights as a table" });
  const element = el("details", {}, el("summary", {}, "Weights as a table"), body);
  let plane = null;
  let first = 0;
  const fill = () => element.open && plane && body.replaceChildren(...content(plane, first, turn));
  const turn = (by) => {
    first = Math.max(0, Math.min(first + by, Math.floor((plane.rows - 1) / ROWS) * ROWS));
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

function content(plane, first, turn) {
  const last = Math.min(plane.rows, first + ROWS);
  const rows = Array.from({ length: last - first }, (_, i) => first + i);
  const whole = plane.rows * plane.columns <= SMALL;
  const table = whole ? wholeTable(plane, rows) : strongTable(plane, rows);
  if (plane.rows <= ROWS) return [table];
  const pages = el("div", { class: "bar" }, button("Rows before", () => turn(-ROWS)), button("Next rows", () => turn(ROWS)),
    el("span", {}, `rows ${first + 1} to ${last} of ${plane.rows}`));
  return [pages, table];
}

function wholeTable(plane, rows) {
  const head = el("tr", {}, el("td", {}), ...plane.labels.columns.map((label) => el("th", { scope: "col" }, el("bdi", {}, label))));
  return el("table", { class: "values whole" }, el("thead", {}, head), el("tbody", {}, ...rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, plane.labels.rows[row])), ...plane.labels.columns.map((_, column) =>
      el("td", { class: "number" }, short(plane.value(row, column))))))));
}

function strongTable(plane, rows) {
  const names = ["Row", "looks most at", ...Array.from({ length: STRONG - 1 }, (_, i) => `place ${i + 2}`)];
  return el("table", { class: "values" }, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, plane.labels.rows[row])),
      ...strongest(plane, { row }, STRONG).map(([i, weight]) =>
        el("td", {}, el("bdi", {}, plane.labels.columns[i]), ` ${short(weight)}`))))));
}
