"use strict";
/* Watch it learn: two networks on Split MNIST, side by side, trained by this page. */
NC.learn = (root, { app }) => {
  const { choice, make, percent, say, svg } = NC.dom;
  const learning = NC.learning(app.given.learn);
  const { tasks, perTask, steps } = learning;
  const side = app.given.learn.side;
  const BUDGET = 9; // milliseconds of work between two pictures of the screen
  const RATES = { slow: 5, normal: 25, fast: 1000 }; // steps a second, at most
  const NETS = [
    ["plain", "Plain network", `two layers, 196 → ${app.given.learn.settings.hidden} → 2`],
    ["growing", "Growing layer", "one layer, 196 → 2, which writes slots"],
  ];
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const pair = (task) => tasks[task].join(" or ");
  const exact = (share) => `${(100 * share).toFixed(1)}%`;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  let run = null;
  let runs = 0;
  let playing = false;
  let rate = RATES.normal;

  /* Controls */
  const play = make("button", { type: "button", class: "main", id: "learn-play", onclick: () => toggle() });
  const step = make("button", {
    type: "button",
    id: "learn-step",
    text: "One step",
    title: "one batch for both networks, then their accuracy",
    onclick: () => {
      pause();
      forward();
    },
  });
  const restart = make("button", {
    type: "button",
    id: "learn-restart",
    text: "Restart",
    title: "from new random numbers",
    onclick: () => reset(),
  });
  const speed = choice(
    "learn-speed",
    "Speed",
    [
      ["slow", "slow", "5 steps a second"],
      ["normal", "normal", "25 steps a second"],
      ["fast", "fast", "as fast as this browser can"],
    ],
    "normal",
    (value) => {
      rate = RATES[value];
    },
  );
  const told = make("p", { id: "learn-told" });
  const spoken = make("p", { class: "sr", role: "status", "aria-live": "polite" });

  /* The tasks, and the batch of now */
  const ribbon = tasks.map((digits, task) => {
    const fill = make("i");
    const element = make("li", { class: `t${task}` }, make("b", { text: digits.join(" · ") }), make("span", {}, fill));
    return { element, fill };
  });
  const seen = Array.from({ length: app.given.learn.settings.batch }, () => {
    const canvas = make("canvas", { width: side, height: side });
    return { canvas, element: make("li", {}, canvas) };
  });
  const batch = make("ul", { class: "batch", role: "img" }, ...seen.map(({ element }) => element));
  const batchTold = make("p", { class: "note" });

  /* Accuracy matrices */
  const nets = NETS.map(([name, title, kind]) => {
    const number = make("b", { class: "score number" });
    const cells = tasks.map(() => tasks.map(() => make("td", { class: "number" })));
    const element = make(
      "div",
      { class: `net ${name}` },
      make("h3", { text: title }),
      make("p", { class: "note", text: kind }),
      make("p", { class: "total" }, number, make("span", { class: "note", text: "average over the tasks so far" })),
      make(
        "table",
        { class: "matrix" },
        make("caption", { text: "Accuracy on each task, in %" }),
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            make("th", { text: "after" }),
            ...tasks.map((digits, task) => make("th", { scope: "col", class: `t${task}`, text: digits.join(" ") })),
          ),
        ),
        make(
          "tbody",
          {},
          ...cells.map((row, task) =>
            make("tr", {}, make("th", { scope: "row", class: `t${task}`, text: tasks[task].join(" ") }), ...row),
          ),
        ),
      ),
    );
    return { name, number, cells, element };
  });

  /* Curves */
  const narrow = window.matchMedia("(max-width: 36rem)").matches;
  const [WIDTH, HEIGHT, RIGHT] = narrow ? [360, 230, 96] : [640, 240, 104];
  const [LEFT, TOP, BOTTOM, LOW] = [44, 12, 26, 0.4];
  const x = (at) => LEFT + (at / steps) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((1 - Math.max(LOW, value)) / (1 - LOW)) * (HEIGHT - TOP - BOTTOM);
  const text = (words, attributes) => svg("text", { text: words, ...attributes });
  const lines = NETS.map(([name, title]) => ({
    name,
    title,
    line: svg("polyline", { class: `line ${name}` }),
    dot: svg("circle", { r: 4, class: `dot ${name}` }),
    label: svg("text", { class: `name ${name}` }),
  }));
  const chart = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curves", role: "img" },
    ...tasks.map((_, task) =>
      svg("rect", {
        x: x(task * perTask),
        y: TOP,
        width: x(perTask) - x(0),
        height: HEIGHT - TOP - BOTTOM,
        class: `band t${task}`,
      }),
    ),
    ...[0.5, 0.75, 1].flatMap((value) => [
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: value === 0.5 ? "guess" : "grid" }),
      text(percent(value), { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", class: "axis" }),
    ]),
    text("guessing", { x: WIDTH - RIGHT - 4, y: y(0.5) + 14, "text-anchor": "end", class: "axis" }),
    ...tasks.map((digits, task) =>
      text(digits.join(" · "), {
        x: x((task + 0.5) * perTask),
        y: HEIGHT - 8,
        "text-anchor": "middle",
        class: `axis task t${task}`,
      }),
    ),
    ...lines.flatMap(({ line, dot, label }) => [line, dot, label]),
  );

  /* Keys, as they are written */
  const shelves = tasks.map((digits, task) => {
    const list = make("div", { class: "keys", role: "img" });
    const count = make("span", { class: "note number" });
    const element = make(
      "div",
      { class: `shelf t${task}` },
      make("h4", {}, make("b", { text: digits.join(" · ") }), count),
      list,
    );
    return { list, count, element };
  });
  let tiles = []; // one for each slot: { canvas, key }
  const keysTold = make("p", { class: "note" });
  const mine = make("p", { id: "learn-mine" });
  const end = make("p", { id: "learn-end", hidden: "" });

  root.append(
    make("div", { class: "row learn-controls" }, play, step, restart, speed),
    told,
    spoken,
    make("ol", { class: "ribbon", "aria-hidden": "true" }, ...ribbon.map(({ element }) => element)),
    batch,
    batchTold,
    make("div", { class: "nets" }, ...nets.map(({ element }) => element)),
    make(
      "p",
      { class: "note" },
      "A row is the state after a task, a column a task. ",
      make("i", { class: "key more" }),
      " known, ",
      make("i", { class: "key less" }),
      " near guessing (50%).",
    ),
    make("h3", { text: "Average accuracy over the tasks so far" }),
    chart,
    end,
    make("h3", { text: "The keys of the slots, coloured by the task that wrote them" }),
    keysTold,
    make("div", { class: "shelves" }, ...shelves.map(({ element }) => element)),
    mine,
  );

  /** The colours of the tasks, as the style has them. */
  const colours = [];
  function readColours() {
    shelves.forEach(({ element }, task) => {
      colours[task] = getComputedStyle(element).getPropertyValue("--task").trim().split(" ").map(Number);
    });
  }

  /** A key as an image in the colour of its task. */
  function paintKey({ canvas, key }) {
    const [low, high] = [Math.min(...key.image), Math.max(...key.image)];
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    key.image.forEach((value, at) => {
      image.data.set([...colours[key.task], (255 * (value - low)) / (high - low)], 4 * at);
    });
    context.putImageData(image, 0, 0);
  }

  function addKeys() {
    for (let slot = tiles.length; slot < run.keys.length; slot++) {
      const key = run.keys[slot];
      const canvas = make("canvas", {
        width: side,
        height: side,
        title: `slot ${slot + 1}: a ${key.digit}, written at step ${key.step + 1}`,
      });
      tiles.push({ canvas, key });
      shelves[key.task].list.append(canvas);
      paintKey(tiles[slot]);
    }
    const counts = tasks.map((_, task) => run.keys.filter((key) => key.task === task).length);
    shelves.forEach(({ list, count, element }, task) => {
      say(count, counts[task] ? `${counts[task]} slots` : "");
      list.setAttribute("aria-label", `${counts[task]} keys, written while learning ${pair(task)}`);
      element.hidden = !counts[task];
    });
    say(
      keysTold,
      run.keys.length
        ? `${run.keys.length} slots${run.done ? "" : " so far"}. A key never moves, so that old digits keep finding their old slots.`
        : "No slot is written yet.",
    );
  }

  function paintBatch() {
    seen.forEach(({ canvas, element }, place) => {
      const sample = run.batch[place];
      const from = Math.min(run.task, tasks.length - 1);
      element.className = place === run.chosen ? `chosen t${from}` : "";
      NC.paint.ink(canvas, sample ? sample.x.map((value) => 255 * value) : new Float64Array(side * side));
    });
    batch.setAttribute(
      "aria-label",
      run.batch.length ? `The batch of this step: ${run.batch.map(({ digit }) => digit).join(", ")}` : "No batch yet",
    );
    const { digit } = run.batch[run.chosen] || {};
    const wrote = run.chosen < 0 ? "" : `The framed ${digit} is unlike every key: it got a slot.`;
    say(
      batchTold,
      run.batch.length
        ? `The batch of step ${run.step}. ${wrote || "Each image is close to a key: no new slot."}`
        : "Each step shows both networks the same 16 images.",
    );
  }

  function paintMatrices() {
    nets.forEach(({ name, number, cells }) => {
      const rows = run.matrices[name];
      const last = rows[rows.length - 1];
      say(number, last && run.step ? exact(mean(last)) : "–");
      cells.forEach((row, after) =>
        row.forEach((cell, task) => {
          const value = run.step ? rows[after]?.[task] : undefined;
          say(cell, value === undefined ? "" : String(Math.round(100 * value)));
          const share = value === undefined ? 0 : Math.min(1, Math.abs(value - 0.75) / 0.25);
          const colour = `rgb(var(--${value < 0.75 ? "v" : "u"}) / ${Math.round(8 + 47 * share)}%)`;
          cell.style.backgroundColor = value === undefined ? "" : colour;
          cell.classList.toggle("now", value !== undefined && after === rows.length - 1 && !run.done);
        }),
      );
    });
  }

  function paintCurves() {
    const last = run.points[run.points.length - 1];
    const ends = lines.map(({ name }) => (last ? y(last[name]) : 0));
    if (Math.abs(ends[0] - ends[1]) < 14) {
      const middle = (ends[0] + ends[1]) / 2; // keeps the names apart
      const first = ends[0] > ends[1] ? 0 : 1;
      [ends[first], ends[1 - first]] = [middle + 7, middle - 7];
    }
    lines.forEach(({ name, title, line, dot, label }, n) => {
      line.setAttribute(
        "points",
        run.points.map((point) => `${x(point.step).toFixed(1)},${y(point[name]).toFixed(1)}`).join(" "),
      );
      dot.style.display = last && run.step ? "" : "none";
      if (!last) return;
      dot.setAttribute("cx", x(last.step).toFixed(1));
      dot.setAttribute("cy", y(last[name]).toFixed(1));
      label.setAttribute("x", (x(last.step) + 9).toFixed(1));
      label.setAttribute("y", (ends[n] + 4).toFixed(1));
      say(label, run.step ? `${title.split(" ")[0].toLowerCase()} ${percent(last[name])}` : "");
    });
    chart.setAttribute(
      "aria-label",
      last && run.step
        ? `Average accuracy after ${last.step} steps: plain ${percent(last.plain)}, growing ${percent(last.growing)}`
        : "Average accuracy: no step yet",
    );
  }

  /** What both networks say of the drawing, and which slots it reads. */
  function paintMine() {
    const { result } = app;
    tiles.forEach(({ canvas }) => canvas.classList.remove("read"));
    if (!run?.keys.length || !result || result.empty) {
      say(mine, "");
      return;
    }
    const sample = learning.sample(
      result.x.map((value) => value * 0.3081 + 0.1307),
      -1,
      0,
    );
    const { slots, share } = run.nets.growing.read(run.nets.growing.cosines(sample.z));
    slots.forEach((slot) => tiles[slot]?.canvas.classList.add("read"));
    const parity = (name) => (run.nets[name].says(sample) ? "odd" : "even");
    const names = slots
      .map((slot, n) => (run.keys[slot] ? `a ${run.keys[slot].digit} (${percent(share[n])})` : ""))
      .join(", ");
    say(
      mine,
      `Your drawing: the plain network says ${parity("plain")}, the growing layer ${parity("growing")}. ` +
        `It reads the slots of ${names}, framed above.`,
    );
  }

  function paintEnd() {
    end.hidden = !run.done;
    if (!run.done) return;
    const final = run.points[run.points.length - 1];
    const size = (name) => run.nets[name].size().toLocaleString("en");
    say(
      end,
      `In this run the plain network ends at ${exact(final.plain)} and the growing layer at ${exact(final.growing)}, ` +
        `with ${size("plain")} and ${size("growing")} numbers in use. ` +
        `The label of the nearest key alone would give ${exact(run.nearestKey())}.`,
    );
  }

  function status() {
    say(play, playing ? "Pause" : run.done ? "Play again" : run.step ? "Play on" : "Play");
    step.disabled = run.done;
    restart.disabled = !run.step;
    const task = Math.min(run.task, tasks.length - 1);
    say(
      told,
      run.done
        ? `Done: five tasks, ${steps} steps, run ${runs}.`
        : run.step
          ? `Task ${task + 1} of ${tasks.length}: is it a ${pair(task)}? Step ${run.step} of ${steps}.`
          : `Five tasks, ${steps} steps: about ${Math.round(steps / RATES.normal)} seconds at normal speed. Press play.`,
    );
    ribbon.forEach(({ element, fill }, at) => {
      const share = Math.max(0, Math.min(1, run.step / perTask - at));
      fill.style.transform = `scaleX(${share.toFixed(3)})`;
      element.classList.toggle("on", at === task && !run.done && run.step > 0);
    });
  }

  /** What is new since the last picture. */
  function paint(evaluated, still) {
    status();
    addKeys();
    if (still || !calm.matches) paintBatch();
    if (!evaluated) return;
    paintMatrices();
    paintCurves();
    paintMine();
    paintEnd();
  }

  let announced = 0;
  function announce() {
    const finished = Math.floor(run.step / perTask);
    const last = run.points[run.points.length - 1];
    if (finished <= announced || last?.step !== run.step) return;
    announced = finished;
    say(
      spoken,
      `Task ${finished} of ${tasks.length} learned. Average accuracy: plain ${percent(last.plain)}, ` +
        `growing ${percent(last.growing)}, ${run.keys.length} slots.`,
    );
  }

  let due = 0; // steps that should have been done by now
  let before = 0;
  let waiting = 0;
  function frame(now) {
    if (!playing) return;
    due = Math.min(due + (rate * Math.max(0, Math.min(100, now - before))) / 1000, 20);
    before = now;
    const until = performance.now() + BUDGET;
    let evaluated = false;
    while (due >= 1 && !run.done && performance.now() < until) {
      const { value } = run.work.next();
      if (value === "step") due -= 1;
      if (value === "evaluated") {
        evaluated = true;
        announce();
      }
    }
    if (run.done) pause();
    paint(evaluated || run.done, run.done);
    if (playing) waiting = requestAnimationFrame(frame);
  }

  function toggle() {
    if (playing) {
      pause();
      paint(true, true);
      return;
    }
    if (run.done) reset();
    playing = true;
    due = 1;
    before = performance.now();
    status();
    waiting = requestAnimationFrame(frame);
  }

  function pause() {
    playing = false;
    cancelAnimationFrame(waiting);
    status();
  }

  /** One step, and its evaluation. */
  function forward() {
    run.evaluate = true;
    const aim = run.step + 1;
    let value = null;
    while (!run.done && !(run.step >= aim && value === "evaluated")) ({ value } = run.work.next());
    run.evaluate = false;
    if (run.step === steps) run.work.next();
    announce();
    paint(true, true);
  }

  function reset() {
    playing = false;
    cancelAnimationFrame(waiting);
    announced = 0;
    runs += 1;
    run = learning.start(runs);
    tiles = [];
    shelves.forEach(({ list }) => list.replaceChildren());
    say(spoken, "");
    paint(true, true);
  }

  readColours();
  reset();
  return {
    learning,
    /** The run of now. */
    run: () => run,
    update() {
      paintMine();
    },
    repaint() {
      readColours();
      tiles.forEach(paintKey);
      paintBatch();
    },
  };
};
