// Statistics of all heads as a sortable table; the name of a head links to its matrix.

import { createEmptyNotice } from "./controls.js";
import { createButton, el } from "./element.js";
import { getHeadName } from "./model.js";

const COLUMNS = {
  entropy: ["Entropy", "in bits; 0: all weight on one position, larger: spread over many"],
  distance: ["Distance", "mean distance of the attended position from its own, in tokens"],
  diagonal: ["Diagonal", "1: attends along the diagonal, −1: backwards, 0: neither"],
};

export function createStatisticsView(page) {
  const rows = page.data.maps.flatMap((map, index) => Array.from({ length: map.heads }, (_, head) => ({
    map, index, head, name: `${map.name}, ${getHeadName(head, map.heads)}`, ...getStatistics(page, map, head),
  })));
  if (!rows.some((row) => "entropy" in row)) {
    return { element: createEmptyNotice("No statistics", "This document has none."), update() {} };
  }
  const most = Object.fromEntries(Object.keys(COLUMNS).map((key) => [key, Math.max(1e-9, ...rows.map((row) => Math.abs(row[key])))]));
  const body = el("tbody", {});
  const heads = ["name", ...Object.keys(COLUMNS)].map((key) => createHeader(page, key));
  const element = el("div", { class: "view statistics" },
    el("dl", { class: "terms" }, ...Object.values(COLUMNS).map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Statistics of heads" },
      el("table", { class: "values sorted" }, el("thead", {}, el("tr", {}, ...heads)), body)));
  const lines = new Map(rows.map((row) => [row, createRow(page, row, most)]));
  const update = () => {
    const { key, down } = page.state.sort;
    const order = key === "name" ? [...rows] : [...rows].sort((a, b) => a[key] - b[key]);
    if (down) order.reverse();
    body.replaceChildren(...order.map((row) => lines.get(row)));
    for (const head of heads) head.setAttribute("aria-sort", head.dataset.key !== key ? "none" : down ? "descending" : "ascending");
  };
  return { element, update };
}

function getStatistics(page, map, head) {
  const found = page.data.statistics?.[map.address];
  return found ? Object.fromEntries(Object.keys(COLUMNS).map((key) => [key, found[key][head]])) : {};
}

function createHeader(page, key) {
  const sort = () => {
    const { key: old, down } = page.state.sort;
    page.set({ sort: { key, down: old === key ? !down : key !== "name" } });
  };
  return el("th", { scope: "col", "data-key": key }, createButton(COLUMNS[key]?.[0] ?? "Head", sort, { class: "sort" }));
}

function createRow(page, row, most) {
  const open = () => page.set({ view: "matrix", map: row.index, head: row.head, large: true, focus: ".heat canvas" });
  return el("tr", {}, el("th", { scope: "row" }, createButton(row.name, open, { class: "link" })),
    ...Object.keys(COLUMNS).map((key) => {
      const bar = el("span", { class: row[key] < 0 ? "fillbar below" : "fillbar" });
      bar.style.setProperty("--weight", String(Math.abs(row[key]) / most[key]));
      return el("td", {}, el("div", { class: "measure" }, el("span", { class: "number" }, row[key].toFixed(2).replace("-", "−")), bar));
    }));
}
