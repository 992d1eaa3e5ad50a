// The attention page: mount(element, document) renders an attention document into an element.

import { createBrand, createThemeButton, readTheme } from "./brand.js";
import { createCompareView } from "./compare_view.js";
import { createEmptyNotice } from "./controls.js";
import { addRovingFocus, createButton, el, setVisible } from "./element.js";
import { createHeadsView } from "./heads_view.js";
import { createMatrixView } from "./matrix_view.js";
import { MEAN, unpackDocument } from "./model.js";
import { createStatisticsView } from "./statistics_view.js";
import { createStepsView } from "./steps_view.js";

const VIEWS = {
  heads: ["Heads", createHeadsView],
  matrix: ["Matrix", createMatrixView],
  steps: ["Steps", createStepsView],
  compare: ["Compare", createCompareView],
  statistics: ["Statistics", createStatisticsView],
};
const REBUILT_VIEWS = ["steps", "statistics"]; // views that keep references to the document, and are rebuilt for another one
const mounted = new WeakMap(); // element -> function that closes the page in it
let pages = 0;

// Options: view (the initial tab; default: chosen by the document), theme (auto, light, dark; default: the last choice in
// this browser), heading (false: without title, input, output and theme button).
// Resolves to {set, replace, close}: `replace` shows another document with the same tokens and keeps the state.
export async function mount(element, document, { view, theme = readTheme(), heading = true } = {}) {
  mounted.get(element)?.();
  const controller = new AbortController();
  mounted.set(element, () => controller.abort());
  const data = await unpackDocument(document);
  if (controller.signal.aborted) return { set() {}, async replace() {}, close() {} };
  const page = createPage(element, data, controller.signal, { view: view in VIEWS ? view : chooseView(data), theme });
  build(page, heading);
  const close = () => (controller.abort(), element.replaceChildren());
  mounted.set(element, close);
  const replace = async (other) => {
    const next = await unpackDocument(other);
    if (controller.signal.aborted) return;
    page.data = next;
    page.discardViews(REBUILT_VIEWS);
    page.set({});
  };
  return { set: page.set, replace, close };
}

function createPage(element, data, signal, { view, theme }) {
  const number = (pages += 1);
  const last = chooseMap(data);
  const live = el("div", { class: "unseen", role: "status", "aria-live": "polite" });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const page = {
    root: element, data, signal, live,
    state: {
      view, theme, map: last, head: 0, heads: listHeads(data.maps[last]), large: false, words: false, sqrtScale: false, pin: null,
      step: 0, stepHead: MEAN, sort: { key: "name", down: false }, compare: chooseComparison(data, last),
    },
    id: (name) => `saccade-${number}-${name}`,
    get maps() {
      return page.state.words && page.data.inWords ? page.data.inWords : page.data.maps;
    },
    map: () => page.maps[page.state.map],
    chooseMap: (map) => page.set({ map, head: Math.min(page.state.head, page.data.maps[map].heads - 1) }),
    theme: () => (page.state.theme === "auto" ? (dark.matches ? "dark" : "light") : page.state.theme),
    announce: (text) => (live.textContent = text),
    addPanelKeys: (panel, actions) => addPanelKeys(panel, actions, signal),
  };
  dark.addEventListener("change", () => page.set({}), { signal });
  return page;
}

// The initial tab: the steps if there is an image or a route to show them on, else the heads.
function chooseView({ background, route, labels }) {
  return (background || route) && labels.target?.length ? "steps" : "heads";
}

// The initial map: the last cross-attention layer, or else the last layer.
function chooseMap({ maps }) {
  const cross = maps.findLastIndex((map) => map.part === "cross");
  return cross >= 0 ? cross : maps.length - 1;
}

function listHeads(map) {
  return Array.from({ length: map?.heads ?? 0 }, (_, i) => i);
}

// The initial comparison: the same layer of two runs, two heads of a layer, or two layers.
function chooseComparison(data, map) {
  const heads = data.maps[map]?.heads ?? 0;
  const first = { run: "this", map, head: 0 };
  const { address } = data.maps[map] ?? {};
  if (data.other?.maps.length) {
    const there = data.other.maps.findIndex((one) => one.address === address);
    return { a: first, b: { run: "other", map: there < 0 ? chooseMap(data.other) : there, head: 0 } };
  }
  return { a: first, b: heads > 1 ? { ...first, head: 1 } : { ...first, map: map > 0 ? map - 1 : map } };
}

// Adds keyboard shortcuts to a panel, except where a control uses the keys itself.
function addPanelKeys(panel, actions, signal) {
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
    tabs[name] = createButton(label, () => page.set({ view: name }), { role: "tab", id: page.id(`tab-${name}`), "aria-controls": page.id(name) });
    panels[name] = el("div", { role: "tabpanel", id: page.id(name), "aria-labelledby": page.id(`tab-${name}`), hidden: true });
    list.append(tabs[name]);
  }
  addRovingFocus(list, "[role=tab]", page.signal);
  list.addEventListener("focusin", (event) => event.target.matches("[role=tab]") && event.target.click(), { signal: page.signal });
  const theme = createThemeButton((next) => page.set({ theme: next }), page.state.theme);
  root.classList.add("saccade");
  root.replaceChildren(...(heading ? [createHeader(data, theme.element)] : []), list, ...Object.values(panels), page.live);
  const built = {};
  page.discardViews = (names) => names.filter((name) => built[name]).forEach((name) => {
    built[name].leave?.();
    delete built[name];
    panels[name].replaceChildren();
  });
  page.set = ({ focus, ...changes }) => {
    const before = { ...page.state };
    Object.assign(page.state, changes);
    if (before.map !== page.state.map) Object.assign(page.state, { heads: listHeads(page.map()), pin: null });
    if (before.view !== page.state.view) built[before.view]?.leave?.();
    root.dataset.theme = page.state.theme;
    theme.set(page.state.theme);
    showView(page, tabs, panels, built);
    if (focus) panels[page.state.view].querySelector(focus)?.focus();
  };
  page.set({});
}

function showView(page, tabs, panels, built) {
  const { view } = page.state;
  for (const name of Object.keys(VIEWS)) {
    tabs[name].setAttribute("aria-selected", String(name === view));
    tabs[name].tabIndex = name === view ? 0 : -1;
    setVisible(panels[name], name === view);
  }
  if (!built[view]) {
    const none = view !== "steps" && !page.data.maps.length;
    built[view] = none ? { element: createNoAttentionNotice(), update() {} } : VIEWS[view][1](page);
    panels[view].append(built[view].element);
  }
  built[view].update();
}

function createNoAttentionNotice() {
  return createEmptyNotice("No attention here", "This model has no attention layers, so there are no weights to show.");
}

function createHeader(data, theme) {
  const texts = [["Input", data.input], ["Output", data.output]].filter(([, text]) => text);
  return el("header", { class: "head" },
    createBrand(theme),
    el("h1", {}, data.title || "Attention"),
    el("dl", { class: "texts" }, ...texts.map(([name, text]) => el("div", {}, el("dt", {}, name), createLongText(text)))));
}

// A text of which a few lines are shown; the rest, if any, at the press of a button.
function createLongText(text) {
  const shown = el("div", { class: "long", dir: "auto" }, text);
  const more = createButton("Show all", () => {
    const open = shown.classList.toggle("open");
    more.textContent = open ? "Show less" : "Show all";
    more.setAttribute("aria-expanded", String(open));
  }, { class: "quiet", "aria-expanded": "false", hidden: true });
  new ResizeObserver(() => {
    if (!shown.classList.contains("open")) setVisible(more, shown.scrollHeight > shown.clientHeight + 1);
  }).observe(shown);
  return el("dd", {}, shown, more);
}
