// A plane is one matrix of attention weights with labels: of a head, the mean of heads, or with subwords merged.
//   value(row, column)  the weight          tolerance(weight)  its maximum quantization error
//   codes               one byte per weight, round(255 * sqrt(weight / top)), from which it is drawn

const MAX_BYTE = 255;

export function createPlane({ numbers, offset = 0, rows, columns, top, levels, labels }) {
  const size = rows * columns;
  const stored = numbers.subarray(offset, offset + size);
  const value = levels
    ? (row, column) => top * (stored[row * columns + column] / levels) ** 2
    : (row, column) => stored[row * columns + column];
  let codes = null;
  return {
    rows, columns, top, value, labels, exact: !levels, signed: false,
    tolerance: levels ? (weight) => Math.sqrt(weight * top) / levels + top / (4 * levels * levels) : () => 0,
    get codes() {
      return (codes ??= levels === MAX_BYTE ? stored : computeCodes(stored, levels, top));
    },
  };
}

function computeCodes(stored, levels, top) {
  const codes = new Uint8Array(stored.length);
  const scale = levels ? MAX_BYTE / levels : 0;
  for (let i = 0; i < stored.length; i++) {
    codes[i] = Math.round(levels ? stored[i] * scale : MAX_BYTE * Math.sqrt(Math.max(0, stored[i]) / (top || 1)));
  }
  return codes;
}

// Averages planes of equal shape.
export function averagePlanes(planes) {
  const [{ rows, columns, labels }] = planes;
  const numbers = new Float32Array(rows * columns);
  for (const one of planes) {
    for (let row = 0, i = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, i++) numbers[i] += one.value(row, column) / planes.length;
    }
  }
  return derivePlane(numbers, rows, columns, labels, planes);
}

// Averages planes lazily: each weight is computed on demand, since one token needs only one row or column.
export function averageLazily(planes) {
  const [{ rows, columns }] = planes;
  const worst = Math.max(...planes.map((one) => one.tolerance(one.top)));
  const value = (row, column) => planes.reduce((sum, one) => sum + one.value(row, column), 0) / planes.length;
  return planes.length === 1 ? planes[0] : { rows, columns, value, tolerance: () => worst };
}

// Merges subword tokens to words: the mean over the rows of a word, the sum over its columns.
export function mergeTokens(one, groups, labels) {
  const rows = groups.rows.length;
  const columns = groups.columns.length;
  const numbers = new Float32Array(rows * columns);
  groups.rows.forEach((from, i) => {
    groups.columns.forEach((to, j) => {
      let sum = 0;
      for (const row of from) for (const column of to) sum += one.value(row, column);
      numbers[i * columns + j] = sum / (from.length || 1);
    });
  });
  return derivePlane(numbers, rows, columns, labels, [one]);
}

// First minus second, cell by cell; codes run from 1 (second is larger) over 128 (equal) to 255.
export function subtractPlanes(first, second) {
  const { rows, columns, labels } = first;
  const numbers = new Float32Array(rows * columns);
  let top = 0;
  for (let row = 0, i = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, i++) {
      numbers[i] = first.value(row, column) - second.value(row, column);
      top = Math.max(top, Math.abs(numbers[i]));
    }
  }
  const codes = Uint8Array.from(numbers, (d) => 128 + Math.round(127 * Math.sign(d) * Math.sqrt(Math.abs(d) / (top || 1))));
  const value = (row, column) => numbers[row * columns + column];
  const tolerance = () => first.tolerance(first.top) + second.tolerance(second.top);
  return { rows, columns, labels, top, value, codes, tolerance, exact: first.exact && second.exact, signed: true };
}

function derivePlane(numbers, rows, columns, labels, from) {
  let top = 0;
  for (const number of numbers) if (number > top) top = number;
  const result = createPlane({ numbers, rows, columns, top, levels: null, labels });
  const worst = Math.max(...from.map((one) => one.tolerance(one.top)));
  return Object.assign(result, { exact: from.every((one) => one.exact), tolerance: () => worst });
}

// Finds the largest weights of a row, or of a column: [[index, weight], ...].
export function findStrongest(one, { row, column }, most) {
  const count = row === undefined ? one.rows : one.columns;
  const weight = row === undefined ? (i) => one.value(i, column) : (i) => one.value(row, i);
  return Array.from({ length: count }, (_, i) => [i, weight(i)])
    .sort((a, b) => b[1] - a[1])
    .slice(0, most);
}
