// Markdown as elements.  Every word goes in as a text node.

import { copyButton, make } from "../dom.js";
import { blocks } from "./blocks.js";
import { inline } from "./inline.js";

// Show a text in an element.  Blocks that are there already stay: a text that grows is cheap, and
// neither a selection nor a place in a table is lost.
export function show(element, text) {
  const found = ordered(blocks(text)), there = [...element.children];
  let same = 0;
  while (same < found.length && there[same]?.source === found[same].source) same += 1;
  for (const old of there.slice(same)) old.remove();
  for (const block of found.slice(same)) {
    const made = MAKERS[block.kind](block);
    made.source = block.source;
    element.append(made);
  }
}

// Give headings their levels without gaps, for readers that navigate by headings.  The message itself
// has level 2, and each heading is at most one level deeper than the heading before it.
function ordered(found) {
  let former = 2;
  for (const block of found) {
    if (block.kind === "heading") block.tag = former = Math.min(block.level + 2, former + 1, 6);
  }
  return found;
}

function words(tag, text, properties = {}) {
  const made = make(tag, properties);
  inline(text, made);
  return made;
}

function all(found) {
  return found.map((block) => MAKERS[block.kind](block));
}

function code({ language, text }) {
  const bar = make("div", { className: "bar-of-code" }, make("span", {}, language), copyButton("Copy the code", () => text));
  const inner = make("pre", { tabIndex: 0, role: "region", "aria-label": `Code ${language}`.trim() }, make("code", {}, text));
  return make("div", { className: "code" }, bar, inner);
}

function list({ numbered, start, items }) {
  const made = make(numbered ? "ol" : "ul");
  if (numbered && start !== 1) made.start = start;
  for (const item of items) {
    // an item of one paragraph stands close to the next
    const [first, ...rest] = item;
    const line = make("li");
    if (first && first.kind === "paragraph") inline(first.text.replace(/^\[([ xX])\] /, (_, mark) => mark === " " ? "☐ " : "☑ "), line);
    line.append(...all(first && first.kind === "paragraph" ? rest : item));
    made.append(line);
  }
  return made;
}

function table({ head, sides, rows }) {
  const row = (tag, texts) => make("tr", {}, ...texts.map((text, i) => words(tag, text, { className: sides[i] })));
  const made = make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map((each) => row("td", each))));
  return make("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, made);
}

const MAKERS = {
  code,
  list,
  table,
  // inside a list or a quote it heads nothing
  heading: ({ level, tag, text }) => words(tag ? `h${tag}` : "p", text, { className: `heading level${level}` }),
  paragraph: ({ text }) => words("p", text),
  quote: (block) => make("blockquote", {}, ...all(block.blocks)),
  rule: () => make("hr"),
};
