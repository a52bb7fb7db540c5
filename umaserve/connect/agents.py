"""Coding agents of the terminal: what they use by themselves is set."""

from __future__ import annotations

import uuid
from typing import Any

from umaserve.connect.apps import (
    MODEL,
    NAME,
    NO_KEY,
    PATIENCE_MS,
    PROVIDER,
    App,
    Ask,
    Change,
    Places,
    Target,
    bearer,
    chat,
)
from umaserve.connect.codex_model import codex_model
from umaserve.connect.edits import Item, Path, Put

KEY_VARIABLE = "UMA_API_KEY"


# --- Claude Code ---------------------------------------------------------------------------------


def _claude_file(places: Places) -> str:
    return places.named("CLAUDE_CONFIG_DIR", ".claude") + "/settings.json"


def _claude_changes(places: Places, target: Target) -> list[Change]:
    """It asks for smaller models by names of their own, and all are the daemon's one.

    It believes the number of tokens of models alone whose name it does not know.  Its count of
    tokens that are left stands in front of the conversation, and would change with each turn.
    Without all traffic besides requests, some of its versions look for no models either.
    """
    families = ("FABLE", "OPUS", "SONNET", "HAIKU")
    models = ("MODEL", *(f"DEFAULT_{family}_MODEL" for family in families))
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or NO_KEY,
        **{f"ANTHROPIC_{name}": MODEL for name in models},
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "API_TIMEOUT_MS": str(PATIENCE_MS),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(PATIENCE_MS),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    }
    edits = tuple(Put(("env", name), value) for name, value in variables.items())
    return [Change(_claude_file(places), "jsonc", edits)]


def _claude_asks(target: Target) -> list[Ask]:
    headers = {
        "User-Agent": "claude-cli/2.1.332 (external, cli)",
        "X-Claude-Code-Session-Id": str(uuid.uuid4()),
        "anthropic-version": "2023-06-01",
        **bearer(target),
    }
    body = {
        "model": MODEL,
        "max_tokens": 8,
        "stream": True,
        "messages": [{"role": "user", "content": "Say hello."}],
    }
    return [Ask("/v1/messages?beta=true", headers, body)]


CLAUDE_CODE = App(
    "claude-code", "Claude Code", ("claude",), _claude_file, "jsonc",
    ("env", "ANTHROPIC_BASE_URL"), _claude_changes, _claude_asks,
    lambda target: ["variables of the shell with the same names go before these"],
    wants_tools=True,
)  # fmt: skip


# --- Codex ---------------------------------------------------------------------------------------

_CODEX: Path = ("model_providers", PROVIDER)


def _codex_file(places: Places) -> str:
    return f"{_codex_folder(places)}/config.toml"


def _codex_folder(places: Places) -> str:
    return places.named("CODEX_HOME", ".codex")


def _codex_changes(places: Places, target: Target) -> list[Change]:
    provider = {"name": NAME, "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.key:
        provider["env_key"] = KEY_VARIABLE
    catalogue = f"{_codex_folder(places)}/uma-models.json"
    edits = (
        Put(("model",), MODEL),
        Put(("model_provider",), PROVIDER),
        Put(("model_context_window",), target.context),
        Put(("model_catalog_json",), catalogue),
        Put(_CODEX, provider),
    )
    models = Put(("models",), [codex_model(target)])
    return [Change(_codex_file(places), "toml", edits), Change(catalogue, "jsonc", (models,))]


def _codex_asks(target: Target) -> list[Ask]:
    session = str(uuid.uuid4())
    headers = {
        "User-Agent": "codex_cli_rs/0.171.0",
        "session-id": session,
        "Accept": "text/event-stream",
        **(bearer(target) if target.key else {}),
    }
    says = [{"type": "input_text", "text": "Say hello."}]
    body = {
        "model": MODEL,
        "input": [{"type": "message", "role": "user", "content": says}],
        "max_output_tokens": 16,
        "stream": True,
        "store": False,
        "prompt_cache_key": session,
    }
    return [Ask("/v1/responses", headers, body)]


def _codex_notes(target: Target) -> list[str]:
    notes = ["Codex's menu of models has this one alone, until --undo"]
    if target.key:
        notes.append(f"Codex reads the key from the environment: export {KEY_VARIABLE}=…")
    return notes


CODEX = App(
    "codex", "Codex", ("codex",), _codex_file, "toml", (*_CODEX, "base_url"),
    _codex_changes, _codex_asks, _codex_notes, wants_tools=True, keeps_key=False,
)  # fmt: skip


# --- OpenCode ------------------------------------------------------------------------------------

_OPENCODE: Path = ("provider", PROVIDER)


def _opencode_file(places: Places) -> str:
    """Return the settings file that OpenCode reads last: ``opencode.jsonc`` where it exists."""
    commented = places.in_config("opencode", "opencode.jsonc")
    return commented if places.exists(commented) else commented.removesuffix("c")


def _opencode_changes(places: Places, target: Target) -> list[Change]:
    """Describe the model.  Thoughts that do not come back with a call would be computed anew."""
    limit = {"context": target.context, "output": target.output}
    model: dict[str, Any] = {
        "name": "The loaded model", "tool_call": target.tools, "limit": limit,
    }  # fmt: skip
    if target.images:
        model |= {
            "attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]},
        }  # fmt: skip
    if target.thinks:
        model |= {"reasoning": True, "interleaved": {"field": "reasoning_content"}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key or NO_KEY},
        "models": {MODEL: model},
    }
    edits = (Put(("model",), f"{PROVIDER}/{MODEL}"), Put(_OPENCODE, provider))
    return [Change(_opencode_file(places), "jsonc", edits)]


def _opencode_asks(target: Target) -> list[Ask]:
    agent = "opencode/1.18.33 ai-sdk/provider-utils/4.0.23"
    return chat(target, agent, **{"x-session-affinity": f"ses_{uuid.uuid4().hex}"})


OPENCODE = App(
    "opencode", "OpenCode", ("opencode",), _opencode_file, "jsonc",
    (*_OPENCODE, "options", "baseURL"), _opencode_changes, _opencode_asks,
    wants_tools=True,
)  # fmt: skip


# --- Qwen Code -----------------------------------------------------------------------------------


def _qwen_file(places: Places) -> str:
    return places.at_home(".qwen", "settings.json")


def _qwen_changes(places: Places, target: Target) -> list[Change]:
    """Its limit of a whole stream, 15 minutes, is a variable alone."""
    settings: dict[str, Any] = {
        "contextWindowSize": target.context,
        "timeout": PATIENCE_MS,
        "streamIdleTimeoutMs": PATIENCE_MS,
    }
    if target.images:
        settings["modalities"] = {"image": True}
    model = {
        "id": MODEL,
        "name": NAME,
        "baseUrl": f"{target.url}/v1",
        "envKey": KEY_VARIABLE,
        "generationConfig": settings,
    }
    edits = (
        Put(("modelProviders", "openai", Item("name", NAME)), model),
        Put(("env", KEY_VARIABLE), target.key or NO_KEY),
        Put(("env", "QWEN_STREAM_MAX_LIFETIME_MS"), "0"),
        Put(("security", "auth", "selectedType"), "openai"),
        Put(("model", "name"), MODEL),
    )
    return [Change(_qwen_file(places), "jsonc", edits)]


QWEN_CODE = App(
    "qwen-code", "Qwen Code", ("qwen",), _qwen_file, "jsonc",
    ("modelProviders", "openai", Item("name", NAME), "baseUrl"), _qwen_changes,
    lambda target: chat(target, "QwenCode/0.24.4 (linux; x64)"),
    wants_tools=True,
)  # fmt: skip


# --- Aider ---------------------------------------------------------------------------------------


def _aider_file(places: Places) -> str:
    return places.at_home(".aider.conf.yml")


def _aider_changes(places: Places, target: Target) -> list[Change]:
    """A second file tells it the tokens of a model that it does not know."""
    model = f"openai/{MODEL}"
    settings = {
        "model": model,
        "openai-api-base": f"{target.url}/v1",
        "openai-api-key": target.key or NO_KEY,
    }
    known = {
        "max_input_tokens": target.context,
        "max_output_tokens": target.output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
        **({"supports_vision": True} if target.images else {}),
    }
    edits = tuple(Put((name,), value) for name, value in settings.items())
    metadata = places.at_home(".aider.model.metadata.json")
    return [
        Change(_aider_file(places), "yaml", edits),
        Change(metadata, "jsonc", (Put((model,), known),)),
    ]


AIDER = App(
    "aider", "Aider", ("aider",), _aider_file, "yaml", ("openai-api-base",), _aider_changes,
    lambda target: chat(target, "OpenAI/Python 2.0"),
    lambda target: ["a .aider.conf.yml in a project goes before this file"],
)  # fmt: skip
