// Colour scales that suit colour-blind readers: lightness encodes the weight, blue and orange the sign.

const RAMPS = {
  light: ["#ffffff", "#e3eef6", "#c5dcec", "#9cc5de", "#6ba9cd", "#418bb9", "#206ca0", "#0d4e82", "#08305f"],
  dark: ["#12161c", "#10294f", "#2b3f6b", "#4d566c", "#6c6e72", "#8b8776", "#aea371", "#d4c160", "#fee838"],
};
const SIGNED_RAMPS = {
  light: ["#0b4a8f", "#4a86c5", "#a9c9e6", "#fbfaf8", "#f3c596", "#d9822b", "#8f4a05"],
  dark: ["#9cd0ff", "#4c8fd6", "#22466e", "#15181d", "#6b4316", "#d98327", "#ffc57d"],
};
// After Okabe and Ito, with enough contrast on both backgrounds; a label always accompanies the colour.
const HEAD_COLOURS = {
  light: ["#0072b2", "#c25e00", "#00815e", "#b0568a", "#7a5cc0", "#8a6d00", "#2a7f9e", "#a33b3b"],
  dark: ["#56b4e9", "#e69f00", "#2fc79a", "#e796c2", "#b19cf0", "#d8c24a", "#7fd3e6", "#f08a80"],
};

export function getHeadColour(head, theme) {
  const colours = HEAD_COLOURS[theme];
  return colours[Math.max(0, head) % colours.length];
}

// Builds a table of 256 RGBA colours for the codes of a plane. Codes are square roots of weights, so that small weights
// have enough levels; with `sqrtScale` the colours stay proportional to them, which emphasizes small weights.
export function buildPalette({ theme, signed, sqrtScale }) {
  const stops = (signed ? SIGNED_RAMPS : RAMPS)[theme].map(parseHex);
  const table = new Uint32Array(256);
  for (let code = 0; code < 256; code++) {
    table[code] = packRgba(interpolate(stops, signed ? scaleSignedCode(code, sqrtScale) : scaleWeight(code / 255, sqrtScale)));
  }
  return table;
}

function scaleWeight(x, sqrtScale) {
  return sqrtScale ? x : x * x;
}

function scaleSignedCode(code, sqrtScale) {
  const x = Math.max(-1, (code - 128) / 127);
  return 0.5 + 0.5 * Math.sign(x) * scaleWeight(Math.abs(x), sqrtScale);
}

// Builds the same scale as a CSS gradient over weights from 0 (or -top) to top.
export function buildGradient({ theme, signed, sqrtScale }) {
  const stops = (signed ? SIGNED_RAMPS : RAMPS)[theme].map(parseHex);
  const colours = Array.from({ length: 33 }, (_, i) => {
    const x = i / 32;
    const at = signed ? 0.5 + 0.5 * Math.sign(2 * x - 1) * unscaleWeight(Math.abs(2 * x - 1), sqrtScale) : unscaleWeight(x, sqrtScale);
    return `rgb(${interpolate(stops, at).map(Math.round).join(" ")})`;
  });
  return `linear-gradient(to right, ${colours.join(", ")})`;
}

function unscaleWeight(x, sqrtScale) {
  return sqrtScale ? Math.sqrt(x) : x;
}

function parseHex(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function interpolate(stops, x) {
  const at = Math.max(0, Math.min(1, x)) * (stops.length - 1);
  const left = Math.min(stops.length - 2, Math.floor(at));
  return stops[left].map((low, i) => low + (at - left) * (stops[left + 1][i] - low));
}

function packRgba([red, green, blue]) {
  return (255 << 24 | Math.round(blue) << 16 | Math.round(green) << 8 | Math.round(red)) >>> 0;
}
