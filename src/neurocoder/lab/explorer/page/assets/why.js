"use strict";
/* Why this class and not the next one: an exact sum over components, a map over pixels, and the slots that matter. */
NC.why = (root, { app }) => {
  const { make, percent, say, signed, slotName } = NC.dom;
  const { classes, side } = app.model;
  const title = NC.dom.find("#why-title");
  const question = NC.dom.find("#question-why");
  const told = make("p", { id: "why-told" });
  const map = NC.paint.canvas(side, "Evidence of each pixel");
  const mapped = make("figcaption");
  const rows = Array.from({ length: app.model.components + 1 }, (_, n) => {
    const [bar, number] = [make("i"), make("span", { class: "number" })];
    const name = n < app.model.components ? `component ${n + 1}` : "bias";
    return {
      bar,
      number,
      item: make("li", {}, make("span", { text: name }), make("span", { class: "axis" }, bar), number),
    };
  });
  const sum = make("p", { class: "sum" });
  const list = make("ul", { class: "decisive-slots" });
  const buttons = Array.from({ length: 4 }, () => {
    const [words, button] = [make("span"), make("button", { type: "button" })];
    const entry = { words, button, kind: 0, slot: 0 };
    button.addEventListener("click", () =>
      app.setFactor(entry.kind, entry.slot, app.factors[entry.kind][entry.slot] === 0 ? 1 : 0),
    );
    list.append(make("li", {}, words, button));
    return entry;
  });
  root.append(
    told,
    make(
      "div",
      { class: "why" },
      make("figure", { class: "evidence" }, map, mapped),
      make(
        "div",
        {},
        make("h3", { text: "Component by component" }),
        make("ol", { class: "margin" }, ...rows.map(({ item }) => item)),
        sum,
      ),
      make(
        "div",
        {},
        make("h3", { text: "Slots that matter here" }),
        list,
        make("p", { class: "note", text: "Without these the most probability goes to other classes, whichever they are." }),
      ),
    ),
  );

  return {
    update(result) {
      const [first, second] = result.order;
      const margin = result.adds.map((part) => part[first] - part[second]);
      const bias = app.model.tensors.bias.data;
      margin.push(bias[first] - bias[second]);
      const total = margin.reduce((a, b) => a + b, 0);
      const top = NC.paint.limit(margin);
      const strongest = margin.slice(0, -1).indexOf(Math.max(...margin.slice(0, -1)));
      const evidence = Float64Array.from(
        result.x,
        (value, d) => value * (result.W[d * classes + first] - result.W[d * classes + second]),
      );
      say(title, result.empty ? "Why did it say that?" : `Why did it say ${first}?`);
      say(
        told,
        result.empty
          ? "Draw something first. What you see now belongs to the empty image."
          : `For this drawing it composed a weight that gives class ${first} a lead of ${total.toFixed(1)} points over class ${second}, the next best. ` +
              `Component ${strongest + 1} argues the most for ${first}. The points of all components add up exactly.`,
      );
      say(question, result.empty ? "Draw a digit first." : `${told.textContent}`);
      NC.paint.signed(map, evidence, NC.paint.limit(evidence));
      map.setAttribute("aria-label", `Evidence of each pixel for ${first} against ${second}`);
      say(mapped, `pixels for ${first} (blue) and for ${second} (orange)`);
      rows.forEach(({ bar, number }, n) => {
        bar.className = margin[n] < 0 ? "less" : "more";
        bar.style.width = `${((50 * Math.abs(margin[n])) / (top || 1)).toFixed(1)}%`;
        say(number, signed(margin[n]));
      });
      say(sum, `Sum: ${signed(total)} for ${first} against ${second}`);
      /* The share of the probability that goes to other classes: the total variation of the two answers. */
      const moved = ({ p }) => p.reduce((sum, share, k) => sum + Math.abs(share - result.p[k]), 0) / 2;
      const effects = result.without.flatMap((slots, kind) =>
        slots.map((without, slot) => ({ kind, slot, without, moved: moved(without) })),
      );
      effects.sort((a, b) => b.moved - a.moved);
      buttons.forEach((entry, i) => {
        const { kind, slot, without } = effects[i];
        Object.assign(entry, { kind, slot });
        const name = slotName(kind, slot);
        say(entry.words, `Without ${name}: says ${without.says}, ${percent(without.p[without.says])}`);
        say(entry.button, `Switch ${name} off`);
      });
    },
  };
};
