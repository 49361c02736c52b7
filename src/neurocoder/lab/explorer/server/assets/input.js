"use strict";
/* One input: its program, and the way to the program of another. */
NC.input = (root, app) => {
  const { find, make, percent, say, svg } = NC.dom;
  let [index, other, way, asked] = [0, null, 0, 0];
  const most = app.summary.inputs - 1;
  const field = (id, label) =>
    make(
      "label",
      { for: id, class: "field" },
      label,
      make("input", { id, type: "number", min: 0, max: most, step: 1, "aria-describedby": `${id}-problem` }),
    );
  const first = field("first", "Input");
  const second = field("second", "mixed with");
  const range = make("input", { id: "way", type: "range", min: 0, max: 100, value: 0, "aria-label": "How much of the second" });
  const told = make("span", { class: "note number", text: "0%" });
  const result = make("div", { class: "one-input" });
  const amount = make("label", { class: "field" }, "by", range, told);
  const unmixable = make("p", { class: "problem" });
  const box = (label) => label.querySelector("input");
  const problems = new Map([first, second].map((label) => [label, make("p", { id: `${box(label).id}-problem`, class: "problem" })]));
  root.append(make("div", { class: "row asking" }, first, second, amount), ...problems.values(), unmixable, result);
  box(first).value = "0";
  box(first).required = true;

  /** Says what is wrong with a number, or that nothing is; whether it is right. */
  function check(label) {
    const { id, validity } = box(label);
    const allowed = `a whole number from 0 to ${most}`;
    const text = validity.valid ? "" : id === "first" ? `Input must be ${allowed}.` : `The second input must be ${allowed}, or empty.`;
    box(label).setAttribute("aria-invalid", String(!validity.valid));
    if (text) NC.tell(text);
    say(problems.get(label), text && `${text} ${heading()} is still shown.`);
    return !text;
  }
  const heading = () => (other === null ? `Input ${index}` : `Input ${index}, mixed with ${other}`);
  for (const label of [first, second]) {
    box(label).addEventListener("input", () => box(label).validity.valid && check(label));
  }
  box(first).addEventListener("change", () => check(first) && app.choose(box(first).valueAsNumber));
  box(second).addEventListener("change", () => {
    if (!check(second)) return;
    other = box(second).value === "" ? null : box(second).valueAsNumber;
    ask();
  });
  range.addEventListener("input", () => {
    way = Number(range.value) / 100;
    say(told, `${range.value}%`);
    if (other !== null) ask();
  });

  const portion = (share) => (share === null ? "–" : percent(share));

  function sigmas(values) {
    const top = Math.max(...values, 1e-12);
    return make(
      "figure",
      {},
      svg(
        "svg",
        { class: "sigma-bars", viewBox: `0 0 100 ${7 * values.length}`, role: "img", "aria-label": `Singular values: ${values.map((value) => NC.heat.number(value)).join(", ")}` },
        ...values.flatMap((value, n) => [
          svg("rect", { x: 0, y: 7 * n + 1, width: (76 * value) / top, height: 5, rx: 1 }),
          svg("text", { x: (76 * value) / top + 2, y: 7 * n + 5.4, text: NC.heat.number(value) }),
        ]),
      ),
      make("figcaption", { text: "singular values σ" }),
    );
  }

  function slots(found) {
    return NC.dom.table(
      { class: "plain" },
      ["slot", "share", "cosine to its key", "written at step"],
      found.map(([slot, share, cosine, born]) => [slot + 1, portion(share), cosine === null ? "–" : cosine.toFixed(2), born]),
      make("caption", { text: "Slots that it uses, the nearest first" }),
    );
  }

  function draw(answer) {
    const picture = app.pictures.image(index, other === null ? null : answer.picture);
    const { heads } = answer;
    const row = (_, n, all) =>
      heads > 1 ? `${Math.floor(n / heads) + 1}·${(n % heads) + 1}` : heads || all.length > 1 ? n + 1 : "all";
    const top = answer.attention && Math.max(...answer.attention.map(NC.heat.most));
    const labels = app.summary.labels;
    const group = answer.group === null ? "" : `Nearest group: ${answer.group + 1}.`;
    const note = answer.note ? `${answer.note[0].toUpperCase()}${answer.note.slice(1)}.` : "";
    const about = [labels ? `Label ${labels[index]}.` : "", group, note].filter(Boolean).join(" ");
    replace(
      make(
        "div",
        { class: "what" },
        picture ? make("figure", { class: "seen" }, picture) : "",
        make(
          "div",
          {},
          make("h3", { tabindex: -1, text: heading() }),
          make("p", { class: "note", text: about }),
          answer.gate === null || answer.gate === undefined
            ? ""
            : make("p", { class: "note", text: `Gate of the residual: ${answer.gate.toFixed(2)}.` }),
        ),
        answer.answer
          ? make(
              "ol",
              { class: "bars chances" },
              ...answer.answer.slice(0, 5).map(([name, share], n) => {
                const { item, show } = NC.dom.meter(String(name));
                show(share ?? 0, portion(share));
                item.classList.toggle("top", n === 0);
                return item;
              }),
            )
          : "",
      ),
      answer.attention
        ? make(
            "div",
            { class: "heats" },
            ...answer.attention.map((matrix, kind) =>
              NC.heat.draw(matrix, matrix.map(row), kind, {
                caption: `How much each ${answer.titles[kind]} is read`,
                corner: heads > 1 ? "step·head" : heads ? "step" : "",
                top,
              }),
            ),
            answer.sigma ? sigmas(answer.sigma) : "",
          )
        : slots(answer.slots),
      top ? make("p", { class: "note", text: `Full colour: ${NC.heat.number(top)}.` }) : "",
      answer.decides
        ? make("p", { class: "note number", text: `What decides the program: ${answer.decides.map((value) => NC.heat.number(value)).join(", ")}.` })
        : "",
      ...(answer.nearest.length
        ? [
            make("h3", { text: "Inputs with the most similar programs" }),
            app.pictures.buttons(answer.nearest.map(([at, distance]) => [at, NC.heat.number(distance, 2)])),
            make("p", { class: "note", text: "Numbers: distance between what decides the programs." }),
          ]
        : []),
    );
    const mixed = other === null ? "" : ` by ${range.value}%`;
    const [name, share] = answer.answer?.[0] ?? [null, null];
    const says = share === null ? "" : ` The model says ${name}, ${percent(share)}.`;
    return `${heading()}${mixed}. ${about}${says}`;
  }

  /** Where the keyboard goes when what it was on is gone: the heading, or the error. */
  const rest = () => result.querySelector("[tabindex='-1']")?.focus({ preventScroll: true });
  function replace(...parts) {
    const held = result.contains(document.activeElement);
    result.replaceChildren(...parts);
    if (held) rest();
  }

  /** These inputs cannot be mixed: offers it no more, and shows the first one alone. */
  function unmix(reason) {
    const held = [box(second), range].includes(document.activeElement);
    other = null;
    for (const part of [second, amount, find("#mixing-about")]) part.hidden = true;
    if (held) box(first).focus({ preventScroll: true });
    const text = `${reason[0].toUpperCase()}${reason.slice(1)}.`;
    say(unmixable, text);
    return ask(`${text} `);
  }

  async function ask(before = "") {
    const mine = ++asked;
    const question = { layer: app.place, index };
    if (other !== null) Object.assign(question, { other, way });
    try {
      const answer = await NC.ask("api/inspect", question);
      if (mine !== asked) return; // a newer question is on its way
      NC.tell(before + draw(answer));
    } catch (error) {
      if (mine !== asked) return;
      if (error.refused && other !== null) {
        await unmix(error.message);
        return;
      }
      replace(make("p", { class: "problem", tabindex: -1, text: error.message }));
      NC.tell(before + error.message);
    }
  }

  return {
    choose(at) {
      index = at;
      box(first).value = String(at);
      check(first);
      say(unmixable, "");
      return ask();
    },
    show: ask,
    /** Goes to the result, for whoever chose an input elsewhere on the page. */
    visit() {
      find("#input").scrollIntoView({ block: "start" });
      rest();
    },
  };
};
