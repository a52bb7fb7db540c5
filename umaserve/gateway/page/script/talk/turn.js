// A message as an element: its text, its buttons, its figures.

import { button, copyButton, make } from "../dom.js";
import { show } from "../markdown/render.js";
import { chip } from "./files.js";
import { branches } from "./tree.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result" };

function branchButtons(chat, node, acts) {
  const all = branches(chat, node), at = all.indexOf(node);
  if (all.length < 2) return [];
  const go = (label, to, text) => button(text, () => acts.enter(all[to]), { "aria-label": label, disabled: !all[to] });
  return [
    go("Former branch", at - 1, "‹"), make("span", { className: "branch" }, `${at + 1} of ${all.length}`),
    go("Next branch", at + 1, "›"),
  ];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// The calls of an answer; where it is the last, their results can be given.
function calls(node, isLast, acts) {
  const made = node.calls.map((call) => make("details", { className: "call", open: true },
    make("summary", {}, `Calls ${call.name}`), make("pre", { tabIndex: 0, role: "region", "aria-label": "Arguments" }, pretty(call.arguments))));
  if (!isLast || node.running) return made;
  const boxes = node.calls.map((call) => make("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
  const give = button("Give results", () => acts.give(node, boxes.map((box) => box.value)));
  return [...made, make("div", { className: "results" }, ...boxes, give)];
}

function thinking(node) {
  const text = make("div", { className: "thought" });
  const made = make("details", {}, make("summary", {}, "Thinking"), text);
  made.grow = () => {
    text.textContent = node.reasoning || "";
    made.hidden = !node.reasoning;
  };
  return made;
}

// Change a question in its place; the change is a branch.
function edit(turn, node, acts) {
  const box = make("textarea", { value: node.content, rows: Math.min(12, node.content.split("\n").length + 1), "aria-label": "Edit the message" });
  const back = () => acts.show();
  const send = () => box.value.trim() && acts.edit(node, box.value.trim());
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); back(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  turn.replaceChildren(turn.firstChild, box, make("div", { className: "row" }, button("Cancel", back), make("span", { className: "push" }, button("Send", send, { className: "main" }))));
  turn.classList.add("editing");
  box.focus();
}

function foot(turn, chat, node, acts) {
  const made = make("div", { className: "foot" }, ...branchButtons(chat, node, acts));
  if (node.content) made.append(copyButton("Copy the message", () => node.content));
  if (node.role === "user") made.append(button("Edit", () => edit(turn, node, acts)));
  if (node.role === "assistant") made.append(button("Regenerate", () => acts.regenerate(node)));
  if (node.facts) made.append(make("span", { className: "facts" }, node.facts));
  return made;
}

function said(turn, node) {
  const text = make("div", { className: "text" });
  text.textContent = node.content;
  turn.append(text, ...(node.files || []).map(chip));
}

function toolResult(turn, node) {
  turn.append(make("details", { className: "call" }, make("summary", {}, `Result of ${node.name}`), make("pre", { tabIndex: 0 }, node.content)));
}

function answered(turn, node, isLast, acts) {
  const thought = thinking(node), text = make("div", { className: "text markdown" });
  turn.append(thought, text);
  turn.grow = () => {
    thought.grow();
    show(text, node.content);
  };
  turn.grow();
  if (node.calls && !node.running) turn.append(...calls(node, isLast, acts));
  if (node.error) turn.append(make("p", { className: "error", role: "alert" }, node.error));
}

// Make the element of a message.  `acts` are the functions behind its buttons.
export function turnOf(chat, node, isLast, acts) {
  const name = make("h2", { className: "unseen", id: `name-${node.id}` }, NAMES[node.role]);
  const turn = make("article", { className: `turn ${node.role}`, "aria-labelledby": name.id }, name);
  turn.dataset.id = node.id;
  if (node.role === "user") said(turn, node);
  else if (node.role === "tool") toolResult(turn, node);
  else answered(turn, node, isLast, acts);
  if (node.running) turn.setAttribute("aria-busy", "true");
  else if (node.role !== "tool") turn.append(foot(turn, chat, node, acts));
  return turn;
}
