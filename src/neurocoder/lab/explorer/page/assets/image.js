"use strict";
/* Images of 28 x 28 numbers from 0 to 255, as MNIST has them, and what the layer reads of them. */
NC.image = (() => {
  const SIZE = 28;
  const BOX = 20; // MNIST fits a digit into 20 x 20 pixels and then centres its mass
  const PEN = 1.15; // half the width of a stroke, in pixels of the 28 x 28 image
  const LARGEST = 60; // pixels per unit of the drawing: a dot stays a dot

  /** What the layer reads: means of 2 x 2 pixels, scaled to about zero mean and unit variance. */
  function pooled(pixels, side) {
    const x = new Float64Array(side * side);
    for (let i = 0; i < side; i++) {
      for (let j = 0; j < side; j++) {
        const at = 2 * i * SIZE + 2 * j;
        const mean = (pixels[at] + pixels[at + 1] + pixels[at + SIZE] + pixels[at + SIZE + 1]) / 4;
        x[i * side + j] = (mean / 255 - 0.1307) / 0.3081;
      }
    }
    return x;
  }

  /** Distance of a point from the segment a b. */
  function distance(x, y, [ax, ay], [bx, by]) {
    const [dx, dy] = [bx - ax, by - ay];
    const length = dx * dx + dy * dy;
    const t = length ? Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
    return Math.hypot(x - ax - t * dx, y - ay - t * dy);
  }

  /** Draws strokes, lists of points in pixels, with a soft edge. */
  function rendered(strokes) {
    const pixels = new Float64Array(SIZE * SIZE);
    for (const stroke of strokes) {
      for (let k = 0; k < stroke.length; k++) {
        const [a, b] = [stroke[k], stroke[Math.min(k + 1, stroke.length - 1)]];
        if (k > 0 && k === stroke.length - 1) continue;
        const low = (m, n) => Math.max(0, Math.floor(Math.min(m, n) - PEN - 1));
        const high = (m, n) => Math.min(SIZE - 1, Math.ceil(Math.max(m, n) + PEN + 1));
        for (let i = low(a[1], b[1]); i <= high(a[1], b[1]); i++) {
          for (let j = low(a[0], b[0]); j <= high(a[0], b[0]); j++) {
            const ink = 255 * Math.max(0, Math.min(1, PEN + 0.5 - distance(j + 0.5, i + 0.5, a, b)));
            if (ink > pixels[i * SIZE + j]) pixels[i * SIZE + j] = ink;
          }
        }
      }
    }
    return pixels;
  }

  /** Strokes in the unit square as an image like MNIST's: fitted into a box, drawn, and centred by its mass. */
  function fromStrokes(strokes) {
    const points = strokes.flat();
    if (!points.length) return new Float64Array(SIZE * SIZE);
    const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const scale = Math.min(LARGEST, (BOX - 2 * PEN) / Math.max(width, height, 1e-9));
    const middle = [left + width / 2, top + height / 2];
    const placed = (shift) =>
      strokes.map((stroke) =>
        stroke.map(([x, y]) => [
          (x - middle[0]) * scale + SIZE / 2 + shift[0],
          (y - middle[1]) * scale + SIZE / 2 + shift[1],
        ]),
      );
    const first = rendered(placed([0, 0]));
    let [mass, x, y] = [0, 0, 0];
    first.forEach((ink, at) => {
      mass += ink;
      x += ink * ((at % SIZE) + 0.5);
      y += ink * (Math.floor(at / SIZE) + 0.5);
    });
    const limit = (shift) => Math.max(-4, Math.min(4, shift));
    return rendered(placed([limit(SIZE / 2 - x / mass), limit(SIZE / 2 - y / mass)]));
  }

  return { SIZE, fromStrokes, pooled };
})();
