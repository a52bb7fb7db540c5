// The conversation that is open: asking, answering, branching, keeping.

import { at, changing, make, put } from "../dom.js";
import { chooseModel, chosenModel, isServing, loadModel, onServing } from "../figures/follow.js";
import { list } from "../kept/list.js";
import { all, keep } from "../kept/store.js";
import { answer } from "./answer.js";
import { attached, setUpFiles, takeFiles } from "./files.js";
import { fields, setUpSettings } from "./settings.js";
import { add, enter, messages, newChat, path } from "./tree.js";
import { turnOf } from "./turn.js";

const DRAW_MS = 50;
const KEEP_MS = 2000;
const EMPTY = "Ask the model something. Conversations are kept in this browser, and nowhere else.";

let chat = newChat();
let running = null;  // of the answer that comes: its node and what stops it

function atEnd() {
  const said = at("said");
  return said.scrollHeight - said.scrollTop - said.clientHeight < 40;
}

function toEnd() {
  at("said").scrollTop = at("said").scrollHeight;
}

const acts = {
  show,
  enter: (node) => { enter(chat, node); kept(); show(); },
  edit: (node, content) => say(node.parent, { role: "user", content, files: node.files }),
  regenerate: (node) => { if (!running) reply(node.parent); },
  give: (node, results) => {
    if (running) return;
    let parent = node.id;
    node.calls.forEach((call, i) => {
      parent = add(chat, parent, { role: "tool", call: call.id, name: call.name, content: results[i] }).id;
    });
    reply(parent);
  },
  open: goTo,
  gone: (id) => {
    if (id && id !== chat.id) { listed(); return; }
    chat.forgotten = true;
    start();
  },
};

function show() {
  const nodes = path(chat), last = nodes.at(-1);
  const turns = nodes.map((node) => turnOf(chat, node, node === last, acts));
  changing(at("said"), () => at("said"), () => {
    at("said").replaceChildren(...(turns.length ? turns : [make("p", { id: "empty" }, EMPTY)]));
  });
  toEnd();
  buttons();
}

function listed() {
  return list(chat.id, acts);
}

const save = (which) => which.forgotten || keep(which);

async function kept() {
  await save(chat);
  history.replaceState(null, "", "#" + chat.id);
  await listed();
}

function buttons() {
  put("send", running ? "Stop" : "Send");
  at("send").disabled = !running && (!isServing() || !(at("text").value.trim() || attached().length));
}

function say(parent, said) {
  if (running || !isServing()) return;
  const node = add(chat, parent, said);
  reply(node.id);
}

async function reply(parent) {
  const node = add(chat, parent, { role: "assistant", running: true });
  const mine = chat, stop = new AbortController(), now = { node, stop };
  running = now;
  show();
  kept();
  let drawn = 0, saved = performance.now();
  const draw = () => {
    drawn = 0;
    const turn = at("said").querySelector(`[data-id="${node.id}"]`), follow = atEnd();
    turn?.grow();
    if (follow) toEnd();
  };
  const grown = () => {
    drawn = drawn || setTimeout(draw, DRAW_MS);
    if (performance.now() - saved > KEEP_MS) { saved = performance.now(); save(mine); }
  };
  const model = at("model").value || chosenModel();
  const body = { messages: messages(mine, parent), ...fields(mine.settings), ...(model ? { model } : {}) };
  await answer(node, body, "page-" + mine.id, stop, grown);
  clearTimeout(drawn);
  delete node.running;
  await save(mine);
  if (running === now) running = null;
  if (chat === mine) finish(node);
  await listed();
}

// Replace the growing answer by the whole answer; all other messages stay as they are.
function finish(node) {
  const turn = at("said").querySelector(`[data-id="${node.id}"]`), follow = atEnd();
  const isLast = path(chat).at(-1) === node;
  changing(at("said"), () => at("said"), () => turn?.replaceWith(turnOf(chat, node, isLast, acts)));
  if (follow) toEnd();
  buttons();
}

function stop() {
  if (running) running.stop.abort();
}

function open(other) {
  stop();
  running = null;
  chat = other;
  for (const node of chat.nodes) delete node.running;  // of a page that was closed
  at("lane").value = chat.settings.lane || "";
  chooseModel(chat.settings.model || "");
  history.replaceState(null, "", chat.nodes.length ? "#" + chat.id : location.pathname);
  show();
  listed();
}

// In the place of a list that is unfolded.
function goTo(other) {
  document.body.dataset.open = "";
  if (other.id !== chat.id) open(other);
}

function start() {
  goTo(newChat({ ...chat.settings }));
  at("text").focus();
}

function fit() {
  at("text").style.height = "auto";
  at("text").style.height = at("text").scrollHeight + 2 + "px";
}

function setUpComposer() {
  at("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) { stop(); return; }
    const content = at("text").value.trim();
    if (!isServing() || !(content || attached().length)) return;
    at("text").value = "";
    fit();
    say(chat.leaf, { role: "user", content, files: takeFiles() });
  });
  at("text").addEventListener("input", () => { fit(); buttons(); });
  at("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) at("form").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
  });
}

const changed = () => { if (chat.nodes.length) kept(); };

export async function setUpChat() {
  setUpComposer();
  setUpFiles();
  setUpSettings(() => chat.settings, changed);
  at("lane").addEventListener("change", () => { chat.settings.lane = at("lane").value; changed(); });
  at("model").addEventListener("change", () => {
    chat.settings.model = at("model").value;
    chooseModel(chat.settings.model);
    loadModel(chat.settings.model);
    changed();
  });
  at("new").addEventListener("click", start);
  onServing(buttons);
  show();
  const known = await all(), before = known.find((each) => "#" + each.id === location.hash);
  // a message may have been written before the list was read
  if (!chat.nodes.length) open(before || newChat({ ...known[0]?.settings }));
}
