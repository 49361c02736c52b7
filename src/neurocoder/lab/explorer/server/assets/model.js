"use strict";
/* The whole: a list of layers, and the views of the chosen one. */
NC.start = async () => {
  const { find, make, say } = NC.dom;
  const summary = await NC.ask("api/summary");
  const app = { summary, place: 0, known: new Map() };
  NC.app = app;
  app.pictures = NC.pictures(app);
  const number = (value) => value.toLocaleString("en");
  const [name, ...rest] = summary.title.split(":").reverse();
  say(find("#title"), rest.length ? `${rest.reverse().join(":")}:${name}` : name);
  const right = summary.says && summary.says.filter((said, i) => said === summary.labels[i]).length;
  const shape = summary.shape && summary.shape.length ? ` of shape ${summary.shape.join(" × ")}` : "";
  say(
    find("#facts"),
    `${summary.layers.length} coded ${summary.layers.length === 1 ? "layer" : "layers"}, ${number(summary.parameters.total)} parameters in all, ` +
      `seen with ${number(summary.inputs)} inputs${shape}` +
      `${right === null || right === undefined ? "." : `, of which it tells ${((100 * right) / summary.inputs).toFixed(1)}% right.`}`,
  );
  find("#facts").after(...(summary.notes ?? []).map((text) => make("p", { class: "problem", text: `${text[0].toUpperCase()}${text.slice(1)}.` })));
  say(find("#version"), summary.version);

  const usage = NC.usage(find("#usage-root"), app);
  const clusters = NC.clusters(find("#clusters-root"), app);
  const growth = NC.growth(find("#growth-root"), app);
  const input = NC.input(find("#input-root"), app);
  const drift = summary.runs.length ? NC.drift(find("#drift-root"), app) : null;
  find("#drift").hidden = !drift;

  const about = (layer) => {
    const c = layer.config;
    const [outputs, inputs, ...kernel] = layer.shape;
    const size = `${inputs} → ${outputs}${kernel.length ? `, kernel ${kernel.join(" × ")}` : ""}`;
    if (layer.grows) return [size, `up to ${number(c.max_slots ?? c.slots)} slots of rank ${c.rank}`];
    if (c.steps && c.heads) return [size, `P=${c.slots} J=${c.steps} H=${c.heads}`];
    return [size, Object.entries(c).map(([key, value]) => `${key}=${value}`).join(" ")];
  };
  const buttons = summary.layers.map((layer, place) =>
    make(
      "button",
      { type: "button", class: "layer", onclick: () => app.open(place), "aria-pressed": "false" },
      make("b", { text: layer.name }),
      make("span", { class: "tag", text: layer.kind }),
      ...about(layer).map((text) => make("span", { class: "note", text })),
      make("span", {
        class: "note number",
        text: `${number(layer.parameters.total)} parameters: ${["memory", "controller", "residual", "main"]
          .filter((part) => layer.parameters[part])
          .map((part) => `${part} ${number(layer.parameters[part])}`)
          .join(", ")}`,
      }),
    ),
  );
  find("#layers").append(...buttons);

  function show(layer) {
    const problem = find("#problem");
    problem.hidden = !layer.problem;
    const layerName = summary.layers[app.place].name;
    say(problem, layer.error ? layer.problem : layer.problem ? `${layerName}: ${layer.problem}.` : "");
    for (const part of ["usage", "clusters", "input"]) find(`#${part}`).hidden = Boolean(layer.problem);
    find("#growth").hidden = !layer.growth;
    if (layer.problem) return NC.tell(layer.error ? layer.problem : `Layer ${problem.textContent}`);
    usage.show(layer);
    clusters.show(layer);
    if (layer.growth) growth.show(layer);
    return input.show(`Layer ${layerName}. `);
  }

  app.open = async (place) => {
    app.place = place;
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === place)));
    NC.tell(`Layer ${summary.layers[place].name}`);
    try {
      if (!app.known.has(place)) app.known.set(place, await NC.ask("api/layer", { place }));
      if (app.place === place) await show(app.known.get(place));
    } catch (error) {
      if (app.place === place) await show({ problem: error.message, error: true });
    }
  };
  app.choose = async (index, scroll = false) => {
    await input.choose(index);
    if (scroll) input.visit();
  };
  NC.paint.dark.addEventListener("change", () => {
    const layer = app.known.get(app.place);
    if (layer) show(layer);
    drift?.repaint();
  });
  const first = summary.layers.findIndex((layer) => !layer.problem);
  await app.open(Math.max(0, first));
  if (drift) await drift.show(0);
  document.documentElement.dataset.ready = "yes";
};

NC.start().catch((error) => {
  NC.dom.say(NC.dom.find("#facts"), error.stopped ? error.message : `The server does not answer: ${error.message}`);
  document.documentElement.dataset.ready = "failed";
});
