"""Questions to uma-chat, and its answers.

    {}                                                  from it: ready
    {"ask": "model", "template", "tool_template", "bos", "eos", "adds_bos", "adds_eos", "control"}
    {"ask": "render", "messages", "tools", "tool_choice", ...}        with the newest model
    {"ask": "parse", "text", "partial", "syntax", "former"}

Each answer is one object.  Where a question fails, ``refused`` or ``failed`` gives the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_encode = msgspec.json.encode
_NULL = msgspec.Raw(b"null")


class ChatModel(msgspec.Struct, frozen=True):
    """Facts that a conversation's prompt depends on besides the conversation.

    ``program`` is the path of uma-chat; where it is empty, ``missing`` says why.  ``template`` of
    ``None`` stands for ChatML, ``tool_template`` of ``None`` for ``template``.  ``stops`` are
    further texts that end an answer.  ``bos`` and ``eos`` are the texts of these tokens, which the
    tokeniser adds by itself if ``adds_bos`` and ``adds_eos``.  ``control`` are the texts of the
    control tokens, which a client's text never stands for.
    """

    program: str
    missing: str
    template: str | None
    tool_template: str | None
    bos: str
    eos: str
    adds_bos: bool
    adds_eos: bool
    control: tuple[str, ...]
    stops: tuple[str, ...] = ()

    def question(self) -> bytes:
        fields = msgspec.structs.asdict(self)
        del fields["program"], fields["missing"], fields["stops"]
        return _encode({"ask": "model", **fields})


class Thoughts(msgspec.Struct, frozen=True):
    """The words around thoughts in an answer; ``open``: the prompt has begun them.

    ``calls`` end thoughts too, and begin a call of a tool.
    """

    start: str
    ends: tuple[str, ...]
    open: bool
    calls: tuple[str, ...] = ()


class OpenPart(msgspec.Struct, frozen=True):
    """A part of a tool's schema that binds nothing: the ``keyword`` of the schema at ``path``."""

    tool: str
    path: str
    keyword: str


class Rendered(msgspec.Struct, frozen=True):
    """A conversation's prompt.

    ``plain`` are spans of ``prompt``, in characters, that are tokenised without control tokens:
    somebody wrote the text of one there.  ``markup`` are those where a control token stands, if
    they were asked for.  ``stops`` end the answer, ``preserved`` are texts of control tokens that
    its parser reads.  ``syntax`` is that parser, to be passed on as it is.  ``grammar`` is what the
    answer follows where there are tools, from its beginning on or (``lazy``) from a trigger on.
    ``begun`` is what of the grammar stands in the prompt already.  ``thoughts`` may come; where the
    question was ``bound``, or a call is required, before what is bound.  ``calls`` is the grammar
    of a call that may come instead of what is bound.  ``open`` are parts of the tools' schemas.
    """

    prompt: str
    plain: tuple[tuple[int, int], ...] = ()
    markup: tuple[tuple[int, int], ...] = ()
    stops: tuple[str, ...] = ()
    preserved: tuple[str, ...] = ()
    syntax: msgspec.Raw = _NULL
    grammar: str = ""
    grammar_lazy: bool = False
    grammar_triggers: msgspec.Raw = _NULL
    begun: str = ""
    calls: str = ""
    open: tuple[OpenPart, ...] = ()
    thoughts: Thoughts | None = None

    def triggers(self) -> tuple[str, ...]:
        """The words that the grammar binds from; none where a trigger is no word."""
        found = _decode_triggers(self.grammar_triggers)
        if any(each.type != _WORD for each in found):
            return ()
        return tuple(each.value for each in found)

    def without_generation_prompt(self) -> Rendered:
        """Return the prompt without the text at its end that begins the answer."""
        syntax = msgspec.json.decode(self.syntax)
        start = syntax["generation_prompt"]
        if not start or not self.prompt.endswith(start):
            return self
        end = len(self.prompt) - len(start)
        return msgspec.structs.replace(
            self,
            prompt=self.prompt[:end],
            plain=tuple(span for span in self.plain if span[1] <= end),
            markup=tuple(span for span in self.markup if span[1] <= end),
            syntax=msgspec.Raw(_encode({**syntax, "generation_prompt": ""})),
        )


class _Trigger(msgspec.Struct):
    type: int
    value: str


_WORD = 1  # COMMON_GRAMMAR_TRIGGER_TYPE_WORD
_decode_triggers = msgspec.json.Decoder(list[_Trigger]).decode


class Parsed(msgspec.Struct, frozen=True):
    """The message that a text makes so far, and what is new in it.

    ``message`` is as OpenAI writes one of the assistant, to be passed on as it is.
    ``whole``: the text has ended, and all of it is what the parser expects.
    """

    message: msgspec.Raw
    deltas: list[dict[str, Any]]
    whole: bool = False
    calls: int = 0  # tool calls in the message whose arguments are whole


class Abilities(msgspec.Struct, frozen=True):
    """Abilities of a template, by llama.cpp's names."""

    abilities: dict[str, bool]
    thinks: bool


class Refusal(msgspec.Struct, frozen=True):
    """There is no answer: the template refuses the messages, or something failed."""

    refused: str | None = None
    failed: str | None = None


Answer = Rendered | Parsed | Abilities | Refusal
Kind = type[Rendered] | type[Parsed] | type[Abilities]

_refusal = msgspec.json.Decoder(Refusal).decode


def answer_of(body: bytes, kind: Kind) -> Answer:
    """Decode an answer of type ``kind``, or a refusal.  Raises ``ValueError`` for all else."""
    refusal = _refusal(body)
    if refusal.refused is not None or refusal.failed is not None:
        return refusal
    return msgspec.json.decode(body, type=kind)


_OPTIONS = (
    "tools", "tool_choice", "parallel_tool_calls", "thinking", "chat_template_kwargs",
    "continue_final_message", "bound",
)  # fmt: skip


def render(messages: Sequence[Any], options: Any, *, spans: bool = False) -> bytes:
    """The question for a conversation's prompt; ``spans``: with those that are markup.

    ``options`` are those of the socket's request, as attributes.  ``bound``: a schema binds the
    answer, behind what the model thinks, unless that calls a tool.  Where the model cannot think
    before, the prompt is for an answer without thoughts.
    """
    given = {name: getattr(options, name) for name in _OPTIONS}
    return _encode({"ask": "render", "messages": messages, **given, "spans": spans})


def parse(text: str, syntax: msgspec.Raw, former: msgspec.Raw | None, *, partial: bool) -> bytes:
    """The question for the message that ``text`` makes; ``former`` is what was told so far."""
    return _encode(
        {"ask": "parse", "text": text, "partial": partial, "syntax": syntax, "former": former}
    )
