// Axis ticks, smoothing and number formatting for charts.

// Ticks at round numbers between two values; on a logarithmic axis at powers of ten, with more in between if few fit.
export function computeTicks(low, high, count, log = false) {
  if (log) return computeLogTicks(low, high, count);
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

function computeLogTicks(low, high, count) {
  const first = Math.floor(Math.log10(low));
  const all = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, i) => 10 ** (first + i));
  const inside = (list) => list.filter((one) => one >= low * 0.999 && one <= high * 1.001);
  for (const parts of [[1], [1, 3], [1, 2, 5]]) {
    const found = inside(all.flatMap((one) => parts.map((part) => part * one)));
    if (found.length >= Math.min(3, count)) return found.filter((_, i) => i % Math.ceil(found.length / count) === 0);
  }
  return computeTicks(low, high, count);
}

// Exponential moving average with decay `share` and bias correction at the beginning (as in Adam).
export function smoothCurve(values, share) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = share * sum + (1 - share) * value;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
}

// Index of the value nearest to x in a sorted list.
export function findNearest(values, x) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - values[low - 1] < values[low] - x ? low - 1 : low;
}

export function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size > 0 && size < 0.0001) return value.toExponential(1).replace(".0e", "e");
  return Number(value.toPrecision(4)).toString();
}

export function formatDuration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}
