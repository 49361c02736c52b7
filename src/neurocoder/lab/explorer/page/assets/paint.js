"use strict";
/* Numbers as colours, on canvases and elsewhere, for light and dark pages. */
NC.paint = (() => {
  /* Dark as the system is, unless the address (?theme=dark) or the page around this one asks for a theme. */
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const rule = [...document.styleSheets[0].cssRules].find(({ media }) => media?.mediaText === system.media);
  const dark = new EventTarget();
  function follow(theme) {
    dark.matches = theme === "dark" || (theme !== "light" && system.matches);
    rule.media.mediaText = dark.matches ? "all" : "not all";
    document.documentElement.style.colorScheme = dark.matches ? "dark" : "light";
    dark.dispatchEvent(new Event("change"));
  }
  let asked = new URLSearchParams(location.search).get("theme");
  follow(asked);
  system.addEventListener("change", () => follow(asked));
  addEventListener("message", ({ source, data }) => {
    if (source === parent && data?.theme) follow((asked = data.theme));
  });

  const SCHEMES = {
    light: { none: [250, 250, 248], more: [0, 92, 160], less: [205, 82, 0], ink: [24, 28, 34] },
    dark: { none: [24, 28, 33], more: [98, 184, 245], less: [255, 142, 66], ink: [236, 239, 242] },
  };
  const scheme = () => SCHEMES[dark.matches ? "dark" : "light"];

  const painted = new WeakMap(); // the colour that a cell has

  function canvas(side, label) {
    return NC.dom.make("canvas", { width: side, height: side, role: "img", "aria-label": label });
  }

  function put(target, count, colour) {
    const context = target.getContext("2d");
    const image = context.createImageData(target.width, target.height);
    for (let i = 0; i < count; i++) {
      const [from, to, share] = colour(i);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = from[c] + (to[c] - from[c]) * share;
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }

  /** Numbers of either sign: blue above zero, orange below, full colour at `limit`. */
  function signed(target, values, limit) {
    const { none, more, less } = scheme();
    put(target, values.length, (i) => {
      const share = limit > 0 ? Math.min(1, Math.abs(values[i]) / limit) : 0;
      return [none, values[i] < 0 ? less : more, Math.sqrt(share) * share ** 0.25];
    });
  }

  /** An image from 0 to 255, as ink on paper. */
  function ink(target, pixels) {
    const colours = scheme();
    put(target, pixels.length, (i) => [colours.none, colours.ink, pixels[i] / 255]);
  }

  /** A cell of a table in the colour of its kind, from none (0) to full (1). */
  function cell(target, kind, share) {
    const colour = `rgb(var(--${"uvs"[kind]}) / ${Math.round(100 * Math.min(1, share))}%)`;
    if (painted.get(target) === colour) return;
    painted.set(target, colour);
    target.style.backgroundColor = colour;
  }

  const limit = (values) => values.reduce((top, value) => Math.max(top, Math.abs(value)), 0);

  return { canvas, cell, dark, ink, limit, signed };
})();
