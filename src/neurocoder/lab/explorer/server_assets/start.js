"use strict";
/* The parts of the server's page, by name. */
const NC = {};

/** Asks the server; the address of this page holds the token. */
NC.ask = async (path, question) => {
  const options = question === undefined ? {} : { method: "POST", body: JSON.stringify(question) };
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
};
