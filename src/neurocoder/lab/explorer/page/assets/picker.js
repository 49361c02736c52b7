"use strict";
/* Test digits to pick from, class by class; those that the layer gets wrong are marked. */
NC.picker = (root, { app }) => {
  const { make } = NC.dom;
  const list = make("ul", { class: "thumbs", "aria-label": "Test digits" });
  let canvases = [];

  function fill(label) {
    canvases = app.digits
      .filter((digit) => digit.label === label)
      .map((digit) => {
        const canvas = NC.paint.canvas(28, "");
        const says = app.says(digit);
        const wrong = says === digit.label ? "" : `, read as ${says}`;
        const button = make(
          "button",
          {
            type: "button",
            class: wrong ? "thumb wrong" : "thumb",
            title: `test digit ${digit.place}${wrong}`,
            "aria-label": `a ${digit.label}, test digit ${digit.place}${wrong}`,
            onclick: () => app.pick(digit),
          },
          canvas,
        );
        return { canvas, digit, item: make("li", {}, button) };
      });
    list.replaceChildren(...canvases.map(({ item }) => item));
    repaint();
  }

  function repaint() {
    canvases.forEach(({ canvas, digit }) => NC.paint.ink(canvas, digit.pixels));
  }

  const labels = Array.from({ length: app.model.classes }, (_, k) => [String(k), String(k)]);
  root.append(
    NC.dom.choice("pick", "Or pick a test digit", labels, "7", (value) => fill(Number(value))),
    list,
    make("p", { class: "note", text: "Orange frame: the layer gets this one wrong." }),
  );
  fill(7);
  return { update() {}, repaint };
};
