"use strict";
/* Test digits whose composed weights are nearest to this drawing's. */
NC.similar = (root, { app }) => {
  const { make, say } = NC.dom;
  const SHOWN = 10;
  const norm = Math.sqrt(NC.equations.dot(app.average, app.average));
  const told = make("p", { id: "similar-told" });
  const items = Array.from({ length: SHOWN }, () => {
    const canvas = NC.paint.canvas(28, "");
    const caption = make("span");
    const item = { canvas, caption, digit: null };
    item.button = make("button", { type: "button", class: "thumb", onclick: () => app.pick(item.digit) }, canvas);
    item.element = make("li", {}, item.button, caption);
    return item;
  });
  root.append(told, make("ul", { class: "thumbs similar" }, ...items.map(({ element }) => element)));

  return {
    update(result) {
      const known = app.known();
      const near = known
        .filter(({ digit }) => digit !== result.digit)
        .map(({ digit, W }) => {
          let sum = 0;
          for (let i = 0; i < W.length; i++) sum += (W[i] - result.W[i]) ** 2;
          return { digit, apart: Math.sqrt(sum) / norm };
        })
        .sort((a, b) => a.apart - b.apart)
        .slice(0, SHOWN);
      const votes = new Map();
      near.forEach(({ digit }) => votes.set(digit.label, (votes.get(digit.label) || 0) + 1));
      const [[label, count]] = [...votes].sort((a, b) => b[1] - a[1]);
      say(
        told,
        `Of the ${SHOWN} nearest, ${count} ${count === 1 ? "is a" : "are"} ${label}${count === 1 ? "" : "s"}. The number is the distance between two weights, as a share of the average weight's size.`,
      );
      items.forEach((item, i) => {
        const { digit, apart } = near[i];
        if (item.digit !== digit) NC.paint.ink(item.canvas, digit.pixels);
        item.digit = digit;
        item.button.setAttribute("aria-label", `a ${digit.label}, distance ${apart.toFixed(2)}; show it`);
        say(item.caption, apart.toFixed(2));
      });
    },
    repaint() {
      items.forEach(({ canvas, digit }) => digit && NC.paint.ink(canvas, digit.pixels));
    },
  };
};
