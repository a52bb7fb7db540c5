"""Zed, VS Code and Continue: apps with a list from which people choose a model."""

from __future__ import annotations

from typing import Any

from umaserve.connect.apps import (
    MODEL,
    NAME,
    NO_KEY,
    App,
    Ask,
    Change,
    Places,
    Target,
    bearer,
    chat,
)
from umaserve.connect.edits import Item, Path, Put

# Zed's name of a format to fill a gap, and its prompt in that format, by the token before a gap.
ZED_FORMATS = {
    "<|fim_prefix|>": ("qwen", "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"),
    "<fim_prefix>": ("star_coder", "<fim_prefix>{}<fim_suffix>{}<fim_middle>"),
    "<｜fim▁begin｜>": ("deepseek_coder", "<｜fim▁begin｜>{}<｜fim▁hole｜>{}<｜fim▁end｜>"),
    "<|code_prefix|>": ("glm", "<|code_prefix|>{}<|code_suffix|>{}<|code_middle|>"),
    "[PREFIX]": ("codestral", "[SUFFIX]{1}[PREFIX]{0}"),
    "<PRE>": ("code_llama", "<PRE> {} <SUF>{} <MID>"),
}
PREDICTED = 64  # tokens: Zed's own default
SUGGESTION_MS = 1000  # Continue cuts a suggestion after 2.5 times this; its own 150 is for clouds


# --- Zed -----------------------------------------------------------------------------------------

_ZED: Path = ("language_models", "llama.cpp")


def _zed_file(places: Places) -> str:
    return (
        places.at_home(".config", "zed", "settings.json")
        if places.mac
        else places.in_config("zed", "settings.json")
    )


def zed_format(target: Target) -> tuple[str, str]:
    """Zed's name for the model's way to fill a gap, and its prompt; empty where Zed knows none."""
    return ZED_FORMATS.get(target.gap.strip(" \u2581"), ("", ""))


def _zed_changes(places: Places, target: Target) -> list[Change]:
    model = {
        "name": target.model,
        "display_name": NAME,
        "max_tokens": target.context,
        "supports_tools": target.tools,
        "supports_images": target.images,
        "supports_thinking": target.thinks,
    }
    edits = [
        Put((*_ZED, "api_url"), target.url),
        Put((*_ZED, "available_models", Item("display_name", NAME)), model),
    ]
    way, _ = zed_format(target)
    if way:
        prediction: Path = ("edit_predictions", "open_ai_compatible_api")
        fields = {
            "api_url": f"{target.url}/v1/completions",
            "model": target.model,
            "prompt_format": way,
            "max_output_tokens": PREDICTED,
        }
        edits += [
            Put(("edit_predictions", "provider"), "open_ai_compatible_api"),
            *(Put((*prediction, name), value) for name, value in fields.items()),
        ]
    return [Change(_zed_file(places), "jsonc", tuple(edits))]


def _zed_asks(target: Target) -> list[Ask]:
    headers = {"User-Agent": "Zed/1.0", **(bearer(target) if target.key else {})}
    (ask,) = chat(target, "")
    asks = [Ask(ask.route, headers, {**ask.body, "model": target.model})]
    _, prompt = zed_format(target)
    if prompt:
        body = {
            "model": target.model, "prompt": prompt.format("def hello(", "\n"), "max_tokens": 8,
            "stop": [target.gap],
        }  # fmt: skip
        asks.append(Ask("/v1/completions", headers, body))
    return asks


def _zed_notes(target: Target) -> list[str]:
    notes = [f"choose {NAME} in the agent panel's list of models"]
    if not zed_format(target)[0]:
        notes.append("edit prediction stays as it is: Zed cannot ask this model to fill a gap")
    if target.key:
        notes.append(
            "Zed keeps keys out of its settings: set LLAMACPP_API_KEY and "
            "ZED_OPEN_AI_COMPATIBLE_EDIT_PREDICTION_API_KEY in its environment"
        )
    return notes


ZED = App(
    "zed", "Zed", ("zed", "zeditor"), _zed_file, "jsonc", (*_ZED, "api_url"),
    _zed_changes, _zed_asks, _zed_notes, keeps_key=False,
)  # fmt: skip


# --- VS Code -------------------------------------------------------------------------------------


def _code_file(places: Places) -> str:
    """The stable edition's, unless only the other is here."""
    folders = [places.of_system(name, "User") for name in ("Code", "Code - Insiders")]
    here = [folder for folder in folders if places.exists(folder)]
    return f"{(here or folders)[0]}/chatLanguageModels.json"


def _code_changes(places: Places, target: Target) -> list[Change]:
    group = {
        "name": NAME,
        "vendor": "customendpoint",
        "apiKey": target.key or NO_KEY,
        "apiType": "chat-completions",
        "models": [
            {
                "id": MODEL,
                "name": NAME,
                "url": f"{target.url}/v1/chat/completions",
                "toolCalling": target.tools,
                "vision": target.images,
                "thinking": target.thinks,
                "maxInputTokens": target.context - target.output,
                "maxOutputTokens": target.output,
            }
        ],
    }
    edit = Put((Item("name", NAME),), group)
    return [Change(_code_file(places), "jsonc", (edit,))]


VS_CODE = App(
    "vscode", "VS Code", ("code", "code-insiders"), _code_file, "jsonc",
    (Item("name", NAME), "models", Item("id", MODEL), "url"),
    _code_changes,
    lambda target: chat(target, "GitHubCopilotChat/1.0"),
    lambda target: [f"choose {NAME} in the chat's list of models (VS Code 1.122 or newer)"],
)  # fmt: skip


# --- Continue ------------------------------------------------------------------------------------


def _continue_folder(places: Places) -> str:
    return places.named("CONTINUE_GLOBAL_DIR", ".continue")


def _continue_file(places: Places) -> str:
    return f"{_continue_folder(places)}/config.yaml"


def _continue_changes(places: Places, target: Target) -> list[Change]:
    """Continue guesses from a model's name how it fills a gap, unless a template says it."""
    can = [*(["tool_use"] if target.tools else []), *(["image_input"] if target.images else [])]
    _, prompt = zed_format(target)
    model: dict[str, Any] = {
        "name": NAME,
        "provider": "openai",
        "model": MODEL,
        "apiBase": f"{target.url}/v1",
        "apiKey": target.key or NO_KEY,
        "roles": ["chat", "edit", "apply", *(["autocomplete"] if prompt else [])],
        **({"capabilities": can} if can else {}),
        "defaultCompletionOptions": {
            "contextLength": target.context, "maxTokens": target.output,
        },
        "requestOptions": {"headers": {"X-UMA-App": "Continue"}},
    }  # fmt: skip
    if prompt:
        template = prompt.format("{{{prefix}}}", "{{{suffix}}}")
        model["autocompleteOptions"] = {"template": template, "modelTimeout": SUGGESTION_MS}
    needed = {"name": "Local", "version": "1.0.0", "schema": "v1"}
    edits = [Put((name,), value, if_missing=True) for name, value in needed.items()]
    edits.append(Put(("models", Item("name", NAME)), model))
    return [Change(_continue_file(places), "yaml", tuple(edits))]


def _continue_refusal(places: Places) -> str:
    old = f"{_continue_folder(places)}/config.json"
    if places.exists(old) and not places.exists(_continue_file(places)):
        return f"Continue would no longer read {old} beside a config.yaml; make that of it first"
    return ""


CONTINUE = App(
    "continue", "Continue", ("cn",), _continue_file, "yaml",
    ("models", Item("name", NAME), "apiBase"),
    _continue_changes,
    lambda target: chat(target, "ls/JS 5.23.2", **{"X-UMA-App": "Continue"}),
    lambda target: [f"choose {NAME} in its list of models"],
    _continue_refusal,
)  # fmt: skip
