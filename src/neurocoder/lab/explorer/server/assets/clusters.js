"use strict";
/* Groups of inputs with similar programs. */
NC.clusters = (root, app) => {
  const { make, percent, say } = NC.dom;
  const about = NC.dom.find("#clusters-about");

  function labelBars(counts, labels) {
    const top = Math.max(...counts, 1);
    return make(
      "ol",
      { class: "label-bars" },
      ...counts.map((count, i) => {
        const bar = make("i");
        bar.style.height = `${(100 * count) / top}%`;
        return make(
          "li",
          { title: `label ${labels[i]}: ${count} inputs`, "aria-label": `label ${labels[i]}: ${count}` },
          make("span", { class: "column" }, bar),
          make("span", { text: String(labels[i]) }),
        );
      }),
    );
  }

  function show(layer) {
    const { groups, labels, silhouette } = layer.clusters;
    const slots = layer.titles.u.replace(/ of |$/, "s$&");
    const clear =
      silhouette >= 0.5
        ? "The groups are distinct"
        : silhouette >= 0.25
          ? "The groups are weak"
          : "There are hardly any groups: programs vary continuously";
    say(
      about,
      groups.length === 1
        ? "All inputs have the same program: this layer makes no difference between them."
        : `${groups.length} groups, found by k-means over what decides the programs. ${clear} (silhouette ${silhouette.toFixed(2)}).`,
    );
    root.replaceChildren(
      make(
        "ol",
        { class: "groups" },
        ...groups.map((group, n) =>
          make(
            "li",
            { class: "group" },
            make(
              "div",
              {},
              make("h3", { text: `Group ${n + 1}` }),
              make("p", {
                class: "note",
                text: `${group.size} ${group.size === 1 ? "input" : "inputs"}, ${percent(group.size / app.summary.inputs)}`,
              }),
            ),
            make(
              "figure",
              {},
              NC.heat.bars(group.usage, 0, `How much group ${n + 1} reads the ${slots}`, false),
              make("figcaption", { text: `${slots} it reads` }),
            ),
            labels.length
              ? make("figure", {}, labelBars(group.labels, labels), make("figcaption", { text: "inputs of each label" }))
              : "",
            make(
              "figure",
              { class: "typical" },
              app.pictures.buttons(group.typical.map((index) => [index])),
              make("figcaption", { text: "typical inputs" }),
            ),
          ),
        ),
      ),
      app.summary.says
        ? make("p", { class: "note wrong-note", text: "Orange border: the model says another class than the label." })
        : "",
    );
  }
  return { show };
};
