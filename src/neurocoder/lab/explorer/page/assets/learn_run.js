"use strict";
/* Split MNIST in the browser: the images, and a run in small pieces of work. It knows nothing of the page. */
NC.learning = (given) => {
  const { side, settings } = given;
  const inputs = side * side;
  const EVERY = 5; // steps between evaluations

  /** What keys are made of: the image, each pixel the mean of 3 x 3, minus the mean over all pixels. */
  function control(x) {
    const z = new Float64Array(inputs);
    for (let i = 0; i < side; i++) {
      for (let j = 0; j < side; j++) {
        let sum = 0;
        for (let a = Math.max(0, i - 1); a <= Math.min(side - 1, i + 1); a++)
          for (let b = Math.max(0, j - 1); b <= Math.min(side - 1, j + 1); b++) sum += x[a * side + b];
        z[i * side + j] = sum / 9;
      }
    }
    const mean = z.reduce((sum, value) => sum + value, 0) / inputs;
    return z.map((value) => value - mean);
  }

  /** x from 0 to 1; the label says whether the digit is the first or the second of its task. */
  function sample(x, digit, task) {
    const on = Array.from(x.keys()).filter((d) => x[d] !== 0);
    return { x, on, z: control(x), digit, label: given.tasks[task].indexOf(digit) };
  }

  const cache = new Map();
  /** The samples of a task, "train" or "test"; unpacked when first needed. */
  function samples(kind, task) {
    const name = `${kind} ${task}`;
    if (cache.has(name)) return cache.get(name);
    if (!cache.has(kind)) cache.set(kind, NC.data.bytes(given[kind]));
    const [bytes, each, half] = [cache.get(kind), given.each[kind], inputs / 2];
    const found = given.tasks[task].flatMap((digit) =>
      Array.from({ length: each }, (_, n) => {
        const from = (digit * each + n) * half;
        const x = Float64Array.from({ length: inputs }, (_, d) => {
          const pair = bytes[from + (d >> 1)];
          return (d % 2 ? pair & 15 : pair >> 4) / 15;
        });
        return sample(x, digit, task);
      }),
    );
    cache.set(name, found);
    return found;
  }

  /** Random numbers from 0 to 1 (mulberry32): the same seed gives the same run. */
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  function shuffled(count, random) {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  function networks(random) {
    const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    const numbers = (length, draw) => Float64Array.from({ length }, draw);
    const uniform = (length, width) => numbers(length, () => (2 * random() - 1) / Math.sqrt(width)); // as nn.Linear
    const { rate, hidden } = settings;
    const { slots, rank } = given.growing;
    const U = numbers(slots * rank * inputs, () => normal() / Math.sqrt(inputs));
    return {
      growing: NC.layers.growing(given.growing, { inputs, outputs: 2, rate, U }),
      plain: NC.layers.plain({
        rate,
        W1: uniform(hidden * inputs, inputs),
        b1: uniform(hidden, inputs),
        W2: uniform(2 * hidden, hidden),
        b2: uniform(2, hidden),
      }),
    };
  }

  const perTask = (settings.epochs * 2 * given.each.train) / settings.batch;
  const steps = perTask * given.tasks.length;

  /**
   * A run. `work` is a generator: each `next()` does a few milliseconds of work at most, and says "step" after a step
   * and "evaluated" when the row of the matrices is new.
   */
  function start(seed) {
    const random = generator(seed);
    const known = given.tasks.map(() => []); // cosines of the test images to the keys
    const run = {
      seed,
      nets: null, // made by the first piece of work
      step: 0,
      task: 0,
      done: false,
      batch: [],
      chosen: -1, // the place in the batch of the sample that became a key
      keys: [], // of each slot: { task, digit, step, image }
      matrices: { plain: [], growing: [] }, // accuracy (0 to 1) after task i on task j
      points: [], // { step, plain, growing }: the average over the tasks so far
      evaluate: false, // whether to evaluate after the next step, whatever it is
    };

    function accuracy(name, task) {
      const test = samples("test", task);
      const right = test.filter((one, n) => run.nets[name].says(one, (known[task][n] ??= [])) === one.label);
      return right.length / test.length;
    }

    function* evaluate() {
      const rows = { plain: [], growing: [] };
      for (let task = 0; task <= run.task; task++) {
        for (const name of ["plain", "growing"]) {
          rows[name].push(accuracy(name, task));
          yield "working";
        }
      }
      const point = { step: run.step };
      for (const name of ["plain", "growing"]) {
        run.matrices[name][run.task] = rows[name];
        point[name] = rows[name].reduce((sum, value) => sum + value, 0) / rows[name].length;
      }
      run.points.push(point);
    }

    function learn(batch) {
      run.nets.plain.learn(batch);
      run.chosen = run.nets.growing.learn(batch);
      run.batch = batch;
      if (run.chosen >= 0)
        run.keys.push({
          task: run.task,
          step: run.step,
          digit: batch[run.chosen].digit,
          image: run.nets.growing.keys.at(-1),
        });
      run.step++;
    }

    run.work = (function* work() {
      run.nets = networks(random);
      yield "working";
      yield* evaluate();
      yield "evaluated";
      for (run.task = 0; run.task < given.tasks.length; run.task++) {
        const train = samples("train", run.task);
        for (let epoch = 0; epoch < settings.epochs; epoch++) {
          const order = shuffled(train.length, random);
          for (let from = 0; from < order.length; from += settings.batch) {
            learn(order.slice(from, from + settings.batch).map((place) => train[place]));
            yield "step";
            if (run.step % EVERY && run.step % perTask && !run.evaluate) continue;
            yield* evaluate();
            yield "evaluated";
          }
        }
      }
      run.task = given.tasks.length - 1;
      run.done = true;
    })();

    /** The accuracy on all tests, if each took the label of the nearest key: what keys alone can do. */
    run.nearestKey = () => {
      let [right, all] = [0, 0];
      given.tasks.forEach((_, task) =>
        samples("test", task).forEach((one, n) => {
          const [slot] = run.nets.growing.read(run.nets.growing.cosines(one.z, known[task][n])).slots;
          const key = run.keys[slot];
          right += given.tasks[key.task].indexOf(key.digit) === one.label;
          all++;
        }),
      );
      return right / all;
    };
    return run;
  }

  return { control, generator, perTask, sample, samples, start, steps, tasks: given.tasks };
};
