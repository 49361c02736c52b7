"use strict";
/* The explorer has the theme that is chosen on this site. */
addEventListener("DOMContentLoaded", () => {
  const frame = document.querySelector("iframe.explorer");
  if (!frame) return;
  const address = frame.getAttribute("src");
  const links = document.querySelectorAll(`a[href="${address}"]`);
  function tell() {
    const { theme } = document.body.dataset;
    frame.contentWindow.postMessage({ theme }, "*"); // a page that is opened as a file has no origin to name
    for (const link of links) link.setAttribute("href", `${address}?theme=${theme}`);
  }
  frame.addEventListener("load", tell);
  new MutationObserver(tell).observe(document.body, { attributeFilter: ["data-theme"] });
  tell();
});
