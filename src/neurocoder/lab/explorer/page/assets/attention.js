"use strict";
/* Attention over the slots, step by step and head by head, and the parts it is made of. */
NC.attention = (root, { app }) => {
  const { choice, make, say } = NC.dom;
  const { slots, steps, heads } = app.model.program;
  const QUANTITIES = [
    ["attention", "attention w", "how much of each slot is read"],
    ["content", "content c", "how well the slot's key fits the step's query"],
    ["leastUsed", "least-used l", "slots that earlier steps of this head left aside"],
    ["gate", "gate g", "1: content decides, 0: least-used decides"],
  ];
  const TITLES = ["U: what to look for", "V: which class to speak for", "S: how strongly"];
  let quantity = "attention";
  let chosen = { kind: 0, component: steps > 1 ? heads : 0 }; // the second step: the first has no least-used part
  let last = null;

  const rowName = (n) => (heads > 1 ? `step ${Math.floor(n / heads) + 1}, head ${(n % heads) + 1}` : `step ${n + 1}`);
  const numbers = Array.from({ length: slots }, (_, i) => make("th", { scope: "col", text: String(i + 1) }));

  function grid(kind) {
    const cells = [];
    const rows = Array.from({ length: steps * heads }, (_, n) => {
      const row = Array.from({ length: slots }, () => make("td"));
      cells.push(row);
      const button = make("button", {
        type: "button",
        class: "pick",
        text: heads > 1 ? `${Math.floor(n / heads) + 1}·${(n % heads) + 1}` : String(n + 1),
        "aria-label": `${rowName(n)}: show the parts`,
        onclick: () => {
          chosen = { kind, component: n };
          show();
        },
      });
      return {
        button,
        element: make("tr", { class: n % heads === 0 ? "first" : null }, make("th", { scope: "row" }, button), ...row),
      };
    });
    const element = make(
      "table",
      { class: `heat kind-${"uvs"[kind]}` },
      make("caption", { text: TITLES[kind] }),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { class: "corner", text: heads > 1 ? "step·head" : "step" }),
          ...numbers.map((th) => th.cloneNode(true)),
        ),
      ),
      make("tbody", {}, ...rows.map((row) => row.element)),
    );
    return { cells, rows, element };
  }

  const grids = [0, 1, 2].map(grid);
  const meaning = make("p", { class: "note", id: "quantity" });
  const [whole, content, idle, gate] = QUANTITIES.map(([name, title]) => ({
    name,
    title,
    cells: Array.from({ length: slots }, () => make("td")),
  }));
  const order = [content, gate, idle, whole];
  const stacks = Array.from({ length: slots }, () => ({
    content: make("i", { class: "content" }),
    idle: make("i", { class: "idle" }),
  }));
  const caption = make("caption");
  const detail = make(
    "table",
    { class: "parts" },
    caption,
    make("thead", {}, make("tr", {}, make("th", { text: "slot" }), ...numbers)),
    make(
      "tbody",
      {},
      make(
        "tr",
        { class: "stacks", "aria-hidden": "true" },
        make("th", { text: "w" }),
        ...stacks.map(({ content, idle }) => make("td", {}, make("div", {}, idle, content))),
      ),
      ...order.map(({ title, cells }) => make("tr", {}, make("th", { scope: "row", text: title }), ...cells)),
    ),
  );
  root.append(
    choice(
      "quantity",
      "Show",
      QUANTITIES.map(([name, title]) => [name, title]),
      quantity,
      (value) => {
        quantity = value;
        show();
      },
    ),
    meaning,
    make("div", { class: "heats" }, ...grids.map(({ element }) => element)),
    make(
      "div",
      { class: "detail" },
      detail,
      make(
        "p",
        { class: "note" },
        make("i", { class: "key content" }),
        " gate × content  ",
        make("i", { class: "key idle" }),
        " (1 − gate) × least-used. Together they are the attention: w = g c + (1 − g) l. It need not sum to one.",
      ),
    ),
  );

  let later = 0;

  /** The numbers, for screen readers, once the drawing rests. */
  function label() {
    grids.forEach(({ cells }, kind) =>
      cells.forEach((row, n) =>
        row.forEach((cell, i) => cell.setAttribute("aria-label", last.attended[quantity][kind][n][i].toFixed(2))),
      ),
    );
  }

  function show() {
    clearTimeout(later);
    later = setTimeout(label, 300);
    const { attended } = last;
    const top =
      quantity === "gate"
        ? 1
        : Math.max(1e-9, ...attended[quantity].flatMap((rows) => rows.map((row) => Math.max(...row))));
    const [, , words] = QUANTITIES.find(([name]) => name === quantity);
    say(
      meaning,
      `${words[0].toUpperCase()}${words.slice(1)}. Full colour: ${top > 1e-8 ? top.toFixed(2) : "none yet"}. Choose a row to see how its attention is made.`,
    );
    grids.forEach(({ cells, rows }, kind) => {
      cells.forEach((row, n) =>
        row.forEach((cell, i) => NC.paint.cell(cell, kind, attended[quantity][kind][n][i] / top)),
      );
      rows.forEach(({ button }, n) =>
        button.setAttribute("aria-pressed", kind === chosen.kind && n === chosen.component),
      );
    });
    const { kind, component } = chosen;
    say(caption, `How ${rowName(component)} weighs the slots of ${"UVS"[kind]}`);
    detail.className = `parts kind-${"uvs"[kind]}`;
    order.forEach(({ name, cells }) =>
      cells.forEach((cell, i) => say(cell, attended[name][kind][component][i].toFixed(2).replace(/^0/, ""))),
    );
    const largest = Math.max(...attended.attention[kind][component]);
    stacks.forEach(({ content, idle }, i) => {
      const [g, c, l] = ["gate", "content", "leastUsed"].map((name) => attended[name][kind][component][i]);
      const [below, above] = [(g * c) / largest, ((1 - g) * l) / largest];
      content.style.transform = `scaleY(${below.toFixed(3)})`;
      idle.style.transform = `translateY(${(-100 * below).toFixed(1)}%) scaleY(${above.toFixed(3)})`;
    });
  }

  return {
    update(result) {
      last = result;
      show();
    },
  };
};
