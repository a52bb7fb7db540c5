"""Chat templates: the model's own, none, and those that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umaserve.chat import template as t
from umaserve.chat.template import TemplateRefusal, TemplateRenderer

TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def render(source: str | None, renderer: TemplateRenderer | None = None) -> str:
    return (renderer or TemplateRenderer()).render(source, TALK, "<s>", "</s>")


def test_without_a_template_chatml() -> None:
    assert render(None) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_as_transformers_runs_it() -> None:
    template = """{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
{{ m['role'] }}: {{ m['content'] | tojson }}
{% endfor %}
{%- if add_generation_prompt %}{{ bos_token }}go{{ eos_token }}{% endif %}"""
    assert render(template) == 'user: "hi"\n<s>go</s>'


def test_template_of_the_model_at_hand() -> None:
    renderer = TemplateRenderer()
    for text in ("one", "two", "one"):
        assert render(text, renderer) == text


def test_a_template_that_cannot_be_compiled_leaves_the_others() -> None:
    renderer = TemplateRenderer()
    with pytest.raises(Exception, match="unexpected"):
        render("{% for", renderer)
    assert render("one", renderer) == "one"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only one turn') }}",
        "{% for",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ nothing.at.all }}",
        r"{{ 'half \ud83d' }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxx{% endfor %}{% endfor %}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_template_that_fails_raises(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "MAX_CHARACTERS", 100_000)
    with pytest.raises(Exception):  # noqa: B017  (whatever a template can raise)
        render(template)


def test_a_refusal_is_told_apart() -> None:
    with pytest.raises(TemplateRefusal, match="only one turn"):
        render("{{ raise_exception('only one turn') }}")


def ask_child(*questions: dict[str, Any]) -> tuple[list[dict[str, str]], int]:
    """Its answers, and its exit status."""
    given = b""
    for question in questions:
        body = json.dumps({"messages": TALK, "bos": "", "eos": "", **question}).encode()
        given += len(body).to_bytes(4, "little") + body
    done = subprocess.run(
        [sys.executable, "-m", "umaserve.chat"], input=given, capture_output=True, timeout=60
    )
    answers, said = [], done.stdout
    while said:
        size = int.from_bytes(said[:4], "little")
        answers.append(json.loads(said[4 : 4 + size]))
        said = said[4 + size :]
    assert answers.pop(0) == {}, "it is ready"
    return answers, done.returncode


def test_the_child_answers_one_after_the_other_and_leaves_at_the_end() -> None:
    answers, status = ask_child(
        {"template": "one"},
        {"template": "{{ raise_exception('no') }}"},
        {"template": "{{ 1 // 0 }}"},
        {"template": r"{{ raise_exception('\ud83d') }}"},
        {"template": "two"},
    )
    assert answers == [
        {"text": "one"},
        {"refused": "no"},
        {"failed": "ZeroDivisionError: integer division or modulo by zero"},
        {"refused": "\ud83d"},
        {"text": "two"},
    ]
    assert status == 0


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS bounds no process's address space")
def test_the_child_has_little_memory() -> None:
    (huge, after), status = ask_child(
        {"template": "{{ 'a' * 4000000000 }}"}, {"template": "after"}
    )
    assert huge == {"failed": "it needs more than 512 MiB of memory"}
    assert after == {"text": "after"} and status == 0


def test_the_child_ends_by_itself_where_nobody_ends_it() -> None:
    """Its processor time is bounded, should the front be gone."""
    body = json.dumps(
        {
            "template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
            "{% endfor %}",
            "messages": TALK,
            "bos": "",
            "eos": "",
        }
    ).encode()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.patches.chat"],
        cwd=Path(__file__).parents[2],
        input=len(body).to_bytes(4, "little") + body,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode < 0 and done.stdout == b"\x02\0\0\0{}"
