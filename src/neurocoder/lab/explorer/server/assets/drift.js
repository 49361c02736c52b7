"use strict";
/* How the usage of slots moved over training: checkpoints, or records of runs. */
NC.drift = (root, app) => {
  const { make } = NC.dom;
  const body = make("div");
  const picker = make(
    "select",
    { id: "run", onchange: () => show(Number(picker.value), true) },
    ...app.summary.runs.map((title, place) => make("option", { value: place, text: title })),
  );
  root.append(make("label", { class: "field", for: "run" }, "Run", picker), body);

  function difference(values, rows) {
    if (!values.length) return "";
    const far = values.indexOf(Math.max(...values));
    return make("p", {
      class: "note",
      text:
        `Usage differs most between ${rows[far]} and ${rows[far + 1]}: ${(100 * values[far]).toFixed(0)}% of the attention is on other slots. ` +
        `Row by row: ${values.map((value) => `${(100 * value).toFixed(0)}%`).join(", ")}.`,
    });
  }

  let latest = null;
  function draw(run) {
    latest = run;
    const metrics = Object.entries(run.metrics);
    body.replaceChildren(
      make("p", { text: run.about }),
      metrics.length
        ? make("p", { class: "note number", text: metrics.map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`).join("; ") })
        : "",
      ...run.problems.map((text) => make("p", { class: "problem", text })),
      run.panels.length ? "" : make("p", { class: "note", text: "No layer has usage at two moments." }),
      ...run.panels.flatMap((panel) => [
        make("h3", { text: panel.title }),
        NC.heat.draw(panel.usage, panel.rows, 0, {
          corner: "",
          width: panel.width,
          ends: ["first slot", panel.width > 1 ? `last slot (${panel.width} to a column)` : "last slot"],
        }),
        difference(panel.moved, panel.rows),
      ]),
    );
  }

  async function show(place, aloud = false) {
    const tell = aloud ? NC.tell : () => undefined;
    body.replaceChildren(make("p", { class: "note", text: "Reading …" }));
    try {
      draw(await NC.ask("api/run", { place }));
      tell(`${app.summary.runs[place]}: ${body.querySelectorAll("h3").length} tables. ${[...body.querySelectorAll(".problem")].map((one) => one.textContent).join(" ")}`);
    } catch (error) {
      body.replaceChildren(make("p", { class: "problem", text: error.message }));
      tell(error.message);
    }
  }
  return { repaint: () => latest && draw(latest), show };
};
