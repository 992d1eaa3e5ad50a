// Reads what saccade/view/codec.py wrote: weights as numbers of 8, 16 or 32 bits.
// A weight w of a head whose largest weight is m comes as q = round(n * sqrt(w / m)).

const ARRAYS = { "u8-deflate": Uint8Array, "u16-deflate": Uint16Array, "f32-deflate": Float32Array };
const LEVELS = { "u8-deflate": 255, "u16-deflate": 65535 };

// The numbers (heads * rows * columns), their largest per head, and n; n is null where they are the weights themselves.
export async function decoded(entry) {
  const { weights, shape: [heads, rows, columns] } = entry;
  if (Array.isArray(weights)) {
    const numbers = Float32Array.from(weights.flat(2));
    return { numbers, tops: largest(numbers, heads, rows * columns), levels: null };
  }
  const buffer = await inflated(bytes(weights.data));
  return { numbers: new ARRAYS[weights.codec](buffer), tops: weights.tops, levels: LEVELS[weights.codec] ?? null };
}

function bytes(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

function inflated(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function largest(numbers, heads, size) {
  return Array.from({ length: heads }, (_, head) => {
    let top = 0;
    for (let i = head * size; i < (head + 1) * size; i++) if (numbers[i] > top) top = numbers[i];
    return top;
  });
}
