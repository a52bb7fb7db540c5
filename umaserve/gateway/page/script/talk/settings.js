// System prompt, sampling and tools of a conversation, in a dialog.

import { at } from "../dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

// The fields of a request.  A setting that is empty is left to the daemon.
export function fields(settings) {
  const found = {};
  for (const name of NUMBERS) if (settings[name] !== undefined) found[name] = settings[name];
  if (settings.lane) found.priority = settings.lane;
  if (settings.tools) found.tools = JSON.parse(settings.tools);
  return found;
}

// Why a text is no list of tools; empty where it is one.
function wrongTools(text) {
  if (!text) return "";
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools) && tools.every((tool) => tool?.function?.name)) return "";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
  return 'A list of {"type": "function", "function": {"name": …}} is needed.';
}

export function openSettings(settings) {
  at("set-system").value = settings.system || "";
  at("set-tools").value = settings.tools || "";
  at("set-tools").setCustomValidity("");
  for (const name of NUMBERS) at("set-" + name).value = settings[name] ?? "";
  at("settings").showModal();
}

// `current` gives the settings to change; `changed` is called when they were.
export function setUpSettings(current, changed) {
  at("open-settings").addEventListener("click", () => openSettings(current()));
  at("close-settings").addEventListener("click", () => at("settings").close());
  at("set-tools").addEventListener("input", () => at("set-tools").setCustomValidity(wrongTools(at("set-tools").value.trim())));
  at("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const settings = current();
    settings.system = at("set-system").value.trim();
    settings.tools = at("set-tools").value.trim();
    for (const name of NUMBERS) {
      const value = at("set-" + name).value;
      if (value === "") delete settings[name];
      else settings[name] = Number(value);
    }
    at("settings").close();
    changed();
  });
}
