// One matrix of weights with its labels, whatever it comes from: a head, the mean of heads, words joined from pieces.
//   value(row, column)  the weight          tolerance(weight)  how far it may be off by the way it was kept
//   codes               one byte per weight, round(255 * sqrt(weight / top)): what is drawn

const BYTE = 255;

export function plane({ numbers, offset = 0, rows, columns, top, levels, labels }) {
  const size = rows * columns;
  const kept = numbers.subarray(offset, offset + size);
  const value = levels
    ? (row, column) => top * (kept[row * columns + column] / levels) ** 2
    : (row, column) => kept[row * columns + column];
  let drawn = null;
  return {
    rows, columns, top, value, labels, exact: !levels, signed: false,
    tolerance: levels ? (weight) => Math.sqrt(weight * top) / levels + top / (4 * levels * levels) : () => 0,
    get codes() {
      return (drawn ??= levels === BYTE ? kept : codesOf(kept, levels, top));
    },
  };
}

function codesOf(kept, levels, top) {
  const codes = new Uint8Array(kept.length);
  const scale = levels ? BYTE / levels : 0;
  for (let i = 0; i < kept.length; i++) {
    codes[i] = Math.round(levels ? kept[i] * scale : BYTE * Math.sqrt(Math.max(0, kept[i]) / (top || 1)));
  }
  return codes;
}

// The mean of planes of one shape.
export function mean(planes) {
  const [{ rows, columns, labels }] = planes;
  const numbers = new Float32Array(rows * columns);
  for (const one of planes) {
    for (let row = 0, i = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, i++) numbers[i] += one.value(row, column) / planes.length;
    }
  }
  return derived(numbers, rows, columns, labels, planes);
}

// The same without its numbers: each weight is computed when it is asked for, since a token needs only its own.
export function meanOf(planes) {
  const [{ rows, columns }] = planes;
  const worst = Math.max(...planes.map((one) => one.tolerance(one.top)));
  const value = (row, column) => planes.reduce((sum, one) => sum + one.value(row, column), 0) / planes.length;
  return planes.length === 1 ? planes[0] : { rows, columns, value, tolerance: () => worst };
}

// Pieces joined to words: a word looks as its pieces do in the mean, and is looked at by the sum over its pieces.
export function joined(one, groups, labels) {
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
  return derived(numbers, rows, columns, labels, [one]);
}

// First minus second, cell by cell; codes run from 1 (second is larger) over 128 (alike) to 255.
export function difference(first, second) {
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

function derived(numbers, rows, columns, labels, from) {
  let top = 0;
  for (const number of numbers) if (number > top) top = number;
  const made = plane({ numbers, rows, columns, top, levels: null, labels });
  const worst = Math.max(...from.map((one) => one.tolerance(one.top)));
  return Object.assign(made, { exact: from.every((one) => one.exact), tolerance: () => worst });
}

// The columns that a row looks at most, or the rows that look at a column most: [[index, weight], ...].
export function strongest(one, { row, column }, most) {
  const count = row === undefined ? one.rows : one.columns;
  const weight = row === undefined ? (i) => one.value(i, column) : (i) => one.value(row, i);
  return Array.from({ length: count }, (_, i) => [i, weight(i)])
    .sort((a, b) => b[1] - a[1])
    .slice(0, most);
}
