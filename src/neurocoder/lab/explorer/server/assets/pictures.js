"use strict";
/* Inputs as thumbnails, or as their numbers. */
NC.pictures = (app) => {
  const { make } = NC.dom;
  const given = app.summary.pictures;
  const unpack = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const pixels = given && unpack(given.data);
  const [height, width, channels] = given ? given.shape : [0, 0, 0];
  const each = height * width * channels;

  function paint(canvas, own) {
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = own[channels === 3 ? 3 * i + c : i];
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }

  const name = (index) => {
    const { labels, says } = app.summary;
    const label = labels ? `, label ${labels[index]}` : "";
    return `input ${index}${label}${says ? `, says ${says[index] ?? "nothing"}` : ""}`;
  };
  const wrong = (index) => app.summary.says && app.summary.says[index] !== app.summary.labels[index];

  /** The image of an input, or of bytes that the server sent; null if inputs are no images. */
  function image(index, bytes) {
    if (!given) return null;
    const canvas = make("canvas", { width, height, role: "img", "aria-label": name(index) });
    paint(canvas, bytes ? unpack(bytes) : pixels.subarray(index * each, (index + 1) * each));
    return canvas;
  }

  /** A button that chooses an input. */
  function button(index, below) {
    return make(
      "button",
      {
        type: "button",
        class: `thumb${wrong(index) ? " wrong" : ""}`,
        title: name(index),
        "aria-label": `Show ${name(index)}`,
        onclick: () => app.choose(index, true),
      },
      image(index) ?? make("span", { class: "index", text: String(index) }),
      below ? make("span", { class: "below", text: below }) : "",
    );
  }

  /** Several, from [index, what is below]. */
  const buttons = (list) =>
    make("div", { class: given ? "thumbs strip-of" : "indices" }, ...list.map(([index, below]) => button(index, below)));

  return { button, buttons, image };
};
