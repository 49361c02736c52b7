"use strict";
/* The drawing area: mouse, touch, pen, or the keyboard. */
NC.drawing = (root, { changed, side }) => {
  const { make } = NC.dom;
  const PIXELS = 560;
  const STEP = 1 / 28;
  const canvas = make("canvas", {
    id: "pad",
    width: PIXELS,
    height: PIXELS,
    tabindex: "0",
    role: "application",
    "aria-label": "Drawing area. Arrow keys move the pen, space puts it down or lifts it.",
    "aria-describedby": "pad-help",
  });
  const seen = NC.paint.canvas(side, "What the layer reads");
  let strokes = [];
  let shown = null; // the pixels of a test digit, where one was picked
  let active = null; // the pointer that draws
  let pen = null; // the keyboard's pen: { x, y, down }

  function paint() {
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    context.clearRect(0, 0, PIXELS, PIXELS);
    if (shown) {
      const small = make("canvas", { width: 28, height: 28 });
      NC.paint.ink(small, shown);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, 0, 0, PIXELS, PIXELS);
      return;
    }
    context.strokeStyle = context.fillStyle = style.color;
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = PIXELS / 14;
    for (const stroke of strokes) {
      context.beginPath();
      stroke.forEach(([x, y], k) => context[k ? "lineTo" : "moveTo"](x * PIXELS, y * PIXELS));
      if (stroke.length === 1) context.lineTo(stroke[0][0] * PIXELS + 0.1, stroke[0][1] * PIXELS);
      context.stroke();
    }
    if (pen && document.activeElement === canvas) {
      context.lineWidth = 3;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.beginPath();
      context.arc(pen.x * PIXELS, pen.y * PIXELS, PIXELS / 28 + (pen.down ? 0 : 8), 0, 7);
      context.stroke();
    }
  }

  function tell() {
    paint();
    changed({ pixels: NC.image.fromStrokes(strokes), empty: !strokes.length, digit: null });
  }

  function begin(point) {
    if (shown) clear();
    strokes.push([point]);
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    const within = (value) => Math.max(0, Math.min(1, value));
    return [within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height)];
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (active !== null || event.button > 0) return;
    active = event.pointerId;
    canvas.setPointerCapture(active);
    pen = null;
    begin(place(event));
    tell();
    event.preventDefault();
  });
  let waiting = false;
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId !== active) return;
    const stroke = strokes[strokes.length - 1];
    for (const one of event.getCoalescedEvents?.().length ? event.getCoalescedEvents() : [event]) {
      const point = place(one);
      const last = stroke[stroke.length - 1];
      if (Math.hypot(point[0] - last[0], point[1] - last[1]) > 0.008) stroke.push(point);
    }
    if (waiting) return;
    waiting = true; // one answer for each picture that the screen shows
    requestAnimationFrame(() => {
      waiting = false;
      if (!shown) tell();
    });
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      if (event.pointerId === active) active = null;
    });
  }

  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    pen = pen || { x: 0.5, y: 0.25, down: false };
    if (event.key === " ") {
      pen.down = !pen.down;
      if (pen.down) begin([pen.x, pen.y]);
    } else {
      pen.x = Math.max(0.05, Math.min(0.95, pen.x + move[0] * STEP));
      pen.y = Math.max(0.05, Math.min(0.95, pen.y + move[1] * STEP));
      if (pen.down && strokes.length) strokes[strokes.length - 1].push([pen.x, pen.y]);
    }
    if (pen.down && strokes.length) tell();
    else paint();
  });
  canvas.addEventListener("focus", paint);
  canvas.addEventListener("blur", paint);

  function clear() {
    strokes = [];
    shown = null;
  }

  const button = (id, text, action) => make("button", { type: "button", id, text, onclick: action });
  root.append(
    make(
      "div",
      { class: "pad" },
      canvas,
      make(
        "div",
        {},
        make("figure", { class: "seen" }, seen, make("figcaption", { text: "what the layer reads" })),
        button("undo", "Undo", () => {
          if (shown) clear();
          strokes.pop();
          tell();
        }),
        button("clear", "Clear", () => {
          clear();
          pen = null;
          tell();
        }),
      ),
    ),
    make("p", { id: "pad-help", class: "sr", text: "Or pick one of the test digits below." }),
  );

  return {
    canvas,
    /** Shows a test digit instead of a drawing. */
    show(digit) {
      clear();
      shown = digit.pixels;
      paint();
      changed({ pixels: digit.pixels, empty: false, digit });
    },
    update(result) {
      NC.paint.signed(
        seen,
        result.x.map((value) => value + 0.1307 / 0.3081),
        2.6,
      );
    },
    repaint: paint,
  };
};
