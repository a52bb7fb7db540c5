// On a narrow screen the conversations and the figures are folded; a button shows one of them in the
// place of the chat.

import { at } from "./dom.js";

const PANELS = ["chats", "figures"];

function show(name) {
  document.body.dataset.open = name;
}

export function setUpPanels() {
  const follow = () => PANELS.forEach((each) => at("open-" + each).setAttribute("aria-expanded", document.body.dataset.open === each));
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-open"] });
  for (const each of PANELS) {
    at("open-" + each).addEventListener("click", () => show(document.body.dataset.open === each ? "" : each));
  }
  document.addEventListener("keydown", (event) => {
    const { open } = document.body.dataset;
    if (event.key !== "Escape" || !open) return;
    at("open-" + open).focus();
    show("");
  });
}
