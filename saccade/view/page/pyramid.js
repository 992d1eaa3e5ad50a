// An image pyramid of a plane: each level has half the rows and columns of the one below, and a cell keeps the most
// salient of four codes (max pooling), so that a single large weight among millions stays visible when zoomed out.

const TILE_CELLS = 256; // cells of each side of a tile

export class Pyramid {
  constructor(plane) {
    this.levels = [{ codes: plane.codes, rows: plane.rows, columns: plane.columns }];
    this.selectSalient = plane.signed ? (a, b) => (Math.abs(b - 128) > Math.abs(a - 128) ? b : a) : Math.max;
    this.tiles = new Map();
  }

  // Chooses the level whose cells have at least one pixel, where a cell of the plane has `pixels`.
  chooseLevel(pixels) {
    let index = 0;
    for (let size = pixels; size < 1; size *= 2) {
      if (this.getLevel(index).rows === 1 && this.getLevel(index).columns === 1) break;
      index += 1;
    }
    this.getLevel(index);
    return index;
  }

  getLevel(index) {
    while (this.levels.length <= index) this.levels.push(halveLevel(this.levels.at(-1), this.selectSalient));
    return this.levels[index];
  }

  setColours(colours) {
    if (this.colours === colours) return;
    this.colours = colours;
    this.tiles.clear();
  }

  // Draws the cells of the plane from `left`, `top` on, each `pixels` large, into width x height pixels at x, y.
  draw(context, { x, y, width, height, left, top, pixels }) {
    const index = this.chooseLevel(pixels * devicePixelRatio);
    const level = this.getLevel(index);
    const cell = pixels * 2 ** index;
    const size = cell * TILE_CELLS;
    const first = { column: left / 2 ** index / TILE_CELLS, row: top / 2 ** index / TILE_CELLS };
    context.imageSmoothingEnabled = false;
    for (let i = Math.max(0, Math.floor(first.row)); i * TILE_CELLS < level.rows; i++) {
      const tileY = y + (i - first.row) * size;
      if (tileY >= y + height) break;
      for (let j = Math.max(0, Math.floor(first.column)); j * TILE_CELLS < level.columns; j++) {
        const tileX = x + (j - first.column) * size;
        if (tileX >= x + width) break;
        const tile = this.getTile(index, i, j);
        context.drawImage(tile, tileX, tileY, tile.width * cell, tile.height * cell);
      }
    }
  }

  getTile(index, i, j) {
    const name = `${index},${i},${j}`;
    let tile = this.tiles.get(name);
    if (!tile) {
      tile = paintTile(this.getLevel(index), i * TILE_CELLS, j * TILE_CELLS, this.colours);
      this.tiles.set(name, tile);
    }
    return tile;
  }
}

function paintTile({ codes, rows, columns }, top, left, colours) {
  const width = Math.min(TILE_CELLS, columns - left);
  const height = Math.min(TILE_CELLS, rows - top);
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

function halveLevel({ codes, rows, columns }, selectSalient) {
  const height = Math.ceil(rows / 2);
  const width = Math.ceil(columns / 2);
  const out = new Uint8Array(height * width);
  for (let row = 0, i = 0; row < height; row++) {
    const above = 2 * row * columns;
    const below = Math.min(2 * row + 1, rows - 1) * columns;
    for (let column = 0; column < width; column++, i++) {
      const left = 2 * column;
      const right = Math.min(left + 1, columns - 1);
      out[i] = selectSalient(selectSalient(codes[above + left], codes[above + right]), selectSalient(codes[below + left], codes[below + right]));
    }
  }
  return { codes: out, rows: height, columns: width };
}
