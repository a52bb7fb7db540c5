"""What each app is told, in settings as their users have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings_of_apps import SETTINGS
from umaserve.connect.apps import MODEL, PATIENCE_MS, App, Places, Target, warnings
from umaserve.connect.edits import found
from umaserve.connect.others import APPS
from umaserve.connect.text import edited, parse, taken_back

TARGET = Target("http://127.0.0.1:8080", "", "qwen-7b", 65536, 8192, True, "<|fim_prefix|>")
HOME = "/home/me"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def places(*files: str, mac: bool = False, **environment: str) -> Places:
    there = {f"{HOME}/{file}" for file in files}
    return Places(HOME, environment, mac, lambda path: path in there)


def told(app: App, here: Places, target: Target = TARGET) -> dict[str, Any]:
    """What its files say after the change, by their place below the home."""
    return {
        change.path.removeprefix(f"{HOME}/"): parse(
            change.language, edited(change.language, b"", change.edits)
        )
        for change in app.changes(here, target)
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_people_have(name: str) -> None:
    """Nothing else in them changes: without the edits, they are what they were, byte for byte."""
    app, files = APPS[name], SETTINGS[name]
    changes = app.changes(places(*files), TARGET)
    assert [change.path.removeprefix(f"{HOME}/") for change in changes] == list(files)
    for change, text in zip(changes, files.values(), strict=True):
        for before in (text, text.replace("\n", "\r\n"), "\ufeff" + text):
            after = edited(change.language, before.encode(), change.edits)
            assert edited(change.language, after, change.edits) == after
            data = parse(change.language, after)
            for edit in change.edits:
                assert edit.if_missing or found(data, edit.path) == edit.value
            back, stays = taken_back(change.language, after, before.encode(), change.edits)
            assert (back.decode(), stays) == (before, []), "something else was changed"


@pytest.mark.parametrize("name", SETTINGS)
def test_its_address_is_found_again(name: str) -> None:
    app = APPS[name]
    first = app.changes(places(), TARGET)[0]
    data = parse(app.language, edited(first.language, b"", first.edits))
    assert str(found(data, app.address)).startswith(TARGET.url)
    assert first.path == app.file(places())


@pytest.mark.parametrize("name", sorted(set(APPS) - {"zed", "codex", "llm", "open-webui"}))
def test_a_key_is_written_where_the_app_reads_it(name: str) -> None:
    app = APPS[name]
    assert "secret-key" in repr(told(app, places(), TARGET._replace(key="secret-key")))
    assert all("secret-key" in repr(ask) for ask in app.asks(TARGET._replace(key="secret-key")))


def test_keys_that_stand_elsewhere() -> None:
    keyed = TARGET._replace(key="secret-key")
    for name, variable in (("zed", "LLAMACPP_API_KEY"), ("codex", "UMA_API_KEY")):
        assert "secret-key" not in repr(told(APPS[name], places(), keyed))
        assert variable in " ".join(APPS[name].notes(keyed))
        assert variable not in " ".join(APPS[name].notes(TARGET))
    files = told(APPS["llm"], places(), keyed)
    assert files[".config/io.datasette.llm/keys.json"] == {"uma": "secret-key"}
    (model,) = files[".config/io.datasette.llm/extra-openai-models.yaml"]
    assert model["api_key_name"] == "uma"
    assert "OPENAI_API_KEYS=secret-key" in " ".join(APPS["open-webui"].notes(keyed))


def test_zed_is_told_context_tools_and_prediction() -> None:
    settings = told(APPS["zed"], places())[".config/zed/settings.json"]
    (model,) = settings["language_models"]["llama.cpp"]["available_models"]
    assert (model["name"], model["max_tokens"], model["supports_tools"]) == ("qwen-7b", 65536, True)
    predicts = settings["edit_predictions"]
    assert predicts["provider"] == "open_ai_compatible_api"
    assert predicts["open_ai_compatible_api"]["prompt_format"] == "qwen"
    assert predicts["open_ai_compatible_api"]["api_url"] == f"{TARGET.url}/v1/completions"
    assert [ask.route for ask in APPS["zed"].asks(TARGET)] == [
        "/v1/chat/completions", "/v1/completions",
    ]  # fmt: skip


@pytest.mark.parametrize("gap", ["", "<some_other_token>"])
def test_zed_predicts_as_before_with_a_model_that_it_cannot_ask(gap: str) -> None:
    target = TARGET._replace(gap=gap, tools=False)
    settings = told(APPS["zed"], places(), target)[".config/zed/settings.json"]
    assert "edit_predictions" not in settings
    (model,) = settings["language_models"]["llama.cpp"]["available_models"]
    assert model["supports_tools"] is False
    assert "edit prediction stays as it is" in " ".join(APPS["zed"].notes(target))
    assert len(APPS["zed"].asks(target)) == 1


def test_where_settings_lie() -> None:
    def file(name: str, *there: str, **environment: Any) -> str:
        return APPS[name].file(places(*there, **environment)).removeprefix(f"{HOME}/")

    support = "Library/Application Support"
    assert file("zed", mac=True) == ".config/zed/settings.json"
    assert file("zed", XDG_CONFIG_HOME="/x") == "/x/zed/settings.json"
    assert file("vscode", mac=True) == f"{support}/Code/User/chatLanguageModels.json"
    insiders = ".config/Code - Insiders/User"
    assert file("vscode", insiders) == f"{insiders}/chatLanguageModels.json"
    assert file("vscode", insiders, ".config/Code/User").startswith(".config/Code/User/")
    assert file("opencode", ".config/opencode/opencode.jsonc").endswith("opencode.jsonc")
    assert file("codex", CODEX_HOME="/c") == "/c/config.toml"
    assert file("claude-code", CLAUDE_CONFIG_DIR="/c") == "/c/settings.json"
    assert file("continue", CONTINUE_GLOBAL_DIR="/c") == "/c/config.yaml"
    assert file("llm", LLM_USER_PATH="/l") == "/l/extra-openai-models.yaml"
    assert file("llm", mac=True).startswith(f"{support}/io.datasette.llm/")


def test_continue_gets_what_it_cannot_do_without() -> None:
    (change,) = APPS["continue"].changes(places(), TARGET)
    for text, name in ((b"", "Local"), (b"name: Mine\n", "Mine")):
        settings = parse("yaml", edited("yaml", text, change.edits))
        assert (settings["name"], settings["version"], settings["schema"]) == (name, "1.0.0", "v1")


def test_continue_does_not_lose_its_older_file() -> None:
    refusal = APPS["continue"].refusal
    assert "config.json" in refusal(places(".continue/config.json"))
    assert not refusal(places(".continue/config.json", ".continue/config.yaml"))
    assert not refusal(places())


def test_claude_code_keeps_its_prompt_and_finds_the_model() -> None:
    """It looks for models on the way that carries telemetry, which is switched off by itself."""
    (settings,) = told(APPS["claude-code"], places()).values()
    variables = settings["env"]
    assert variables["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off"
    assert variables["CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY"] == "1"
    assert "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC" not in variables
    assert variables["DISABLE_TELEMETRY"] == variables["DISABLE_ERROR_REPORTING"] == "1"
    assert {variables[f"ANTHROPIC_DEFAULT_{name}_MODEL"] for name in ("FABLE", "HAIKU")} == {MODEL}


def test_a_long_prompt_on_a_slow_machine_is_waited_for() -> None:
    (claude,) = told(APPS["claude-code"], places()).values()
    (qwen,) = told(APPS["qwen-code"], places()).values()
    (model,) = qwen["modelProviders"]["openai"]
    asked = model["generationConfig"]
    waits = [
        int(claude["env"]["API_TIMEOUT_MS"]), int(claude["env"]["CLAUDE_STREAM_IDLE_TIMEOUT_MS"]),
        asked["timeout"], asked["streamIdleTimeoutMs"],
    ]  # fmt: skip
    assert waits == [PATIENCE_MS] * 4
    assert qwen["env"]["QWEN_STREAM_MAX_LIFETIME_MS"] == "0"  # the whole answer too


def looks_and_thinks(can: bool) -> dict[str, list[Any]]:
    """What apps are told of pictures and of thoughts, by app."""
    target = TARGET._replace(images=can, thinks=can)

    def of(name: str) -> Any:
        return told(APPS[name], places(), target)

    (zed,) = of("zed")[".config/zed/settings.json"]["language_models"]["llama.cpp"][
        "available_models"
    ]
    (code,) = of("vscode")[".config/Code/User/chatLanguageModels.json"][0]["models"]
    (other,) = of("continue")[".continue/config.yaml"]["models"]
    codex = of("codex")[".codex/uma-models.json"]["models"][0]
    opencode = of("opencode")[".config/opencode/opencode.json"]["provider"]["uma"]["models"][MODEL]
    (qwen,) = of("qwen-code")[".qwen/settings.json"]["modelProviders"]["openai"]
    aider = of("aider")[".aider.model.metadata.json"][f"openai/{MODEL}"]
    (llm,) = of("llm")[".config/io.datasette.llm/extra-openai-models.yaml"]
    return {
        "zed": [zed["supports_images"], zed["supports_thinking"]],
        "vscode": [code["vision"], code["thinking"]],
        "continue": ["image_input" in other["capabilities"]],
        "codex": ["image" in codex["input_modalities"]],
        "opencode": [
            "attachment" in opencode and "image" in opencode["modalities"]["input"],
            opencode.get("interleaved") == {"field": "reasoning_content"},
        ],
        "qwen-code": [qwen["generationConfig"].get("modalities") == {"image": True}],
        "aider": ["supports_vision" in aider],
        "llm": ["vision" in llm, "reasoning" in llm],
    }


@pytest.mark.parametrize("can", [True, False])
def test_apps_are_told_of_pictures_and_thoughts(can: bool) -> None:
    for app, told_of in looks_and_thinks(can).items():
        assert set(told_of) == {can}, app


@pytest.mark.parametrize(
    ("gap", "template"),
    [
        ("<|fim_prefix|>", "<|fim_prefix|>{{{prefix}}}<|fim_suffix|>{{{suffix}}}<|fim_middle|>"),
        ("[PREFIX]", "[SUFFIX]{{{suffix}}}[PREFIX]{{{prefix}}}"),
        ("", ""),
    ],
)
def test_continue_suggests_with_a_model_that_fills_gaps(gap: str, template: str) -> None:
    (settings,) = told(APPS["continue"], places(), TARGET._replace(gap=gap)).values()
    (model,) = settings["models"]
    assert ("autocomplete" in model["roles"]) is bool(template)
    assert model.get("autocompleteOptions", {}).get("template", "") == template


def test_llm_is_told_that_answers_follow_schemas() -> None:
    (model,) = told(APPS["llm"], places())[".config/io.datasette.llm/extra-openai-models.yaml"]
    assert model["supports_schema"] is True


def test_codex_has_a_catalogue_with_the_model() -> None:
    files = told(APPS["codex"], places())
    config, catalogue = files[".codex/config.toml"], files[".codex/uma-models.json"]
    assert config["model_catalog_json"] == f"{HOME}/.codex/uma-models.json"
    (model,) = catalogue["models"]
    assert model["slug"] == config["model"]
    assert model["context_window"] == config["model_context_window"] == TARGET.context
    assert model["base_instructions"] and model["input_modalities"] == ["text"]
    assert "menu of models" in " ".join(APPS["codex"].notes(TARGET))


def test_agents_are_warned_of_models_that_will_not_do() -> None:
    small = TARGET._replace(context=8192, tools=False)
    for name in ("claude-code", "codex", "opencode", "qwen-code"):
        assert warnings(APPS[name], TARGET) == []
        said = " ".join(warnings(APPS[name], small))
        assert re.search("calls no tools.*the context has 8192 tokens", said)
    assert warnings(APPS["llm"], small) == []


def test_every_app_is_in_the_manual() -> None:
    page = (DOCS / "HTTP.md").read_text("utf-8")
    section = page.partition("\n## Apps in one command\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.M) == [*APPS]
    (note,) = re.findall(r"\(notes/(\S+)\)", section)
    rows = (DOCS / "notes" / note).read_text("utf-8")
    looked_up = re.findall(r"^\| `([\w-]+)` \| `[\w.-]+/[\w.-]+` [0-9a-f]{8}, `\S+`", rows, re.M)
    assert looked_up == list(APPS), "each with a repository, a commit and a file"
