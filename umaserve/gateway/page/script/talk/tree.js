// A conversation as a tree: an edited question, or another answer, is a branch beside the first.

const TITLE = 60;

// A string that nothing else is called by; `crypto.randomUUID` is there on secure pages alone.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
}

export function newChat(settings = {}) {
  return { id: newId(), title: "", changed: Date.now(), settings, nodes: [], leaf: null };
}

// Add a message behind `parent` (an id, or null for a beginning), and go there.
export function add(chat, parent, said) {
  const node = { id: newId(), parent, content: "", ...said };
  chat.nodes.push(node);
  chat.leaf = node.id;
  chat.changed = Date.now();
  if (!chat.title) chat.title = (node.content.trim() || node.files?.[0]?.name || "").slice(0, TITLE);
  return node;
}

// From the beginning to the leaf.
export function path(chat, leaf = chat.leaf) {
  const known = new Map(chat.nodes.map((node) => [node.id, node])), found = [];
  for (let node = known.get(leaf); node; node = known.get(node.parent)) found.unshift(node);
  return found;
}

// All nodes with the same parent and role: the branches at this place.
export function branches(chat, node) {
  return chat.nodes.filter((each) => each.parent === node.parent && each.role === node.role);
}

// Go to the newest end behind a node.
export function enter(chat, node) {
  let leaf = node;
  for (let next = node; next; next = chat.nodes.findLast((each) => each.parent === leaf.id)) leaf = next;
  chat.leaf = leaf.id;
}

const isAnswer = (node) => node.role === "assistant";
const isEmpty = (node) => isAnswer(node) && !node.content && !node.calls?.length;

// A text stands behind the words, between fences longer than any in it; a picture before them.
function withFiles(node) {
  const pictures = (node.files || []).filter((file) => file.picture);
  const files = (node.files || []).filter((file) => !file.picture).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) || []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}\n${fence}\n${text}\n${fence}`;
  });
  const text = [node.content, ...files].filter(Boolean).join("\n\n");
  if (!pictures.length) return text;
  const parts = pictures.map(({ picture }) => ({ type: "image_url", image_url: { url: picture } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function message(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  if (!isAnswer(node)) return { role: node.role, content: withFiles(node) };
  const calls = (node.calls || []).map(({ id, name, arguments: given }) => ({
    id, type: "function", function: { name, arguments: given },
  }));
  return { role: "assistant", content: node.content, ...(calls.length ? { tool_calls: calls } : {}) };
}

// As the gateway takes them.  A question without an answer is not asked again with the next one.
export function messages(chat, leaf) {
  const said = path(chat, leaf);
  const asked = said.filter((node, i) => !isEmpty(node) && !(node.role === "user" && said[i + 1] && isEmpty(said[i + 1])));
  const system = chat.settings.system ? [{ role: "system", content: chat.settings.system }] : [];
  return [...system, ...asked.map(message)];
}
