"""Errors: the daemon's codes as HTTP statuses, and the shape that each family gives them."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.protocol import (
    E_IO_001,
    E_LIMIT_001,
    E_LIMIT_002,
    E_LIMIT_003,
    E_LIMIT_004,
    E_MODEL_001,
    E_MODEL_002,
    E_PROTO_003,
    STOPPING,
)

RETRY_S = 1  # where nobody knows better
INTERNAL = "this failed inside the gateway; the daemon's log has the reason"

_STATUSES = {
    E_LIMIT_001: 400, E_LIMIT_002: 429, E_LIMIT_003: 400, E_LIMIT_004: 503,
    E_MODEL_001: 503, E_MODEL_002: 400, E_IO_001: 503,
}  # fmt: skip
_TOO_LONG = (E_LIMIT_001, E_LIMIT_003)
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
    Anthropic's clients, which read them beside the type.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: tuple[tuple[str, str], ...] = (),
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.details = headers, details
        if status in (429, 503):
            self.headers += (("retry-after", str(RETRY_S)),)
        if status == 501:  # else clients try again, Claude Code for minutes, as after all above 499
            self.headers += (("x-should-retry", "false"),)


def of_daemon(code: str, message: str) -> Refusal:
    """What the daemon has refused, as HTTP says it."""
    status = _STATUSES.get(code, 400 if code.startswith("E_PROTO") else 500)
    if message == STOPPING:  # another node may answer, this one will not
        status = 503
    return Refusal(status, code, message)


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
    code = "context_length_exceeded" if refusal.code in _TOO_LONG else refusal.code
    kind = _OPENAI_TYPES.get(refusal.status, usual)
    message = refusal.message
    if refusal.code in _TOO_LONG:  # agents look for these words, and shorten what they know
        message += "; reduce the length of the messages"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": error | _ours(refusal)}


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``."""
    usual = "api_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(refusal.status, usual)
    message = refusal.message
    if refusal.code in _TOO_LONG:  # Claude Code looks for these words
        message = f"prompt is too long: {message}"
    error: dict[str, Any] = {"type": kind, "message": message, "code": refusal.code}
    if refusal.details is not None:
        error["details"] = refusal.details
    return {"type": "error", "error": error | _ours(refusal)}


def ollama_error(refusal: Refusal) -> dict[str, Any]:
    """``{"error": "text"}``."""
    return {"error": refusal.message, "code": refusal.code, **_ours(refusal)}


def llama_error(refusal: Refusal) -> dict[str, Any]:
    """``{"error": {"code": 400, "message", "type"}}``."""
    shape = openai_error(refusal)
    shape["error"]["code"] = refusal.status
    return shape


def error_body(path: str, refusal: Refusal) -> bytes:
    """JSON in the shape of the family that ``path`` belongs to."""
    return encode(shape_for(path)(refusal))


def shape_for(path: str) -> Any:
    """The function that shapes errors of the routes that ``path`` belongs to."""
    if path.startswith(("/v1/messages", "/messages")):
        return anthropic_error
    if path.startswith("/api/"):
        return ollama_error
    if path in _LLAMA_PATHS:
        return llama_error
    return openai_error


_LLAMA_PATHS = frozenset(
    (
        "/props", "/slots", "/completion", "/infill", "/embedding", "/tokenize", "/detokenize",
        "/apply-template",
    )  # fmt: skip
)


def _ours(refusal: Refusal) -> dict[str, str]:
    """The socket's code, where it is one."""
    return {"uma_code": refusal.code} if refusal.code.startswith("E_") else {}
