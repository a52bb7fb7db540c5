"""The fields of a conversation: ``messages`` and what goes with them, as OpenAI writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from umaserve.protocol.tables.field import Field, choice, flag

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096  # of all messages together
MAX_TOOL_CALLS = 4096  # of all messages together
MAX_TOOLS = 1024
MAX_OPTIONS_BYTES = 64 * 1024
MAX_EFFORT_CHARS = 32
MAX_BUDGET = 2**31 - 1
MAX_BUDGET_MESSAGE_CHARS = 4096
PICTURES = ("image", "image_url", "input_image")  # types of content parts
MAX_WHY_CHARS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")

NULL = b"null"


class ContentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a message's content in list form: a ``text``, or a picture.

    ``data`` is a picture's file in base64.  Without data the gateway tells what it knows: ``size``
    in pixels, and ``why`` it has none.
    """

    type: str
    text: str | None = None
    data: str | None = None
    size: tuple[int, int] | None = None
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY_CHARS)] | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """``arguments`` is an object or the JSON of one; a cut call may have any text there."""

    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a ``function``; what another ``type`` holds is not read."""

    function: CalledFunction | None = None
    # by a factory, so that it is written down again
    type: str = msgspec.field(default_factory=lambda: "function")
    id: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Message of a conversation: one turn."""

    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ToolFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """``parameters`` is a JSON schema, as it came."""

    name: str
    description: str | None = None
    # by a factory, because a schema of this type cannot tell such a default
    parameters: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(NULL))


class Tool(msgspec.Struct, frozen=True):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatOptions(msgspec.Struct, frozen=True):
    """Options that a client sends with its ``messages``.

    ``tools`` and ``chat_template_kwargs`` are JSON, a list and an object.  ``tool_choice`` is
    ``auto``, ``none`` or ``required``; where the client named one tool, ``tools`` has that alone.
    ``parallel_tool_calls`` is ``None`` where the template's ability decides.  ``thinking`` is
    ``None`` where the client did not set it.  ``parsed``: the answer is parsed, because
    ``thinking``, its budget or ``tools`` is set.  With ``deltas`` the answer is parsed also where
    the template can think.  ``bound``: a schema or a regular expression binds the answer after its
    thoughts.  ``unread``: types and roles of content that a sentence in the messages stands for.
    ``images``: what becomes of a picture that the model cannot read.
    """

    tools: msgspec.Raw = msgspec.Raw(b"[]")
    tool_choice: str = "auto"
    parallel_tool_calls: bool | None = None
    thinking: bool | str | None = None
    thinking_budget: int | None = None
    thinking_budget_message: str = ""
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    continue_final_message: bool | str = False
    add_generation_prompt: bool = True
    parsed: bool = False
    deltas: bool = False
    bound: bool = False
    unread: tuple[str, ...] = ()
    images: str = "left_out"


MESSAGES = Field(
    "messages",
    list[ChatMessage],
    f'a list of at least one {{"role", "content"}} object, at most {MAX_MESSAGES}',
    note="chat form, rendered with the model's chat template",
)
# the model's chat template gets them; every HTTP dialect with conversations takes them too
TEMPLATE: tuple[Field, ...] = (
    Field(
        "chat_template_kwargs",
        msgspec.Raw,
        f"an object of at most {MAX_OPTIONS_BYTES} bytes",
        note="variables of the template",
    ),
    Field(
        "continue_final_message",
        bool | Literal["content", "reasoning_content"],
        'true, false, "content" or "reasoning_content"',
        False,
        "the answer goes on with the last message, which is the assistant's",
    ),
    flag(
        "add_generation_prompt",
        None,
        "false: the prompt ends with the last message; not true with `continue_final_message`",
    ),
)
OPTIONS: tuple[Field, ...] = (
    Field(
        "tools",
        list[Tool],
        f'a list of at most {MAX_TOOLS} {{"type": "function", "function": ...}} objects',
        note="what the model may call, with JSON schemas",
    ),
    Field(
        "tool_choice",
        Literal["auto", "none", "required"] | NamedTool,
        '"auto", "none", "required" or {"type": "function", "function": {"name": ...}}',
        note='omitted: "auto"',
    ),
    flag("parallel_tool_calls", None, "omitted: where the template knows them"),
    Field(
        "thinking",
        bool | str,
        f"true, false, or an effort of 1 to {MAX_EFFORT_CHARS} characters",
        note="omitted: the template's default",
    ),
    Field(
        "thinking_budget",
        int | float,
        f"a whole number from -1 to {MAX_BUDGET}",
        note="tokens of thoughts, which then are ended; -1 = without end, 0 = no thoughts",
        whole=True,
    ),
    Field(
        "thinking_budget_message",
        str,
        f"a string of at most {MAX_BUDGET_MESSAGE_CHARS} characters",
        note="ends the thoughts that have used their budget, before the template's own word",
    ),
    *TEMPLATE,
    choice(
        "images",
        ("left_out", "refuse"),
        "left_out",
        "a picture that the model cannot read: a sentence in its place, or an error",
    ),
    flag(
        "deltas",
        False,
        "read the answer as a message without `tools` and `thinking` too, if the model can think",
    ),
)
_PART_WORDS = {
    "[]": 'a {"type": "text", "text": ...} object',
    "[].type": "a string",
    "[].text": "a string",
    "[].data": "a string, a picture's file in base64",
    "[].size": "two whole numbers",
    "[].why": f"a string of at most {MAX_WHY_CHARS} characters",
}
WORDS = {
    **{f"{name}{of}": words for name in ("prompt", "messages[].content")
       for of, words in _PART_WORDS.items()},
    "messages[]": 'a {"role", "content"} object',
    "messages[].role": "a string, such as " + ", ".join(f'"{role}"' for role in ROLES),
    "messages[].content": "a string or a list of parts",
    "messages[].reasoning_content": "a string",
    "messages[].tool_calls": f"a list of tool calls, at most {MAX_TOOL_CALLS} of all messages",
    "messages[].tool_calls[]": 'a {"id", "type", "function"} object',
    "messages[].tool_calls[].type": "a string",
    "messages[].tool_calls[].id": "a string",
    "messages[].tool_calls[].function": 'a {"name", "arguments"} object',
    "messages[].tool_calls[].function.name": "a string",
    "messages[].tool_call_id": "a string",
    "messages[].name": "a string",
    "tools[]": 'a {"type": "function", "function": ...} object',
    "tools[].type": '"function"',
    "tools[].function": 'a {"name", "description", "parameters"} object',
    "tools[].function.name": "a string",
    "tools[].function.description": "a string",
}
