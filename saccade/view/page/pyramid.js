// A plane at every size: each level has half the rows and columns of the one below it, and a cell keeps the code that
// stands out most of the four under it, so that one bright weight among millions stays visible from afar.

const TILE = 256; // cells

export class Pyramid {
  constructor(plane) {
    this.levels = [{ codes: plane.codes, rows: plane.rows, columns: plane.columns }];
    this.louder = plane.signed ? (a, b) => (Math.abs(b - 128) > Math.abs(a - 128) ? b : a) : Math.max;
    this.tiles = new Map();
  }

  // The level whose cells are at least one pixel large where a cell of the plane has `pixels`.
  level(pixels) {
    let index = 0;
    for (let size = pixels; size < 1; size *= 2) {
      if (this.at(index).rows === 1 && this.at(index).columns === 1) break;
      index += 1;
    }
    this.at(index);
    return index;
  }

  at(index) {
    while (this.levels.length <= index) this.levels.push(halved(this.levels.at(-1), this.louder));
    return this.levels[index];
  }

  recolour(colours) {
    if (this.colours === colours) return;
    this.colours = colours;
    this.tiles.clear();
  }

  // Draws the cells of the plane from `left`, `top` on, each `pixels` large, into width x height pixels at x, y.
  draw(context, { x, y, width, height, left, top, pixels }) {
    const index = this.level(pixels * devicePixelRatio);
    const level = this.at(index);
    const cell = pixels * 2 ** index;
    const size = cell * TILE;
    const first = { column: left / 2 ** index / TILE, row: top / 2 ** index / TILE };
    context.imageSmoothingEnabled = false;
    for (let i = Math.max(0, Math.floor(first.row)); i * TILE < level.rows; i++) {
      const tileY = y + (i - first.row) * size;
      if (tileY >= y + height) break;
      for (let j = Math.max(0, Math.floor(first.column)); j * TILE < level.columns; j++) {
        const tileX = x + (j - first.column) * size;
        if (tileX >= x + width) break;
        const tile = this.tile(index, i, j);
        context.drawImage(tile, tileX, tileY, tile.width * cell, tile.height * cell);
      }
    }
  }

  tile(index, i, j) {
    const name = `${index},${i},${j}`;
    let tile = this.tiles.get(name);
    if (!tile) {
      tile = painted(this.at(index), i * TILE, j * TILE, this.colours);
      this.tiles.set(name, tile);
    }
    return tile;
  }
}

function painted({ codes, rows, columns }, top, left, colours) {
  const width = Math.min(TILE, columns - left);
  const height = Math.min(TILE, rows - top);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0, i = 0; row < height; row++) {
    const start = (top + row) * columns + left;
    for (let column = 0; column < width; column++, i++) pixels[i] = colours[codes[start + column]];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function halved({ codes, rows, columns }, louder) {
  const height = Math.ceil(rows / 2);
  const width = Math.ceil(columns / 2);
  const out = new Uint8Array(height * width);
  for (let row = 0, i = 0; row < height; row++) {
    const above = 2 * row * columns;
    const below = Math.min(2 * row + 1, rows - 1) * columns;
    for (let column = 0; column < width; column++, i++) {
      const left = 2 * column;
      const right = Math.min(left + 1, columns - 1);
      out[i] = louder(louder(codes[above + left], codes[above + right]), louder(codes[below + left], codes[below + right]));
    }
  }
  return { codes: out, rows: height, columns: width };
}
