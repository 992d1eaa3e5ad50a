// The page of a training run: watch(element, source) shows its history and polls for updates while the source is live.
// A source has run(), which resolves to the history or to null if it has not changed, moment(step), and `live`.

import { createBrand, createThemeButton, readTheme } from "./brand.js";
import { createChart } from "./curves.js";
import { createCheckbox, createSelect, el, setVisible } from "./element.js";
import { createMomentsPanel } from "./moments.js";
import { createSamplesPanel } from "./samples.js";
import { findNearest, formatDuration, formatNumber, smoothCurve } from "./scale.js";

const ACTIVE_POLL_INTERVAL = 2000; // milliseconds, while the run is in training
const IDLE_POLL_INTERVAL = 10000;
const STATE_NAMES = { preparing: "preparing data", training: "in training", interrupted: "interrupted", finished: "finished" };
const NON_SCORE_COLUMNS = ["step", "seconds", "loss"]; // columns of validations that are not scores
const MAX_TABLE_ROWS = 200;

export async function watch(root, source) {
  const page = { root, source, history: null, state: { over: "step", log: false, smooth: 0.6, score: null, cursor: null } };
  build(page);
  for (;;) {
    await refresh(page);
    if (!source.live) return;
    await new Promise((resolve) => setTimeout(resolve, page.history?.state === "training" || page.history?.state === "preparing" ? ACTIVE_POLL_INTERVAL : IDLE_POLL_INTERVAL));
  }
}

async function refresh(page) {
  try {
    const history = await page.source.run();
    if (history) {
      page.history = history;
      page.update();
    }
    setVisible(page.problem, false);
  } catch (error) {
    setVisible(page.problem, true).textContent = `${error.message} Showing the last known state.`;
  }
}

function build(page) {
  const live = el("div", { class: "unseen", role: "status", "aria-live": "polite" });
  const announce = (text) => (live.textContent = text);
  const oncursor = (cursor) => {
    page.state.cursor = cursor;
    charts.update(page);
  };
  const theme = createThemeButton((next) => setTheme(next));
  const heading = createHeading(theme.element);
  const charts = createCharts(page, { oncursor, announce });
  const numbers = createNumbersTable();
  const moments = createMomentsPanel(page.source, announce);
  const parts = [moments, createSamplesPanel()];
  const setTheme = (next) => {
    page.root.dataset.theme = next;
    moments.setTheme(next);
  };
  setTheme(readTheme());
  page.problem = el("p", { class: "watch-problem", role: "alert", hidden: true });
  const empty = el("div", { class: "empty" }, el("h2", {}, "No metrics yet"), el("p", {}, "Waiting for the first log entry of the training."));
  const curves = el("section", { class: "watch-part", "aria-label": "Curves" }, charts.bar, charts.element, numbers.element);
  page.root.classList.add("saccade", "watch");
  page.root.replaceChildren(heading.element, page.problem, empty, curves, ...parts.map((part) => part.element), live);
  page.update = () => {
    const some = Boolean(page.history.train.step?.length || page.history.valid.step?.length);
    setVisible(empty, !some);
    setVisible(curves, some);
    document.title = `${page.history.name || "training"} · saccade`;
    heading.update(page.history);
    charts.updateScores(page);
    charts.update(page);
    numbers.update(page.history);
    for (const part of parts) part.update(page.history);
  };
}

function createHeading(theme) {
  const name = el("h1", {}, "Training");
  const pill = el("span", { class: "watch-state" });
  const facts = el("p", { class: "watch-facts" });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Training progress" });
  const element = el("header", { class: "watch-head" }, createBrand(theme), el("div", { class: "bar" }, name, pill), facts, bar);
  const update = (history) => {
    name.textContent = history.name || "Training";
    pill.textContent = STATE_NAMES[history.state];
    pill.dataset.state = history.state;
    facts.textContent = listFacts(history).join(" · ");
    const done = computeProgress(history);
    setVisible(bar, done !== null && history.state !== "finished");
    if (done !== null) bar.value = done;
  };
  return { element, update };
}

// Progress from 0 to 1 of the budget (steps, epochs or minutes) that will be exhausted first; null without a budget.
function computeProgress({ step, budget, train }) {
  const used = [[step, budget.steps], [train.epoch?.at(-1) ?? 0, budget.epochs], [(train.seconds?.at(-1) ?? 0) / 60, budget.minutes]];
  const shares = used.filter(([, most]) => most > 0).map(([now, most]) => now / most);
  return shares.length ? Math.min(1, Math.max(...shares)) : null;
}

function listFacts(history) {
  const { train, valid, step, budget, metric, state, recipe } = history;
  const seconds = Math.max(train.seconds?.at(-1) ?? 0, valid.seconds?.at(-1) ?? 0);
  const done = computeProgress(history);
  const best = valid.step?.length && valid[metric] ? findBest(valid, metric) : null;
  return [
    recipe && recipe !== history.name ? `recipe ${recipe}` : null,
    `step ${formatNumber(step)}${budget.steps ? ` of ${formatNumber(budget.steps)}` : ""}`,
    seconds ? formatDuration(seconds) : null,
    state === "training" && done > 0.01 ? `about ${formatDuration((seconds * (1 - done)) / done)} left` : null,
    best ? `best ${metric} ${formatNumber(best.value)} at step ${formatNumber(best.step)}` : null,
  ].filter(Boolean);
}

function findBest(valid, metric) {
  const values = valid[metric].map((value, i) => ({ value, step: valid.step[i] })).filter(({ value }) => value !== null);
  const sign = metric === "loss" ? -1 : 1;
  return values.reduce((best, one) => (best && sign * best.value >= sign * one.value ? best : one), null);
}

function createCharts(page, { oncursor, announce }) {
  const setState = (changes) => {
    Object.assign(page.state, changes);
    update(page);
  };
  const over = createSelect("Over", [["step", "steps"], ["minutes", "minutes"]], "step", (value) => setState({ over: value, cursor: null }));
  const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: page.state.smooth, oninput: () => setState({ smooth: Number(smooth.value) }) });
  const score = createSelect("", [], "", (value) => setState({ score: value }));
  score.select.setAttribute("aria-label", "Score");
  const make = (title, control) => createChart({ title, control, oncursor, announce });
  const charts = { loss: make("Loss"), score: make("Validation score", score.element), rate: make("Learning rate"), speed: make("Tokens per second"), sharp: make("Entropy of attention, in bits") };
  const at = el("span", { class: "caption number" });
  const bar = el("div", { class: "bar" }, over.element, createCheckbox("Logarithmic loss", false, (log) => setState({ log })),
    el("label", { class: "field" }, el("span", {}, "Smoothing"), smooth), at);
  const element = el("div", { class: "curves" }, ...Object.values(charts).map((one) => one.element));
  const updateScores = ({ history }) => {
    const names = Object.keys(history.valid).filter((name) => !NON_SCORE_COLUMNS.includes(name));
    page.state.score = names.includes(page.state.score) ? page.state.score : names.includes(history.metric) ? history.metric : names.at(-1) ?? null;
    if (document.activeElement !== score.select) score.setOptions(names.map((name) => [name, name]), page.state.score);
  };
  const update = ({ history, state }) => {
    const { over: axis, log, cursor } = state;
    const lines = buildCurves(history, state);
    const ends = Object.values(lines).flat().filter(({ x }) => x.length).map(({ x }) => x.at(-1));
    const common = { cursor, over: axis === "step" ? "step" : "minute", log: false, range: [0, Math.max(0, ...ends)] };
    charts.loss.update({ ...common, log, series: lines.loss });
    charts.score.update({ ...common, series: lines.score });
    charts.rate.update({ ...common, series: lines.rate });
    charts.speed.update({ ...common, series: lines.speed });
    charts.sharp.update({ ...common, series: lines.sharp });
    setVisible(charts.score.element, Boolean(state.score));
    setVisible(charts.sharp.element, lines.sharp.length > 0);
    at.textContent = cursor === null ? "" : `${common.over} ${formatNumber(axis === "step" ? Math.round(cursor) : Number(cursor.toFixed(2)))}`;
  };
  return { bar, element, updateScores, update };
}

// Builds the series of every chart.
function buildCurves({ train, valid, sharpness }, { over, smooth, score }) {
  const place = (columns) => (over === "step" ? columns.step ?? [] : (columns.seconds ?? []).map((seconds) => seconds / 60));
  const line = (columns, key, name, colour, plain = false) => ({ name, x: place(columns), y: columns[key] ?? [], colour, plain });
  const both = (key, name, colour) => {
    const raw = line(train, key, name, colour, true);
    return smooth > 0 && raw.x.length > 2 ? [raw, { ...raw, y: smoothCurve(raw.y, smooth), plain: false }] : [{ ...raw, plain: false }];
  };
  const { step: moments, ...kinds } = sharpness;
  const clock = moments.map((step) => (over === "step" ? step : getMinutesAt(train, step)));
  return {
    loss: [...both("loss", "training", 0), line(valid, "loss", "validation", 1)].filter(({ y }) => y.length),
    score: score && valid[score] ? [line(valid, score, score, 1)] : [],
    rate: train.lr ? [line(train, "lr", "learning rate", 0)] : [],
    speed: train.tokens_per_second ? both("tokens_per_second", "tokens/s", 0) : [],
    sharp: moments.length > 1 ? Object.entries(kinds).map(([name, y], colour) => ({ name, x: clock, y, colour, plain: false })) : [],
  };
}

function getMinutesAt(train, step) {
  return step === 0 || !train.step?.length ? 0 : train.seconds[findNearest(train.step, step)] / 60;
}

// All metrics as a table, for screen readers and for copying.
function createNumbersTable() {
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Metrics as a table" });
  const element = el("details", {}, el("summary", {}, "Metrics as a table"), body);
  let last = null;
  const fill = () => element.open && last && body.replaceChildren(...buildTables(last));
  element.addEventListener("toggle", fill);
  const update = (history) => {
    last = history;
    fill();
  };
  return { element, update };
}

function buildTables({ train, valid }) {
  return [["Training", train], ["Validation", valid]].filter(([, columns]) => columns.step?.length).map(([name, columns]) => {
    const keys = Object.keys(columns);
    const every = Math.ceil(columns.step.length / MAX_TABLE_ROWS);
    const rows = columns.step.map((_, i) => i).filter((i) => (columns.step.length - 1 - i) % every === 0).reverse();
    return el("table", { class: "values numbers" }, el("caption", {}, name),
      el("thead", {}, el("tr", {}, ...keys.map((key) => el("th", { scope: "col" }, key)))),
      el("tbody", {}, ...rows.map((i) => el("tr", {}, ...keys.map((key) => el(key === "step" ? "th" : "td", { class: "number", scope: key === "step" ? "row" : null }, formatNumber(columns[key][i])))))));
  });
}
