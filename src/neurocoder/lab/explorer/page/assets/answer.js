"use strict";
/* The answer: the class, and the probability of each. */
NC.answer = (root, { app }) => {
  const { make, percent, say } = NC.dom;
  const big = make("p", { class: "big", id: "class" });
  const said = make("p", { id: "said" });
  const rows = Array.from({ length: app.model.classes }, (_, k) => NC.dom.meter(String(k)));
  root.append(
    make("div", { class: "verdict" }, big, said),
    make("ol", { class: "bars", "aria-label": "Probability of each class" }, ...rows.map(({ item }) => item)),
  );
  const spoken = NC.dom.find("#spoken");
  const bar = { class: NC.dom.find("#bar-class"), text: NC.dom.find("#bar-text"), image: NC.dom.find("#bar-image") };
  let later = 0;

  return {
    update(result) {
      const [first, second] = result.order;
      const changes = app.changes();
      const note = changes ? ` With ${changes} slot${changes > 1 ? "s" : ""} changed.` : "";
      const digit = result.digit ? ` Its label: ${result.digit.label}.` : "";
      const text = result.empty
        ? "Nothing is drawn yet."
        : `${percent(result.p[first])} sure. Next: ${second}, ${percent(result.p[second])}.${digit}${note}`;
      say(big, result.empty ? "?" : String(first));
      say(said, text);
      big.classList.toggle("wrong", Boolean(result.digit) && result.digit.label !== first);
      rows.forEach(({ item, show }, k) => {
        show(result.p[k]);
        item.classList.toggle("top", k === first && !result.empty);
      });
      say(bar.class, result.empty ? "?" : String(first));
      say(
        bar.text,
        result.empty ? "draw a digit" : `${percent(result.p[first])}${changes ? ` · ${changes} changed` : ""}`,
      );
      NC.paint.ink(bar.image, result.pixels);
      clearTimeout(later); // a screen reader hears the answer once the drawing rests
      later = setTimeout(() => say(spoken, result.empty ? text : `It says ${first}. ${text}`), 500);
    },
  };
};
