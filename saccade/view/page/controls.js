// What several views share to choose a map, heads and colours.

import { gradient, headColour } from "./colour.js";
import { button, checkbox, choice, el } from "./element.js";
import { MEAN, PARTS, headName, short } from "./model.js";

// Which attention: the maps of the page by name; `fits` leaves some out.
export function mapChoice(page, { label = "Attention", fits = () => true, chosen, onchoose }) {
  const entries = page.maps.map((map, i) => [i, map.name]).filter(([i]) => fits(page.maps[i]));
  return choice(label, entries, chosen, (value) => onchoose(Number(value)));
}

export function headEntries(map) {
  const heads = Array.from({ length: map.heads }, (_, i) => [i, headName(i, map.heads)]);
  return map.heads > 1 ? [[MEAN, headName(MEAN, map.heads)], ...heads] : heads;
}

// One button for each head, in its colour, and one for all of them.
export function headChips(page) {
  const group = el("div", { class: "chips", role: "group", "aria-label": "Heads" });
  let made = null;
  const update = () => {
    const { heads } = page.map();
    if (made !== heads) {
      made = heads;
      const chips = Array.from({ length: heads }, (_, i) =>
        button(`${i + 1}`, () => page.set({ heads: toggled(page.state.heads, i) }), { class: "chip", "aria-label": `Head ${i + 1}` }));
      const all = Array.from({ length: heads }, (_, i) => i);
      const every = button("all", () => page.set({ heads: page.state.heads.length === heads ? [0] : all }), { class: "chip plain" });
      group.replaceChildren(el("span", { class: "caption" }, "Heads"), ...chips, ...(heads > 1 ? [every] : []));
    }
    group.querySelectorAll(".chip").forEach((chip, i) => {
      chip.style.setProperty("--head", headColour(i, page.theme()));
      chip.setAttribute("aria-pressed", i < heads ? page.state.heads.includes(i) : page.state.heads.length === heads);
    });
    group.hidden = heads === 1;
  };
  return { element: group, update };
}

// At least one head stays.
function toggled(heads, head) {
  const rest = heads.filter((one) => one !== head);
  if (rest.length === heads.length) return [...heads, head].sort((a, b) => a - b);
  return rest.length ? rest : heads;
}

export function spreadBox(page) {
  return checkbox("Bring out small weights", page.state.spread, (spread) => page.set({ spread }));
}

export function wordsBox(page) {
  if (!page.data.inWords) return null;
  return checkbox("Whole words", page.state.words, (words) => page.set({ words, pin: null }));
}

// The scale of colours with its ends in numbers.
export function legend(page) {
  const low = el("span", {});
  const high = el("span", {});
  const bar = el("span", { class: "ramp" });
  const element = el("div", { class: "legend", role: "img" }, low, bar, high);
  const update = (plane) => {
    const sign = plane.signed && plane.top > 0;
    low.textContent = sign ? `−${short(plane.top)}` : "0";
    high.textContent = sign ? `+${short(plane.top)}` : plane.top > 0 ? short(plane.top) : "0";
    bar.style.background = gradient({ theme: page.theme(), signed: plane.signed, spread: page.state.spread });
    element.setAttribute("aria-label", `Colours from ${low.textContent} to ${high.textContent}`);
  };
  return { element, update };
}

export function zoomButtons(heats) {
  const zoom = (factor) => () => heats().forEach((heat, i) => i === 0 && heat.viewport.zoom(factor, heat.area));
  return el("div", { class: "buttons", role: "group", "aria-label": "Zoom" },
    button("+", zoom(1.6), { "aria-label": "Zoom in" }),
    button("−", zoom(1 / 1.6), { "aria-label": "Zoom out" }),
    button("Fit", () => heats().forEach((heat) => heat.viewport.fit()), { "aria-label": "Show everything" }));
}

// How exact the numbers of a map are, in words.
export function precision(map) {
  if (map.exact) return "Weights are stored in full (float32).";
  const bits = map.levels > 255 ? 16 : 8;
  return `Weights are stored in ${bits} bits each; the ± beside a number is how far it may be off.`;
}

export function empty(title, text) {
  return el("div", { class: "empty" }, el("h2", {}, title), el("p", {}, text));
}

export function partName(map) {
  return PARTS[map.part] ?? "Attention";
}
