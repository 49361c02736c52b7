"use strict";
/* A guided tour: one card that goes from part to part. */
NC.tour = (opener, { app }) => {
  const { find, make, say } = NC.dom;
  const { slots, steps, heads } = app.model.program;
  const STOPS = [
    [
      "#draw",
      "Draw a digit",
      "A usual network has one program: its weights, the same for every input. A Neurocoder composes a new program for each input. Draw, or pick a test digit, and watch all parts of the page follow.",
    ],
    [
      "#answer",
      "The answer",
      `The Main Network here is one linear layer, y = x W. It reads ${app.model.side} × ${app.model.side} means of pixels and gives each class a score; softmax makes them probabilities. Only W is unusual: it was made for your drawing.`,
    ],
    [
      "#slots",
      "What is a slot?",
      `The Program Memory stores singular programs: ${slots} slots of U (what to look for), ${slots} of V (which class to speak for) and ${slots} of S (how strongly). They were learned in training and are shared by all inputs. Bricks, not buildings.`,
    ],
    [
      "#attention",
      "The steps choose slots",
      `The Program Controller reads the drawing and attends to the slots in ${steps} steps with ${heads} heads. Content attention takes slots whose keys fit the query. Least-used attention takes slots that earlier steps left aside. A gate weighs the two for every slot.`,
    ],
    [
      "#components",
      "What each step read",
      "Each step and head gives one component: a mixed u, a mixed v and a singular value σ. Singular values fall from component to component, as in a singular value decomposition.",
    ],
    [
      "#weights",
      "The active program",
      "The sum of all components is the active program P, here the weight W itself: one image for each class. Below you see how it differs from the average one. That difference is what the drawing asked for.",
    ],
    [
      "#why",
      "Why did it say that?",
      "Each component adds points to each class, and the points add up exactly. Beside it: the pixels that argued for the answer, and the slots without which the answer would suffer.",
    ],
    [
      "#tree",
      "The decision tree",
      "The paper reads the attention of the first three components as decisions. Each has two typical patterns, A and B. A path through three decisions leads to groups of digits. The bars show who takes it, over all test digits.",
    ],
    [
      "#similar",
      "Similar programs",
      "Programs can be compared. These test digits got the weights nearest to yours: often the same digit, written in the same way.",
    ],
    [
      "#slots",
      "Switch a slot off",
      "Try it: set slots to off or to 2×, and see the answer change. “without: 3!” on a card means that this one slot decides. The attention stays as it was; only what is read from the slot changes.",
    ],
    [
      "#between",
      "Between two drawings",
      "Keep two drawings as A and B. On the way from one to the other the program changes, mostly smoothly. A jump is a point where another slot becomes the least used.",
    ],
    [
      "#learn",
      "Watch it learn",
      "Press play: two networks learn five tasks, one after the other, in your browser. In the plain one new tasks overwrite old ones. The growing layer writes a new slot for an image that is unlike all its keys, and keeps the old ones.",
    ],
    [
      "#episode",
      "Programs that act",
      "A recorded episode of an agent. Its policy is one layer whose weight is composed anew at each step; beside the screen you see which slots it reads. Done! The questions at the end say more.",
    ],
  ];
  const title = make("h2", { id: "tour-title", tabindex: "-1" });
  const text = make("p", { id: "tour-text" });
  const where = make("span", { class: "note" });
  const back = make("button", { type: "button", text: "Back", onclick: () => go(at - 1) });
  const next = make("button", {
    type: "button",
    class: "main",
    id: "tour-next",
    onclick: () => (at + 1 < STOPS.length ? go(at + 1) : close()),
  });
  const end = make("button", {
    type: "button",
    class: "close",
    "aria-label": "Close the tour",
    text: "×",
    onclick: () => close(),
  });
  const card = make(
    "div",
    { id: "tour", role: "dialog", "aria-labelledby": "tour-title", "aria-describedby": "tour-text", hidden: "" },
    end,
    title,
    text,
    make("div", { class: "row" }, back, next, where),
  );
  document.body.append(card);
  let at = -1;

  function light(selector) {
    document.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
    if (selector) find(selector).classList.add("lit");
  }

  function go(stop) {
    at = stop;
    const [target, heading, words] = STOPS[at];
    say(title, heading);
    say(text, words);
    say(where, `${at + 1} of ${STOPS.length}`);
    say(next, at + 1 < STOPS.length ? "Next" : "Done");
    back.disabled = at === 0;
    card.hidden = false;
    light(target);
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    find(target).scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
    title.focus({ preventScroll: true });
  }

  function close() {
    card.hidden = true;
    light(null);
    opener.focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !card.hidden) close();
  });
  opener.addEventListener("click", () => go(0));
  return { go, close };
};
