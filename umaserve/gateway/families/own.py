"""Our own routes: health, figures, the socket's events as they are, and the model."""

from __future__ import annotations

import os
from typing import Any

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response

import umaserve
from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.link import link_of, with_model
from umaserve.gateway.daemon.refusal import Refusal, openai_error, without_folders, wrong
from umaserve.gateway.page import page, wants_page
from umaserve.gateway.translate.answers.accept import preferred
from umaserve.gateway.translate.answers.answering import Translator, answer, json_response, sse
from umaserve.gateway.translate.body import read_object, text_of
from umaserve.gateway.translate.caller import caller_fields, own_rows, require_admin
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.model import is_called, known_models
from umaserve.gateway.translate.schemas import AT_LEAST_1, SOCKET, TEXT, of_socket
from umaserve.protocol import E_LIMIT_002, E_MODEL_001, ERRORS, STOPPING

JSON = "application/json"
# what `GET /metrics` can be had as; text/plain is also what a client of OpenMetrics reads
FORMATS = (JSON, "text/plain", "application/openmetrics-text")
NOT_KEPT = {"cache-control": "no-store"}
BY_ACCEPT = {**NOT_KEPT, "vary": "accept"}


# --- figures -------------------------------------------------------------------------------------


async def metrics(request: Request) -> Response:
    """The figures, in the format that the client prefers."""
    kind = preferred(request.headers.get("accept", ""), FORMATS)
    if kind is None:
        text = f"/metrics comes as {JSON} or text/plain; the request accepts neither"
        raise Refusal(406, "not_acceptable", text, tuple(BY_ACCEPT.items()))
    if kind != JSON:
        return await _prometheus(request, BY_ACCEPT)
    return json_response(await _numbers(request), headers=BY_ACCEPT)


async def prometheus_metrics(request: Request) -> Response:
    """Return the figures as Prometheus' text, whatever the client prefers."""
    return await _prometheus(request, NOT_KEPT)


async def _prometheus(request: Request, headers: dict[str, str]) -> Response:
    from umaserve.metrics import prometheus

    numbers = await _numbers(request)
    body = prometheus.exposition(numbers, ERRORS).encode("utf-8", "replace")
    return Response(body, headers={**headers, "content-type": prometheus.CONTENT_TYPE})


async def _numbers(request: Request) -> dict[str, Any]:
    """Totals are everybody's; of the programs, the caller's own."""
    numbers: dict[str, Any] = (await link_of(request).ask({"type": "metrics"}))["metrics"]
    apps = ({"key": row["key"], "name": name, "row": row} for name, row in numbers["apps"].items())
    own = {each["name"]: each["row"] for each in own_rows(request, apps)}
    return numbers | {"apps": own}


async def recent_requests(request: Request) -> Response:
    """The caller's newest requests that ended, without their texts."""
    info = (await link_of(request).ask({"type": "info"}))["info"]
    return json_response({"requests": own_rows(request, info["recent"])}, headers=NOT_KEPT)


async def health(request: Request) -> Response:
    """200 while a request would be begun now, else 503 and why."""
    try:
        info = (await link_of(request).ask({"type": "info"}))["info"]
    except Refusal as refusal:
        about: dict[str, Any] = {"status": "unreachable", "model": None}
        why = refusal
    else:
        model = info["model"] or {}
        about = {"status": info["state"], "model": model.get("name")}
        if info["state"] in ("serving", "asleep"):  # a request wakes a model
            about |= {"status": "ok", "version": umaserve.__version__}
            return json_response(_of_state(request, about), headers=NOT_KEPT)
        why = _why_not(info)
    about |= {"version": umaserve.__version__, **openai_error(why)}
    return json_response(_of_state(request, about), 503, {**NOT_KEPT, **dict(why.headers)})


def _of_state(request: Request, about: dict[str, Any]) -> dict[str, Any]:
    """All of it for a caller with a key, where keys are needed; else the state alone."""
    return about if request.state.known else {"status": about["status"]}


def _why_not(info: dict[str, Any]) -> Refusal:
    model, next_try = info["model"], info["next_try"]
    if info["state"] == "stopping":
        return Refusal(503, E_LIMIT_002, STOPPING)
    if info["state"] == "loading":
        share = f" ({model['progress']:.0%})" if model and model.get("progress") else ""
        return Refusal(503, "loading", f"the model is being loaded{share}")
    if next_try:
        why = without_folders(f"{next_try['model']}: {next_try['reason']}")
        text = f"{why}; the next try is in"
        return Refusal(503, E_MODEL_001, f"{text} {next_try['in_s']:.0f} s")
    return Refusal(503, E_MODEL_001, "no model is loaded")


# --- the model and the lanes ---------------------------------------------------------------------


async def load(request: Request) -> Response:
    """Load a configured model, or another one of a folder that ``--model-dir`` names."""
    require_admin(request, "loading a model")
    body = await read_object(request)
    name = text_of(body, "model")
    if not any(is_called(model, name) for model in await known_models(request)):
        name = allowed_model(name, request.state.settings.model_dirs)
    loaded = await link_of(request).ask({"type": "load", "model": name}, None)
    return json_response({"model": loaded["model"], "success": True})


def allowed_model(name: str, folders: tuple[str, ...]) -> str:
    """The path of a model that may be loaded.  Raises ``Refusal``."""
    if not name or "\0" in name:
        raise wrong("model", "name a file in a folder of --model-dir")
    if not folders:
        text = "no model can be loaded by HTTP: the daemon was started without --model-dir"
        raise Refusal(403, "model_dir_needed", text)
    for folder in map(os.path.realpath, folders):
        path = os.path.realpath(os.path.join(folder, name))
        if os.path.commonpath((folder, path)) == folder and os.path.isfile(path):
            return path
    text = '"model" must name a file in a folder of --model-dir; there is none of that name'
    raise Refusal(403, "model_not_allowed", text)


async def unload(request: Request) -> Response:
    """Free the memory of the model that the body names, or of the default one."""
    require_admin(request, "unloading the model")
    body = await read_object(request) if await request.body() else {}
    await link_of(request).ask(with_model({"type": "unload"}), None)
    return json_response({"success": True, "unloaded": text_of(body, "model") or True})


async def priority(request: Request) -> Response:
    """Move a running request to another lane: with a key that is not marked ``admin``, one of the
    key's own."""
    body = await read_object(request)
    fields: dict[str, Any] = {n: body[n] for n in ("id", "serial", "priority") if n in body}
    if fields.get("id") is not None and not isinstance(fields["id"], str):
        raise wrong("id", "be a string")
    if not request.state.admin:
        rows = (await link_of(request).ask({"type": "info"}))["info"]["sessions"]
        name = "id" if fields.get("serial") is None else "serial"
        found = [row for row in own_rows(request, rows) if row[name] == fields.get(name)]
        if len(found) != 1:
            raise wrong(name, f"name one request that runs or waits; {fields.get(name)!r} does not")
        fields = {"serial": found[0]["serial"], "priority": fields.get("priority")}
    moved = await link_of(request).ask({"type": "priority", **fields})
    return json_response({"priority": moved["priority"]})


# --- text ----------------------------------------------------------------------------------------


class Events(Translator):
    """The socket's events as server-sent events, as they are but for the ``id``."""

    def __init__(self, id: str | None) -> None:
        self._id = id

    def whole(self, ends: list[Event]) -> Any:
        return as_told(ends[0], self._id)

    def feed(self, number: int, event: Event) -> bytes:
        return sse(as_told(event, self._id), "event")

    def fail(self, refusal: Refusal) -> bytes:
        named = {} if self._id is None else {"id": self._id}
        error = {"event": "error", "code": refusal.code, "message": refusal.message}
        return sse(named | error, "event")


def as_told(event: Event, id: str | None) -> dict[str, Any]:
    """The fields that the daemon has sent; the ``id`` is the client's own."""
    fields = to_builtins(event)
    fields.pop("id", None)
    told: dict[str, Any] = fields if id is None else {"id": id, **fields}
    if event.event == "token":
        told.setdefault("text", "")
    return told


async def generate(request: Request) -> Response:
    """A request of the socket in a body; its events as a stream, or its ``eos`` alone."""
    body = await read_object(request)
    id = body.pop("id", None)
    if id is not None and not isinstance(id, str):
        raise wrong("id", "be a string")
    if body.get("type") is not None:
        raise wrong("type", "be left out; /load, /unload and /priority have routes of their own")
    body.pop("key", None)  # whose key it is the gateway alone says
    message = {**body, **caller_fields(request, body)}
    return await answer(request, body, [message], Events(id), streams=True, trim=False)


async def home(request: Request) -> Response:
    """The page for browsers; for others what this is, and that somebody is there."""
    if wants_page(request.headers.get("accept", "")):
        document, headers = page()
        return Response(document, headers=headers)
    about = {"server": "umaserve", "version": umaserve.__version__}
    return json_response(about, headers={"vary": "accept"})


ENDPOINTS = (
    Endpoint("GET", "/", home, "a page for browsers, else what this is", "ours"),
    Endpoint("GET", "/v1/health", health, "the same", "ours"),
    Endpoint("GET", "/health", health, "whether a request would be begun now", "ours"),
    Endpoint("GET", "/metrics", metrics, "figures, as JSON or Prometheus' text", "ours"),
    Endpoint("GET", "/requests", recent_requests, "the newest requests that ended", "ours"),
    Endpoint("GET", "/metrics/prometheus", prometheus_metrics, "the same as text", "ours"),
    Endpoint("POST", "/generate", generate, "the socket's request and events", "ours", SOCKET),
    Endpoint("POST", "/load", load, "load a model", "ours", {"model": TEXT}, ("model",)),
    Endpoint("POST", "/unload", unload, "free a model", "ours"),
    Endpoint(
        "POST", "/models/load", load, "load a model", "llama-server", {"model": TEXT}, ("model",)
    ),
    Endpoint("POST", "/models/unload", unload, "free a model", "llama-server"),
    Endpoint(
        "POST", "/priority", priority, "move a request to another lane", "ours",
        {"id": TEXT, "serial": AT_LEAST_1, **of_socket("priority")}, ("priority",),
    ),
)  # fmt: skip
