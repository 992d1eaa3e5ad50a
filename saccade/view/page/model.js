// The attention document, unpacked: what every view reads from.

import { decoded } from "./codec.js";
import { joined, mean, plane } from "./plane.js";

export const MEAN = -1; // in place of a head: the mean of all
export const PARTS = { cross: "Output looks at input", writer: "Output looks at itself", reader: "Input looks at itself" };
export const SIDES = { source: "input", target: "output", seen: "output so far" };

export async function unpacked(document) {
  const { labels, words } = document;
  const tokens = await Promise.all((document.maps ?? []).map((entry) => mapOf(entry, labels)));
  const pieces = Object.values(words ?? {}).some((groups) => groups.some((group) => group.length > 1));
  const inWords = pieces ? tokens.map((map) => wordMap(map, labels, words)) : null;
  const other = document.other ? await unpacked(document.other) : null;
  return { ...document, steps: document.steps ?? [], maps: tokens, inWords, other };
}

async function mapOf(entry, labels) {
  const { numbers, tops, levels } = await decoded(entry);
  const [heads, rows, columns] = entry.shape;
  const sides = { rows: labels[entry.rows], columns: labels[entry.columns] };
  const make = (head) =>
    plane({ numbers, offset: head * rows * columns, rows, columns, top: tops[head], levels, labels: sides });
  return asMap({ ...entry, weights: null, exact: !levels, levels }, heads, sides, make);
}

function wordMap(map, labels, words) {
  const groups = {};
  const sides = {};
  for (const side of ["rows", "columns"]) {
    const names = labels[map[side]];
    groups[side] = words[map[side]] ?? names.map((_, i) => [i]);
    sides[side] = groups[side].map((group) => wordLabel(group.map((i) => names[i])));
  }
  return asMap({ ...map }, map.heads, sides, (head) => joined(map.plane(head), groups, sides));
}

function wordLabel(pieces) {
  const text = pieces.join("");
  return text.replaceAll("␣", " ").trim() || text;
}

// Planes are made when they are first looked at.
function asMap(entry, heads, labels, make) {
  const made = new Map();
  const plane = (head) => {
    if (!made.has(head)) {
      made.set(head, head === MEAN ? mean(Array.from({ length: heads }, (_, i) => plane(i))) : make(head));
    }
    return made.get(head);
  };
  return { ...entry, heads, labels, plane };
}

export function headName(head, heads) {
  if (head === MEAN) return `mean of ${heads} heads`;
  return heads === 1 ? "its only head" : `head ${head + 1}`;
}

// A number as exact as it is known: the digits that its tolerance leaves, or six where it is exact.
export function shownWeight(one, weight) {
  if (weight === 0) return "0";
  const off = one.tolerance(Math.abs(weight));
  if (off === 0) return Math.abs(weight) < 1e-4 ? weight.toExponential(3) : Number(weight.toPrecision(6)).toString();
  const digits = Math.max(1, Math.min(6, Math.ceil(-Math.log10(off))));
  return `${weight.toFixed(digits)} ± ${off.toPrecision(1)}`;
}

export function short(weight) {
  return weight !== 0 && Math.abs(weight) < 0.0005 ? weight.toExponential(1) : weight.toFixed(3);
}
