// The visible part of a plane, and the gestures that change it. Several heatmaps may share one viewport.

export const MAX_FIT_PIXELS = 38; // of a cell at the default zoom
const MAX_ZOOM_PIXELS = 96; // of a cell at the maximum zoom
const MAX_CLICK_TRAVEL = 4; // pixels that a pointer may move during a click

export class Viewport {
  constructor() {
    this.left = this.top = 0; // in cells
    this.pixels = null; // of a cell; null: fit the plane into the area
    this.cursor = null; // {row, column}
    this.listeners = new Set();
  }

  notify() {
    for (const listener of this.listeners) listener();
  }

  getCellSize(area) {
    return this.pixels ?? computeFitSize(area);
  }

  isZoomed(area) {
    return this.pixels !== null && this.pixels > computeFitSize(area) * 1.001;
  }

  setCursor(cursor) {
    if (cursor?.row === this.cursor?.row && cursor?.column === this.cursor?.column) return;
    this.cursor = cursor;
    this.notify();
  }

  // Zooms around a fixed point of the area.
  zoom(factor, area, at = { x: area.width / 2, y: area.height / 2 }) {
    const before = this.getCellSize(area);
    const after = Math.max(computeFitSize(area), Math.min(Math.max(MAX_ZOOM_PIXELS, computeFitSize(area)), before * factor));
    this.left += at.x / before - at.x / after;
    this.top += at.y / before - at.y / after;
    this.pixels = after <= computeFitSize(area) * 1.001 ? null : after;
    this.keepInside(area);
  }

  pan(dx, dy, area) {
    this.left -= dx / this.getCellSize(area);
    this.top -= dy / this.getCellSize(area);
    this.keepInside(area);
  }

  fit() {
    this.pixels = null;
    this.left = this.top = 0;
    this.notify();
  }

  keepInside(area) {
    const size = this.getCellSize(area);
    this.left = Math.max(0, Math.min(this.left, area.columns - area.width / size));
    this.top = Math.max(0, Math.min(this.top, area.rows - area.height / size));
    this.notify();
  }

  // Scrolls until the cursor is visible.
  scrollToCursor(area) {
    const size = this.getCellSize(area);
    const { row, column } = this.cursor;
    this.left = Math.min(Math.max(this.left, column + 1 - area.width / size), column);
    this.top = Math.min(Math.max(this.top, row + 1 - area.height / size), row);
    this.keepInside(area);
  }
}

export function computeFitSize({ width, height, rows, columns }) {
  return Math.min(MAX_FIT_PIXELS, width / columns, height / rows);
}

// Adds drag, wheel and pinch gestures to a canvas. `area()` is the plane's rectangle on it: {x, y, width, height, rows, columns}.
export function addGestures(canvas, viewport, area, { onpick, signal }) {
  const pointers = new Map();
  let travelled = 0;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const { x, y } = area();
    return { x: event.clientX - box.left - x, y: event.clientY - box.top - y };
  };
  const on = (name, listener, options = {}) => canvas.addEventListener(name, listener, { signal, ...options });
  on("pointerdown", (event) => {
    pointers.set(event.pointerId, place(event));
    travelled = pointers.size > 1 ? Infinity : 0;
    canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    const now = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) return viewport.setCursor(findCell(now, viewport, area()));
    travelled += Math.hypot(now.x - before.x, now.y - before.y);
    if (pointers.size === 2) zoomByPinch(pointers, event.pointerId, now, viewport, area());
    else if (travelled > MAX_CLICK_TRAVEL) viewport.pan(now.x - before.x, now.y - before.y, area());
    pointers.set(event.pointerId, now);
  });
  on("pointerup", (event) => {
    if (pointers.delete(event.pointerId) && travelled <= MAX_CLICK_TRAVEL) onpick(findCell(place(event), viewport, area()));
  });
  on("pointercancel", (event) => pointers.delete(event.pointerId));
  on("pointerleave", () => viewport.setCursor(null));
  on("dblclick", (event) => viewport.zoom(2, area(), place(event)));
  on("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return;
    event.preventDefault();
    viewport.zoom(Math.exp(-event.deltaY / 300), area(), place(event));
  }, { passive: false });
}

function zoomByPinch(pointers, moved, now, viewport, area) {
  const [fixed] = [...pointers].filter(([id]) => id !== moved).map(([, at]) => at);
  const before = pointers.get(moved);
  const getDistance = (at) => Math.hypot(at.x - fixed.x, at.y - fixed.y);
  viewport.zoom(getDistance(now) / Math.max(1, getDistance(before)), area, { x: (now.x + fixed.x) / 2, y: (now.y + fixed.y) / 2 });
}

function findCell({ x, y }, viewport, area) {
  const size = viewport.getCellSize(area);
  const column = Math.floor(viewport.left + x / size);
  const row = Math.floor(viewport.top + y / size);
  const inside = x >= 0 && y >= 0 && row >= 0 && column >= 0 && row < area.rows && column < area.columns;
  return inside ? { row, column } : null;
}

// Adds keys to a canvas: arrow keys move from cell to cell, plus and minus zoom, zero shows everything.
export function addKeys(canvas, viewport, area, { onpick, onleave, signal }) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  canvas.addEventListener("keydown", (event) => {
    const { rows, columns } = area();
    const here = viewport.cursor;
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const step = event.shiftKey ? 10 : 1;
    if (moves[event.key]) {
      const [down, right] = moves[event.key];
      viewport.setCursor(here
        ? { row: within(here.row + step * down, rows), column: within(here.column + step * right, columns) }
        : { row: 0, column: 0 });
      viewport.scrollToCursor(area());
      onpick(viewport.cursor);
    } else if (event.key === "+" || event.key === "=") viewport.zoom(1.5, area());
    else if (event.key === "-") viewport.zoom(1 / 1.5, area());
    else if (event.key === "0") viewport.fit();
    else if (event.key === "Escape") onleave?.();
    else return;
    event.preventDefault();
  }, { signal });
}
