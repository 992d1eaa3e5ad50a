// One chart: curves over steps or time, with the values under the pointer or the keys. All charts share one cursor.

import { el, svg } from "./element.js";
import { marks, nearest, written } from "./scale.js";

const HIGH = 190; // pixels
const EDGE = { left: 52, right: 12, top: 8, bottom: 24 };
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

// Series are { name, x, y, look, plain } with rising x; `plain` is drawn faint behind. oncursor(x) is told where the pointer is.
export function chart({ title, control = null, oncursor, announce }) {
  const drawing = svg("svg", { height: HIGH, "aria-hidden": "true" });
  const values = el("ul", { class: "curve-values" });
  const place = el("div", { class: "curve-place", tabindex: 0, role: "application", "aria-roledescription": "chart" }, drawing);
  const element = el("section", { class: "curve", "aria-label": title },
    el("div", { class: "bar head" }, el("h2", {}, title), control), values, place);
  const view = { title, drawing, values, place, shown: null, announce, oncursor };
  new ResizeObserver(() => draw(view)).observe(place);
  place.addEventListener("pointermove", (event) => point(view, event.clientX - place.getBoundingClientRect().left));
  place.addEventListener("pointerleave", () => oncursor(null));
  place.addEventListener("keydown", (event) => walk(view, event));
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
  drawing.setAttribute("viewBox", `0 0 ${width} ${HIGH}`);
  view.axes = series.length ? axes(series, width, shown) : null;
  place.setAttribute("aria-label", summary(view, series));
  if (!view.axes) {
    drawing.replaceChildren(svg("text", { x: width / 2, y: HIGH / 2, class: "curve-none" }, "nothing yet"));
    view.values.replaceChildren();
    return;
  }
  drawing.replaceChildren(...grid(view.axes, width), ...series.map((one) => curve(view.axes, one)), ...cursor(view, series));
  legend(view, series);
}

function axes(series, width, { log, over, range: [left, right] }) {
  const ys = series.flatMap(({ y, plain }) => (plain && y.length > 40 ? trimmed(y) : y)).filter((y) => y !== null && (!log || y > 0));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (!ys.length) [low, high] = [0, 1];
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(low * 0.9, low * 1.1), Math.max(low * 0.9, low * 1.1)];
  else if (!log) [low, high] = [low - 0.04 * (high - low), high + 0.04 * (high - low)].map((one, i) => (i === 0 && low >= 0 ? Math.max(0, one) : one));
  const useLog = log && low > 0;
  const room = { x: width - EDGE.left - EDGE.right, y: HIGH - EDGE.top - EDGE.bottom };
  const scaled = (value) => (useLog ? Math.log(Math.max(value, low * 1e-3)) : value);
  const span = scaled(high) - scaled(low);
  return {
    left, right, low, high, log: useLog, over, width,
    x: (value) => EDGE.left + (right > left ? ((value - left) / (right - left)) * room.x : room.x / 2),
    y: (value) => EDGE.top + room.y * (1 - (scaled(value) - scaled(low)) / span),
    back: (pixels) => left + ((pixels - EDGE.left) / room.x) * (right - left),
  };
}

// Without the largest few of noisy values, which would press all others flat.
function trimmed(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.slice(0, Math.ceil(sorted.length * 0.98));
}

function grid(axes, width) {
  const rows = marks(axes.low, axes.high, 5, axes.log).map((value) => svg("g", {},
    svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: axes.y(value), y2: axes.y(value), class: "curve-grid" }),
    svg("text", { x: EDGE.left - 8, y: axes.y(value) + 4, class: "curve-left" }, written(value))));
  const columns = marks(axes.left, axes.right, width < 420 ? 3 : 6).map((value) =>
    svg("text", { x: axes.x(value), y: HIGH - 6, class: "curve-below" }, written(value)));
  return [...rows, ...columns];
}

function curve(axes, { x, y, plain, look }) {
  const points = x.map((at, i) => [at, y[i]]).filter(([, value]) => value !== null && (!axes.log || value > 0));
  const line = points.map(([at, value], i) => `${i ? "L" : "M"}${axes.x(at).toFixed(1)},${Math.max(0, axes.y(value)).toFixed(1)}`);
  const group = svg("g", { class: `curve-line look-${look}${plain ? " plain" : ""}` }, svg("path", { d: line.join("") }));
  if (!plain && points.length <= 30) {
    group.append(...points.map(([at, value]) => svg("circle", { cx: axes.x(at), cy: axes.y(value), r: 3 })));
  }
  return group;
}

function cursor(view, series) {
  const { cursor: at } = view.shown;
  const { axes } = view;
  if (at === null || at < axes.left || at > axes.right) return [];
  const line = svg("line", { x1: axes.x(at), x2: axes.x(at), y1: EDGE.top, y2: HIGH - EDGE.bottom, class: "curve-cursor" });
  const dots = series.filter(({ plain }) => !plain).map((one) => {
    const i = nearest(one.x, at);
    const value = one.y[i];
    return value === null ? null : svg("circle", { cx: axes.x(one.x[i]), cy: axes.y(value), r: 4, class: `curve-dot look-${one.look}` });
  });
  return [line, ...dots.filter(Boolean)];
}

// The names of the curves with their values: at the cursor, or the newest.
function legend(view, series) {
  const { cursor: at } = view.shown;
  view.values.replaceChildren(...series.filter(({ plain }) => !plain).map((one) =>
    el("li", {}, el("span", { class: `swatch look-${one.look}`, "aria-hidden": "true" }), `${one.name} `,
      el("b", { class: "number" }, written(valueAt(one, at))))));
}

function valueAt({ x, y }, at) {
  return at === null ? y.at(-1) : y[nearest(x, at)];
}

function summary(view, series) {
  const told = series.filter(({ plain }) => !plain).map(({ name, y }) => `${name} from ${written(y[0])} to ${written(y.at(-1))}`);
  return `${view.title}: ${told.join(", ") || "nothing yet"}. Left and right walk along the curves.`;
}

function point(view, pixels) {
  if (!view.axes) return;
  const { left, right, back } = view.axes;
  view.oncursor(Math.max(left, Math.min(right, back(pixels))));
}

// Keys go from point to point of the curve that has most of them.
function walk(view, event) {
  if (!view.axes || event.ctrlKey || event.altKey || event.metaKey) return;
  const series = view.shown.series.filter(({ x, plain }) => x.length && !plain);
  const longest = series.reduce((most, one) => (one.x.length > most.x.length ? one : most));
  const last = longest.x.length - 1;
  const at = view.shown.cursor;
  const here = at === null ? last : nearest(longest.x, at);
  const next = { Home: 0, End: last }[event.key] ?? here + (KEYS[event.key] ?? NaN);
  if (event.key === "Escape") view.oncursor(null);
  if (Number.isNaN(next)) return;
  event.preventDefault();
  const x = longest.x[Math.max(0, Math.min(last, next))];
  view.oncursor(x);
  const told = series.map((one) => `${one.name} ${written(valueAt(one, x))}`).join(", ");
  view.announce(`${view.axes.over} ${written(x)}: ${told}`);
}
