"use strict";
/* A recorded episode of an agent on Acrobot: the screen, and beside it the program that its actor composed. */
NC.episode = (root, { app }) => {
  const { make, say, svg } = NC.dom;
  const { angles, speeds, actions, policy, weights, shape, attention: text, facts } = app.given.episode;
  const [count, , components, slots] = shape;
  const attention = NC.data.bytes(text);
  const TORQUES = ["torque −1", "none", "torque +1"];
  const INPUTS = ["cos θ₁", "sin θ₁", "cos θ₂", "sin θ₂", "speed 1", "speed 2"];
  const RATE = 8; // steps a second
  const TRAIL = 10; // steps
  const PARTS = 8; // pictures of a step
  const SECONDS = 0.2; // of a step, in the world of the links
  const level = (step, kind, component, slot) =>
    attention[((step * 2 + kind) * components + component) * slots + slot] / 255;
  const strongest = (step, kind, slot) =>
    Math.max(...Array.from({ length: components }, (_, n) => level(step, kind, n, slot)));
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const limit = Math.max(...weights.map((row) => NC.paint.limit(row)));

  /* The screen */
  const REACH = 46; // one link, of two
  /** An angle between two steps, from its values and speeds at both (Hermite); whole turns are undone by the speeds. */
  function between(joint, step, part) {
    const [a, b] = [angles[step][joint], angles[Math.min(step + 1, count - 1)][joint]];
    const [u, v] = [step, Math.min(step + 1, count - 1)].map((at) => SECONDS * speeds[at][joint]);
    const to = b + 2 * Math.PI * Math.round((a + (u + v) / 2 - b) / (2 * Math.PI));
    const [t, s] = [part, 1 - part];
    return a * s * s * (1 + 2 * t) + u * t * s * s + to * t * t * (1 + 2 * s) - v * t * t * s;
  }
  const places = Array.from({ length: (count - 1) * PARTS + 1 }, (_, n) => {
    const [first, second] = [0, 1].map((joint) => between(joint, Math.floor(n / PARTS), (n % PARTS) / PARTS));
    const elbow = [REACH * Math.sin(first), REACH * Math.cos(first)];
    return [elbow, [elbow[0] + REACH * Math.sin(first + second), elbow[1] + REACH * Math.cos(first + second)]];
  });
  const link = (name) => svg("line", { class: `link ${name}` });
  const [upper, lower] = [link("upper"), link("lower")];
  const [elbow, tip] = [svg("circle", { r: 5, class: "joint" }), svg("circle", { r: 6, class: "tip" })];
  const trail = svg("polyline", { class: "trail" });
  const torque = svg("path", { class: "torque", d: "M14 0 A14 14 0 0 0 -14 0 m-5 -6 l5 6 l6 -5" }); // +1
  const screen = svg(
    "svg",
    { viewBox: "-104 -104 208 208", class: "screen", role: "img" },
    svg("line", { x1: -100, x2: 100, y1: -REACH, y2: -REACH, class: "goal" }),
    trail,
    upper,
    lower,
    svg("circle", { r: 5, class: "hinge" }),
    torque,
    elbow,
    tip,
  );

  /* The policy, the weight and the attention of now */
  const bars = TORQUES.map(NC.dom.meter);
  const cells = INPUTS.map(() => TORQUES.map(() => make("td")));
  const weight = make(
    "table",
    { class: "heat program" },
    make("caption", { text: "The weight for this state" }),
    make("thead", {}, make("tr", {}, make("td"), ...TORQUES.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...cells.map((row, n) => make("tr", {}, make("th", { scope: "row", text: INPUTS[n] }), ...row))),
  );
  const heats = [0, 1].map((kind) => {
    const rows = Array.from({ length: components }, () => Array.from({ length: slots }, () => make("td")));
    const most = Math.max(...attention) / 255;
    const element = make(
      "table",
      { class: `heat kind-${"uv"[kind]}` },
      make("caption", { text: `Slots of ${"UV"[kind]} that the actor reads` }),
      make(
        "tbody",
        {},
        ...rows.map((row, n) => make("tr", {}, make("th", { scope: "row", text: `head ${n + 1}` }), ...row)),
      ),
    );
    return { rows, most, element };
  });

  /* All steps at once */
  const film = make("canvas", { width: count, height: 2 * slots, class: "film", role: "img" });
  film.setAttribute("aria-label", "Attention to each slot of U, above, and of V, below, over the steps of the episode");
  const cursor = make("i", { class: "cursor" });
  const play = make("button", { type: "button", class: "main", id: "episode-play", onclick: () => toggle() });
  const slider = make("input", {
    type: "range",
    id: "episode-step",
    min: "0",
    max: String(count - 1),
    value: "0",
    oninput: () => {
      playing = false;
      cancelAnimationFrame(waiting);
      show(Number(slider.value));
    },
  });
  const told = make("p", { class: "note" });

  root.append(
    make(
      "div",
      { class: "stage" },
      make("figure", {}, screen, told),
      make(
        "div",
        { class: "beside" },
        make("ul", { class: "bars policy", "aria-label": "The policy" }, ...bars.map(({ item }) => item)),
        weight,
      ),
      make("div", { class: "beside" }, ...heats.map(({ element }) => element)),
    ),
    make(
      "div",
      { class: "row play-row" },
      play,
      make("label", { for: "episode-step", class: "sr", text: "Step of the episode" }),
      slider,
    ),
    make("h3", { text: "Which slots were read, over the whole episode" }),
    make("div", { class: "film-box" }, film, cursor),
    make("p", {
      class: "note",
      text:
        "A row is a slot, U above, V below; a column is a step. Full colour: a head reads the slot. " +
        "Steady rows serve every state; rows that come and go belong to a part of the swing.",
    }),
    make("p", {
      class: "note",
      text:
        `Recorded with Python. The actor has ${facts.parameters.toLocaleString("en")} parameters and was trained for ` +
        `${facts.steps.toLocaleString("en")} steps. Its mean score over ${facts.episodes} episodes is ` +
        `−${Math.abs(facts.score)}: each step costs one point, until the end of the links passes the line.`,
    }),
  );

  function paintFilm() {
    const context = film.getContext("2d");
    const image = context.createImageData(count, 2 * slots);
    heats.forEach(({ element }, kind) => {
      const colour = getComputedStyle(element).getPropertyValue("--kind").trim().split(" ").map(Number);
      for (let step = 0; step < count; step++)
        for (let slot = 0; slot < slots; slot++)
          image.data.set(
            [...colour, 255 * Math.sqrt(strongest(step, kind, slot) / heats[kind].most)],
            4 * ((kind * slots + slot) * count + step),
          );
    });
    context.putImageData(image, 0, 0);
  }

  /** The links as they are at a picture, of which a step has several. */
  function draw(picture) {
    const [[ex, ey], [tx, ty]] = places[picture];
    const set = (element, values) =>
      Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value.toFixed(1)));
    set(upper, { x1: 0, y1: 0, x2: ex, y2: ey });
    set(lower, { x1: ex, y1: ey, x2: tx, y2: ty });
    set(elbow, { cx: ex, cy: ey });
    set(tip, { cx: tx, cy: ty });
    trail.setAttribute(
      "points",
      places
        .slice(Math.max(0, picture - TRAIL * PARTS), picture + 1)
        .map(([, end]) => end.map((value) => value.toFixed(1)).join(","))
        .join(" "),
    );
    const turn = actions[Math.floor(picture / PARTS)] - 1;
    torque.setAttribute("transform", `translate(${ex.toFixed(1)} ${ey.toFixed(1)}) scale(${turn} 1)`);
    torque.style.visibility = turn ? "visible" : "hidden";
  }

  let at = 0;
  function show(step) {
    at = step;
    draw(at * PARTS);
    bars.forEach(({ item, show: set }, n) => {
      set(policy[at][n]);
      item.classList.toggle("top", n === actions[at]);
    });
    cells.forEach((row, input) =>
      row.forEach((cell, n) => {
        const value = weights[at][input * TORQUES.length + n];
        const share = Math.round(85 * Math.sqrt(Math.abs(value) / limit));
        cell.style.backgroundColor = `rgb(var(--${value < 0 ? "v" : "u"}) / ${share}%)`;
        cell.title = value.toFixed(2);
      }),
    );
    heats.forEach(({ rows, most }, kind) =>
      rows.forEach((row, n) =>
        row.forEach((cell, slot) => NC.paint.cell(cell, kind, Math.sqrt(level(at, kind, n, slot) / most))),
      ),
    );
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", `step ${at + 1} of ${count}, ${TORQUES[actions[at]]}`);
    cursor.style.left = `${(100 * (at + 0.5)) / count}%`;
    const [first, second] = speeds[at].map((speed) => Math.abs(speed).toFixed(1));
    say(told, `Step ${at + 1} of ${count}: ${TORQUES[actions[at]]}. The links turn at ${first} and ${second} rad/s.`);
    screen.setAttribute("aria-label", `Two links that hang from a hinge, at step ${at + 1} of ${count}`);
    say(play, playing ? "Pause" : at === count - 1 ? "Play again" : "Play");
  }

  let playing = false;
  let begun = 0;
  let from = 0;
  let waiting = 0;
  function frame(now) {
    if (!playing) return;
    const passed = Math.min(count - 1, from + (RATE * Math.max(0, now - begun)) / 1000);
    if (passed === count - 1) playing = false;
    if (Math.floor(passed) !== at || !playing) show(Math.floor(passed));
    if (!calm.matches) draw(Math.floor(passed * PARTS));
    if (playing) waiting = requestAnimationFrame(frame);
  }

  function toggle() {
    playing = !playing;
    cancelAnimationFrame(waiting);
    from = at === count - 1 ? 0 : at;
    begun = performance.now();
    show(from);
    if (playing) waiting = requestAnimationFrame(frame);
  }

  paintFilm();
  show(Math.floor(count / 2));
  return {
    update() {},
    repaint() {
      paintFilm();
      show(at);
    },
  };
};
