// Decodes the attention weights that saccade/view/codec.py encoded with 8, 16 or 32 bits each.
// A weight w of a head with the largest weight m is quantized to the code round(n * sqrt(w / m)).

const ARRAY_TYPES = { "u8-deflate": Uint8Array, "u16-deflate": Uint16Array, "f32-deflate": Float32Array };
const MAX_CODES = { "u8-deflate": 255, "u16-deflate": 65535 };

// Returns the codes (heads * rows * columns) as `numbers`, the largest weight of each head as `tops`, and n as `levels`,
// which is null if `numbers` are the weights themselves.
export async function decodeWeights(entry) {
  const { weights, shape: [heads, rows, columns] } = entry;
  if (Array.isArray(weights)) {
    const numbers = Float32Array.from(weights.flat(2));
    return { numbers, tops: computeHeadMaxima(numbers, heads, rows * columns), levels: null };
  }
  const buffer = await inflate(decodeBase64(weights.data));
  return { numbers: new ARRAY_TYPES[weights.codec](buffer), tops: weights.tops, levels: MAX_CODES[weights.codec] ?? null };
}

function decodeBase64(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

function inflate(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function computeHeadMaxima(numbers, heads, size) {
  return Array.from({ length: heads }, (_, head) => {
    let top = 0;
    for (let i = head * size; i < (head + 1) * size; i++) if (numbers[i] > top) top = numbers[i];
    return top;
  });
}
