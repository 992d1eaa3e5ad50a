// Two columns of tokens and lines between them: who looks at whom, one colour for each head.

import { headColour } from "./colour.js";
import { headChips, mapChoice, wordsBox } from "./controls.js";
import { el, roving } from "./element.js";
import { SIDES, short, shownWeight } from "./model.js";
import { meanOf, strongest } from "./plane.js";

const PITCH = 30; // pixels from token to token, as in page.css
const FAINT = 0.04; // lines weaker than this part of the strongest are left out
const MOST = 8; // rows of the list beside it

export function headsView(page) {
  const chips = headChips(page);
  const maps = mapChoice(page, { chosen: page.state.map, onchoose: page.chooseMap });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const lists = { rows: el("ul", { class: "tokens from" }), columns: el("ul", { class: "tokens to" }) };
  const names = { rows: el("h2", {}), columns: el("h2", {}) };
  const scroller = el("div", { class: "lines", tabindex: -1 }, lists.rows, canvas, lists.columns);
  const aside = el("aside", { class: "side", "aria-label": "What is pointed at" });
  const element = el("div", { class: "view heads" },
    el("div", { class: "bar" }, maps.element, chips.element, wordsBox(page)),
    el("div", { class: "split" },
      el("div", { class: "linebox" }, el("div", { class: "linenames" }, names.rows, names.columns), scroller), aside));
  const view = { page, canvas, lists, scroller, aside, hover: null, made: null, tokens: {}, marked: [] };
  listen(view);
  const update = () => {
    maps.select.value = String(page.state.map);
    chips.update();
    const map = page.map();
    names.rows.textContent = SIDES[map.rows] ?? map.rows;
    names.columns.textContent = `looks at ${SIDES[map.columns] ?? map.columns}`;
    if (view.made !== map) fillLists(view, map);
    refresh(view);
  };
  return { element, update };
}

function fillLists(view, map) {
  view.made = map;
  view.hover = null;
  view.marked = [];
  for (const side of ["rows", "columns"]) {
    view.tokens[side] = map.labels[side].map((label, index) =>
      el("button", { type: "button", class: "token", dir: "auto", "data-side": side, "data-index": index,
        tabindex: index === 0 ? 0 : -1, "aria-pressed": "false", title: label }, label));
    view.lists[side].replaceChildren(...view.tokens[side].map((token) => el("li", {}, token)));
  }
}

function listen(view) {
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
    roving(side, ".token", signal);
    side.addEventListener("pointerover", (event) => hover(at(event)), { signal });
    side.addEventListener("pointerleave", () => hover(null), { signal });
    side.addEventListener("focusin", (event) => hover(at(event)), { signal });
    side.addEventListener("focusout", () => hover(null), { signal });
    side.addEventListener("click", (event) => at(event) && pin(view, at(event)), { signal });
  }
  view.page.panelKeys(scroller, { Escape: () => page.set({ pin: null }) });
  scroller.addEventListener("scroll", () => soon(view), { signal, passive: true });
  const sizes = new ResizeObserver(() => soon(view));
  sizes.observe(scroller);
  signal.addEventListener("abort", () => sizes.disconnect());
}

function pin(view, place) {
  const { page } = view;
  const old = page.state.pin;
  const same = old?.side === place.side && old?.index === place.index;
  page.set({ pin: same ? null : place });
  if (!same) page.announce(sentence(view.made, averaged(view), place));
}

function sentence(map, one, { side, index }) {
  const other = side === "rows" ? "columns" : "rows";
  const best = strongest(one, side === "rows" ? { row: index } : { column: index }, 3);
  const list = best.map(([i, weight]) => `${map.labels[other][i]} ${short(weight)}`).join(", ");
  return `${map.labels[side][index]} ${side === "rows" ? "looks at" : "is looked at by"} ${list}`;
}

function averaged(view) {
  return meanOf(view.page.state.heads.map((head) => view.made.plane(head)));
}

function refresh(view) {
  const { page, aside } = view;
  const active = view.hover ?? page.state.pin;
  const one = averaged(view);
  const ends = active ? strongest(one, active.side === "rows" ? { row: active.index } : { column: active.index }, MOST) : [];
  const top = ends[0]?.[1] || 1;
  mark(view, active, (i) => (active.side === "rows" ? one.value(active.index, i) : one.value(i, active.index)) / top);
  aside.replaceChildren(...told(view, active, one, ends));
  soon(view);
}

// Only tokens that change are touched: there may be thousands.
function mark(view, active, strength) {
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
    if (weight >= FAINT) touch(token, () => token.style.setProperty("--weight", weight.toFixed(3)));
  });
}

// The strongest ends of the lines of a token, with their weights in numbers.
function told(view, active, one, ends) {
  const map = view.made;
  if (!active) {
    return [el("p", { class: "hint" }, "Point at a token to follow its lines. Click, or press Enter, to pin it; Escape lets go.")];
  }
  const forth = active.side === "rows";
  const other = map.labels[forth ? "columns" : "rows"];
  const heads = view.page.state.heads;
  const theme = view.page.theme();
  const weights = (i) => heads.map((head) => {
    const each = map.plane(head);
    return [head, forth ? each.value(active.index, i) : each.value(i, active.index), each.top];
  });
  const rows = ends.map(([i, weight]) => {
    const stripes = weights(i).map(([head, w, top]) => {
      const stripe = el("i", { title: `head ${head + 1}: ${short(w)}` });
      stripe.style.background = headColour(head, theme);
      stripe.style.opacity = String(0.08 + 0.92 * (w / (top || 1)));
      return stripe;
    });
    return el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, other[i])), el("td", { class: "stripes" }, ...stripes),
      el("td", { class: "number" }, shownWeight(one, weight)));
  });
  const label = el("bdi", {}, map.labels[active.side][active.index]);
  const many = heads.length > 1 ? `mean of ${heads.length} heads` : `head ${heads[0] + 1}`;
  return [el("h2", {}, label, forth ? " looks at" : " is looked at by"), el("p", { class: "hint" }, many),
    el("table", { class: "values" }, el("thead", { class: "unseen" }, el("tr", {}, el("th", {}, "Token"), el("th", {}, "Heads"),
      el("th", {}, "Weight"))), el("tbody", {}, ...rows))];
}

function soon(view) {
  view.frame ??= requestAnimationFrame(() => {
    view.frame = null;
    drawLines(view);
  });
}

function drawLines(view) {
  const { canvas, scroller, page, made: map } = view;
  const width = canvas.clientWidth;
  const content = PITCH * Math.max(map.labels.rows.length, map.labels.columns.length);
  const height = Math.min(scroller.clientHeight, content);
  if (!width || !height) return;
  const scale = devicePixelRatio;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const top = scroller.scrollTop;
  const seen = { first: Math.floor(top / PITCH) - 1, last: Math.ceil((top + height) / PITCH) + 1 };
  const active = view.hover ?? page.state.pin;
  const { heads } = page.state;
  heads.forEach((head, k) => {
    const shift = (k - (heads.length - 1) / 2) * Math.min(2, 14 / heads.length);
    context.strokeStyle = headColour(head, page.theme());
    const place = (i) => (i + 0.5) * PITCH - top + shift;
    for (const [row, column, strength] of linesOf(map.plane(head), active, seen)) {
      context.globalAlpha = Math.min(1, 0.1 + 0.9 * strength) * (active ? 1 : 0.75);
      context.lineWidth = 0.6 + 2.6 * strength;
      context.beginPath();
      context.moveTo(0, place(row));
      context.bezierCurveTo(width * 0.45, place(row), width * 0.55, place(column), width, place(column));
      context.stroke();
    }
  });
}

// Lines of the token that is pointed at, or of every row in sight: [row, column, part of the head's strongest].
function* linesOf(plane, active, { first, last }) {
  const top = plane.top || 1;
  const span = (index, count, side) =>
    active?.side === side ? [index, index + 1] : active ? [0, count] : [Math.max(0, first), Math.min(count, last)];
  const [rowFrom, rowTo] = span(active?.index, plane.rows, "rows");
  const [columnFrom, columnTo] = active ? span(active.index, plane.columns, "columns") : [0, plane.columns];
  for (let row = rowFrom; row < rowTo; row++) {
    for (let column = columnFrom; column < columnTo; column++) {
      const strength = plane.value(row, column) / top;
      if (strength >= FAINT) yield [row, column, strength];
    }
  }
}
