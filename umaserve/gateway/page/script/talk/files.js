// Files that go with a question: texts, and pictures.

import { at, button, make } from "../dom.js";
import { size } from "../format.js";

const MOST_BYTES = 1e6, MOST_OF_PICTURE = 16e6;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/bmp", "image/webp"];
let files = [];

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("cannot be read"));
    reader.readAsDataURL(file);
  });
}

async function read(file) {
  if (PICTURES.includes(file.type)) {
    if (file.size > MOST_OF_PICTURE) throw new Error(`is longer than ${size(MOST_OF_PICTURE)}`);
    return { name: file.name, picture: await dataUrl(file), bytes: file.size };
  }
  if (file.size > MOST_BYTES) throw new Error(`is longer than ${size(MOST_BYTES)}`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name: file.name, text };
  } catch { /* not UTF-8 */ }
  throw new Error("is not text");
}

export function chip({ name, text, bytes }) {
  return make("span", { className: "chip" }, `${name}, ${size(bytes ?? new TextEncoder().encode(text).length)}`);
}

function show(refused = []) {
  at("files").replaceChildren(
    ...files.map((file) => {
      const shown = chip(file);
      shown.append(button("×", () => { files = files.filter((each) => each !== file); show(); }, { "aria-label": `Remove ${file.name}` }));
      return shown;
    }),
    ...refused.map((text) => make("span", { className: "error", role: "alert" }, text)),
  );
  at("files").hidden = !files.length && !refused.length;
  at("text").dispatchEvent(new Event("input"));
}

async function take(given) {
  const refused = [];
  for (const file of given) {
    try {
      files.push(await read(file));
    } catch (error) {
      refused.push(`${file.name} ${error.message}`);
    }
  }
  show(refused);
}

export const attached = () => files;

// Return the attached files and detach them.
export function takeFiles() {
  const taken = files;
  files = [];
  show();
  return taken;
}

export function setUpFiles() {
  at("attach").addEventListener("click", () => at("pick").click());
  at("pick").addEventListener("change", async () => {
    await take([...at("pick").files]);
    at("pick").value = "";
  });
  at("chat").addEventListener("dragover", (event) => event.preventDefault());
  at("chat").addEventListener("drop", (event) => {
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
  at("text").addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files];
    if (!pasted.length) return;
    event.preventDefault();
    take(pasted);
  });
}
