"""What each app is told, in settings as their users have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings_of_apps import SETTINGS
from umaserve.connect.apps import App, Places, Target, warnings
from umaserve.connect.edits import found
from umaserve.connect.others import APPS
from umaserve.connect.text import edited, parse, taken_back

TARGET = Target("http://127.0.0.1:8080", "", "qwen-7b", 65536, 8192, True, "<|fim_prefix|>")
HOME = "/home/me"


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
    (settings,) = told(APPS["claude-code"], places()).values()
    assert settings["env"]["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off"
    assert settings["env"]["CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY"] == "1"


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
    page = (Path(__file__).resolve().parents[2] / "docs/HTTP.md").read_text("utf-8")
    names = re.findall(r"^\| `([\w-]+)` \|.*(?:run|read|asked)", page, re.M)
    assert names == list(APPS)
