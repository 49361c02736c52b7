"use strict";
/* The paper's decision tree: in each of the first components, which of two attention patterns is nearer. */
NC.tree = (root, { app }) => {
  const { make, percent, say, svg } = NC.dom;
  const { centres, paths } = app.tree;
  const depth = centres.length;
  const leaves = 1 << depth;
  const [WIDTH, ROW, LEFT, GAP] = [410, 30, 8, 54];
  const height = leaves * ROW + 24;
  const at = (level, node) => [LEFT + level * GAP, 20 + (node + 0.5) * ROW * (leaves >> level)];

  const edges = [];
  const drawing = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    class: "tree",
    role: "img",
    "aria-labelledby": "tree-told",
  });
  for (let level = 1; level <= depth; level++) {
    for (let node = 0; node < 1 << level; node++) {
      const [[x1, y1], [x2, y2]] = [at(level - 1, node >> 1), at(level, node)];
      const line = svg("path", { d: `M${x1} ${y1} C${x1 + GAP / 2} ${y1} ${x2 - GAP / 2} ${y2} ${x2} ${y2}` });
      edges.push({ level, node, line });
      drawing.append(line);
    }
  }
  const nodes = [];
  for (let level = 0; level <= depth; level++) {
    for (let node = 0; node < 1 << level; node++) {
      const [x, y] = at(level, node);
      const circle = svg("circle", { cx: x, cy: y, r: level ? 9 : 5 });
      const letter = svg("text", { x, y: y + 4, "text-anchor": "middle", text: level ? "AB"[node & 1] : "" });
      nodes.push({ level, node, circle, letter });
      drawing.append(circle, letter);
    }
  }
  for (let level = 0; level < depth; level++) {
    const place = { x: LEFT + (level + 0.95) * GAP, y: 11, "text-anchor": "middle" };
    drawing.append(svg("text", { ...place, class: "axis", text: `comp. ${level + 1}` }));
  }

  /** Which digits end in a leaf: a bar in parts, and the most frequent by name. */
  const totals = Array.from({ length: leaves }, (_, leaf) => paths.reduce((sum, row) => sum + row[leaf], 0));
  const ends = Array.from({ length: leaves }, (_, leaf) => {
    const [x, y] = at(depth, leaf);
    const shares = paths
      .map((row, digit) => ({ digit, share: totals[leaf] ? row[leaf] / totals[leaf] : 0 }))
      .sort((a, b) => b.share - a.share);
    const group = svg("g", { class: "leaf" });
    let from = x + 22;
    const width = WIDTH - from - 4;
    for (const { digit, share } of shares) {
      const size = share * width;
      if (size < 1) continue;
      group.append(
        svg("rect", { x: from.toFixed(1), y: y - 12, width: Math.max(0, size - 1.5).toFixed(1), height: 24, rx: 3 }),
      );
      const middle = { x: (from + size / 2 - 0.75).toFixed(1), y: y + 5, "text-anchor": "middle" };
      if (size > 15) group.append(svg("text", { ...middle, text: digit }));
      from += size;
    }
    drawing.append(group);
    return { group, shares };
  });

  const strips = centres.map((patterns, n) => {
    const strip = (name) => {
      const cells = Array.from({ length: app.model.program.slots }, () => make("td"));
      return { cells, element: make("tr", {}, make("th", { scope: "row", text: name }), ...cells) };
    };
    const rows = ["A", "B", "this drawing"].map(strip);
    const top = Math.max(...patterns.map((values) => Math.max(...values)));
    const element = make(
      "table",
      { class: "heat kind-u" },
      make("caption", { text: `Component ${n + 1}: attention over U` }),
      make("tbody", {}, ...rows.map((row) => row.element)),
    );
    return { rows, element, patterns, top };
  });
  const told = make("p", { id: "tree-told" });
  root.append(
    told,
    make(
      "div",
      { class: "forest" },
      make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Decision tree" }, drawing),
      make("div", { class: "patterns" }, ...strips.map(({ element }) => element)),
    ),
  );

  /** The nearest pattern in each component. */
  function follow(attention) {
    return centres.map((patterns, n) => {
      const far = patterns.map((centre) => centre.reduce((sum, value, i) => sum + (value - attention[n][i]) ** 2, 0));
      return far[1] < far[0] ? 1 : 0;
    });
  }

  return {
    follow,
    update(result) {
      const choices = follow(result.attended.attention[0]);
      const path = choices.reduce((sum, choice) => 2 * sum + choice, 0);
      const on = (level, node) => path >> (depth - level) === node;
      edges.forEach(({ level, node, line }) => line.classList.toggle("on", on(level, node)));
      nodes.forEach(({ level, node, circle, letter }) =>
        [circle, letter].forEach((part) => part.classList.toggle("on", on(level, node))),
      );
      ends.forEach(({ group }, leaf) => group.classList.toggle("on", leaf === path));
      const [one, two] = ends[path].shares;
      say(
        told,
        `Path ${choices.map((choice) => "AB"[choice]).join(" → ")}: ${percent(totals[path] / totals.reduce((a, b) => a + b, 0))} of the test digits take it, ` +
          `mostly ${one.digit} (${percent(one.share)}) and ${two.digit} (${percent(two.share)}).`,
      );
      strips.forEach(({ rows, patterns, top }, n) => {
        const shown = [...patterns, result.attended.attention[0][n]];
        rows.forEach(({ cells, element }, which) => {
          element.classList.toggle("on", which === choices[n]);
          cells.forEach((cell, i) => NC.paint.cell(cell, 0, shown[which][i] / top));
        });
      });
    },
  };
};
