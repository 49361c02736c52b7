"use strict";
/* The Program Memory: what each slot holds, how much it is read, and its switch. */
NC.slots = (root, { app }) => {
  const { choice, make, say, slotName } = NC.dom;
  const { model } = app;
  const KINDS = [
    [
      "U",
      "what to look for",
      "Each slot of U is a left singular program u: an image. Blue pixels count for it, orange ones against it.",
    ],
    [
      "V",
      "which class to speak for",
      "Each slot of V is a right singular program v: one number for each class. Blue speaks for a class, orange against it.",
    ],
    [
      "S",
      "how strongly",
      "Each slot of S is one number. Read by attention, these numbers become the singular values: how strongly a component counts.",
    ],
  ];
  const cards = [];

  function content(kind, slot) {
    if (kind === 0) {
      const canvas = NC.paint.canvas(model.side, `u of slot ${slotName(0, slot)} as an image`);
      return {
        element: canvas,
        repaint: (limit) => NC.paint.signed(canvas, NC.equations.row(model.tensors["memory.U"], slot), limit),
      };
    }
    if (kind === 1) {
      const values = NC.equations.row(model.tensors["memory.V"], slot);
      return { element: NC.components.classBars(values, NC.paint.limit(model.tensors["memory.V"].data)).element };
    }
    return { element: make("span", { class: "value", text: NC.dom.signed(model.tensors["memory.S"].data[slot], 2) }) };
  }

  function card(kind, slot) {
    const name = slotName(kind, slot);
    const inner = content(kind, slot);
    const meter = make("i");
    const effect = make("span", { class: "effect" });
    const element = make(
      "li",
      { class: `slot kind-${"uvs"[kind]}`, id: `slot-${name}` },
      make("h4", { text: name }),
      inner.element,
      make("span", { class: "track", title: "how much this slot is read, against the others" }, meter),
      effect,
      choice(
        `slot-${name}`,
        `Slot ${name}`,
        [
          ["0", "off", "switched off"],
          ["1", "1×", "as trained"],
          ["2", "2×", "boosted"],
        ],
        "1",
        (value) => app.setFactor(kind, slot, Number(value)),
      ),
    );
    cards.push({ kind, slot, element, meter, effect, inner });
    return element;
  }

  const reset = make("button", {
    type: "button",
    id: "reset",
    text: "All slots as trained",
    onclick: () => app.resetFactors(),
  });
  KINDS.forEach(([letter, role, text], kind) => {
    root.append(
      make(
        "section",
        { class: "memory", "aria-label": `Slots of ${letter}` },
        make("h3", {}, make("b", { class: `kind-${"uvs"[kind]}`, text: letter }), `: ${role}`),
        make("p", { class: "note", text }),
        make("ul", { class: "slots" }, ...Array.from({ length: model.program.slots }, (_, slot) => card(kind, slot))),
      ),
    );
  });
  root.append(make("div", { class: "row" }, reset));

  function repaint() {
    const limit = NC.paint.limit(model.tensors["memory.U"].data);
    cards.forEach(({ inner }) => inner.repaint?.(limit));
  }
  repaint();

  return {
    repaint,
    update(result) {
      const top = result.order[0];
      const most = result.attended.attention.map((rows) =>
        rows[0].map((_, slot) => Math.max(...rows.map((row) => row[slot]))),
      );
      cards.forEach(({ kind, slot, element, meter, effect }) => {
        const read = most[kind][slot] / Math.max(...most[kind]);
        const factor = result.factors[kind][slot];
        meter.style.transform = `scaleX(${read.toFixed(3)})`;
        element.classList.toggle("off", factor === 0);
        element.classList.toggle("boosted", factor === 2);
        const without = result.without[kind][slot];
        say(
          effect,
          factor === 0
            ? "switched off"
            : without.says === top
              ? `without: ${NC.dom.percent(without.p[top])}`
              : `without: ${without.says}!`,
        );
        effect.classList.toggle("decisive", factor !== 0 && without.says !== top);
        const input = element.querySelector(`input[value="${factor}"]`);
        if (!input.checked) input.checked = true;
      });
      reset.disabled = !app.changes();
    },
  };
};
