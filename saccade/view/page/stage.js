// What a step looks at: tokens in a row, or cells of a picture. Weights are light, and an eye jumps from place to place.

import { el, svg } from "./element.js";

export const TRAIL = 6; // fixations that stay visible

export function stage(page, map) {
  const { background } = page.data;
  return background && background.columns === map.columns ? picture(page, background) : words(map);
}

function words(map) {
  const tokens = map.labels.columns.map((label) => el("span", { class: "word", dir: "auto" }, label));
  const path = svg("svg", { class: "gaze", "aria-hidden": "true" });
  const row = el("div", { class: "words" }, ...tokens);
  const element = el("div", { class: "stage" }, row, path);
  const centre = (i) => {
    const { offsetLeft, offsetTop, offsetWidth } = tokens[i];
    return { x: offsetLeft + offsetWidth / 2, y: offsetTop };
  };
  const jumps = drawnJumps(element, path, centre, 26);
  const show = (weights, top, fixations, hidden) => {
    tokens.forEach((token, i) => {
      token.classList.toggle("future", i >= hidden);
      token.style.setProperty("--weight", (weights[i] / (top || 1)).toFixed(3));
      token.classList.toggle("looked", i === fixations.at(-1));
    });
    jumps(fixations);
  };
  return { element, show };
}

function picture(page, { image, images = [], grid: [rows, columns] }) {
  const source = (text) => (String(text).startsWith("data:image/") ? text : "data:,");
  const photo = el("img", { src: source(image), alt: "What the model looks at" });
  const light = el("canvas", { "aria-hidden": "true", width: columns, height: rows });
  const path = svg("svg", { class: "gaze", "aria-hidden": "true" });
  const element = el("div", { class: "stage photo" }, photo, light, path);
  photo.addEventListener("load", () => element.style.setProperty("--shape", `${photo.naturalWidth} / ${photo.naturalHeight}`),
    { signal: page.signal });
  const centre = (i) => ({
    x: ((i % columns) + 0.5) / columns * element.clientWidth,
    y: (Math.floor(i / columns) + 0.5) / rows * element.clientHeight,
  });
  const jumps = drawnJumps(element, path, centre, 0);
  const show = (weights, top, fixations) => {
    if (images.length) photo.src = source(images[Math.min(page.state.step, images.length - 1)]);
    const context = light.getContext("2d");
    const shade = context.createImageData(columns, rows);
    weights.slice(0, rows * columns).forEach((weight, i) => {
      shade.data[4 * i + 3] = Math.round(205 * (1 - Math.sqrt(weight / (top || 1)))); // dark where nobody looks
    });
    context.putImageData(shade, 0, 0);
    jumps(fixations.filter((i) => i < rows * columns));
  };
  return { element, show };
}

// What draws jumps between places, and draws them again where these have moved: a picture has its size only once it is
// loaded, and a window may get another one.
function drawnJumps(element, path, centre, lift) {
  let places = [];
  const draw = () => path.replaceChildren(...gaze(places.map(centre), lift));
  new ResizeObserver(draw).observe(element);
  return (next) => {
    places = next;
    draw();
  };
}

// The last jumps and the point where the eye rests; over words they are arcs, `lift` pixels high.
function gaze(points, lift) {
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
