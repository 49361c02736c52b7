"use strict";
/* How much each slot is read over the data, and by which labels. */
NC.usage = (root, app) => {
  const { choice, make, say } = NC.dom;
  const about = NC.dom.find("#usage-about");
  const MEANINGS = {
    u: "U: what the layer looks for in its input.",
    v: "V: what it adds to its output.",
    s: "S: how strongly, the singular values.",
  };
  let kind = 0;

  function show(layer) {
    const { usage, titles } = layer;
    const kinds = Object.keys(titles);
    kind = Math.min(kind, kinds.length - 1);
    const [slot] = titles[kinds[kind]].split(" of ");
    const mean = usage.mean[kind];
    const total = mean.reduce((a, b) => a + b, 0) || 1;
    const order = mean.map((_, i) => i).sort((a, b) => mean[b] - mean[a]);
    const idle = mean.filter((value) => value < (0.01 * total) / mean.length).length;
    let [count, sum] = [0, 0];
    while (sum < 0.8 * total && count < mean.length) sum += mean[order[count++]];
    const empty = layer.growth && !layer.growth.written;
    say(
      about,
      empty ? "No slot is written yet: the layer does what it did before it was recoded." : `On average over ${app.summary.inputs.toLocaleString("en")} inputs, ` +
        `${count} of ${mean.length} ${slot}s carry 80% of what is read; ${slot} ${order[0] + 1} is read most. ` +
        `${idle ? `${idle} ${idle === 1 ? "is" : "are"} hardly read.` : "None is idle."}` +
        `${layer.note ? ` ${layer.note}.` : ""}`,
    );
    const parts = [
      kinds.length > 1
        ? choice(
            "kind",
            "Slots of",
            kinds.map((name, i) => [i, name.toUpperCase(), titles[name]]),
            kind,
            (value) => {
              kind = Number(value);
              show(layer);
              NC.dom.find(`input[name=kind][value="${kind}"]`).focus();
            },
          )
        : "",
      kinds.length > 1 ? make("p", { class: "note", text: MEANINGS[kinds[kind]] ?? titles[kinds[kind]] }) : "",
      make("h3", { text: "All inputs" }),
      NC.heat.bars(mean, kind, `How much each of ${mean.length} ${slot}s is read`, true),
    ];
    if (usage.by_label) {
      parts.push(
        make("h3", { text: "By label" }),
        NC.heat.draw(usage.by_label[kind], usage.labels, kind, { corner: "label" }),
        make("p", { class: "note", text: `Full colour: ${NC.heat.number(NC.heat.most(usage.by_label[kind]))}.` }),
      );
    }
    root.replaceChildren(...(empty ? [] : parts.filter(Boolean)));
  }
  return { show };
};
