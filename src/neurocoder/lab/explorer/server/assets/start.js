"use strict";
/* The parts of the server's page, by name. */
const NC = {};

/** Asks the server; the address of this page holds the token. */
NC.ask = async (path, question = {}) => {
  const answer = await fetch(`${path}?${new URLSearchParams(question)}`).catch(() => {
    throw Object.assign(new Error("The server has stopped: start `neurocoder explore` again."), { stopped: true });
  });
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { refused: answer.status === 400 });
  return content;
};

/** Tells a screen reader the last of what happens in quick succession. */
NC.tell = (() => {
  let waiting = 0;
  return (text) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => NC.dom.say(NC.dom.find("#spoken"), text), 150);
  };
})();
