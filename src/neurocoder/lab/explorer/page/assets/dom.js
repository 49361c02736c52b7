"use strict";
/* Small helpers for elements. */
NC.dom = (() => {
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const find = (selector) => document.querySelector(selector);
  const percent = (share) =>
    share > 0.995 && share < 1 ? ">99%" : share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`;
  const signed = (value, digits = 1) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
  const slotName = (kind, slot) => `${"UVS"[kind]}${slot + 1}`;

  /** Sets text only where it changed, so that nothing is laid out twice. */
  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /** A row of a list of bars: { item, show }; `show` takes the share, and a text that is not its percentage. */
  function meter(name) {
    const [bar, number] = [make("i"), make("span", { class: "number" })];
    const item = make("li", {}, make("span", { text: name }), make("span", { class: "track" }, bar), number);
    function show(share, text = percent(share)) {
      bar.style.transform = `scaleX(${share.toFixed(4)})`;
      say(number, text);
    }
    return { item, show };
  }

  /** A table with headings; a row is a list of texts or elements, the first of which names it. */
  function table(attributes, headings, rows, ...before) {
    const head = headings.map((text) => make("th", { scope: "col" }, text));
    const body = rows.map(([name, ...row]) =>
      make("tr", {}, make("th", { scope: "row" }, name), ...row.map((content) => make("td", {}, content))),
    );
    return make("table", attributes, ...before, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  }

  /** A row of radio buttons that look like one switch. */
  function choice(name, legend, options, chosen, onchange) {
    return make(
      "fieldset",
      { class: "choice" },
      make("legend", { text: legend }),
      ...options.map(([value, text, title]) => {
        const input = make("input", { type: "radio", name, value, onchange: () => onchange(value) });
        input.checked = value === chosen;
        return make("label", { title: title || null }, input, make("span", { text }));
      }),
    );
  }

  return { choice, find, make, meter, percent, say, signed, slotName, svg, table };
})();
