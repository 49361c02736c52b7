"use strict";
/* One input: its program, and the way to the program of another. */
NC.input = (root, app) => {
  const { find, make, percent, say, svg } = NC.dom;
  let [index, other, way, asked] = [0, null, 0, 0];
  const most = app.summary.inputs - 1;
  const field = (id, label) =>
    make("label", { for: id, class: "field" }, label, make("input", { id, type: "number", min: 0, max: most, step: 1 }));
  const first = field("first", "Input");
  const second = field("second", "mixed with");
  const range = make("input", { id: "way", type: "range", min: 0, max: 100, value: 0, "aria-label": "How much of the second" });
  const told = make("span", { class: "note number", text: "0%" });
  const result = make("div", { class: "one-input" });
  root.append(
    make("div", { class: "row asking" }, first, second, make("label", { class: "field" }, "by", range, told)),
    result,
  );
  const box = (label) => label.querySelector("input");
  const number = (label) => {
    const value = box(label).valueAsNumber;
    return Number.isInteger(value) && value >= 0 && value <= most ? value : null;
  };
  box(first).addEventListener("change", () => number(first) !== null && app.choose(number(first)));
  box(second).addEventListener("change", () => {
    other = number(second);
    ask();
  });
  range.addEventListener("input", () => {
    way = Number(range.value) / 100;
    say(told, `${range.value}%`);
    if (other !== null) ask();
  });

  function sigmas(values) {
    const top = Math.max(...values, 1e-12);
    return make(
      "figure",
      {},
      svg(
        "svg",
        { class: "sigma-bars", viewBox: `0 0 100 ${7 * values.length}`, role: "img", "aria-label": "Singular values" },
        ...values.flatMap((value, n) => [
          svg("rect", { x: 0, y: 7 * n + 1, width: (76 * value) / top, height: 5, rx: 1 }),
          svg("text", { x: (76 * value) / top + 2, y: 7 * n + 5.4, text: value.toPrecision(3) }),
        ]),
      ),
      make("figcaption", { text: "singular values σ, by component" }),
    );
  }

  function slots(found) {
    return make(
      "table",
      { class: "plain" },
      make("caption", { text: "Slots that it uses, the nearest first" }),
      make(
        "thead",
        {},
        make("tr", {}, ...["slot", "share", "cosine to its key", "written at step"].map((text) => make("th", { scope: "col", text }))),
      ),
      make(
        "tbody",
        {},
        ...found.map(([slot, share, cosine, born]) =>
          make("tr", {}, ...[slot + 1, percent(share), cosine.toFixed(2), born].map((text) => make("td", { text: String(text) }))),
        ),
      ),
    );
  }

  function draw(answer) {
    const picture = app.pictures.image(index, other === null ? null : answer.picture);
    const rows = answer.attention && answer.attention[0].map((_, n) =>
      answer.heads > 1 ? `${Math.floor(n / answer.heads) + 1}·${(n % answer.heads) + 1}` : String(n + 1),
    );
    const top = answer.attention && Math.max(...answer.attention.map(NC.heat.most));
    const labels = app.summary.labels;
    result.replaceChildren(
      make(
        "div",
        { class: "what" },
        picture ? make("figure", { class: "seen" }, picture) : "",
        make(
          "div",
          {},
          make("p", {}, make("b", { text: other === null ? `Input ${index}` : `Input ${index}, mixed with ${other}` })),
          make("p", { class: "note", text: `${labels ? `Label ${labels[index]}. ` : ""}Nearest group: ${answer.group + 1}.` }),
          answer.gate === null || answer.gate === undefined
            ? ""
            : make("p", { class: "note", text: `Gate of the residual: ${answer.gate.toFixed(2)}.` }),
        ),
        answer.answer
          ? make(
              "ol",
              { class: "bars chances" },
              ...answer.answer.slice(0, 5).map(([name, share], n) => {
                const bar = make("i");
                bar.style.transform = `scaleX(${share})`;
                return make(
                  "li",
                  { class: n ? null : "top" },
                  make("span", { text: String(name) }),
                  make("span", { class: "track" }, bar),
                  make("span", { class: "number", text: percent(share) }),
                );
              }),
            )
          : "",
      ),
      answer.attention
        ? make(
            "div",
            { class: "heats" },
            ...answer.attention.map((matrix, kind) =>
              NC.heat.draw(matrix, rows, kind, {
                caption: `Attention over ${"UVS"[kind]}`,
                corner: answer.heads > 1 ? "step·head" : "step",
                top,
              }),
            ),
            sigmas(answer.sigma),
          )
        : slots(answer.slots),
      top ? make("p", { class: "note", text: `Full colour: attention ${top.toFixed(2)}.` }) : "",
      make("h3", { text: "Inputs with the most similar programs" }),
      make(
        "div",
        { class: app.pictures.none ? "indices" : "thumbs strip-of" },
        ...answer.nearest.map(([at, distance]) => app.pictures.button(at, distance.toFixed(2))),
      ),
      make("p", { class: "note", text: "Numbers: distance between the attention vectors." }),
    );
  }

  let latest = null;
  async function ask() {
    const mine = ++asked;
    const question = { layer: app.place, index };
    if (other !== null) Object.assign(question, { other, way });
    try {
      const answer = await NC.ask("api/inspect", question);
      if (mine !== asked) return; // a newer question is on its way
      latest = answer;
      draw(answer);
    } catch (error) {
      if (mine === asked) result.replaceChildren(make("p", { class: "problem", text: error.message }));
    }
  }

  return {
    choose(at) {
      index = at;
      box(first).value = String(at);
      return ask();
    },
    repaint: () => latest && draw(latest),
    show: ask,
    scroll: () => find("#input").scrollIntoView({ block: "start" }),
  };
};
