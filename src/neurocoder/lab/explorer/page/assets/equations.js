"use strict";
/*
 * The equations of the paper, literally, for one input. Vectors are rows: y = x W.
 *
 * P slots, K key size, J steps, H heads, r = J H components. Kinds of singular program: 0 is u, 1 is v, 2 is s.
 * A tensor is { shape, data } with its numbers in row-major order. A model is { program, tensors, keys }.
 */
const NC = {};

NC.equations = (() => {
  const KINDS = ["u", "v", "s"];
  const sigmoid = (a) => 1 / (1 + Math.exp(-a));
  const softplus = (a) => (a > 20 ? a : Math.log1p(Math.exp(a)));

  function dot(a, b) {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
    return sum;
  }

  /** Row i of a matrix. */
  function row(tensor, i) {
    const width = tensor.shape[1];
    return tensor.data.subarray(i * width, (i + 1) * width);
  }

  /** weight x + bias; the bias may be missing. */
  function affine(weight, bias, x) {
    return Float64Array.from({ length: weight.shape[0] }, (_, i) => dot(row(weight, i), x) + (bias ? bias.data[i] : 0));
  }

  function softmax(scores) {
    const top = Math.max(...scores);
    const parts = Float64Array.from(scores, (score) => Math.exp(score - top));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((part) => part / sum);
  }

  /** a . b / (||a|| ||b||) */
  const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));

  /** (10) k_i = f_phi(M(i)): the key of every slot, by kind. */
  function keys(model) {
    const { tensors } = model;
    return KINDS.map((kind) => {
      const memory = tensors[`memory.${kind.toUpperCase()}`];
      const [weight, bias] = [tensors[`memory.key_${kind}_weight`], tensors[`memory.key_${kind}_bias`]];
      return Array.from({ length: model.program.slots }, (_, i) => affine(weight, bias, row(memory, i)));
    });
  }

  /** (9) One step of the composition network, an LSTM; gates in the order input, forget, cell, output. */
  function lstm(read, recurrent, state) {
    const size = state.h.length;
    const gates = recurrent ? affine(recurrent, { data: read }, state.h) : read;
    const [h, c] = [new Float64Array(size), new Float64Array(size)];
    for (let i = 0; i < size; i++) {
      const forget = sigmoid(gates[size + i]) * state.c[i];
      c[i] = forget + sigmoid(gates[i]) * Math.tanh(gates[2 * size + i]);
      h[i] = sigmoid(gates[3 * size + i]) * Math.tanh(c[i]);
    }
    return { h, c };
  }

  /** (13) max(m) - m_i for the `count` slots with the smallest usage, ties included, else 0. */
  function leastUsed(usage, count) {
    const top = Math.max(...usage);
    const threshold = Float64Array.from(usage).sort()[count - 1];
    return usage.map((m) => (m <= threshold ? top - m : 0));
  }

  /**
   * (9) to (14) What the Program Controller decides for one input.
   * Returns content, leastUsed, gate and attention, each as [kind][component] -> numbers, one for each slot.
   */
  function attend(model, x) {
    const { slots, key_dim: size, steps, heads, least_used: count, sharpness, hidden } = model.program;
    const get = (name) => model.tensors[`controller.${name}`];
    const found = { content: [[], [], []], leastUsed: [[], [], []], gate: [[], [], []], attention: [[], [], []] };
    const usage = KINDS.map(() => Array.from({ length: heads }, () => new Float64Array(slots)));
    const read = affine(get("input_weight"), get("input_bias"), x);
    let state = { h: new Float64Array(hidden), c: new Float64Array(hidden) };
    for (let step = 0; step < steps; step++) {
      state = lstm(read, get("recurrent_weight"), state);
      const signal = affine(get("signal_weight"), get("signal_bias"), state.h);
      for (let kind = 0; kind < 3; kind++) {
        for (let head = 0; head < heads; head++) {
          const place = kind * heads + head;
          const query = signal.subarray(place * size, (place + 1) * size);
          const from = 3 * heads * size + place * slots;
          const content = softmax(model.keys[kind].map((key) => sharpness * cosine(query, key)));
          const gate = signal.subarray(from, from + slots).map(sigmoid);
          const idle = leastUsed(usage[kind][head], count);
          const attention = content.map((c, i) => gate[i] * c + (1 - gate[i]) * idle[i]);
          usage[kind][head] = usage[kind][head].map((m, i) => Math.max(m, attention[i]));
          found.content[kind].push(content);
          found.gate[kind].push(gate);
          found.leastUsed[kind].push(idle);
          found.attention[kind].push(attention);
        }
      }
    }
    return found;
  }

  /** Factors that change nothing: [kind] -> one number for each slot. */
  const unchanged = (model) => KINDS.map(() => new Float64Array(model.program.slots).fill(1));

  /** (8) sigma_n = sigma_(n+1) + softplus(sum_i w_in M_S(i)); a slot counts `factors[2][i]` times. */
  function singularValues(model, attention, factors) {
    const memory = model.tensors["memory.S"].data;
    const sigma = new Float64Array(attention[2].length);
    let after = 0;
    for (let n = sigma.length - 1; n >= 0; n--) {
      after += softplus(attention[2][n].reduce((sum, w, i) => sum + factors[2][i] * w * memory[i], 0));
      sigma[n] = after;
    }
    return sigma;
  }

  /** sum_i f_i w_i M(i): what one component reads from M_U (kind 0) or M_V (kind 1). */
  function readSlots(memory, weights, factors) {
    const sum = new Float64Array(memory.shape[1]);
    for (let i = 0; i < weights.length; i++) {
      const [slot, weight] = [row(memory, i), factors[i] * weights[i]];
      for (let d = 0; d < sum.length; d++) sum[d] += weight * slot[d];
    }
    return sum;
  }

  /** (6, 7, 8) The components of the active program: { u, v } of each, and sigma. */
  function components(model, attention, factors) {
    return {
      sigma: singularValues(model, attention, factors),
      u: attention[0].map((weights) => readSlots(model.tensors["memory.U"], weights, factors[0])),
      v: attention[1].map((weights) => readSlots(model.tensors["memory.V"], weights, factors[1])),
    };
  }

  /** (1) W = sum_n sigma_n u_n^T v_n: (d_in, d_out), row-major. The demo has no residual R. */
  function weight({ sigma, u, v }) {
    const [inputs, outputs] = [u[0].length, v[0].length];
    const W = new Float64Array(inputs * outputs);
    sigma.forEach((size, n) => {
      for (let d = 0; d < inputs; d++) {
        const left = size * u[n][d];
        for (let k = 0; k < outputs; k++) W[d * outputs + k] += left * v[n][k];
      }
    });
    return W;
  }

  /** What each component adds to each output: sigma_n (x . u_n) v_n, as [component] -> numbers. */
  const contributions = ({ sigma, u, v }, x) =>
    v.map((right, n) => {
      const strength = sigma[n] * dot(x, u[n]);
      return right.map((value) => strength * value);
    });

  /** y = x W + b, from what the components add. */
  function outputs(model, parts) {
    return model.tensors.bias.data.map((bias, k) => parts.reduce((sum, part) => sum + part[k], bias));
  }

  /**
   * The same y without building u, v or W: e_i = sum_n sigma_n (sum_k w^u_kn a_k) w^v_in, with a = x M_U^T.
   * So cheap that every slot can be switched off in turn.
   */
  function execute(model, attention, a, factors) {
    const [sigma, V] = [singularValues(model, attention, factors), model.tensors["memory.V"]];
    const y = Float64Array.from(model.tensors.bias.data);
    const e = new Float64Array(a.length);
    sigma.forEach((size, n) => {
      const strength = size * attention[0][n].reduce((sum, w, i) => sum + factors[0][i] * w * a[i], 0);
      attention[1][n].forEach((w, i) => {
        e[i] += strength * factors[1][i] * w;
      });
    });
    e.forEach((amount, i) =>
      row(V, i).forEach((value, k) => {
        y[k] += amount * value;
      }),
    );
    return y;
  }

  /** a = x M_U^T: how much each slot of U sees in the input. */
  const overlap = (model, x) => affine(model.tensors["memory.U"], null, x);

  return {
    KINDS,
    affine,
    attend,
    components,
    contributions,
    dot,
    execute,
    keys,
    outputs,
    overlap,
    row,
    softmax,
    unchanged,
    weight,
  };
})();
