"use strict";
/* The whole: one input, one answer, all views. */
NC.start = (text) => {
  const { find, make } = NC.dom;
  const E = NC.equations;
  const { model, digits, tree, average, given } = NC.data.load(text);
  const views = [];
  const app = { model, digits, tree, average, given, result: null, factors: E.unchanged(model) };
  let input = null;
  let programs = null; // the weights of the test digits, for the factors of now

  /** Composes the program for an image and executes it. */
  app.compose = (pixels) => {
    const x = NC.image.pooled(pixels, model.side);
    const attended = E.attend(model, x);
    const y = E.execute(model, attended.attention, E.overlap(model, x), app.factors);
    return { x, attended, y, p: E.softmax(y), says: y.indexOf(Math.max(...y)) };
  };

  /** The answer if a slot were off: [kind][slot] -> { y, p, says }. */
  function withoutEach(attention, x) {
    const a = E.overlap(model, x);
    return app.factors.map((_, kind) =>
      Array.from({ length: model.program.slots }, (_, slot) => {
        const factors = app.factors.map((values) => Float64Array.from(values));
        factors[kind][slot] = 0;
        const y = E.execute(model, attention, a, factors);
        return { y, p: E.softmax(y), says: y.indexOf(Math.max(...y)) };
      }),
    );
  }

  /** Everything that the views show for an image. */
  app.examine = (pixels) => {
    const x = NC.image.pooled(pixels, model.side);
    const attended = E.attend(model, x);
    const parts = E.components(model, attended.attention, app.factors);
    const adds = E.contributions(parts, x);
    const y = E.outputs(model, adds);
    const order = Array.from(y, (_, k) => k).sort((a, b) => y[b] - y[a]);
    return {
      pixels,
      x,
      attended,
      parts,
      adds,
      y,
      order,
      p: E.softmax(y),
      W: E.weight(parts),
      without: withoutEach(attended.attention, x),
      factors: app.factors,
    };
  };

  app.says = (digit) => app.compose(digit.pixels).says;
  app.changes = () => app.factors.reduce((sum, values) => sum + values.reduce((n, f) => n + (f !== 1), 0), 0);

  app.known = () => {
    programs ??= digits.map((digit) => {
      const { attention } = E.attend(model, NC.image.pooled(digit.pixels, model.side));
      return { digit, W: E.weight(E.components(model, attention, app.factors)) };
    });
    return programs;
  };

  function answer() {
    app.result = { ...app.examine(input.pixels), empty: input.empty, digit: input.digit };
    views.forEach((view) => view.update(app.result));
  }
  app.answer = answer;

  function setFactors(factors) {
    app.factors = factors;
    programs = null;
    answer();
  }
  app.setFactor = (kind, slot, factor) =>
    setFactors(
      app.factors.map((values, which) =>
        which === kind ? values.map((value, i) => (i === slot ? factor : value)) : values,
      ),
    );
  app.resetFactors = () => setFactors(E.unchanged(model));

  const drawing = NC.drawing(find("#draw-root"), {
    side: model.side,
    changed: (now) => {
      input = now;
      answer();
    },
  });
  app.pick = (digit) => drawing.show(digit);
  const between = NC.between(find("#between-root"), { app });
  const PARTS = ["picker", "answer", "slots", "attention", "components", "weights", "why", "tree", "similar"];
  const mounted = Object.fromEntries(
    [...PARTS, "learn", "episode"].map((name) => [name, NC[name](find(`#${name}-root`), { app })]),
  );
  views.push(drawing, ...Object.values(mounted), between);

  const facts = { parameters: given.parameters.toLocaleString("en"), error: `${given.error}%`, version: given.version };
  for (const [name, value] of Object.entries(facts))
    document.querySelectorAll(`[data-fact=${name}]`).forEach((place) => {
      place.textContent = value;
    });
  app.picture = NC.picture(find("#picture-root"), { app });
  app.tour = NC.tour(find("#tour-open"), { app });
  app.views = mounted;

  const first = (label) => digits.find((digit) => digit.label === label);
  between.start(first(4).pixels, first(9).pixels);
  app.pick(first(7));
  NC.paint.dark.addEventListener("change", () => {
    views.forEach((view) => view.repaint?.());
    answer();
  });
  const top = find("#bar");
  let away = false;
  const panels = ["#digit-tab", "#digit-links", "#picture-tab"].map(find);
  const show = () => top.classList.toggle("shown", away && !panels[0].hidden && scrollY > 40); // at the very top it would cover the heading
  new IntersectionObserver(([entry]) => {
    away = !entry.isIntersecting;
    show();
  }).observe(find("#answer"));
  addEventListener("scroll", show, { passive: true });
  find("#bar-back").addEventListener("click", () => {
    find("#draw").scrollIntoView({ block: "start" });
    drawing.canvas.focus({ preventScroll: true });
  });
  function open(tab) {
    panels.forEach((panel) => {
      panel.hidden = !panel.id.startsWith(tab);
    });
    show();
  }
  const tab = location.hash === "#picture" ? "picture" : "digit";
  const names = [
    ["digit", "Read a digit"],
    ["picture", "Steer a picture"],
  ];
  find("#tabs").append(NC.dom.choice("tab", "What to watch", names, tab, open));
  open(tab);
  document.documentElement.dataset.ready = "yes";
  return app;
};

NC.app = NC.start(document.getElementById("data").textContent);
