"""Errors: the daemon's codes as HTTP statuses, and the shape that each family gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from umaserve.gateway.daemon.event import Event
from umaserve.protocol import (
    BYTES_A_TOKEN,
    E_IO_001,
    E_LIMIT_001,
    E_LIMIT_002,
    E_LIMIT_003,
    E_LIMIT_004,
    E_MODEL_001,
    E_MODEL_002,
    E_PROTO_003,
    STOPPING,
    Overflow,
)

_FOLDERS = re.compile(r"(?<![\w/:.])/(?:[^\s/:;]+/)+")  # in front of a file's name
RETRY_S = 1  # where nobody knows better
INTERNAL = "this failed inside the gateway; the daemon's log has the reason"

_STATUSES = {
    E_LIMIT_001: 400, E_LIMIT_002: 429, E_LIMIT_003: 400, E_LIMIT_004: 503,
    E_MODEL_001: 503, E_MODEL_002: 400, E_IO_001: 503,
}  # fmt: skip
_OPENAI_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    429: "rate_limit_error", 501: "not_supported_error",
}  # fmt: skip
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip

encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """An answer that is an error.

    ``code`` is one of the socket's, or a word in lower case.  ``message`` is a sentence for people;
    it never holds another program's text.  ``headers`` go out with the answer.  ``details`` are for
    Anthropic's clients, which read them beside the type.  ``overflow`` goes with a prompt that is
    too long: agents look for their vendor's words for it, and shorten what they know.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: tuple[tuple[str, str], ...] = (),
        details: dict[str, Any] | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.details, self.overflow = headers, details, overflow
        if status in (429, 503):
            self.headers += (("retry-after", str(RETRY_S)),)
        if status == 501:  # else clients try again, Claude Code for minutes, as after all above 499
            self.headers += (("x-should-retry", "false"),)


def of_daemon(error: Event) -> Refusal:
    """Return the HTTP refusal for an error of the daemon."""
    code, message = error.code, str(error.message)
    if code in (E_MODEL_001, E_MODEL_002):
        message = without_folders(message)
    if error.n_prompt_tokens is not None:
        return _overflow(code, message, Overflow(error.n_prompt_tokens, error.n_ctx))
    status = _STATUSES.get(code, 400 if code.startswith("E_PROTO") else 500)
    if message == STOPPING:  # another node may answer, this one will not
        status = 503
    return Refusal(status, code, message)


def without_folders(text: str) -> str:
    """A text with the names of files in place of their paths, which are the owner's matter."""
    return _FOLDERS.sub("", text)


def too_long(size: int, n_ctx: int) -> Refusal:
    """A request of so many bytes, which is longer than the daemon takes."""
    text = f"the request is {size} bytes"
    return _overflow(E_LIMIT_001, text, Overflow(size // BYTES_A_TOKEN, n_ctx))


def _overflow(code: str, message: str, overflow: Overflow) -> Refusal:
    if not overflow.n_ctx:
        return Refusal(503, E_MODEL_001, f"{message}, and no model is loaded that could hold it")
    return Refusal(400, code, message, overflow=overflow)


def wrong(field: str, must: str) -> Refusal:
    """A field of the body that cannot be used; ``must`` goes on after "must"."""
    return Refusal(400, E_PROTO_003, f'"{field}" must {must}')


def malformed(text: str) -> Refusal:
    """A body that cannot be used, in another server's words for that."""
    return Refusal(400, E_PROTO_003, text)


def not_there(what: str) -> Refusal:
    """Something that the family has, and this daemon has not."""
    return Refusal(501, "not_supported", f"{what}: not supported by this server yet")


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    usual = "server_error" if refusal.status >= 500 else "invalid_request_error"
    code, message = refusal.code, refusal.message
    kind = _OPENAI_TYPES.get(refusal.status, usual)
    if refusal.overflow is not None:
        code, (tokens, most) = "context_length_exceeded", refusal.overflow
        message = (
            f"This model's maximum context length is {most} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages. ({message})"
        )
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": error | _ours(refusal)}


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``."""
    usual = "api_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(refusal.status, usual)
    message = refusal.message
    if refusal.overflow is not None:
        tokens, most = refusal.overflow
        message = f"prompt is too long: {tokens} tokens > {most} maximum ({message})"
    error: dict[str, Any] = {"type": kind, "message": message, "code": refusal.code}
    if refusal.details is not None:
        error["details"] = refusal.details
    return {"type": "error", "error": error | _ours(refusal)}


def ollama_error(refusal: Refusal) -> dict[str, Any]:
    """``{"error": "text"}``."""
    message = refusal.message
    if refusal.overflow is not None:
        message = f"the input length exceeds the context length: {message}"
    return {"error": message, "code": refusal.code, **_ours(refusal)}


def llama_error(refusal: Refusal) -> dict[str, Any]:
    """``{"error": {"code": 400, "message", "type"}}``."""
    shape = openai_error(refusal)
    shape["error"]["code"] = refusal.status
    if refusal.overflow is not None:
        tokens, most = refusal.overflow
        text = f"request ({tokens} tokens) exceeds the available context size ({most} tokens)"
        shape["error"]["type"] = "exceed_context_size_error"
        shape["error"]["message"] = f"{text}, try increasing it ({refusal.message})"
    return shape


def error_body(path: str, headers: Mapping[str, str], refusal: Refusal) -> bytes:
    """JSON in the shape of the family that a request for ``path`` belongs to."""
    shared = ("/v1/models", "/models") if asks_anthropic(headers) else ()
    if path.startswith(("/v1/messages", "/messages", *shared)):
        return encode(anthropic_error(refusal))
    if path.startswith("/api/"):
        return encode(ollama_error(refusal))
    if path in _LLAMA_PATHS or path.startswith("/slots/"):
        return encode(llama_error(refusal))
    return encode(openai_error(refusal))


def asks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether a client of Anthropic's asks; some routes have the same path in both families."""
    return "anthropic-version" in headers


_LLAMA_PATHS = frozenset(
    (
        "/props", "/slots", "/completion", "/infill", "/embedding", "/tokenize", "/detokenize",
        "/apply-template", "/lora-adapters",
    )  # fmt: skip
)


def _ours(refusal: Refusal) -> dict[str, Any]:
    """The socket's code, where it is one, and the tokens of a prompt that is too long."""
    overflow = {} if refusal.overflow is None else refusal.overflow._asdict()
    return overflow | ({"uma_code": refusal.code} if refusal.code.startswith("E_") else {})
