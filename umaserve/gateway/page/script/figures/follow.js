// The daemon's figures and state, asked for every second.

import { at, make, put } from "../dom.js";
import { ask, hasKey, useKey } from "../http.js";
import { apps, recent } from "./tables.js";
import { tiles } from "./tiles.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 15000;
const MODELS_EVERY = 15;  // looks
const GONE = "The daemon is gone. Nothing is lost here: this page looks for it and goes on by itself.";

let looks = 0, asked = null, chosen = "", serving = false;
const watchers = [];

export const isServing = () => serving;

// Call a function whenever the daemon comes or goes.
export function onServing(act) {
  watchers.push(act);
}

export const chosenModel = () => chosen;

export function chooseModel(name) {
  chosen = name;
  if ([...at("model").options].some((each) => each.value === name)) at("model").value = name;
}

// `trouble` is told in a line above everything; empty: the daemon serves.
function state(trouble, where) {
  const was = serving;
  serving = !trouble;
  at("dot").className = serving ? "ok" : "bad";
  put("where", where);
  put("gone", trouble);
  at("gone").hidden = serving;
  if (was !== serving) watchers.forEach((act) => act());
}

const get = (path) => ask(path, { signal: AbortSignal.timeout(PATIENCE_MS) });

async function models(loaded) {
  if (asked === loaded && looks % MODELS_EVERY) return;
  const answer = await get("/v1/models");
  if (!answer.ok) return;
  const known = (await answer.json()).data;
  asked = loaded;
  const same = known.length === at("model").options.length && known.every((each, i) => at("model").options[i].value === each.id);
  if (!same) at("model").replaceChildren(...known.map((each) => make("option", { value: each.id, title: each.note || "" }, each.id)));
  if (known.some((each) => each.id === chosen)) at("model").value = chosen;
  at("model").notes = new Map(known.map((each) => [each.id, each.note || ""]));
}

async function whyNot() {
  const answer = await get("/health");
  const health = await answer.json();
  return health.error ? health.error.message : "";
}

async function figures(m) {
  const ended = await get("/requests");
  const requests = ended.ok ? (await ended.json()).requests : [];
  await models(m.model);
  const note = at("model").notes?.get(at("model").value) || "";
  const trouble = m.model ? "" : await whyNot() || "no model is loaded";
  state(trouble, [m.backend ? "on " + m.backend : "", note].filter(Boolean).join(" · "));
  tiles(m, requests);
  apps(m.apps);
  recent(requests);
}

async function look() {
  try {
    const answer = await get("/metrics");
    at("keys").hidden = answer.status !== 401;
    if (answer.ok) await figures(await answer.json());
    else if (answer.status === 401) state(hasKey() ? "This key is not known." : "An API key is needed.", "");
    else state(answer.status === 503 ? GONE : `The daemon cannot be asked (${answer.status}).`, "");
  } catch {
    state(GONE, "");
  }
  looks += 1;
}

export async function follow() {
  at("keys").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(at("key").value.trim());
    at("key").value = "";
    look();
  });
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}
