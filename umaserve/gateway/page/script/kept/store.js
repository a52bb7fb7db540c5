// Conversations in the browser's own database (IndexedDB).  A conversation that the database refuses
// is kept in memory while the page is open.

const NAME = "umaserve", CHATS = "chats";
const inMemory = new Map();
let opened = null;

function result(request) {
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

async function database() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
  return result(request);
}

async function chats(mode) {
  opened = opened || database();
  return (await opened).transaction(CHATS, mode).objectStore(CHATS);
}

async function asked(mode, what) {
  return result(what(await chats(mode)));
}

// Whether all conversations outlive the page.
export const areKept = () => !inMemory.size;

// All conversations, the newest first.
export async function all() {
  const found = await asked("readonly", (store) => store.getAll()).catch(() => []);
  const stored = found.filter((chat) => !inMemory.has(chat.id));
  return [...inMemory.values(), ...stored].sort((a, b) => b.changed - a.changed);
}

export async function keep(chat) {
  const copy = structuredClone(chat);
  try {
    await asked("readwrite", (store) => store.put(copy));
    inMemory.delete(chat.id);
  } catch {
    inMemory.set(chat.id, copy);  // refused, or no room
  }
}

export async function forget(id) {
  inMemory.delete(id);
  await asked("readwrite", (store) => store.delete(id)).catch(() => {});
}

export async function forgetAll() {
  inMemory.clear();
  await asked("readwrite", (store) => store.clear()).catch(() => {});
}
