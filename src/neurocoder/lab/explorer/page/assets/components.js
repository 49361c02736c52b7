"use strict";
/* The components of the active program: sigma_n u_n v_n, and what each adds to the answer. */
NC.components = (root, { app }) => {
  const { make, say, signed, svg } = NC.dom;
  const { heads } = app.model.program;
  const count = app.model.components;

  const cards = Array.from({ length: count }, (_, n) => {
    const image = NC.paint.canvas(app.model.side, `u of component ${n + 1} as an image`);
    const bars = NC.components.classBars(new Float64Array(app.model.classes), 1);
    const sigma = make("b", { class: "sigma" });
    const adds = make("p", { class: "adds" });
    const element = make(
      "li",
      { class: "component" },
      make("h4", { text: `Component ${n + 1}` }),
      make("p", {
        class: "note",
        text: `step ${Math.floor(n / heads) + 1}${heads > 1 ? `, head ${(n % heads) + 1}` : ""}`,
      }),
      make(
        "div",
        { class: "product" },
        make("figure", {}, image, make("figcaption", { text: "u: look for" })),
        make("span", { text: "×" }),
        make("figure", {}, sigma, make("figcaption", { text: "σ: strength" })),
        make("span", { text: "×" }),
        make("figure", {}, bars.element, make("figcaption", { text: "v: speak for" })),
      ),
      adds,
    );
    return { image, bars, sigma, adds, element };
  });

  const columns = Array.from({ length: count }, (_, n) => ({
    bar: svg("rect", { x: 14 + n * 50, width: 36, rx: 3 }),
    number: svg("text", { x: 32 + n * 50, "text-anchor": "middle" }),
    name: svg("text", { x: 32 + n * 50, y: 116, "text-anchor": "middle", class: "axis", text: `σ${n + 1}` }),
  }));
  const chart = svg(
    "svg",
    { viewBox: `0 0 ${count * 50 + 14} 122`, class: "sigmas", role: "img", "aria-label": "Singular values" },
    ...columns.flatMap(({ bar, number, name }) => [bar, number, name]),
  );
  root.append(
    make(
      "figure",
      { class: "values" },
      chart,
      make("figcaption", {
        text:
          "Singular values. Attention over the slots of S gives each component something positive; its singular value is that plus the next one. " +
          "So they fall, and the first component counts the most, as in a singular value decomposition.",
      }),
    ),
    make("ol", { class: "components" }, ...cards.map(({ element }) => element)),
  );

  return {
    update(result) {
      const { sigma, u, v } = result.parts;
      const first = result.order[0];
      const most = Math.max(...v.map(NC.paint.limit));
      chart.setAttribute("aria-label", `Singular values: ${Array.from(sigma, (value) => value.toFixed(1)).join(", ")}`);
      cards.forEach(({ image, bars, sigma: number, adds }, n) => {
        NC.paint.signed(image, u[n], NC.paint.limit(u[n]));
        bars.set(v[n], most);
        say(number, sigma[n].toFixed(1));
        const mean = result.adds[n].reduce((a, b) => a + b, 0) / result.adds[n].length;
        say(adds, `gives class ${first} ${signed(result.adds[n][first] - mean)} points over the mean class`);
        const height = (88 * sigma[n]) / sigma[0];
        columns[n].bar.setAttribute("height", height.toFixed(1));
        columns[n].bar.setAttribute("y", (102 - height).toFixed(1));
        columns[n].number.setAttribute("y", (98 - height).toFixed(1));
        say(columns[n].number, sigma[n].toFixed(1));
      });
    },
  };
};

/** Ten bars above and below zero, one for each class: { element, set(values, limit) }. */
NC.components.classBars = (values, limit) => {
  const { svg } = NC.dom;
  const bars = Array.from(values, (_, k) => svg("rect", { x: k * 10 + 1.5, width: 7, rx: 1 }));
  const names = Array.from(values, (_, k) => svg("text", { x: k * 10 + 5, y: 69, "text-anchor": "middle", text: k }));
  const element = svg(
    "svg",
    { viewBox: "0 0 100 72", class: "class-bars", role: "img" },
    svg("line", { x1: 0, x2: 100, y1: 30, y2: 30 }),
    ...bars,
    ...names,
  );
  function set(now, top) {
    const best = now.indexOf(Math.max(...now));
    element.setAttribute(
      "aria-label",
      `Class weights, largest for ${best}: ${Array.from(now, (value) => value.toFixed(2)).join(", ")}`,
    );
    bars.forEach((bar, k) => {
      const height = 29 * Math.min(1, Math.abs(now[k]) / (top || 1));
      bar.setAttribute("y", (now[k] < 0 ? 30 : 30 - height).toFixed(1));
      bar.setAttribute("height", height.toFixed(1));
      bar.setAttribute("class", now[k] < 0 ? "less" : "more");
    });
  }
  set(values, limit);
  return { element, set };
};
