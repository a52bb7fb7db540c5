"""The command `llm`, with models of extra-openai-models.yaml."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients
MODELS = ("local", "local-text", "local-responses")


@pytest.fixture
def programs(tmp_path: Path) -> c.Programs:
    return c.Programs("libraries", tmp_path)


def set_up(programs: c.Programs, url: str) -> str:
    """The command of the page, with the models of the page in their place."""
    models, key, command = c.setups("llm", url)
    place = programs.shell('dirname "$(llm logs path)"').strip()
    (Path(place) / "extra-openai-models.yaml").write_text(models, "utf-8")
    programs.shell(key)
    return command.strip()


def test_answers(programs: c.Programs, real_url: str) -> None:
    command = set_up(programs, real_url)
    assert programs.shell(command).strip()
    for model in MODELS:
        ask = f"llm -m {model} hello -o temperature 0 -o max_tokens 20"
        text = programs.shell(ask).strip()
        assert text and programs.shell(f"{ask} --no-stream").strip() == text, model
    logged = json.loads(programs.shell("llm logs list --json -n 1"))
    assert logged[0]["response"].strip() == text and logged[0]["output_tokens"] <= 20
    assert programs.shell("llm -c 'and then?' -o max_tokens 20").strip()


@pytest.mark.parametrize("model", ["local", "local-responses"])
@pytest.mark.parametrize("how", ["", "--no-stream"])
def test_an_agent(
    programs: c.Programs, scripted_model: c.Scripted, model: str, how: str
) -> None:
    set_up(programs, scripted_model.url)
    scripted_model.says(c.editing())
    note = programs.folder / c.NOTE
    note.write_text(c.BEFORE)
    tools = shlex.quote(str(c.PROGRAMS / "llm_tools.py"))
    said = programs.shell(f"llm -m {model} {how} --functions {tools} {shlex.quote(c.TASK)}")
    assert c.ANSWER in said and note.read_text() == c.AFTER
