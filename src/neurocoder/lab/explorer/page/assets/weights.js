"use strict";
/* The weight that was composed for this drawing: one image for each class. */
NC.weights = (root, { app }) => {
  const { choice, make } = NC.dom;
  const { classes, side } = app.model;
  let shared = false;
  let last = null;

  function strip(title, note) {
    const images = Array.from({ length: classes }, (_, k) => {
      const canvas = NC.paint.canvas(side, `${title}, class ${k}`);
      return { canvas, figure: make("figure", {}, canvas, make("figcaption", { text: String(k) })) };
    });
    root.append(
      make("h3", { text: title }),
      make("p", { class: "note", text: note }),
      make("div", { class: "strip" }, ...images.map(({ figure }) => figure)),
    );
    return images;
  }

  root.append(
    choice(
      "shared",
      "What all classes share changes no probability",
      [
        ["no", "leave it out"],
        ["yes", "show it too"],
      ],
      "no",
      (value) => {
        shared = value === "yes";
        show();
      },
    ),
  );
  const whole = strip(
    "Weight of each class",
    "A column of W as an image. Ink on blue pixels raises the class, ink on orange ones lowers it.",
  );
  const apart = strip(
    "Difference to the average weight",
    "What is special about this drawing's program: W minus its mean over the 10,000 test digits, on the same scale.",
  );

  /** The weight of each class as an image, with or without the mean over the classes. */
  function columns(W) {
    const images = Array.from({ length: classes }, () => new Float64Array(side * side));
    for (let d = 0; d < side * side; d++) {
      const row = W.subarray(d * classes, (d + 1) * classes);
      const mean = shared ? 0 : row.reduce((a, b) => a + b, 0) / classes;
      row.forEach((value, k) => {
        images[k][d] = value - mean;
      });
    }
    return images;
  }

  function show() {
    const own = columns(last.W);
    const different = columns(last.W.map((value, i) => value - app.average[i]));
    const limit = Math.max(...own.map(NC.paint.limit));
    [
      [whole, own],
      [apart, different],
    ].forEach(([images, found]) =>
      images.forEach(({ canvas, figure }, k) => {
        NC.paint.signed(canvas, found[k], limit);
        figure.classList.toggle("top", k === last.order[0] && !last.empty);
      }),
    );
  }

  return {
    update(result) {
      last = result;
      show();
    },
  };
};
