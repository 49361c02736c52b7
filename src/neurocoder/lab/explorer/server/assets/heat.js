"use strict";
/* Numbers in rows and columns as colours: a table while it is small, an image when there are many slots. */
NC.heat = (() => {
  const { make } = NC.dom;
  const WIDE = 40;
  const MOST_BARS = 400;
  const most = (rows) => rows.reduce((top, row) => row.reduce((high, value) => Math.max(high, value), top), 0);

  /** The digits that count, however small the number is; the server sends null for what is not finite. */
  const number = (value, digits = 3) => (value === null ? "not finite" : String(Number(value.toPrecision(digits))));
  /** What one number stands for, in words. */
  function told(rows, names, options, row, column) {
    const width = options.width ?? 1;
    const slots = width > 1 ? `slots ${column * width + 1} to ${(column + 1) * width}` : `slot ${column + 1}`;
    return `${options.corner ? `${options.corner} ` : ""}${names[row]}, ${slots}: ${number(rows[row][column])}`;
  }

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
            title: told(rows, names, options, n, i),
            "aria-label": number(value),
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
    const label = `${options.caption ?? "Attention"}: ${height} rows, ${width} ${options.width > 1 ? "columns" : "slots"}. Arrow keys read the values.`;
    const canvas = make("canvas", { width, height, role: "application", tabindex: 0, "aria-label": label });
    NC.heat.fill(canvas, rows, kind, top);
    canvas.style.height = `${Math.max(height * 1.25, 1.5)}rem`;
    const value = make("p", { class: "note number value-at", text: " " });
    const cursor = make("i", { class: "cell-cursor", hidden: "" });
    cursor.style.width = `${100 / width}%`;
    cursor.style.height = `${100 / height}%`;
    let [row, column] = [0, 0];
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    function show() {
      cursor.hidden = false;
      cursor.style.left = `${(100 * column) / width}%`;
      cursor.style.top = `${(100 * row) / height}%`;
      value.textContent = told(rows, names, options, row, column);
    }
    function hide() {
      cursor.hidden = true;
      value.textContent = " ";
    }
    function point(event) {
      const box = canvas.getBoundingClientRect();
      column = within(Math.floor(((event.clientX - box.left) / box.width) * width), width);
      row = within(Math.floor(((event.clientY - box.top) / box.height) * height), height);
      show();
    }
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && hide());
    canvas.addEventListener("blur", hide);
    canvas.addEventListener("focus", () => {
      show();
      NC.tell(value.textContent);
    });
    const page = Math.ceil(width / 10);
    const moves = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      PageUp: [0, -page],
      PageDown: [0, page],
      Home: [0, -width],
      End: [0, width],
    };
    canvas.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      row = within(row + move[0], height);
      column = within(column + move[1], width);
      show();
      NC.tell(value.textContent);
    });
    const ends = options.ends ?? ["slot 1", `slot ${width}`];
    return make(
      "div",
      { class: "wide-heat" },
      options.caption ? make("p", { class: "caption", text: options.caption }) : "",
      make("ol", { class: "row-names" }, ...names.map((name) => make("li", { text: name }))),
      make("div", { class: "cells" }, canvas, cursor),
      make("p", { class: "ends note" }, ...ends.map((text) => make("span", { text }))),
      value,
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
            ...(values === all ? [svg("title", { text: `slot ${i + 1}: ${number(value)}` })] : []),
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

  return { bars, draw, fill, most, number };
})();
