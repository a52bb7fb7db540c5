"""Bodies of requests: JSON objects, and the fields that are read of them."""

from __future__ import annotations

import codecs
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from umaserve.gateway.daemon.event import decode_any
from umaserve.gateway.daemon.link import MODEL
from umaserve.gateway.daemon.refusal import Refusal, wrong
from umaserve.protocol.tables.fields import MAX_PATH_BYTES

# Claude Code offers the models of a gateway whose id has `claude` or `anthropic` in it.
FOR_ANTHROPIC = "anthropic-local/"
T = TypeVar("T")


async def read_object(request: Request) -> dict[str, Any]:
    """The body.  Raises ``Refusal`` where it is no JSON object, or does not come in time."""
    body = await read_json(request)
    if not isinstance(body, dict):
        raise Refusal(400, "invalid_json", "the body must be a JSON object")
    name = body.get("model")
    if isinstance(name, str) and len(name) <= MAX_PATH_BYTES:  # of all that this request asks
        MODEL.set(name.removeprefix(FOR_ANTHROPIC))
    return body


async def read_json(request: Request) -> Any:
    """The body.  Raises ``Refusal`` where it is no JSON."""
    data = await request.body()
    try:
        return decode_any(data.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, "invalid_json", f"the body is not JSON: {text}") from None


def text_of(body: dict[str, Any], name: str, default: str = "") -> str:
    """A field that holds text; ``null`` is the default.  Raises ``Refusal``."""
    return _field(body, name, default, "be a string")


def flag_of(body: dict[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true or false.  Raises ``Refusal``."""
    return _field(body, name, default, "be true or false")


def object_of(body: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; empty where it is missing.  Raises ``Refusal``."""
    return _field(body, name, {}, "be an object")


def list_of(body: dict[str, Any], name: str) -> list[Any]:
    """A field that is a list; empty where it is missing.  Raises ``Refusal``."""
    return _field(body, name, [], "be a list")


def _field(body: dict[str, Any], name: str, default: T, must: str) -> T:
    """A field of the default's type; ``null`` is the default.  Raises ``Refusal``."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise wrong(name, must)
    return value


def whole_of(body: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A field that is a whole number.  Raises ``Refusal``."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(name, f"be a whole number from {low} to {high}")
    return value


def objects_of(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that is a list of objects.  Raises ``Refusal``."""
    values = list_of(body, name)
    if not all(isinstance(value, dict) for value in values):
        raise wrong(name, "be a list of objects")
    return values
