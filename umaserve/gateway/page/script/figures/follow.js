// The daemon's figures and state, asked for every second.

import { at, make, put } from "../dom.js";
import { ask, hasKey, useKey } from "../http.js";
import { apps, recent } from "./tables.js";
import { tiles } from "./tiles.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 15000;
const MODELS_EVERY = 15;  // looks
const GONE = "The daemon is gone. Nothing is lost here: this page looks for it and goes on by itself.";

let looks = 0, asked = null, chosen = "", loading = "", unloaded = [], serving = false;
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

const stateOf = (model) => model.status && model.status.value !== "loaded" ? ` (${model.status.value})` : "";

async function models(loaded) {
  if (asked === loaded && !loading && looks % MODELS_EVERY) return;
  const answer = await get("/v1/models");
  if (!answer.ok) return;
  const known = (await answer.json()).data.filter((each) => !each.role);  // the others generate no text
  asked = loaded;
  const options = at("model").options;
  if (known.length !== options.length || known.some((each, i) => options[i].value !== each.id)) {
    at("model").replaceChildren(...known.map((each) => make("option", { value: each.id, title: each.note || "" })));
  }
  known.forEach((each, i) => { if (options[i].label !== each.id + stateOf(each)) options[i].label = each.id + stateOf(each); });
  unloaded = known.filter(stateOf).map((each) => each.id);
  if (known.some((each) => each.id === chosen)) at("model").value = chosen;
  at("model").notes = new Map(known.map((each) => [each.id, each.note || ""]));
}

// Have a model loaded that a person has chosen.  A key that may not do that loads it by asking.
export async function loadModel(name) {
  if (!unloaded.includes(name)) return;
  loading = name;
  await ask("/models/load", { method: "POST", body: JSON.stringify({ model: name }), headers: { "content-type": "application/json" } }).catch(() => null);
  if (loading === name) { loading = ""; asked = null; }
}

async function whyNot() {
  const answer = await get("/health");
  const health = await answer.json();
  return health.error ? health.error.message : "";  // a model that is asleep wakes for a message
}

async function figures(m) {
  const ended = await get("/requests");
  const requests = ended.ok ? (await ended.json()).requests : [];
  await models(m.model);
  const note = at("model").notes?.get(at("model").value) || "";
  const trouble = m.model || m.models[at("model").value]?.loaded ? "" : await whyNot();
  const where = loading ? "loading " + loading : m.backend ? "on " + m.backend : "";
  state(trouble, [where, note].filter(Boolean).join(" · "));
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
