// The tree of hypotheses that a search tried: a column for each step, what was kept in ink, what was dropped faint.

import { el, svg } from "./element.js";

const WIDE = 126; // pixels of a step
const HIGH = 30; // pixels of a candidate
const LETTERS = 7; // of a token

export function beamTree(page) {
  const element = el("div", { class: "scroll beam", tabindex: 0, role: "region", "aria-label": "The tree of the search" });
  const { steps } = page.data;
  const places = placed(steps);
  const path = onPath(steps);
  const columns = steps.map((step) => column(step, places, path));
  const most = Math.max(1, ...steps.map(({ beam }) => beam?.length ?? 0));
  const size = { width: WIDE * steps.length + 20, height: HIGH * most + 16 };
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  element.append(svg("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, ...columns));
  const update = (now) => {
    columns.forEach((group, at) => {
      group.classList.toggle("future", at > now);
      group.classList.toggle("now", at === now);
    });
    const left = now * WIDE - element.clientWidth / 2 + WIDE / 2;
    element.scrollTo({ left, behavior: still.matches ? "auto" : "smooth" });
  };
  return { element, update, there: steps.some(({ beam }) => beam?.length) };
}

// id -> where its box stands.
function placed(steps) {
  const places = new Map();
  steps.forEach(({ beam }, at) => (beam ?? []).forEach(({ id }, i) =>
    places.set(id, { x: at * WIDE + 10, y: i * HIGH + HIGH / 2 + 8 })));
  return places;
}

// The candidates that became the output.
export function onPath(steps) {
  const path = new Set();
  let parent = 0;
  for (const { token, beam } of steps) {
    if (!beam?.length) continue; // given, not searched for
    const next = beam.find((one) => one.kept && one.token === token && (one.parent ?? 0) === parent);
    if (!next) break;
    parent = next.id;
    path.add(next.id);
  }
  return path;
}

function column({ beam }, places, path) {
  const edges = [];
  const boxes = [];
  for (const { id, parent, token, score, kept } of beam ?? []) {
    const { x, y } = places.get(id);
    const from = places.get(parent);
    const kind = path.has(id) ? "chosen" : kept ? "kept" : "dropped";
    if (from) {
      const start = from.x + WIDE - 22;
      edges.push(svg("path", { class: `edge ${kind}`, d: `M${start},${from.y} C${start + 12},${from.y} ${x - 12},${y} ${x},${y}` }));
    }
    const text = [...token].length > LETTERS ? `${[...token].slice(0, LETTERS - 1).join("")}…` : token;
    boxes.push(svg("g", { class: `box ${kind}`, transform: `translate(${x},${y - 12})` },
      svg("title", {}, `${token}  ${score.toFixed(3)}`),
      svg("rect", { width: WIDE - 22, height: 24, rx: 6 }),
      svg("text", { x: 8, y: 16 }, text),
      svg("text", { x: WIDE - 30, y: 16, class: "score" }, score.toFixed(2).replace("-", "−"))));
  }
  return svg("g", {}, ...edges, ...boxes);
}
