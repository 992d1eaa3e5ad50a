// The attention page: mount(element, document) draws an attention document into an element.

import { compareView } from "./compare_view.js";
import { empty } from "./controls.js";
import { button, el, roving, shown, svg } from "./element.js";
import { headsView } from "./heads_view.js";
import { matrixView } from "./matrix_view.js";
import { MEAN, unpacked } from "./model.js";
import { statisticsView } from "./statistics_view.js";
import { stepsView } from "./steps_view.js";

const VIEWS = {
  heads: ["Heads", headsView],
  matrix: ["Matrix", matrixView],
  steps: ["Steps", stepsView],
  compare: ["Compare", compareView],
  statistics: ["Statistics", statisticsView],
};
const HOLDING = ["steps", "statistics"]; // views that hold on to what they were made of, and are made anew
const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
const mounted = new WeakMap(); // element -> what ends the page in it
let pages = 0;

// Options: view (the first to see; without it, the one that shows most), theme (auto, light, dark), heading (false: no title, texts and theme button).
// Resolves to {set, replace, close}: `replace` shows another document of the same texts, with everything else as it is.
export async function mount(element, document, { view, theme = "auto", heading = true } = {}) {
  mounted.get(element)?.();
  const ending = new AbortController();
  mounted.set(element, () => ending.abort());
  const data = await unpacked(document);
  if (ending.signal.aborted) return { set() {}, async replace() {}, close() {} };
  const page = pageOf(element, data, ending.signal, { view: view in VIEWS ? view : first(data), theme });
  build(page, heading);
  const close = () => (ending.abort(), element.replaceChildren());
  mounted.set(element, close);
  const replace = async (other) => {
    const next = await unpacked(other);
    if (ending.signal.aborted) return;
    page.data = next;
    page.forget(HOLDING);
    page.set({});
  };
  return { set: page.set, replace, close };
}

function pageOf(element, data, signal, { view, theme }) {
  const number = (pages += 1);
  const last = telling(data);
  const live = el("div", { class: "unseen", role: "status", "aria-live": "polite" });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const page = {
    root: element, data, signal, live,
    state: {
      view, theme, map: last, head: 0, heads: allHeads(data.maps[last]), large: false, words: false, spread: false, pin: null,
      step: 0, stepHead: MEAN, sort: { key: "name", down: false }, compare: pairs(data, last),
    },
    id: (name) => `saccade-${number}-${name}`,
    get maps() {
      return page.state.words && page.data.inWords ? page.data.inWords : page.data.maps;
    },
    map: () => page.maps[page.state.map],
    chooseMap: (map) => page.set({ map, head: Math.min(page.state.head, page.data.maps[map].heads - 1) }),
    theme: () => (page.state.theme === "auto" ? (dark.matches ? "dark" : "light") : page.state.theme),
    announce: (text) => (live.textContent = text),
    panelKeys: (panel, actions) => panelKeys(panel, actions, signal),
  };
  dark.addEventListener("change", () => page.set({}), { signal });
  return page;
}

// Where there is a picture, what each step looks at in it, as cells by their numbers say little; or the map of a walk.
function first({ background, route, labels }) {
  return (background || route) && labels.target?.length ? "steps" : "heads";
}

// The map that tells most at first: the last that looks at the input, or else the last.
function telling({ maps }) {
  const cross = maps.findLastIndex((map) => map.part === "cross");
  return cross >= 0 ? cross : maps.length - 1;
}

function allHeads(map) {
  return Array.from({ length: map?.heads ?? 0 }, (_, i) => i);
}

// What is compared at first: two runs in the same place, or two heads of a layer, or two layers.
function pairs(data, map) {
  const heads = data.maps[map]?.heads ?? 0;
  const first = { run: "this", map, head: 0 };
  const { address } = data.maps[map] ?? {};
  if (data.other?.maps.length) {
    const there = data.other.maps.findIndex((one) => one.address === address);
    return { a: first, b: { run: "other", map: there < 0 ? telling(data.other) : there, head: 0 } };
  }
  return { a: first, b: heads > 1 ? { ...first, head: 1 } : { ...first, map: map > 0 ? map - 1 : map } };
}

// Keys of a whole panel, unless a control wants them for itself.
function panelKeys(panel, actions, signal) {
  panel.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    if (event.target.closest("select, input, textarea") || (event.key === " " && event.target.closest("button"))) return;
    event.preventDefault();
    actions[event.key]();
  }, { signal });
}

function build(page, heading) {
  const { data, root } = page;
  const panels = {};
  const tabs = {};
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  for (const [name, [label]] of Object.entries(VIEWS)) {
    tabs[name] = button(label, () => page.set({ view: name }), { role: "tab", id: page.id(`tab-${name}`), "aria-controls": page.id(name) });
    panels[name] = el("div", { role: "tabpanel", id: page.id(name), "aria-labelledby": page.id(`tab-${name}`), hidden: true });
    list.append(tabs[name]);
  }
  roving(list, "[role=tab]", page.signal);
  list.addEventListener("focusin", (event) => event.target.matches("[role=tab]") && event.target.click(), { signal: page.signal });
  const theme = button("", () => page.set({ theme: following(page.state.theme) }), { class: "theme" });
  root.classList.add("saccade");
  root.replaceChildren(...(heading ? [header(data, theme)] : []), list, ...Object.values(panels), page.live);
  const built = {};
  page.forget = (names) => names.filter((name) => built[name]).forEach((name) => {
    built[name].leave?.();
    delete built[name];
    panels[name].replaceChildren();
  });
  page.set = ({ focus, ...changes }) => {
    const before = { ...page.state };
    Object.assign(page.state, changes);
    if (before.map !== page.state.map) Object.assign(page.state, { heads: allHeads(page.map()), pin: null });
    if (before.view !== page.state.view) built[before.view]?.leave?.();
    root.dataset.theme = page.state.theme;
    theme.replaceChildren(sun(page.theme()));
    theme.setAttribute("aria-label", `${THEMES[page.state.theme]}. Change`);
    theme.title = THEMES[page.state.theme];
    show(page, tabs, panels, built);
    if (focus) panels[page.state.view].querySelector(focus)?.focus();
  };
  page.set({});
}

function show(page, tabs, panels, built) {
  const { view } = page.state;
  for (const name of Object.keys(VIEWS)) {
    tabs[name].setAttribute("aria-selected", String(name === view));
    tabs[name].tabIndex = name === view ? 0 : -1;
    shown(panels[name], name === view);
  }
  if (!built[view]) {
    const none = view !== "steps" && !page.data.maps.length;
    built[view] = none ? { element: nothing(), update() {} } : VIEWS[view][1](page);
    panels[view].append(built[view].element);
  }
  built[view].update();
}

function nothing() {
  return empty("No attention here", "This model reads and writes without attention, so there are no weights to look at.");
}

function following(theme) {
  const names = Object.keys(THEMES);
  return names[(names.indexOf(theme) + 1) % names.length];
}

function header(data, theme) {
  const texts = [["Input", data.input], ["Output", data.output]].filter(([, text]) => text);
  return el("header", { class: "head" },
    el("div", { class: "brand" }, logo(), "saccade", theme),
    el("h1", {}, data.title || "Attention"),
    el("dl", { class: "texts" }, ...texts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", { dir: "auto" }, text)))));
}

// Three places that an eye rests at, and its jumps.
function logo() {
  return svg("svg", { viewBox: "0 0 36 20", width: 36, height: 20, "aria-hidden": "true", class: "logo" },
    svg("path", { d: "M5,15 Q12,-4 19,10 T31,6" }),
    svg("circle", { cx: 5, cy: 15, r: 2 }), svg("circle", { cx: 19, cy: 10, r: 2.6 }), svg("circle", { cx: 31, cy: 6, r: 3.6 }));
}

function sun(theme) {
  const rays = Array.from({ length: 8 }, (_, i) => svg("path", { d: "M10,1.2 v2.4", transform: `rotate(${45 * i} 10 10)` }));
  const shapes = theme === "dark" ? [svg("path", { d: "M12.5,3 A7.5,7.5 0 1 0 17,12.5 A6.2,6.2 0 0 1 12.5,3 Z" })]
    : [svg("circle", { cx: 10, cy: 10, r: 3.6 }), ...rays];
  return svg("svg", { viewBox: "0 0 20 20", width: 20, height: 20, "aria-hidden": "true" }, ...shapes);
}
