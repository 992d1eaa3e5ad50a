// The page of a run: watch(element, source) shows how it learns, and goes on as long as the source has news.
// A source has run() -> the history of the run, or null where nothing is new, moment(step), and whether it is live.

import { chart } from "./curves.js";
import { choice, checkbox, el, shown } from "./element.js";
import { momentsPart } from "./moments.js";
import { samplesPart } from "./samples.js";
import { lasting, nearest, smoothed, written } from "./scale.js";

const OFTEN = 2000; // milliseconds from question to question while the run is in training
const SELDOM = 10000;
const STATES = { preparing: "preparing data", training: "in training", interrupted: "interrupted", finished: "finished" };
const UNSCORED = ["step", "seconds", "loss"]; // columns of a validation that are no score of their own
const ROWS = 200; // of the table

export async function watch(root, source) {
  const page = { root, source, history: null, state: { over: "step", log: false, smooth: 0.6, score: null, cursor: null } };
  build(page);
  for (;;) {
    await refresh(page);
    if (!source.live) return;
    await new Promise((resolve) => setTimeout(resolve, page.history?.state === "training" || page.history?.state === "preparing" ? OFTEN : SELDOM));
  }
}

async function refresh(page) {
  try {
    const news = await page.source.run();
    if (news) {
      page.history = news;
      page.update();
    }
    shown(page.problem, false);
  } catch (error) {
    shown(page.problem, true).textContent = `${error.message} What is shown is what was known last.`;
  }
}

function build(page) {
  const live = el("div", { class: "unseen", role: "status", "aria-live": "polite" });
  const announce = (text) => (live.textContent = text);
  const oncursor = (cursor) => {
    page.state.cursor = cursor;
    charts.update(page);
  };
  const heading = headingPart();
  const charts = chartsPart(page, { oncursor, announce });
  const numbers = numbersPart();
  const parts = [momentsPart(page.source, announce), samplesPart()];
  page.problem = el("p", { class: "watch-problem", role: "alert", hidden: true });
  const empty = el("div", { class: "empty" }, el("h2", {}, "No numbers yet"), el("p", {}, "The first report of the training is still to come."));
  const curves = el("section", { class: "watch-part", "aria-label": "Curves" }, charts.bar, charts.element, numbers.element);
  page.root.classList.add("saccade", "watch");
  page.root.replaceChildren(heading.element, page.problem, empty, curves, ...parts.map((part) => part.element), live);
  page.update = () => {
    const some = Boolean(page.history.train.step?.length || page.history.valid.step?.length);
    shown(empty, !some);
    shown(curves, some);
    document.title = `${page.history.name || "training"} · saccade`;
    heading.update(page.history);
    charts.offer(page);
    charts.update(page);
    numbers.update(page.history);
    for (const part of parts) part.update(page.history);
  };
}

function headingPart() {
  const name = el("h1", {}, "Training");
  const pill = el("span", { class: "watch-state" });
  const facts = el("p", { class: "watch-facts" });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Part of the training that is done" });
  const element = el("header", { class: "watch-head" }, el("div", { class: "bar" }, name, pill), facts, bar);
  const update = (history) => {
    name.textContent = history.name || "Training";
    pill.textContent = STATES[history.state];
    pill.dataset.state = history.state;
    facts.textContent = told(history).join(" · ");
    const done = part(history);
    shown(bar, done !== null && history.state !== "finished");
    if (done !== null) bar.value = done;
  };
  return { element, update };
}

// How much of the first budget that will be used up is used.
function part({ step, budget, train }) {
  const used = [[step, budget.steps], [train.epoch?.at(-1) ?? 0, budget.epochs], [(train.seconds?.at(-1) ?? 0) / 60, budget.minutes]];
  const shares = used.filter(([, most]) => most > 0).map(([now, most]) => now / most);
  return shares.length ? Math.min(1, Math.max(...shares)) : null;
}

function told(history) {
  const { train, valid, step, budget, metric, state, recipe } = history;
  const seconds = Math.max(train.seconds?.at(-1) ?? 0, valid.seconds?.at(-1) ?? 0);
  const done = part(history);
  const best = valid.step?.length && valid[metric] ? bestOf(valid, metric) : null;
  return [
    recipe && recipe !== history.name ? `recipe ${recipe}` : null,
    `step ${written(step)}${budget.steps ? ` of ${written(budget.steps)}` : ""}`,
    seconds ? lasting(seconds) : null,
    state === "training" && done > 0.01 ? `about ${lasting((seconds * (1 - done)) / done)} left` : null,
    best ? `best ${metric} ${written(best.value)} at step ${written(best.step)}` : null,
  ].filter(Boolean);
}

function bestOf(valid, metric) {
  const values = valid[metric].map((value, i) => ({ value, step: valid.step[i] })).filter(({ value }) => value !== null);
  const sign = metric === "loss" ? -1 : 1;
  return values.reduce((best, one) => (best && sign * best.value >= sign * one.value ? best : one), null);
}

function chartsPart(page, { oncursor, announce }) {
  const again = (changes) => {
    Object.assign(page.state, changes);
    update(page);
  };
  const over = choice("Over", [["step", "steps"], ["minutes", "minutes"]], "step", (value) => again({ over: value, cursor: null }));
  const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: page.state.smooth, oninput: () => again({ smooth: Number(smooth.value) }) });
  const score = choice("", [], "", (value) => again({ score: value }));
  score.select.setAttribute("aria-label", "Score");
  const make = (title, control) => chart({ title, control, oncursor, announce });
  const charts = { loss: make("Loss"), score: make("Validation score", score.element), rate: make("Learning rate"), speed: make("Tokens per second"), sharp: make("Entropy of attention, in bits") };
  const at = el("span", { class: "caption number" });
  const bar = el("div", { class: "bar" }, over.element, checkbox("Logarithmic loss", false, (log) => again({ log })),
    el("label", { class: "field" }, el("span", {}, "Smoothing"), smooth), at);
  const element = el("div", { class: "curves" }, ...Object.values(charts).map((one) => one.element));
  const offer = ({ history }) => {
    const names = Object.keys(history.valid).filter((name) => !UNSCORED.includes(name));
    page.state.score = names.includes(page.state.score) ? page.state.score : names.includes(history.metric) ? history.metric : names.at(-1) ?? null;
    if (document.activeElement !== score.select) score.offer(names.map((name) => [name, name]), page.state.score);
  };
  const update = ({ history, state }) => {
    const { over: axis, log, cursor } = state;
    const lines = curves(history, state);
    const ends = Object.values(lines).flat().filter(({ x }) => x.length).map(({ x }) => x.at(-1));
    const common = { cursor, over: axis === "step" ? "step" : "minute", log: false, range: [0, Math.max(0, ...ends)] };
    charts.loss.update({ ...common, log, series: lines.loss });
    charts.score.update({ ...common, series: lines.score });
    charts.rate.update({ ...common, series: lines.rate });
    charts.speed.update({ ...common, series: lines.speed });
    charts.sharp.update({ ...common, series: lines.sharp });
    shown(charts.score.element, Boolean(state.score));
    shown(charts.sharp.element, lines.sharp.length > 0);
    at.textContent = cursor === null ? "" : `${common.over} ${written(axis === "step" ? Math.round(cursor) : Number(cursor.toFixed(2)))}`;
  };
  return { bar, element, offer, update };
}

// The curves of every chart.
function curves({ train, valid, sharpness }, { over, smooth, score }) {
  const place = (columns) => (over === "step" ? columns.step ?? [] : (columns.seconds ?? []).map((seconds) => seconds / 60));
  const line = (columns, key, name, look, plain = false) => ({ name, x: place(columns), y: columns[key] ?? [], look, plain });
  const both = (key, name, look) => {
    const raw = line(train, key, name, look, true);
    return smooth > 0 && raw.x.length > 2 ? [raw, { ...raw, y: smoothed(raw.y, smooth), plain: false }] : [{ ...raw, plain: false }];
  };
  const { step: moments, ...kinds } = sharpness;
  const clock = moments.map((step) => (over === "step" ? step : minutesAt(train, step)));
  return {
    loss: [...both("loss", "training", 0), line(valid, "loss", "validation", 1)].filter(({ y }) => y.length),
    score: score && valid[score] ? [line(valid, score, score, 1)] : [],
    rate: train.lr ? [line(train, "lr", "learning rate", 0)] : [],
    speed: train.tokens_per_second ? both("tokens_per_second", "tokens/s", 0) : [],
    sharp: moments.length > 1 ? Object.entries(kinds).map(([name, y], look) => ({ name, x: clock, y, look, plain: false })) : [],
  };
}

function minutesAt(train, step) {
  return step === 0 || !train.step?.length ? 0 : train.seconds[nearest(train.step, step)] / 60;
}

// All numbers once more, for people who do not see curves or want to copy them.
function numbersPart() {
  const body = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers as a table" });
  const element = el("details", {}, el("summary", {}, "Numbers as a table"), body);
  let last = null;
  const fill = () => element.open && last && body.replaceChildren(...tables(last));
  element.addEventListener("toggle", fill);
  const update = (history) => {
    last = history;
    fill();
  };
  return { element, update };
}

function tables({ train, valid }) {
  return [["Reports of training", train], ["Validations", valid]].filter(([, columns]) => columns.step?.length).map(([name, columns]) => {
    const keys = Object.keys(columns);
    const every = Math.ceil(columns.step.length / ROWS);
    const rows = columns.step.map((_, i) => i).filter((i) => (columns.step.length - 1 - i) % every === 0).reverse();
    return el("table", { class: "values numbers" }, el("caption", {}, name),
      el("thead", {}, el("tr", {}, ...keys.map((key) => el("th", { scope: "col" }, key)))),
      el("tbody", {}, ...rows.map((i) => el("tr", {}, ...keys.map((key) => el(key === "step" ? "th" : "td", { class: "number", scope: key === "step" ? "row" : null }, written(columns[key][i])))))));
  });
}
