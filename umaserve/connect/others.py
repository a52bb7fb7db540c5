"""The command ``llm``, and Open WebUI; then all apps by name."""

from __future__ import annotations

import shlex

from umaserve.connect.agents import AIDER, CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE
from umaserve.connect.apps import MODEL, NO_KEY, PROVIDER, App, Change, Places, Target, chat
from umaserve.connect.editors import CONTINUE, VS_CODE, ZED
from umaserve.connect.edits import Item, Put

# --- llm -----------------------------------------------------------------------------------------


def _llm_folder(places: Places) -> str:
    return places.environment.get("LLM_USER_PATH") or places.of_system("io.datasette.llm")


def _llm_file(places: Places) -> str:
    return f"{_llm_folder(places)}/extra-openai-models.yaml"


def _llm_changes(places: Places, target: Target) -> list[Change]:
    model = {
        "model_id": PROVIDER,
        "model_name": MODEL,
        "api_base": f"{target.url}/v1",
        **({"api_key_name": PROVIDER} if target.key else {}),
        "supports_schema": True,
        **({"supports_tools": True} if target.tools else {}),
        **({"vision": True} if target.images else {}),
        **({"reasoning": True} if target.thinks else {}),
        "headers": {"X-UMA-App": "llm"},
    }
    entry = Put((Item("model_id", PROVIDER),), model)
    changes = [Change(_llm_file(places), "yaml", (entry,))]
    if target.key:
        key = Put((PROVIDER,), target.key)
        changes.append(Change(f"{_llm_folder(places)}/keys.json", "jsonc", (key,)))
    return changes


LLM = App(
    "llm", "llm", ("llm",), _llm_file, "yaml", (Item("model_id", PROVIDER), "api_base"),
    _llm_changes,
    lambda target: chat(target, "OpenAI/Python 2.0", **{"X-UMA-App": "llm"}),
    lambda target: [f"ask with: llm -m {PROVIDER} hello"],
)  # fmt: skip


# --- Open WebUI ----------------------------------------------------------------------------------


def _web_notes(target: Target) -> list[str]:
    key = shlex.quote(target.key or NO_KEY)
    return [
        "Open WebUI has no file of settings. Start it for the first time with these variables:",
        f"  OPENAI_API_BASE_URLS={shlex.quote(target.url + '/v1')} OPENAI_API_KEYS={key} \\",
        "    ENABLE_OLLAMA_API=false open-webui serve --port 3000",
        "Afterwards its database counts: enter both under Admin Settings, Connections, OpenAI.",
        "In a container 127.0.0.1 is the container itself; docker's --network=host mends that.",
    ]


OPEN_WEBUI = App(
    "open-webui", "Open WebUI", ("open-webui",), lambda places: "", "jsonc", (),
    lambda places, target: [],
    lambda target: chat(target, "Python/3.11 aiohttp/3.12"), _web_notes,
    keeps_key=False,
)  # fmt: skip

APPS = {
    app.name: app
    for app in (
        ZED, VS_CODE, CONTINUE, CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, AIDER, OPEN_WEBUI, LLM,
    )
}  # fmt: skip
