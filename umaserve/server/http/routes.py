"""What each path of the HTTP gateway answers.  Nothing here waits: not for a tick, not for I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import umaserve
from umaserve.metrics import prometheus
from umaserve.protocol import E_LIMIT_002, E_MODEL_001, ERRORS
from umaserve.server.http.message import (
    JSON,
    Headers,
    Response,
    encode_json,
    error_body,
    error_response,
    preferred,
)
from umaserve.server.overview import state

if TYPE_CHECKING:
    from umaserve.server.daemon import Daemon

METHODS = ("GET", "HEAD")
# what `GET /metrics` can be had as; text/plain is also what a client of OpenMetrics reads
FORMATS = (JSON, "text/plain", "application/openmetrics-text")
NOT_KEPT = (("cache-control", "no-store"),)
BY_ACCEPT = (*NOT_KEPT, ("vary", "accept"))


class Routes:
    """``answer`` maps a request to a response; nobody's body is read."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._paths: dict[str, Callable[[str], Response]] = {
            "/metrics": self._metrics,
            "/metrics/prometheus": lambda accept: self._prometheus(NOT_KEPT),
            "/health": lambda accept: self._health(),
        }
        self._rendered: dict[str, tuple[Any, bytes]] = {}  # by format: the numbers, their body

    def answer(self, method: str, path: str, accept: str) -> Response:
        """``HEAD`` gets what ``GET`` would; leaving out the body is the sender's business."""
        route = self._paths.get(path)
        if route is None:
            known = ", ".join(self._paths)
            text = f"{method} {path} is not served here. There is GET {known}; text is generated "
            return error_response(404, text + "over the Unix socket only", "unknown_url")
        if method not in METHODS:
            text = f"{path} takes {' and '.join(METHODS)}, not {method}"
            allow = (("allow", ", ".join(METHODS)),)
            return error_response(405, text, "method_not_allowed", allow)
        return route(accept)

    def _metrics(self, accept: str) -> Response:
        kind = preferred(accept, FORMATS)
        if kind is None:
            text = f"/metrics comes as {JSON} or text/plain; the request accepts neither"
            return error_response(406, text, "not_acceptable", BY_ACCEPT)
        if kind != JSON:
            return self._prometheus(BY_ACCEPT)
        return Response(200, self._body(JSON, encode_json), headers=BY_ACCEPT)

    def _prometheus(self, headers: Headers) -> Response:
        body = self._body("prometheus", _exposition)
        return Response(200, body, prometheus.CONTENT_TYPE, headers)

    def _body(self, format: str, render: Callable[[Any], bytes]) -> bytes:
        """The scorecard rendered, once for as long as it is the same object."""
        numbers = self._daemon.scorecard.read()
        rendered = self._rendered.get(format)
        if rendered is None or rendered[0] is not numbers:
            rendered = self._rendered[format] = (numbers, render(numbers))
        return rendered[1]

    def _health(self) -> Response:
        """200 while a request would be begun now, else 503 and why."""
        daemon = self._daemon
        status, engine = state(daemon), daemon.supervisor.current
        ready = engine.ready if engine is not None else None
        about = {
            "status": "ok" if status == "serving" else status,
            "model": ready.model_name if ready is not None else None,
            "version": umaserve.__version__,
        }
        if status == "serving":
            return Response(200, encode_json(about), headers=NOT_KEPT)
        code, text = self._why_not(status)
        about |= error_body(text, code, "server_error")
        return Response(503, encode_json(about), headers=(*NOT_KEPT, ("retry-after", "1")))

    def _why_not(self, status: str) -> tuple[str, str]:
        daemon = self._daemon
        engine = daemon.supervisor.current
        if status == "stopping":
            return E_LIMIT_002, "the daemon is shutting down"
        if engine is not None and engine.ready is not None:
            return "loading", "the engine ended; another one is about to take its place"
        if engine is not None:
            fraction, stage = engine.progress.fraction, engine.progress.stage
            share = f" {fraction:.0%}" if fraction < 1.0 else ""
            return "loading", f"the model is being loaded: {stage}{share}"
        if daemon.sessions.holding:
            return "loading", "another model is about to be loaded"
        return daemon.sessions.closed or (E_MODEL_001, "no model is loaded")


def _exposition(numbers: dict[str, Any]) -> bytes:
    return prometheus.exposition(numbers, ERRORS).encode("utf-8", "replace")
