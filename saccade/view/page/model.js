// The decoded attention document, from which every view reads.

import { decodeWeights } from "./codec.js";
import { averagePlanes, createPlane, mergeTokens } from "./plane.js";

export const MEAN = -1; // in place of the index of a head: the mean of all heads
export const PARTS = { cross: "Output attends to input", writer: "Output attends to itself", reader: "Input attends to itself" };
export const SIDES = { source: "input", target: "output", seen: "output so far" };

export async function unpackDocument(document) {
  const { labels, words } = document;
  const tokens = await Promise.all((document.maps ?? []).map((entry) => unpackMap(entry, labels)));
  const hasSubwords = Object.values(words ?? {}).some((groups) => groups.some((group) => group.length > 1));
  const inWords = hasSubwords ? tokens.map((map) => mergeMap(map, labels, words)) : null;
  const other = document.other ? await unpackDocument(document.other) : null;
  return { ...document, steps: document.steps ?? [], maps: tokens, inWords, other };
}

async function unpackMap(entry, labels) {
  const { numbers, tops, levels } = await decodeWeights(entry);
  const [heads, rows, columns] = entry.shape;
  const sides = { rows: labels[entry.rows], columns: labels[entry.columns] };
  const make = (head) =>
    createPlane({ numbers, offset: head * rows * columns, rows, columns, top: tops[head], levels, labels: sides });
  return createMap({ ...entry, weights: null, exact: !levels, levels }, heads, sides, make);
}

function mergeMap(map, labels, words) {
  const groups = {};
  const sides = {};
  for (const side of ["rows", "columns"]) {
    const names = labels[map[side]];
    groups[side] = words[map[side]] ?? names.map((_, i) => [i]);
    sides[side] = groups[side].map((group) => joinTokens(group.map((i) => names[i])));
  }
  return createMap({ ...map }, map.heads, sides, (head) => mergeTokens(map.getPlane(head), groups, sides));
}

function joinTokens(tokens) {
  const text = tokens.join("");
  return text.replaceAll("␣", " ").trim() || text;
}

// Creates a map whose planes are computed on first use.
function createMap(entry, heads, labels, make) {
  const planes = new Map();
  const getPlane = (head) => {
    if (!planes.has(head)) {
      planes.set(head, head === MEAN ? averagePlanes(Array.from({ length: heads }, (_, i) => getPlane(i))) : make(head));
    }
    return planes.get(head);
  };
  return { ...entry, heads, labels, getPlane };
}

export function getHeadName(head, heads) {
  if (head === MEAN) return `mean of ${heads} heads`;
  return heads === 1 ? "its only head" : `head ${head + 1}`;
}

// Formats a weight with three decimal places, or, where it is quantized, with as many as its error allows, and the error.
export function formatWeight(one, weight) {
  if (weight === 0) return "0";
  const off = one.tolerance(Math.abs(weight));
  if (off === 0) return weight.toFixed(3).replace("-0.000", "0.000");
  const digits = Math.max(1, Math.min(6, Math.ceil(-Math.log10(off))));
  return `${weight.toFixed(digits)} ± ${off.toPrecision(1)}`;
}

export function formatShort(weight) {
  return weight !== 0 && Math.abs(weight) < 0.0005 ? weight.toExponential(1) : weight.toFixed(3);
}
