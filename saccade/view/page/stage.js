// The attention of one step over tokens in a row or patches of an image: weights are brightness, and arcs (saccades)
// connect the attended positions (fixations) of the last steps.

import { el, svg } from "./element.js";

export const MAX_FIXATIONS = 6; // fixations that stay visible

export function createStage(page, map) {
  const { background } = page.data;
  return background && background.columns === map.columns ? createImageStage(page, background) : createTokenStage(map);
}

function createTokenStage(map) {
  const tokens = map.labels.columns.map((label) => el("span", { class: "word", dir: "auto" }, label));
  const path = svg("svg", { class: "saccades", "aria-hidden": "true" });
  const row = el("div", { class: "words" }, ...tokens);
  const element = el("div", { class: "stage" }, row, path);
  const centre = (i) => {
    const { offsetLeft, offsetTop, offsetWidth } = tokens[i];
    return { x: offsetLeft + offsetWidth / 2, y: offsetTop };
  };
  const jumps = createSaccadePath(element, path, centre, 26);
  const show = (weights, top, fixations, hidden) => {
    tokens.forEach((token, i) => {
      token.classList.toggle("future", i >= hidden);
      token.style.setProperty("--weight", (weights[i] / (top || 1)).toFixed(3));
      token.classList.toggle("attended", i === fixations.at(-1));
    });
    jumps(fixations);
  };
  return { element, show };
}

function createImageStage(page, { image, images = [], grid: [rows, columns] }) {
  const source = (text) => (String(text).startsWith("data:image/") ? text : "data:,");
  const photo = el("img", { src: source(image), alt: "Input image of the model" });
  const light = el("canvas", { "aria-hidden": "true", width: columns, height: rows });
  const path = svg("svg", { class: "saccades", "aria-hidden": "true" });
  const element = el("div", { class: "stage photo" }, photo, light, path);
  photo.addEventListener("load", () => element.style.setProperty("--shape", `${photo.naturalWidth} / ${photo.naturalHeight}`),
    { signal: page.signal });
  const centre = (i) => ({
    x: ((i % columns) + 0.5) / columns * element.clientWidth,
    y: (Math.floor(i / columns) + 0.5) / rows * element.clientHeight,
  });
  const jumps = createSaccadePath(element, path, centre, 0);
  const show = (weights, top, fixations) => {
    if (images.length) photo.src = source(images[Math.min(page.state.step, images.length - 1)]);
    const context = light.getContext("2d");
    const shade = context.createImageData(columns, rows);
    weights.slice(0, rows * columns).forEach((weight, i) => {
      shade.data[4 * i + 3] = Math.round(205 * (1 - Math.sqrt(weight / (top || 1)))); // dark where the weight is 0
    });
    context.putImageData(shade, 0, 0);
    jumps(fixations.filter((i) => i < rows * columns));
  };
  return { element, show };
}

// Returns a function that draws saccades between positions; they are redrawn on resize, as when an image has loaded.
function createSaccadePath(element, path, centre, lift) {
  let places = [];
  const draw = () => path.replaceChildren(...drawSaccades(places.map(centre), lift));
  new ResizeObserver(draw).observe(element);
  return (next) => {
    places = next;
    draw();
  };
}

// Draws the last saccades and a dot at the current fixation; over tokens they are arcs up to `lift` pixels high.
function drawSaccades(points, lift) {
  const arcs = points.slice(1).map((to, i) => {
    const from = points[i];
    const top = Math.min(from.y, to.y) - (lift ? Math.min(lift, 6 + Math.abs(to.x - from.x) / 5) : 0);
    const arc = svg("path", { d: `M${from.x},${from.y} Q${(from.x + to.x) / 2},${top} ${to.x},${to.y}` });
    arc.style.opacity = String((i + 1) / (points.length - 1));
    if (i === points.length - 2) arc.classList.add("jump");
    return arc;
  });
  const last = points.at(-1);
  return last ? [...arcs, svg("circle", { cx: last.x, cy: last.y, r: 4.5 })] : arcs;
}
