"use strict";
/* Two drawings, and the way between them: the image fades from A to B, and a program is composed at every point. */
NC.between = (root, { app }) => {
  const { make, percent, say, svg } = NC.dom;
  const POINTS = 41;
  const [WIDTH, HEIGHT, LEFT, TOP] = [640, 230, 56, 14];
  const sides = ["A", "B"].map((name) => {
    const canvas = NC.paint.canvas(28, `Drawing ${name}`);
    const caption = make("figcaption");
    const button = make("button", { type: "button", id: `keep-${name}`, text: `Keep as ${name}` });
    const side = { name, canvas, caption, button, pixels: null };
    button.addEventListener("click", () => {
      side.pixels = app.result.pixels;
      redo();
    });
    side.element = make("div", { class: "side" }, make("figure", {}, canvas, caption), button);
    return side;
  });
  const middle = NC.paint.canvas(28, "The blend");
  const middleCaption = make("figcaption");
  const slider = make("input", { type: "range", min: "0", max: "100", value: "50", id: "way", oninput: () => mark() });
  const lines = Array.from({ length: app.model.classes }, () => ({ line: svg("polyline"), name: svg("text") }));
  const marker = svg("line", { y1: TOP, y2: HEIGHT - 24, class: "marker" });
  const x = (t) => LEFT + t * (WIDTH - LEFT - 18);
  const y = (p) => TOP + (1 - p) * (HEIGHT - 24 - TOP);
  const axis = (text, attributes) => svg("text", { class: "axis", text, ...attributes });
  const chart = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: "way",
      role: "img",
      "aria-label": "Probability of each class on the way from A to B",
    },
    ...[0, 0.5, 1].flatMap((p) => [
      svg("line", { x1: LEFT, x2: WIDTH - 18, y1: y(p), y2: y(p), class: "grid" }),
      axis(percent(p), { x: LEFT - 5, y: y(p) + 4, "text-anchor": "end" }),
    ]),
    marker,
    ...lines.flatMap(({ line, name }) => [line, name]),
    axis("A", { x: x(0), y: HEIGHT - 4, "text-anchor": "middle" }),
    axis("B", { x: x(1), y: HEIGHT - 4, "text-anchor": "middle" }),
  );
  const told = make("p", { id: "between-told" });
  const swap = make("p", { class: "note" });
  root.append(
    make(
      "div",
      { class: "between" },
      sides[0].element,
      make(
        "div",
        { class: "side" },
        make("figure", {}, middle, middleCaption),
        make("label", { for: "way", text: "From A to B" }),
        slider,
      ),
      sides[1].element,
    ),
    told,
    chart,
    swap,
  );

  let way = [];
  const blend = (t) => sides[0].pixels.map((value, i) => (1 - t) * value + t * sides[1].pixels[i]);

  function redo() {
    way = Array.from({ length: POINTS }, (_, k) => app.compose(blend(k / (POINTS - 1))));
    lines.forEach(({ line, name }, k) => {
      const values = way.map(({ p }) => p[k]);
      const best = values.indexOf(Math.max(...values));
      const shown = values[best] > 0.1;
      line.setAttribute(
        "points",
        values.map((p, i) => `${x(i / (POINTS - 1)).toFixed(1)},${y(p).toFixed(1)}`).join(" "),
      );
      line.setAttribute("class", shown ? `line c${k}` : "line faint");
      name.textContent = shown ? k : "";
      name.setAttribute("class", `c${k}`);
      name.setAttribute("x", Math.max(LEFT + 8, Math.min(WIDTH - 26, x(best / (POINTS - 1)))).toFixed(1));
      name.setAttribute("y", (y(values[best]) + (values[best] > 0.93 ? 16 : -6)).toFixed(1));
    });
    const [a, b] = [way[0], way[POINTS - 1]];
    const stations = way.map(({ says }) => says).filter((says, i, all) => i === 0 || says !== all[i - 1]);
    say(
      told,
      stations.length === 1 ? `All the way it says ${stations[0]}.` : `On the way it says ${stations.join(", then ")}.`,
    );
    const other = (result, from) => {
      const scores = NC.equations.execute(
        app.model,
        from.attended.attention,
        NC.equations.overlap(app.model, result.x),
        app.factors,
      );
      return scores.indexOf(Math.max(...scores));
    };
    say(
      swap,
      `Programs swapped: A read with B's program is a ${other(a, b)}, B read with A's program is a ${other(b, a)}.`,
    );
    sides.forEach(({ canvas, caption, pixels }, i) => {
      NC.paint.ink(canvas, pixels);
      const end = i ? b : a;
      say(caption, `${"AB"[i]}: says ${end.says}, ${percent(end.p[end.says])}`);
    });
    mark();
  }

  function mark() {
    const t = Number(slider.value) / 100;
    const pixels = blend(t);
    const { p, says } = app.compose(pixels);
    NC.paint.ink(middle, pixels);
    say(middleCaption, `says ${says}, ${percent(p[says])}`);
    slider.setAttribute("aria-valuetext", `${slider.value} percent of B, says ${says}`);
    marker.setAttribute("x1", x(t));
    marker.setAttribute("x2", x(t));
  }

  let last = null;
  return {
    /** The drawings that the page starts with. */
    start(a, b) {
      [sides[0].pixels, sides[1].pixels] = [a, b];
      redo();
    },
    update(result) {
      if (sides[0].pixels && last !== result.factors) redo();
      last = result.factors;
    },
    repaint() {
      if (sides[0].pixels) redo();
    },
  };
};
