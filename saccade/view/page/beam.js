// The search tree of beam search: a column for each decoding step; pruned hypotheses are faint.

import { el, svg } from "./element.js";

const STEP_WIDTH = 126; // pixels
const CANDIDATE_HEIGHT = 30; // pixels
const MAX_TOKEN_LETTERS = 7; // longer tokens are truncated

export function createBeamTree(page) {
  const element = el("div", { class: "scroll beam", tabindex: 0, role: "region", "aria-label": "Search tree" });
  const { steps } = page.data;
  const positions = computePositions(steps);
  const path = findOutputPath(steps);
  const columns = steps.map((step) => drawColumn(step, positions, path));
  const rows = Math.max(1, ...steps.map(({ beam }) => beam?.length ?? 0));
  const size = { width: STEP_WIDTH * steps.length + 20, height: CANDIDATE_HEIGHT * rows + 16 };
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  element.append(svg("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, ...columns));
  const update = (now) => {
    columns.forEach((group, step) => {
      group.classList.toggle("future", step > now);
      group.classList.toggle("now", step === now);
    });
    const left = now * STEP_WIDTH - element.clientWidth / 2 + STEP_WIDTH / 2;
    element.scrollTo({ left, behavior: reducedMotion.matches ? "auto" : "smooth" });
  };
  return { element, update, hasBeams: steps.some(({ beam }) => beam?.length) };
}

// Positions {x, y} of the hypotheses by id.
function computePositions(steps) {
  const positions = new Map();
  steps.forEach(({ beam }, step) => (beam ?? []).forEach(({ id }, i) =>
    positions.set(id, { x: step * STEP_WIDTH + 10, y: i * CANDIDATE_HEIGHT + CANDIDATE_HEIGHT / 2 + 8 })));
  return positions;
}

// Ids of the hypotheses that became the output.
export function findOutputPath(steps) {
  const path = new Set();
  let parent = 0;
  for (const { token, beam } of steps) {
    if (!beam?.length) continue; // a forced token
    const next = beam.find((one) => one.kept && one.token === token && (one.parent ?? 0) === parent);
    if (!next) break;
    parent = next.id;
    path.add(next.id);
  }
  return path;
}

function drawColumn({ beam }, positions, path) {
  const edges = [];
  const boxes = [];
  for (const { id, parent, token, score, kept } of beam ?? []) {
    const { x, y } = positions.get(id);
    const from = positions.get(parent);
    const kind = path.has(id) ? "chosen" : kept ? "kept" : "dropped";
    if (from) {
      const start = from.x + STEP_WIDTH - 22;
      edges.push(svg("path", { class: `edge ${kind}`, d: `M${start},${from.y} C${start + 12},${from.y} ${x - 12},${y} ${x},${y}` }));
    }
    const text = [...token].length > MAX_TOKEN_LETTERS ? `${[...token].slice(0, MAX_TOKEN_LETTERS - 1).join("")}…` : token;
    boxes.push(svg("g", { class: `box ${kind}`, transform: `translate(${x},${y - 12})` },
      svg("title", {}, `${token}  ${score.toFixed(3)}`),
      svg("rect", { width: STEP_WIDTH - 22, height: 24, rx: 6 }),
      svg("text", { x: 8, y: 16 }, text),
      svg("text", { x: STEP_WIDTH - 30, y: 16, class: "score" }, score.toFixed(2).replace("-", "−"))));
  }
  return svg("g", {}, ...edges, ...boxes);
}
