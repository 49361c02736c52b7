"use strict";
/*
 * Two networks that learn, as their equations say: a growing layer (docs/growing.md), and two plain layers with ReLU.
 * Both minimise the mean cross entropy of a batch, with Adagrad. A sample is { x, on, z, label }: `on` are the
 * places where x is not zero, z is what keys are made of.
 * They know nothing of the page. Numbers lie in row-major order.
 */
NC.layers = (() => {
  const { dot, softmax } = NC.equations;
  const EPSILON = 1e-10; // of torch.optim.Adagrad

  /** s += g^2, theta -= scale rate g / (sqrt(s) + epsilon), for the numbers from..to; the gradient is zero afterwards. */
  function adagrad({ values, gradient, squares }, rate, from = 0, to = values.length, scale = 1) {
    for (let i = from; i < to; i++) {
      const g = gradient[i];
      if (g === 0) continue;
      squares[i] += g * g;
      values[i] -= (scale * rate * g) / (Math.sqrt(squares[i]) + EPSILON);
      gradient[i] = 0;
    }
  }

  const parameter = (values) => ({
    values: Float64Array.from(values),
    gradient: new Float64Array(values.length),
    squares: new Float64Array(values.length),
  });

  /** The gradient of the mean cross entropy with respect to the outputs y of one of `count` samples. */
  function slope(y, label, count) {
    const gradient = softmax(y);
    gradient[label] -= 1;
    return gradient.map((value) => value / count);
  }

  /** The sum of values[from + d] x[d]. */
  function inner(values, from, { x, on }) {
    let sum = 0;
    for (let n = 0; n < on.length; n++) sum += values[from + on[n]] * x[on[n]];
    return sum;
  }

  /** values[from + d] += factor x[d] */
  function add(values, from, factor, { x, on }) {
    for (let n = 0; n < on.length; n++) values[from + on[n]] += factor * x[on[n]];
  }

  const largest = (y) => y.indexOf(Math.max(...y));

  /**
   * A growing layer without residual and bias. Slot i: U_i (rank, inputs), V_i (rank, outputs), and a unit key k_i.
   * Starts from U (slots, rank, inputs) and V = 0.
   */
  function growing({ slots, rank, top_k, max_similarity, sharpness, consolidation }, { inputs, outputs, rate, U }) {
    const [u, v] = [parameter(U), parameter(new Float64Array(slots * rank * outputs))];
    const keys = [];
    const visits = new Float64Array(slots);
    const layer = { U: u.values, V: v.values, keys, visits, steps: 0 };

    /** cos(k_i, z) of the written slots. Keys never move, so that those found before, in `known`, still hold. */
    layer.cosines = (z, known = []) => {
      const length = Math.sqrt(dot(z, z)) || 1;
      for (let i = known.length; i < keys.length; i++) known.push(dot(keys[i], z) / length);
      return known;
    };

    /** w = softmax of beta cos(k_i, z) over the top_k nearest slots: { slots, share, best }. */
    layer.read = (cosines) => {
      const near = [];
      for (let i = 0; i < cosines.length; i++) {
        if (near.length === top_k && cosines[i] <= cosines[near[top_k - 1]]) continue;
        let at = near.length;
        while (at > 0 && cosines[near[at - 1]] < cosines[i]) at--;
        near.splice(at, 0, i);
        if (near.length > top_k) near.pop();
      }
      const share = near.length ? softmax(near.map((i) => sharpness * cosines[i])) : [];
      return { slots: near, share, best: near.length ? cosines[near[0]] : -1 };
    };

    /** y = sum_r ((w U_r) x) (w V_r); also h_r = (w U_r) x and the blended V. */
    layer.execute = (sample, { slots: near, share }) => {
      const [y, h, blend] = [new Float64Array(outputs), new Float64Array(rank), new Float64Array(rank * outputs)];
      near.forEach((slot, n) => {
        for (let r = 0; r < rank; r++) {
          h[r] += share[n] * inner(u.values, (slot * rank + r) * inputs, sample);
          for (let k = 0; k < outputs; k++)
            blend[r * outputs + k] += share[n] * v.values[(slot * rank + r) * outputs + k];
        }
      });
      for (let r = 0; r < rank; r++) for (let k = 0; k < outputs; k++) y[k] += h[r] * blend[r * outputs + k];
      return { y, h, blend };
    };

    layer.outputs = (sample, known) => layer.execute(sample, layer.read(layer.cosines(sample.z, known))).y;
    layer.says = (sample, known) => largest(layer.outputs(sample, known));

    /** Gradients of one sample; its shares count as visits. */
    function backward(sample, reading, count) {
      const { y, h, blend } = layer.execute(sample, reading);
      const g = slope(y, sample.label, count);
      reading.slots.forEach((slot, n) => {
        const w = reading.share[n];
        visits[slot] += w;
        for (let r = 0; r < rank; r++) {
          let back = 0;
          for (let k = 0; k < outputs; k++) {
            back += g[k] * blend[r * outputs + k];
            v.gradient[(slot * rank + r) * outputs + k] += w * h[r] * g[k];
          }
          add(u.gradient, (slot * rank + r) * inputs, w * back, sample);
        }
      });
    }

    /** One step: all slots learn, then the least similar sample may become a key. Returns its place, or -1. */
    layer.learn = (batch) => {
      const readings = batch.map(({ z }) => layer.read(layer.cosines(z)));
      batch.forEach((sample, n) => backward(sample, readings[n], batch.length));
      for (const slot of new Set(readings.flatMap((reading) => reading.slots))) {
        const scale = 1 / (1 + visits[slot] / consolidation);
        for (const [bank, width] of [[u, rank * inputs], [v, rank * outputs]])
          adagrad(bank, rate, slot * width, (slot + 1) * width, scale);
      }
      layer.steps++;
      const best = readings.map((reading) => reading.best);
      const place = best.indexOf(Math.min(...best));
      const { z } = batch[place];
      const length = Math.sqrt(dot(z, z));
      if (keys.length === slots || length === 0 || best[place] >= max_similarity) return -1;
      keys.push(z.map((value) => value / length));
      return place;
    };

    /** Numbers in use: programs and keys of the written slots. */
    layer.size = () => keys.length * (rank * (inputs + outputs) + inputs);
    return layer;
  }

  /** y = W_2 relu(W_1 x + b_1) + b_2, from W_1 (hidden, inputs), b_1, W_2 (outputs, hidden), b_2. */
  function plain({ rate, W1, b1, W2, b2 }) {
    const [first, bias, last, end] = [W1, b1, W2, b2].map(parameter);
    const [hidden, outputs] = [b1.length, b2.length];
    const inputs = W1.length / hidden;
    const layer = { parameters: [first, bias, last, end].map(({ values }) => values) };

    function forward(sample) {
      const h = bias.values.map((value, i) => Math.max(0, value + inner(first.values, i * inputs, sample)));
      const y = Float64Array.from(end.values);
      for (let k = 0; k < outputs; k++) for (let i = 0; i < hidden; i++) y[k] += last.values[k * hidden + i] * h[i];
      return { h, y };
    }

    layer.outputs = (sample) => forward(sample).y;
    layer.says = (sample) => largest(layer.outputs(sample));

    layer.learn = (batch) => {
      for (const sample of batch) {
        const { h, y } = forward(sample);
        const g = slope(y, sample.label, batch.length);
        for (let i = 0; i < hidden; i++) {
          if (h[i] === 0) continue;
          let back = 0;
          for (let k = 0; k < outputs; k++) {
            back += g[k] * last.values[k * hidden + i];
            last.gradient[k * hidden + i] += g[k] * h[i];
          }
          bias.gradient[i] += back;
          add(first.gradient, i * inputs, back, sample);
        }
        for (let k = 0; k < outputs; k++) end.gradient[k] += g[k];
      }
      for (const one of [first, bias, last, end]) adagrad(one, rate);
    };

    layer.size = () => layer.parameters.reduce((sum, values) => sum + values.length, 0);
    return layer;
  }

  return { growing, plain };
})();
