"use strict";
/* The equations of the steered picture: a network over points, whose two middle layers are composed for a blend. */
NC.steered = ({ tensors }) => {
  const { tensor } = NC.data;
  const read = (prefix, ...names) => names.map((name) => tensor(tensors[prefix + name]));
  const silu = (value) => value / (1 + Math.exp(-value));
  const same = (value) => value;
  const ink = (value) => 255 / (1 + Math.exp(-value));

  /** W x + b through a function, into an array. */
  function affine(W, b, x, through, y = new Float64Array(b.length)) {
    const width = x.length;
    for (let o = 0; o < y.length; o++) {
      let sum = b[o];
      for (let i = 0, at = o * width; i < width; i++) sum += W[at + i] * x[i];
      y[o] = through(sum);
    }
    return y;
  }

  const encoder = [0, 2].map((n) => read(`controller.${n}.`, "weight", "bias").map((one) => one.data));
  const [frequencies] = read("model.0.", "frequencies");
  const layers = [1, 3].map((n) => {
    const names = ["bias", "R", "memory.U", "memory.V", "memory.C_0", "memory.cores"];
    const [bias, R, U, V, C0, cores] = read(`model.${n}.`, ...names);
    return { bias: bias.data, R, U: U.data, V: V.data, C0: C0.data, cores: cores.data, slots: C0.shape[0] };
  });
  const [last, lastBias] = read("model.5.", "weight", "bias").map((one) => one.data);

  /** The blend h (K) of a place (2), each coordinate from -1 to 1. */
  const blend = (place) => affine(...encoder[1], affine(...encoder[0], place, Math.tanh), same);

  /** W = R + V^T (C_0 + sum_k h_k C_k) U of a layer, (d_out, d_in). */
  function weight({ R, U, V, C0, cores, slots }, h) {
    const [d_out, d_in] = R.shape;
    const C = C0.map((sum, at) => h.reduce((all, value, k) => all + value * cores[k * C0.length + at], sum));
    const CU = new Float64Array(slots * d_in);
    for (let p = 0; p < slots; p++)
      for (let q = 0; q < slots; q++)
        for (let i = 0; i < d_in; i++) CU[p * d_in + i] += C[p * slots + q] * U[q * d_in + i];
    const W = Float64Array.from(R.data);
    for (let p = 0; p < slots; p++)
      for (let o = 0; o < d_out; o++)
        for (let i = 0; i < d_in; i++) W[o * d_in + i] += V[p * d_out + o] * CU[p * d_in + i];
    return W;
  }

  const known = new Map(); // the waves of all points, by side

  /** What the first layer reads of side * side points, row by row: sines, then cosines. */
  function waves(side) {
    if (!known.has(side)) {
      const { data, shape } = frequencies;
      const turns = ([x, y]) => Float64Array.from({ length: shape[1] }, (_, n) => x * data[n] + y * data[shape[1] + n]);
      const line = (n) => ((n + 0.5) * 2) / side - 1;
      const points = Array.from({ length: side * side }, (_, at) => turns([line(at % side), line(Math.floor(at / side))]));
      known.set(side, points.map((all) => Float64Array.of(...all.map(Math.sin), ...all.map(Math.cos))));
    }
    return known.get(side);
  }

  /** Brightness from 0 to 255 of side * side points. */
  function draw(h, side) {
    const [[W1, b1], [W2, b2]] = layers.map((layer) => [weight(layer, h), layer.bias]);
    const [y1, y2, y3] = [b1, b2, lastBias].map(({ length }) => new Float64Array(length));
    return Float64Array.from(
      waves(side),
      (x) => affine(last, lastBias, affine(W2, b2, affine(W1, b1, x, silu, y1), silu, y2), ink, y3)[0],
    );
  }

  return { blend, draw };
};
