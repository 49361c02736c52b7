"use strict";
/* A picture that a small network draws. A place on the pad decides the blend of its programs, and so its weights. */
NC.picture = (root, { app }) => {
  const { make, say, signed } = NC.dom;
  const { given } = app;
  const { latents, labels, facts } = given.picture;
  const network = NC.steered(given.picture);
  const [PAD, THUMB, QUICK, FINE] = [720, 56, 28, 112]; // pixels
  const STEP = 0.04;
  const images = NC.data.bytes(given.picture.images);
  const digits = labels.map((label, n) => ({ label, at: latents[n], pixels: images.subarray(784 * n, 784 * (n + 1)) }));
  const MARGIN = THUMB / PAD; // of the pad, for the digits at its edges
  const share = (value) => (MARGIN + (1 + value) * (1 - MARGIN)) / 2;
  const limit = digits.reduce((top, { at }) => Math.max(top, NC.paint.limit(network.blend(at))), 0);
  let place = [...digits.find(({ label }) => label === 6).at];
  let blend = null;
  let finer = null; // the timer of the fine picture

  const pad = make("canvas", {
    id: "latent",
    width: PAD,
    height: PAD,
    tabindex: "0",
    role: "application",
    "aria-label": "Pad of all pictures. Drag the ring, or move it with the arrow keys.",
  });
  const ring = make("i", { class: "ring" });
  const picture = NC.paint.canvas(QUICK, "The picture that is drawn");
  const told = make("p", { class: "note", id: "picture-told" });
  const rows = Array.from({ length: network.blend(place).length }, (_, k) => {
    const box = make("input", { type: "checkbox", checked: "", onchange: () => show() });
    const [bar, number] = [make("i"), make("span", { class: "number" })];
    const label = make("label", {}, box, ` program ${k + 1}`);
    return { box, bar, number, item: make("li", {}, label, make("span", { class: "axis" }, bar), number) };
  });
  root.append(
    make(
      "div",
      { class: "steer" },
      make("div", { class: "latent" }, pad, ring),
      make("figure", { class: "drawn" }, picture, make("figcaption", {}, told)),
      make(
        "div",
        { class: "blend" },
        make("h3", { text: "The blend of programs" }),
        make("ul", { class: "margin" }, ...rows.map(({ item }) => item)),
      ),
    ),
  );

  /** Draws the place of now: quickly while it moves, and on more points when it rests. */
  function show(side = QUICK) {
    clearTimeout(finer);
    blend = network.blend(place).map((value, k) => (rows[k].box.checked ? value : 0));
    [picture.width, picture.height] = [side, side];
    NC.paint.ink(picture, network.draw(blend, side));
    if (side !== QUICK) return;
    ring.style.left = `${100 * share(place[0])}%`;
    ring.style.top = `${100 * share(place[1])}%`;
    rows.forEach(({ bar, number }, k) => {
      bar.className = blend[k] < 0 ? "less" : "more";
      bar.style.width = `${50 * Math.min(1, Math.abs(blend[k]) / limit)}%`;
      say(number, signed(blend[k], 2));
    });
    const distance = ({ at }) => Math.hypot(at[0] - place[0], at[1] - place[1]);
    const near = digits.reduce((best, digit) => (distance(digit) < distance(best) ? digit : best));
    say(told, `${distance(near) < 0.02 ? "This is" : "The nearest one that it learned is"} a ${near.label}.`);
    finer = setTimeout(() => show(FINE), 250);
  }

  /** The digits that the network learned, each where its latent is. */
  function repaint() {
    const context = pad.getContext("2d");
    const small = make("canvas", { width: 28, height: 28 });
    NC.paint.ink(small, new Uint8Array(784));
    context.globalCompositeOperation = "source-over";
    context.drawImage(small, 0, 0, PAD, PAD);
    context.globalCompositeOperation = NC.paint.dark.matches ? "lighten" : "darken";
    for (const { at, pixels } of digits) {
      NC.paint.ink(small, pixels.map((value) => value * 0.6));
      context.drawImage(small, ...at.map((value) => share(value) * PAD - THUMB / 2), THUMB, THUMB);
    }
    show();
  }

  function move(to) {
    place = to.map((value) => Math.max(-1, Math.min(1, value)));
    show();
  }

  let active = null; // the pointer that drags
  function drag(event) {
    const box = pad.getBoundingClientRect();
    const value = (along) => (2 * along - MARGIN) / (1 - MARGIN) - 1;
    move([value((event.clientX - box.left) / box.width), value((event.clientY - box.top) / box.height)]);
  }
  pad.addEventListener("pointerdown", (event) => {
    if (active !== null || event.button > 0) return;
    active = event.pointerId;
    pad.setPointerCapture(active);
    drag(event);
  });
  pad.addEventListener("pointermove", (event) => {
    if (event.pointerId === active) drag(event);
  });
  for (const name of ["pointerup", "pointercancel"])
    pad.addEventListener(name, (event) => {
      if (event.pointerId === active) active = null;
    });
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  pad.addEventListener("keydown", (event) => {
    const step = MOVES[event.key];
    if (!step) return;
    event.preventDefault();
    move(place.map((value, n) => value + STEP * step[n]));
  });

  document.querySelectorAll("[data-picture]").forEach((element) => {
    element.textContent = facts[element.dataset.picture].toLocaleString("en");
  });
  NC.paint.dark.addEventListener("change", repaint);
  repaint();
  return { ...network, move, state: () => ({ place, blend, side: picture.width }) };
};
