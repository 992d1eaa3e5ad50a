// The map of a grid world: edges in the colours of their floors, items by name, and an arrow for each pose of the agent,
// numbered by the steps that start there.

import { el, svg } from "./element.js";

const UNIT = 60; // SVG units between neighbouring nodes
const MARGINS = { left: 1.15, top: 0.7, right: 0.6, bottom: 0.6 }; // in units; wide at the left, where the names of items are
const AHEAD = { 0: [0, -1], 90: [1, 0], 180: [0, 1], 270: [-1, 0] };
const FACING = { 0: "up", 90: "right", 180: "down", 270: "left" };
// Offset and anchor of a step number relative to its node, by direction: they overlap neither each other nor the names
// of items.
const NUMBER_OFFSETS = { 0: [9, -22, "start"], 90: [20, 15, "middle"], 180: [-9, 28, "end"], 270: [-20, 15, "middle"] };
const ZOOM = 1.3; // pixels per SVG unit, if the page is wide enough

export function createRouteMap({ items, ways, poses, colours }) {
  const trail = svg("polyline", { class: "trail" });
  const here = svg("circle", { class: "here", r: 7 });
  const arrows = [...groupPoses(poses).values()];
  const drawn = svg("svg", { ...computeViewBox(items), class: "world", role: "img" },
    ...ways.map(([x, y, toX, toY, floor]) => svg("line", {
      class: "way", x1: UNIT * x, y1: UNIT * y, x2: UNIT * toX, y2: UNIT * toY, stroke: colours[floor],
    })),
    ...items.map(([x, y]) => svg("circle", { class: "place", cx: UNIT * x, cy: UNIT * y, r: 2.5 })),
    trail, here,
    ...items.filter(([, , name]) => name).map(([x, y, name]) =>
      svg("text", { class: "item", x: UNIT * x - 8, y: UNIT * y - 9 }, name)),
    ...arrows.map((arrow) => arrow.element));
  const where = el("p", { class: "hint" });
  const element = el("figure", { class: "route" }, drawn, el("figcaption", {}, where, createFloorLegend(colours)));
  const show = (step) => {
    const now = Math.min(step, poses.length - 1);
    const [x, y, to] = poses[now];
    trail.setAttribute("points", poses.slice(0, now + 1).map((pose) => `${UNIT * pose[0]},${UNIT * pose[1]}`).join(" "));
    here.setAttribute("cx", UNIT * x);
    here.setAttribute("cy", UNIT * y);
    for (const arrow of arrows) {
      arrow.element.classList.toggle("future", arrow.steps[0] > now);
      arrow.element.classList.toggle("now", arrow.steps.includes(now));
    }
    where.textContent = `Stands at ${x},${y} and faces ${FACING[to]}.`;
    drawn.setAttribute("aria-label", `Map of the world. Step ${step + 1}: stands at ${x},${y} and faces ${FACING[to]}`);
  };
  return { element, show };
}

// The view box: all nodes of the world with margins.
function computeViewBox(items) {
  const [columns, rows] = [items.map(([x]) => x), items.map(([, y]) => y)];
  const left = Math.min(...columns) - MARGINS.left;
  const top = Math.min(...rows) - MARGINS.top;
  const wide = UNIT * (Math.max(...columns) + MARGINS.right - left);
  const high = UNIT * (Math.max(...rows) + MARGINS.bottom - top);
  return { viewBox: `${UNIT * left} ${UNIT * top} ${wide} ${high}`, width: ZOOM * wide, height: ZOOM * high };
}

// One arrow per node and direction, with the numbers of all steps there: an agent that walks into a wall does not move.
function groupPoses(poses) {
  const found = new Map();
  poses.forEach(([x, y, to], step) => {
    const key = `${x},${y},${to}`;
    if (!found.has(key)) found.set(key, { steps: [], ...drawArrow(x, y, to) });
    found.get(key).steps.push(step);
    found.get(key).number.textContent = found.get(key).steps.map((one) => one + 1).join(" ");
  });
  return found;
}

function drawArrow(x, y, to) {
  const [dx, dy] = AHEAD[to];
  const point = (along, aside) => [UNIT * x + along * dx - aside * dy, UNIT * y + along * dy + aside * dx];
  const [[tipX, tipY], [leftX, leftY], [rightX, rightY]] = [point(25, 0), point(18, -5), point(18, 5)];
  const [across, down, anchor] = NUMBER_OFFSETS[to];
  const number = svg("text", {
    class: "step", x: UNIT * x + across, y: UNIT * y + down, "text-anchor": anchor, "dominant-baseline": "central",
  });
  const line = svg("path", { d: `M${UNIT * x},${UNIT * y} L${tipX},${tipY} M${leftX},${leftY} L${tipX},${tipY} L${rightX},${rightY}` });
  return { number, element: svg("g", { class: "pose" }, line, number) };
}

function createFloorLegend(colours) {
  return el("ul", { class: "floors", "aria-label": "Floors" }, ...Object.entries(colours).map(([name, colour]) => {
    const patch = el("i", { "aria-hidden": "true" });
    patch.style.background = colour;
    return el("li", {}, patch, name);
  }));
}
