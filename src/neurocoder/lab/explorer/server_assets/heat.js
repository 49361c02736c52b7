"use strict";
/* Numbers in rows and columns as colours: a table while it is small, an image when there are many slots. */
NC.heat = (() => {
  const { make } = NC.dom;
  const WIDE = 40;
  const MOST_BARS = 400;
  const most = (rows) => rows.reduce((top, row) => row.reduce((high, value) => Math.max(high, value), top), 0);

  function table(rows, names, kind, options, top) {
    const head = make(
      "tr",
      {},
      make("th", { class: "corner", text: options.corner ?? "" }),
      ...rows[0].map((_, i) => make("th", { scope: "col", text: String((options.numbers ?? [])[i] ?? i + 1) })),
    );
    const body = rows.map((row, n) =>
      make(
        "tr",
        {},
        make("th", { scope: "row", text: names[n] }),
        ...row.map((value, i) => {
          const cell = make("td", {
            title: `${names[n]}, slot ${i + 1}: ${value.toFixed(3)}`,
            "aria-label": value.toFixed(2),
          });
          NC.paint.cell(cell, kind, top ? value / top : 0);
          return cell;
        }),
      ),
    );
    return make(
      "table",
      { class: "heat" },
      options.caption ? make("caption", { text: options.caption }) : "",
      make("thead", {}, head),
      make("tbody", {}, ...body),
    );
  }

  function image(rows, names, kind, options, top) {
    const [width, height] = [rows[0].length, rows.length];
    const label = `${options.caption ?? "Attention"}: ${height} rows, ${width} slots`;
    const canvas = make("canvas", { width, height, role: "img", "aria-label": label });
    NC.heat.fill(canvas, rows, kind, top);
    canvas.style.height = `${Math.max(height * 1.25, 1.5)}rem`;
    const told = make("p", { class: "note number", text: " " });
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * width)));
      const row = Math.min(height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * height)));
      told.textContent = `${names[row]}, slot ${(options.first ?? 1) + column}: ${rows[row][column].toFixed(3)}`;
    });
    canvas.addEventListener("pointerleave", () => {
      told.textContent = " ";
    });
    const ends = options.ends ?? ["slot 1", `slot ${width}`];
    return make(
      "div",
      { class: "wide-heat" },
      options.caption ? make("p", { class: "caption", text: options.caption }) : "",
      make("ol", { class: "row-names" }, ...names.map((name) => make("li", { text: name }))),
      canvas,
      make("p", { class: "ends note" }, ...ends.map((text) => make("span", { text }))),
      told,
    );
  }

  /** A matrix [row][column] with the names of its rows; full colour is the largest number. */
  function draw(rows, names, kind, options = {}) {
    if (!rows.length || !rows[0].length) return make("p", { class: "note", text: "Nothing was read." });
    const top = options.top ?? most(rows);
    const wrapped = (rows[0].length <= WIDE ? table : image)(rows, names.map(String), kind, options, top);
    return make("div", { class: `kind-${"uvs"[kind]} heat-box` }, wrapped);
  }

  function fill(canvas, rows, kind, top) {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    const colour = getComputedStyle(document.documentElement).getPropertyValue(`--${"uvs"[kind]}`).trim();
    rows.forEach((row, y) =>
      row.forEach((value, x) => {
        if (value <= 0 || !top) return;
        context.fillStyle = `rgb(${colour} / ${Math.min(100, 12 + (88 * value) / top)}%)`;
        context.fillRect(x, y, 1, 1);
      }),
    );
  }

  /** The largest number of each of at most `count` neighbourhoods. */
  function binned(values, count) {
    if (values.length <= count) return values;
    const width = Math.ceil(values.length / count);
    return Array.from({ length: Math.ceil(values.length / width) }, (_, n) =>
      Math.max(...values.slice(n * width, (n + 1) * width)),
    );
  }

  /** Bars, one for each slot (or for neighbours, if there are very many), the largest as high as the box. */
  function bars(all, kind, label, numbers) {
    const { svg } = NC.dom;
    const values = binned(all, MOST_BARS);
    const top = Math.max(...values, 1e-12);
    const gap = values.length > 120 ? 0 : 0.18;
    return make(
      "div",
      { class: `kind-${"uvs"[kind]}` },
      svg(
        "svg",
        {
          class: "slot-bars",
          viewBox: `0 0 ${values.length} 10`,
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": label,
        },
        ...values.map((value, i) =>
          svg(
            "rect",
            { x: i + gap / 2, y: 10 - (10 * value) / top, width: 1 - gap, height: (10 * value) / top },
            ...(values === all ? [svg("title", { text: `slot ${i + 1}: ${value.toFixed(3)}` })] : []),
          ),
        ),
      ),
      numbers && values.length <= WIDE
        ? make("ol", { class: "bar-names", "aria-hidden": "true" }, ...values.map((_, i) => make("li", { text: String(i + 1) })))
        : numbers
          ? make("p", { class: "ends note" }, make("span", { text: "slot 1" }), make("span", { text: `slot ${all.length}` }))
          : "",
    );
  }

  return { bars, draw, fill, most };
})();
