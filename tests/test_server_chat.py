"""Chat templates: the model's own, none, and hostile ones."""

from __future__ import annotations

import msgspec
import pytest

from umaserve.engine.messages import Ready
from umaserve.protocol import ChatMessage, ProtocolError
from umaserve.server import chat
from umaserve.server.chat import ChatRenderer

TALK = (ChatMessage("system", "be brief"), ChatMessage("user", "hi"))
NUMBERS = {
    f.name: 1 for f in msgspec.structs.fields(Ready) if f.type is int and f.required
}  # fmt: skip
TEXTS = {f.name: "x" for f in msgspec.structs.fields(Ready) if f.type is str and f.required}


def ready(template: str | None, bos: str = "<s>") -> Ready:
    return Ready(**NUMBERS, **TEXTS, chat_template=template, bos=bos, eos="</s>")


def test_without_a_template_chatml() -> None:
    text = ChatRenderer().render(TALK, ready(None))
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_as_transformers_runs_it() -> None:
    template = """{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
{{ m['role'] }}: {{ m['content'] | tojson }}
{% endfor %}
{%- if add_generation_prompt %}{{ bos_token }}go{{ eos_token }}{% endif %}"""
    assert ChatRenderer().render(TALK, ready(template)) == 'user: "hi"\n<s>go</s>'


def test_template_of_the_model_at_hand() -> None:
    renderer = ChatRenderer()
    for text in ("one", "two", "one"):
        assert renderer.render(TALK, ready(text)) == text


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
def test_template_that_fails_is_the_clients_error(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 0.3)
    with pytest.raises(ProtocolError) as caught:
        ChatRenderer().render(TALK, ready(template))
    assert caught.value.code == "E_PROTO_003" and '"messages"' in caught.value.message
