// Two columns of tokens with lines between them for the attention weights, one colour per head.

import { getHeadColour } from "./colour.js";
import { createHeadChips, createMapSelect, createWordsCheckbox } from "./controls.js";
import { addRovingFocus, el } from "./element.js";
import { SIDES, formatShort, formatWeight } from "./model.js";
import { averageLazily, findStrongest } from "./plane.js";

const ROW_HEIGHT = 30; // pixels, as in page.css
const MIN_LINE_STRENGTH = 0.04; // relative to the largest weight of the head; weaker lines are not drawn
const MAX_LISTED_TOKENS = 8;

export function createHeadsView(page) {
  const chips = createHeadChips(page);
  const maps = createMapSelect(page, { chosen: page.state.map, onchoose: page.chooseMap });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const lists = { rows: el("ul", { class: "tokens from" }), columns: el("ul", { class: "tokens to" }) };
  const names = { rows: el("h2", {}), columns: el("h2", {}) };
  const scroller = el("div", { class: "lines", tabindex: -1 }, lists.rows, canvas, lists.columns);
  const aside = el("aside", { class: "side", "aria-label": "Selected token" });
  const element = el("div", { class: "view heads" },
    el("div", { class: "bar" }, maps.element, chips.element, createWordsCheckbox(page)),
    el("div", { class: "split" },
      el("div", { class: "linebox" }, el("div", { class: "linenames" }, names.rows, names.columns), scroller), aside));
  const view = { page, canvas, lists, scroller, aside, hover: null, map: null, tokens: {}, marked: [] };
  addListeners(view);
  const update = () => {
    maps.select.value = String(page.state.map);
    chips.update();
    const map = page.map();
    names.rows.textContent = SIDES[map.rows] ?? map.rows;
    names.columns.textContent = `attends to ${SIDES[map.columns] ?? map.columns}`;
    if (view.map !== map) fillLists(view, map);
    refresh(view);
  };
  return { element, update };
}

function fillLists(view, map) {
  view.map = map;
  view.hover = null;
  view.marked = [];
  for (const side of ["rows", "columns"]) {
    view.tokens[side] = map.labels[side].map((label, index) =>
      el("button", { type: "button", class: "token", dir: "auto", "data-side": side, "data-index": index,
        tabindex: index === 0 ? 0 : -1, "aria-pressed": "false", title: label }, label));
    view.lists[side].replaceChildren(...view.tokens[side].map((token) => el("li", {}, token)));
  }
}

function addListeners(view) {
  const { page, scroller, lists } = view;
  const { signal } = page;
  const at = (event) => {
    const token = event.target.closest?.(".token");
    return token ? { side: token.dataset.side, index: Number(token.dataset.index) } : null;
  };
  const hover = (place) => {
    view.hover = place;
    refresh(view);
  };
  for (const side of Object.values(lists)) {
    addRovingFocus(side, ".token", signal);
    side.addEventListener("pointerover", (event) => hover(at(event)), { signal });
    side.addEventListener("pointerleave", () => hover(null), { signal });
    side.addEventListener("focusin", (event) => hover(at(event)), { signal });
    side.addEventListener("focusout", () => hover(null), { signal });
    side.addEventListener("click", (event) => at(event) && togglePin(view, at(event)), { signal });
  }
  view.page.addPanelKeys(scroller, { Escape: () => page.set({ pin: null }) });
  scroller.addEventListener("scroll", () => scheduleDraw(view), { signal, passive: true });
  const sizes = new ResizeObserver(() => scheduleDraw(view));
  sizes.observe(scroller);
  signal.addEventListener("abort", () => sizes.disconnect());
}

function togglePin(view, place) {
  const { page } = view;
  const old = page.state.pin;
  const same = old?.side === place.side && old?.index === place.index;
  page.set({ pin: same ? null : place });
  if (!same) page.announce(describeToken(view.map, averageChosenHeads(view), place));
}

function describeToken(map, one, { side, index }) {
  const other = side === "rows" ? "columns" : "rows";
  const best = findStrongest(one, side === "rows" ? { row: index } : { column: index }, 3);
  const list = best.map(([i, weight]) => `${map.labels[other][i]} ${formatShort(weight)}`).join(", ");
  return `${map.labels[side][index]} ${side === "rows" ? "attends to" : "is attended to by"} ${list}`;
}

function averageChosenHeads(view) {
  return averageLazily(view.page.state.heads.map((head) => view.map.getPlane(head)));
}

function refresh(view) {
  const { page, aside } = view;
  const active = view.hover ?? page.state.pin;
  const one = averageChosenHeads(view);
  const ends = active ? findStrongest(one, active.side === "rows" ? { row: active.index } : { column: active.index }, MAX_LISTED_TOKENS) : [];
  const top = ends[0]?.[1] || 1;
  markTokens(view, active, (i) => (active.side === "rows" ? one.value(active.index, i) : one.value(i, active.index)) / top);
  aside.replaceChildren(...buildTokenDetails(view, active, one, ends));
  scheduleDraw(view);
}

// Marks the active token and those it attends to. Only tokens that change are updated: there may be thousands.
function markTokens(view, active, strength) {
  const { tokens, page } = view;
  for (const token of view.marked) {
    token.style.setProperty("--weight", "0");
    token.setAttribute("aria-pressed", "false");
    token.classList.remove("active");
  }
  view.marked = [];
  const touch = (token, change) => {
    view.marked.push(token);
    change(token);
  };
  const { pin } = page.state;
  if (pin) touch(tokens[pin.side][pin.index], (token) => token.setAttribute("aria-pressed", "true"));
  if (!active) return;
  touch(tokens[active.side][active.index], (token) => token.classList.add("active"));
  tokens[active.side === "rows" ? "columns" : "rows"].forEach((token, i) => {
    const weight = strength(i);
    if (weight >= MIN_LINE_STRENGTH) touch(token, () => token.style.setProperty("--weight", weight.toFixed(3)));
  });
}

// Builds a table with the strongest attention weights of the active token.
function buildTokenDetails(view, active, one, ends) {
  const map = view.map;
  if (!active) {
    return [el("p", { class: "hint" }, "Point at a token to follow its lines. Click, or press Enter, to pin it; Escape unpins it.")];
  }
  const isQuery = active.side === "rows";
  const other = map.labels[isQuery ? "columns" : "rows"];
  const heads = view.page.state.heads;
  const theme = view.page.theme();
  const weights = (i) => heads.map((head) => {
    const each = map.getPlane(head);
    return [head, isQuery ? each.value(active.index, i) : each.value(i, active.index), each.top];
  });
  const rows = ends.map(([i, weight]) => {
    const stripes = weights(i).map(([head, w, top]) => {
      const stripe = el("i", { title: `head ${head + 1}: ${formatShort(w)}` });
      stripe.style.background = getHeadColour(head, theme);
      stripe.style.opacity = String(0.08 + 0.92 * (w / (top || 1)));
      return stripe;
    });
    return el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, other[i])), el("td", { class: "stripes" }, ...stripes),
      el("td", { class: "number" }, formatWeight(one, weight)));
  });
  const label = el("bdi", {}, map.labels[active.side][active.index]);
  const many = heads.length > 1 ? `mean of ${heads.length} heads` : `head ${heads[0] + 1}`;
  return [el("h2", {}, label, isQuery ? " attends to" : " is attended to by"), el("p", { class: "hint" }, many),
    el("table", { class: "values" }, el("thead", { class: "unseen" }, el("tr", {}, el("th", {}, "Token"), el("th", {}, "Heads"),
      el("th", {}, "Weight"))), el("tbody", {}, ...rows))];
}

function scheduleDraw(view) {
  view.frame ??= requestAnimationFrame(() => {
    view.frame = null;
    drawLines(view);
  });
}

function drawLines(view) {
  const { canvas, scroller, page, map } = view;
  const width = canvas.clientWidth;
  const content = ROW_HEIGHT * Math.max(map.labels.rows.length, map.labels.columns.length);
  const height = Math.min(scroller.clientHeight, content);
  if (!width || !height) return;
  const scale = devicePixelRatio;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const top = scroller.scrollTop;
  const seen = { first: Math.floor(top / ROW_HEIGHT) - 1, last: Math.ceil((top + height) / ROW_HEIGHT) + 1 };
  const active = view.hover ?? page.state.pin;
  const { heads } = page.state;
  heads.forEach((head, k) => {
    const shift = (k - (heads.length - 1) / 2) * Math.min(2, 14 / heads.length);
    context.strokeStyle = getHeadColour(head, page.theme());
    const place = (i) => (i + 0.5) * ROW_HEIGHT - top + shift;
    for (const [row, column, strength] of generateLines(map.getPlane(head), active, seen)) {
      context.globalAlpha = Math.min(1, 0.1 + 0.9 * strength) * (active ? 1 : 0.75);
      context.lineWidth = 0.6 + 2.6 * strength;
      context.beginPath();
      context.moveTo(0, place(row));
      context.bezierCurveTo(width * 0.45, place(row), width * 0.55, place(column), width, place(column));
      context.stroke();
    }
  });
}

// Generates the lines of the active token, or of every visible row: [row, column, weight / largest weight of the head].
function* generateLines(plane, active, { first, last }) {
  const top = plane.top || 1;
  const span = (index, count, side) =>
    active?.side === side ? [index, index + 1] : active ? [0, count] : [Math.max(0, first), Math.min(count, last)];
  const [rowFrom, rowTo] = span(active?.index, plane.rows, "rows");
  const [columnFrom, columnTo] = active ? span(active.index, plane.columns, "columns") : [0, plane.columns];
  for (let row = rowFrom; row < rowTo; row++) {
    for (let column = columnFrom; column < columnTo; column++) {
      const strength = plane.value(row, column) / top;
      if (strength >= MIN_LINE_STRENGTH) yield [row, column, strength];
    }
  }
}
