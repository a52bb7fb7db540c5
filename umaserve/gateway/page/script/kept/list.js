// The list of conversations: open, export, import, delete.

import { at, button, changing, download, make, put, sure } from "../dom.js";
import { all, areKept, forget, forgetAll, keep } from "./store.js";

const FORMAT = "umaserve-conversations-1";

function exported(name, chats) {
  download(name, JSON.stringify({ format: FORMAT, chats }, null, 1));
}

const isNode = (node) => typeof node?.id === "string" && typeof node.content === "string" && typeof node.role === "string";
const isChat = (chat) => typeof chat?.id === "string" && typeof chat.title === "string" && Boolean(chat.settings) && Array.isArray(chat.nodes) && chat.nodes.every(isNode);

// Keep the conversations of an export.  A conversation with the same id is replaced.
async function imported(file) {
  try {
    const { format, chats } = JSON.parse(await file.text());
    if (format !== FORMAT || !chats.every(isChat)) throw new Error("not an export of this page");
    for (const chat of chats) await keep(chat);
    at("notimported").hidden = true;
  } catch (error) {
    put("notimported", `${file.name}: ${error.message}`);
    at("notimported").hidden = false;
  }
}

function entry(chat, current, acts) {
  const open = button(chat.title, () => acts.open(chat), { className: "title" });
  if (chat.id === current) open.setAttribute("aria-current", "true");
  const give = button("Export", () => exported("conversation.json", [chat]), { "aria-label": `Export ${chat.title}` });
  const drop = button("Delete", async () => {
    if (!await sure(`Delete “${chat.title}”?`)) return;
    await forget(chat.id);
    acts.gone(chat.id);
  }, { "aria-label": `Delete ${chat.title}` });
  return make("li", {}, open, make("span", { className: "acts" }, give, drop));
}

// Show the list.  `acts.open` is called with the chosen conversation, `acts.gone` with the id of a
// deleted conversation, or without an id if all were deleted.
export async function list(current, acts) {
  const chats = await all();
  changing(at("list"), () => at("list").querySelector("[aria-current]") || at("new"), () => {
    at("list").replaceChildren(...chats.map((chat) => entry(chat, current, acts)));
  });
  at("export-all").disabled = at("delete-all").disabled = !chats.length;
  at("nokept").hidden = areKept();
  at("export-all").onclick = () => exported("conversations.json", chats);
  at("import").onclick = () => at("import-file").click();
  at("import-file").onchange = async () => {
    for (const file of at("import-file").files) await imported(file);
    at("import-file").value = "";
    await list(current, acts);
  };
  at("delete-all").onclick = async () => {
    if (!await sure("Delete all conversations of this browser?")) return;
    await forgetAll();
    acts.gone();
  };
}
