// Controls shared by several views: selects for map and heads, colour scale, zoom.

import { buildGradient, getHeadColour } from "./colour.js";
import { createButton, createCheckbox, createSelect, el } from "./element.js";
import { MEAN, PARTS, formatShort, getHeadName } from "./model.js";

// Creates a select with the names of the attention maps for which `fits` is true.
export function createMapSelect(page, { label = "Attention", fits = () => true, chosen, onchoose }) {
  const entries = page.maps.map((map, i) => [i, map.name]).filter(([i]) => fits(page.maps[i]));
  return createSelect(label, entries, chosen, (value) => onchoose(Number(value)));
}

export function listHeadOptions(map) {
  const heads = Array.from({ length: map.heads }, (_, i) => [i, getHeadName(i, map.heads)]);
  return map.heads > 1 ? [[MEAN, getHeadName(MEAN, map.heads)], ...heads] : heads;
}

// Creates one toggle button per head, in its colour, and one for all heads.
export function createHeadChips(page) {
  const group = el("div", { class: "chips", role: "group", "aria-label": "Heads" });
  let chipCount = null;
  const update = () => {
    const { heads } = page.map();
    if (chipCount !== heads) {
      chipCount = heads;
      const chips = Array.from({ length: heads }, (_, i) =>
        createButton(`${i + 1}`, () => page.set({ heads: toggleHead(page.state.heads, i) }), { class: "chip", "aria-label": `Head ${i + 1}` }));
      const all = Array.from({ length: heads }, (_, i) => i);
      const every = createButton("all", () => page.set({ heads: page.state.heads.length === heads ? [0] : all }), { class: "chip plain" });
      group.replaceChildren(el("span", { class: "caption" }, "Heads"), ...chips, ...(heads > 1 ? [every] : []));
    }
    group.querySelectorAll(".chip").forEach((chip, i) => {
      chip.style.setProperty("--head", getHeadColour(i, page.theme()));
      chip.setAttribute("aria-pressed", i < heads ? page.state.heads.includes(i) : page.state.heads.length === heads);
    });
    group.hidden = heads === 1;
  };
  return { element: group, update };
}

// Adds or removes a head; the last one stays.
function toggleHead(heads, head) {
  const rest = heads.filter((one) => one !== head);
  if (rest.length === heads.length) return [...heads, head].sort((a, b) => a - b);
  return rest.length ? rest : heads;
}

export function createScaleCheckbox(page) {
  return createCheckbox("Emphasize small weights", page.state.sqrtScale, (sqrtScale) => page.set({ sqrtScale }));
}

export function createWordsCheckbox(page) {
  if (!page.data.inWords) return null;
  return createCheckbox("Whole words", page.state.words, (words) => page.set({ words, pin: null }));
}

// Creates a colour bar with the values at its ends.
export function createLegend(page) {
  const low = el("span", {});
  const high = el("span", {});
  const bar = el("span", { class: "ramp" });
  const element = el("div", { class: "legend", role: "img" }, low, bar, high);
  const update = (plane) => {
    const sign = plane.signed && plane.top > 0;
    low.textContent = sign ? `−${formatShort(plane.top)}` : "0";
    high.textContent = sign ? `+${formatShort(plane.top)}` : plane.top > 0 ? formatShort(plane.top) : "0";
    bar.style.background = buildGradient({ theme: page.theme(), signed: plane.signed, sqrtScale: page.state.sqrtScale });
    element.setAttribute("aria-label", `Colours from ${low.textContent} to ${high.textContent}`);
  };
  return { element, update };
}

export function createZoomButtons(heats) {
  const zoom = (factor) => () => heats().forEach((heat, i) => i === 0 && heat.viewport.zoom(factor, heat.area));
  return el("div", { class: "buttons", role: "group", "aria-label": "Zoom" },
    createButton("+", zoom(1.6), { "aria-label": "Zoom in" }),
    createButton("−", zoom(1 / 1.6), { "aria-label": "Zoom out" }),
    createButton("Fit", () => heats().forEach((heat) => heat.viewport.fit()), { "aria-label": "Show everything" }));
}

// Describes the precision of the weights of a map.
export function describePrecision(map) {
  if (map.exact) return "Weights are stored as float32.";
  const bits = map.levels > 255 ? 16 : 8;
  return `Weights are quantized to ${bits} bits; the ± after a weight is its quantization error.`;
}

export function createEmptyNotice(title, text) {
  return el("div", { class: "empty" }, el("h2", {}, title), el("p", {}, text));
}

export function getPartName(map) {
  return PARTS[map.part] ?? "Attention";
}
