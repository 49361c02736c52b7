"use strict";
/* Growing layers: when slots were written, how much they were visited, what they serve. */
NC.growth = (root, app) => {
  const { make, svg } = NC.dom;
  const COLOURS = ["#0072b2", "#b34700", "#00795a", "#a3437b", "#7549c4", "#2a6fa8", "#8a5a00", "#00776b", "#b82e6b", "#565bb8"];
  const SHOWN = 12;
  let order = "visits";

  function curve(growth) {
    const { born, steps, written } = growth;
    const end = Math.max(steps, born.at(-1) ?? 0, 1);
    const [width, height] = [600, 150];
    const x = (step) => 40 + ((width - 50) * step) / end;
    const y = (count) => height - 22 - ((height - 34) * count) / Math.max(written, 1);
    let path = `M${x(0)} ${y(0)}`;
    born.forEach((step, n) => {
      path += `H${x(step).toFixed(1)}V${y(n + 1).toFixed(1)}`;
    });
    const words = (px, py, text, anchor) => svg("text", { x: px, y: py, text, "text-anchor": anchor });
    return make(
      "figure",
      {},
      svg(
        "svg",
        { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${written} slots written in ${end} steps` },
        svg("line", { x1: 40, x2: width - 10, y1: y(0), y2: y(0) }),
        svg("line", { x1: 40, x2: width - 10, y1: y(written), y2: y(written), class: "faint" }),
        svg("path", { d: `${path}H${x(end)}` }),
        words(36, y(written) + 4, String(written), "end"),
        words(36, y(0) + 4, "0", "end"),
        words(40, height - 6, "step 0", "start"),
        words(width - 10, height - 6, `step ${end}`, "end"),
      ),
      make("figcaption", { text: "slots written, by optimiser step" }),
    );
  }

  function mixture(shares, labels) {
    const bar = make("span", { class: "mixture" });
    const told = [];
    shares.forEach((share, n) => {
      if (share < 0.02) return;
      const part = make("i", { title: `label ${labels[n]}: ${Math.round(100 * share)}%` });
      part.style.background = COLOURS[n % COLOURS.length];
      part.style.flexGrow = String(share);
      if (share > 0.15) part.textContent = String(labels[n]);
      told.push(`${labels[n]} ${Math.round(100 * share)}%`);
      bar.append(part);
    });
    bar.setAttribute("aria-label", told.join(", ") || "not used by this data");
    return told.length ? bar : make("span", { class: "note", text: "not used here" });
  }

  function show(layer) {
    const growth = layer.growth;
    const sorted = growth.slots.slice().sort(order === "visits" ? (a, b) => b.visits - a.visits : (a, b) => b.born - a.born);
    const visits = growth.slots.map((slot) => slot.visits);
    const share = growth.written / growth.capacity;
    const headings = ["slot", "written at step", "visits", ...(growth.labels.length ? ["labels it serves"] : []), "inputs that use it most"];
    root.replaceChildren(
      make("p", {
        text: `${growth.written.toLocaleString("en")} of ${growth.capacity.toLocaleString("en")} slots are written (${Math.round(100 * share)}%).`,
      }),
      make(
        "div",
        { class: "two" },
        curve(growth),
        growth.slots.length
          ? make(
              "figure",
              {},
              NC.heat.bars(visits, 1, "Visits of each slot in order of writing", false),
              make("figcaption", { text: "visits in training, slots in order of writing" }),
            )
          : "",
      ),
      NC.dom.choice(
        "order",
        "Slots",
        [
          ["visits", "most visited"],
          ["born", "newest"],
        ],
        order,
        (value) => {
          order = value;
          show(layer);
          NC.dom.find(`input[name=order][value="${order}"]`).focus();
        },
      ),
      make(
        "div",
        { class: "scroll" },
        NC.dom.table(
          { class: "plain slots-table" },
          headings,
          sorted.slice(0, SHOWN).map((slot) => [
            slot.slot + 1,
            slot.born,
            Math.round(slot.visits).toLocaleString("en"),
            ...(growth.labels.length ? [mixture(slot.labels, growth.labels)] : []),
            make("div", { class: "few" }, ...slot.inputs.map((index) => app.pictures.button(index))),
          ]),
        ),
      ),
    );
  }
  return { show };
};
