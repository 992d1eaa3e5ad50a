// A line chart over steps or time, with a cursor that follows the pointer or the arrow keys. All charts share one cursor.

import { el, svg } from "./element.js";
import { computeTicks, findNearest, formatNumber } from "./scale.js";

const CHART_HEIGHT = 190; // pixels
const MARGINS = { left: 52, right: 28, top: 8, bottom: 24 };
const KEY_STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

// Series are { name, x, y, colour, plain } with increasing x; `colour` is the index of the colour, `plain` series (before
// smoothing) are drawn faint in the background. oncursor(x) is called with the position of the pointer, or null.
export function createChart({ title, control = null, oncursor, announce }) {
  const drawing = svg("svg", { height: CHART_HEIGHT, "aria-hidden": "true" });
  const values = el("ul", { class: "curve-values" });
  const place = el("div", { class: "curve-place", tabindex: 0, role: "application", "aria-roledescription": "chart" }, drawing);
  const element = el("section", { class: "curve", "aria-label": title },
    el("div", { class: "bar head" }, el("h2", {}, title), control), values, place);
  const view = { title, drawing, values, place, shown: null, announce, oncursor };
  new ResizeObserver(() => draw(view)).observe(place);
  place.addEventListener("pointermove", (event) => moveCursorTo(view, event.clientX - place.getBoundingClientRect().left));
  place.addEventListener("pointerleave", () => oncursor(null));
  place.addEventListener("keydown", (event) => handleKey(view, event));
  place.addEventListener("blur", () => oncursor(null));
  const update = (shown) => {
    view.shown = shown;
    draw(view);
  };
  return { element, update };
}

function draw(view) {
  const { shown, drawing, place } = view;
  const width = place.clientWidth;
  if (!shown || !width) return;
  const series = shown.series.filter(({ x }) => x.length);
  drawing.setAttribute("width", width);
  drawing.setAttribute("viewBox", `0 0 ${width} ${CHART_HEIGHT}`);
  view.axes = series.length ? computeAxes(series, width, shown) : null;
  place.setAttribute("aria-label", describeChart(view, series));
  if (!view.axes) {
    drawing.replaceChildren(svg("text", { x: width / 2, y: CHART_HEIGHT / 2, class: "curve-none" }, "no data yet"));
    view.values.replaceChildren();
    return;
  }
  drawing.replaceChildren(...drawGrid(view.axes, width), ...series.map((one) => drawCurve(view.axes, one)), ...drawCursor(view, series));
  updateLegend(view, series);
}

function computeAxes(series, width, { log, over, range: [left, right] }) {
  const ys = series.flatMap(({ y, plain }) => (plain && y.length > 40 ? trimOutliers(y) : y)).filter((y) => y !== null && (!log || y > 0));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (!ys.length) [low, high] = [0, 1];
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(low * 0.9, low * 1.1), Math.max(low * 0.9, low * 1.1)];
  else if (!log) [low, high] = [low - 0.04 * (high - low), high + 0.04 * (high - low)].map((one, i) => (i === 0 && low >= 0 ? Math.max(0, one) : one));
  const useLog = log && low > 0;
  const room = { x: width - MARGINS.left - MARGINS.right, y: CHART_HEIGHT - MARGINS.top - MARGINS.bottom };
  const scaled = (value) => (useLog ? Math.log(Math.max(value, low * 1e-3)) : value);
  const span = scaled(high) - scaled(low);
  return {
    left, right, low, high, log: useLog, over, width,
    x: (value) => MARGINS.left + (right > left ? ((value - left) / (right - left)) * room.x : room.x / 2),
    y: (value) => MARGINS.top + room.y * (1 - (scaled(value) - scaled(low)) / span),
    back: (pixels) => left + ((pixels - MARGINS.left) / room.x) * (right - left),
  };
}

// Removes the largest 2 % of noisy values, which would flatten all others.
function trimOutliers(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.slice(0, Math.ceil(sorted.length * 0.98));
}

function drawGrid(axes, width) {
  const rows = computeTicks(axes.low, axes.high, 5, axes.log).map((value) => svg("g", {},
    svg("line", { x1: MARGINS.left, x2: width - MARGINS.right, y1: axes.y(value), y2: axes.y(value), class: "curve-grid" }),
    svg("text", { x: MARGINS.left - 8, y: axes.y(value) + 4, class: "curve-left" }, formatNumber(value))));
  const columns = computeTicks(axes.left, axes.right, width < 420 ? 3 : 6).map((value) =>
    svg("text", { x: axes.x(value), y: CHART_HEIGHT - 6, class: "curve-below" }, formatNumber(value)));
  return [...rows, ...columns];
}

function drawCurve(axes, { x, y, plain, colour }) {
  const points = x.map((at, i) => [at, y[i]]).filter(([, value]) => value !== null && (!axes.log || value > 0));
  const line = points.map(([at, value], i) => `${i ? "L" : "M"}${axes.x(at).toFixed(1)},${Math.max(0, axes.y(value)).toFixed(1)}`);
  const group = svg("g", { class: `curve-line series-${colour}${plain ? " plain" : ""}` }, svg("path", { d: line.join("") }));
  if (!plain && points.length <= 30) {
    group.append(...points.map(([at, value]) => svg("circle", { cx: axes.x(at), cy: axes.y(value), r: 3 })));
  }
  return group;
}

function drawCursor(view, series) {
  const { cursor: at } = view.shown;
  const { axes } = view;
  if (at === null || at < axes.left || at > axes.right) return [];
  const line = svg("line", { x1: axes.x(at), x2: axes.x(at), y1: MARGINS.top, y2: CHART_HEIGHT - MARGINS.bottom, class: "curve-cursor" });
  const dots = series.filter(({ plain }) => !plain).map((one) => {
    const i = findNearest(one.x, at);
    const value = one.y[i];
    return value === null ? null : svg("circle", { cx: axes.x(one.x[i]), cy: axes.y(value), r: 4, class: `curve-dot series-${one.colour}` });
  });
  return [line, ...dots.filter(Boolean)];
}

// Shows the names of the curves with their values at the cursor, or the last ones.
function updateLegend(view, series) {
  const { cursor: at } = view.shown;
  view.values.replaceChildren(...series.filter(({ plain }) => !plain).map((one) =>
    el("li", {}, el("span", { class: `swatch series-${one.colour}`, "aria-hidden": "true" }), `${one.name} `,
      el("b", { class: "number" }, formatNumber(getValueAt(one, at))))));
}

function getValueAt({ x, y }, at) {
  return at === null ? y.at(-1) : y[findNearest(x, at)];
}

function describeChart(view, series) {
  const ranges = series.filter(({ plain }) => !plain).map(({ name, y }) => `${name} from ${formatNumber(y[0])} to ${formatNumber(y.at(-1))}`);
  return `${view.title}: ${ranges.join(", ") || "no data yet"}. Left and right move along the curves.`;
}

function moveCursorTo(view, pixels) {
  if (!view.axes) return;
  const { left, right, back } = view.axes;
  view.oncursor(Math.max(left, Math.min(right, back(pixels))));
}

// Moves the cursor by keys along the points of the longest series.
function handleKey(view, event) {
  if (!view.axes || event.ctrlKey || event.altKey || event.metaKey) return;
  const series = view.shown.series.filter(({ x, plain }) => x.length && !plain);
  const longest = series.reduce((most, one) => (one.x.length > most.x.length ? one : most));
  const last = longest.x.length - 1;
  const at = view.shown.cursor;
  const here = at === null ? last : findNearest(longest.x, at);
  const next = { Home: 0, End: last }[event.key] ?? here + (KEY_STEPS[event.key] ?? NaN);
  if (event.key === "Escape") view.oncursor(null);
  if (Number.isNaN(next)) return;
  event.preventDefault();
  const x = longest.x[Math.max(0, Math.min(last, next))];
  view.oncursor(x);
  const values = series.map((one) => `${one.name} ${formatNumber(getValueAt(one, x))}`).join(", ");
  view.announce(`${view.axes.over} ${formatNumber(x)}: ${values}`);
}
