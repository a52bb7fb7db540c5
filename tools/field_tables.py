"""The tables of a request's fields in ``docs/PROTOCOL.md``, and the options of the Python clients.

    python -m tools.field_tables

writes both from the table in ``umaserve.protocol.tables.fields``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from umaserve.protocol.tables import chat_fields, settings
from umaserve.protocol.tables.field import Field
from umaserve.protocol.tables.fields import GENERATE_FIELDS

ROOT = Path(__file__).resolve().parents[1]
PAGE, OPTIONS = ROOT / "docs/PROTOCOL.md", ROOT / "umaserve/client/options.py"
HEAD = "| field | takes; default | meaning |\n| --- | --- | --- |\n"
# arguments of their own, and the API key's name, which is for the gateway to set
NO_OPTIONS = ("id", "prompt", "messages", "key")
# of fields that are decoded later
JSON = {
    "chat_template_kwargs": "dict[str, Any]",
    "response_format": "dict[str, Any]",
    "json_schema": "dict[str, Any] | bool",
    "logit_bias": "dict[str, Any] | list[list[Any]]",
}


def tables() -> list[tuple[Field, ...]]:
    """The page's tables, in its order."""
    chat, bound = chat_fields.OPTIONS, settings.CONSTRAINTS
    sampling, handling = settings.SAMPLING, settings.HANDLING
    apart = (*chat, *bound, *sampling, *handling)
    others = tuple(field for field in GENERATE_FIELDS if field not in apart)
    end = others.index(chat_fields.MESSAGES) + 1
    prompts, rest = others[:end], others[end:]
    return [prompts, chat, bound, rest, sampling, handling, settings.SLO_FIELDS]


def row(field: Field) -> str:
    """The line of a field in the page."""
    default = "" if field.default is None else f"; `{json.dumps(field.default)}`"
    words = _type_words(field.words.replace("{max_tokens}", "the daemon's limit"))
    return f"| `{field.name}` | {words}{default} | {field.note} |\n"


def _type_words(words: str) -> str:
    """Words of an error message, shortened to JSON's names of types."""
    if words == "true or false":
        return "boolean"
    words = re.sub(r"^an? ", "", words.replace("|", "\\|")).replace("whole number", "integer")
    return re.sub(r"^(integer|number) from ", r"\1 ", words)


def page(text: str) -> str:
    """The page with the rows of its tables made anew."""
    made = iter(tables())
    table = rf"{re.escape(HEAD)}(?:\|.*\n)+"
    return re.sub(table, lambda _: HEAD + "".join(map(row, next(made))), text)


def options(text: str) -> str:
    """The module of the clients' options with their annotations made anew."""
    return re.sub(
        r'(class (Slo|Options)\(.*\n    """.*"""\n\n)(?:    .*\n)+',
        lambda head: head[1] + "".join(
            f"    {field.name}: {told_type(field)}\n"
            for field in (settings.SLO_FIELDS if head[2] == "Slo" else GENERATE_FIELDS)
            if field.name not in NO_OPTIONS
        ),
        text,
    )  # fmt: skip


def told_type(field: Field) -> str:
    """The annotation of an option."""
    if field.type is msgspec.Raw:
        told = JSON.get(field.name)
        return f"{told} | None" if told else "Any"
    kinds = [_told(kind) for kind in _kinds(field.type)]
    if field.whole:  # 1.0 stands for 1
        kinds = [kind for kind in kinds if kind != "float"]
    unset = [] if field in settings.SLO_FIELDS else ["None"]
    return " | ".join(dict.fromkeys([*kinds, *unset]))


def _kinds(kind: Any) -> Iterable[Any]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _told(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _told(inner[0])
    if origin is list:
        return f"list[{_told(inner[0])}]"
    if origin is Literal:
        return f"Literal[{', '.join(json.dumps(word) for word in inner)}]"
    if kind is settings.WireSlo:
        return "Slo"
    return "dict[str, Any]" if issubclass(kind, msgspec.Struct) else str(kind.__name__)


def main() -> None:
    """Write both files."""
    for path, made in ((PAGE, page), (OPTIONS, options)):
        path.write_text(made(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
