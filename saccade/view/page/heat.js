// A heatmap of a plane with labels: a canvas that pans and zooms, with a tooltip for the cell under the pointer.

import { el, setVisible } from "./element.js";
import { formatWeight } from "./model.js";
import { Pyramid } from "./pyramid.js";
import { MAX_FIT_PIXELS, Viewport, addGestures, addKeys } from "./viewport.js";

const FONT = '12px system-ui, "Segoe UI", "Noto Sans", sans-serif';
const LABEL_PITCH = 15; // pixels between horizontal labels
const SLANTED_LABEL_PITCH = 19; // pixels between slanted labels
const pyramids = new WeakMap(); // plane -> Pyramid

export class Heatmap {
  constructor(page, { label, viewport = new Viewport(), tallest = 0.6, onpick = null, onleave = null }) {
    this.page = page;
    this.viewport = viewport;
    this.tallest = tallest;
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-label": label });
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.element = el("div", { class: "heat" }, this.canvas, this.tip);
    const { signal } = page;
    const area = () => this.area;
    const pick = (cell) => cell && (page.announce(this.describeCell(cell)), onpick?.(cell));
    addGestures(this.canvas, viewport, area, { signal, onpick: pick });
    addKeys(this.canvas, viewport, area, { signal, onpick: pick, onleave });
    this.redraw = () => this.scheduleDraw();
    viewport.listeners.add(this.redraw);
    this.sizes = new ResizeObserver(() => this.measure());
    this.sizes.observe(this.element);
    signal.addEventListener("abort", () => this.close());
  }

  close() {
    this.sizes.disconnect();
    this.viewport.listeners.delete(this.redraw);
    cancelAnimationFrame(this.frame);
    if (this.pyramid) this.pyramid.setColours(null);
  }

  show(plane, colours) {
    if (this.plane !== plane && this.pyramid) this.pyramid.setColours(null);
    this.plane = plane;
    if (!pyramids.has(plane)) pyramids.set(plane, new Pyramid(plane));
    this.pyramid = pyramids.get(plane);
    this.pyramid.setColours(colours);
    this.measure();
  }

  // Describes a cell: labels and weight.
  describeCell({ row, column }) {
    const { labels } = this.plane;
    return `${labels.rows[row]} → ${labels.columns[column]}: ${formatWeight(this.plane, this.plane.value(row, column))}`;
  }

  measure() {
    const width = this.element.clientWidth;
    if (!this.plane || !width) return;
    const { rows, columns, labels } = this.plane;
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const widest = (names) => findLongest(names).reduce((most, name) => Math.max(most, context.measureText(name).width), 0);
    const x = Math.min(widest(labels.rows), width * 0.28, 150) + 10;
    const over = Math.min(widest(labels.columns), 130);
    this.upright = over <= 22;
    const y = this.upright ? 24 : over * 0.71 + 18;
    const right = this.upright ? 4 : Math.min(over * 0.71, width * 0.12);
    const most = Math.max(180, innerHeight * this.tallest - y);
    const plot = { x, y, width: Math.max(40, width - x - right), height: most, rows, columns };
    const high = Math.max(24, Math.min(most, rows * Math.min(MAX_FIT_PIXELS, plot.width / columns)));
    this.area = { ...plot, height: high };
    this.space = { width, height: Math.ceil(y + high + 6) };
    this.viewport.keepInside(this.area);
    this.scheduleDraw();
  }

  scheduleDraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    if (!this.area || !this.plane) return;
    const { canvas, area, viewport } = this;
    const scale = devicePixelRatio;
    const pixels = viewport.getCellSize(area);
    const seen = { width: Math.min(area.width, area.columns * pixels), height: Math.min(area.height, area.rows * pixels) };
    const { height } = this.space;
    const width = Math.ceil(this.space.width - area.width + seen.width);
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
      canvas.style.width = `${width}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, seen.width, seen.height);
    context.clip();
    this.pyramid.draw(context, { ...area, ...seen, left: viewport.left, top: viewport.top, pixels });
    context.restore();
    const ink = getComputedStyle(canvas); // page.css sets the text, accent and border colours of a canvas by these three properties
    context.strokeStyle = ink.borderTopColor;
    context.strokeRect(area.x + 0.5, area.y + 0.5, seen.width, seen.height);
    this.drawLabels(context, pixels, seen, ink);
    this.drawCursor(context, pixels, seen, ink);
    canvas.style.touchAction = viewport.isZoomed(area) ? "none" : "pan-y";
  }

  drawLabels(context, pixels, seen, ink) {
    const { area, viewport, plane, upright } = this;
    const cursor = viewport.cursor;
    context.font = FONT;
    const colour = (here) => (context.fillStyle = here ? ink.caretColor : ink.color);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const row of listLabelled(viewport.top, seen.height, pixels, plane.rows, LABEL_PITCH, cursor?.row)) {
      colour(row === cursor?.row);
      const text = truncateCached(context, plane.labels.rows[row], area.x - 10);
      context.fillText(text, area.x - 6, area.y + (row + 0.5 - viewport.top) * pixels);
    }
    context.textAlign = upright ? "center" : "left";
    const pitch = upright ? 24 : SLANTED_LABEL_PITCH;
    for (const column of listLabelled(viewport.left, seen.width, pixels, plane.columns, pitch, cursor?.column)) {
      colour(column === cursor?.column);
      context.save();
      context.translate(area.x + (column + 0.5 - viewport.left) * pixels, area.y - (upright ? 12 : 8));
      if (!upright) context.rotate(-Math.PI / 4);
      context.fillText(truncateCached(context, plane.labels.columns[column], 128), 0, 0);
      context.restore();
    }
  }

  drawCursor(context, pixels, seen, ink) {
    const { area, viewport, plane } = this;
    const cell = viewport.cursor;
    const inside = cell && cell.row < plane.rows && cell.column < plane.columns;
    setVisible(this.tip, Boolean(inside));
    if (!inside) return;
    const x = area.x + (cell.column - viewport.left) * pixels;
    const y = area.y + (cell.row - viewport.top) * pixels;
    context.save();
    context.beginPath();
    context.rect(area.x - 2, area.y - 2, seen.width + 4, seen.height + 4);
    context.clip();
    context.lineWidth = 2;
    context.strokeStyle = ink.caretColor;
    context.strokeRect(x, y, Math.max(pixels, 3), Math.max(pixels, 3));
    context.restore();
    this.tip.textContent = this.describeCell(cell);
    this.placeTip(x, y, pixels);
  }

  // Places the tooltip right or left of the cell, or else below or above, so that the cell itself stays visible.
  placeTip(x, y, pixels) {
    const { width, height } = this.space;
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const right = x + pixels + 8;
    const beside = right + wide <= width ? right : x - wide - 8;
    const fits = beside >= 0;
    const under = y + pixels + 6 + high <= height ? y + pixels + 6 : y - high - 6;
    this.tip.style.left = `${fits ? beside : Math.max(0, Math.min(x, width - wide))}px`;
    this.tip.style.top = `${fits ? Math.max(0, Math.min(y + pixels / 2 - high / 2, height - high)) : under}px`;
  }
}

// The longest names, which alone are measured: measuring thousands takes longer than drawing.
function findLongest(names) {
  return [...new Set(names)].sort((a, b) => b.length - a.length).slice(0, 12);
}

// Indices of the rows or columns that get a label: every one, every second, every fifth, ...; always that of the cursor.
function listLabelled(from, space, pixels, count, pitch, cursor) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * pixels >= pitch) ?? 1000;
  const first = Math.ceil((from - 0.5) / every) * every;
  const out = [];
  for (let i = Math.max(0, first); i < count && (i + 0.5 - from) * pixels <= space; i += every) {
    if (cursor === undefined || i === cursor || Math.abs(i - cursor) * pixels >= pitch) out.push(i);
  }
  const seen = cursor !== undefined && cursor + 0.5 >= from && (cursor + 0.5 - from) * pixels <= space;
  return seen && !out.includes(cursor) ? [...out, cursor] : out;
}

const truncated = new Map();

function truncateCached(context, text, space) {
  const key = `${Math.round(space)} ${text}`;
  if (!truncated.has(key)) truncated.set(key, truncate(context, text, space));
  return truncated.get(key);
}

function truncate(context, text, space) {
  if (context.measureText(text).width <= space) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > space) letters.pop();
  return `${letters.join("")}…`;
}
