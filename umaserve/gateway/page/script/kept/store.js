// Conversations in the browser's own database (IndexedDB).  A browser that refuses it keeps them as
// long as the page is open.

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

// Whether conversations outlive the page.
export async function isKept() {
  return chats("readonly").then(() => true, () => false);
}

// All conversations, the newest first.
export async function all() {
  const found = await isKept() ? await result((await chats("readonly")).getAll()) : [...inMemory.values()];
  return found.sort((a, b) => b.changed - a.changed);
}

export async function keep(chat) {
  if (await isKept()) await result((await chats("readwrite")).put(structuredClone(chat)));
  else inMemory.set(chat.id, chat);
}

export async function forget(id) {
  inMemory.delete(id);
  if (await isKept()) await result((await chats("readwrite")).delete(id));
}

export async function forgetAll() {
  inMemory.clear();
  if (await isKept()) await result((await chats("readwrite")).clear());
}
