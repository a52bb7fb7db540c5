"""The model that serves, as the daemon tells of it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from umaserve.gateway.daemon.link import MODEL, link_of
from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.body import read_object, text_of
from umaserve.protocol.tables.fields import MAX_PATH_BYTES


async def info_of(request: Request, *, template: bool = False) -> dict[str, Any]:
    """Ask the daemon for its ``info``; ``template``: with the text of the chat template."""
    name = request.query_params.get("model", "")
    if name and len(name) <= MAX_PATH_BYTES:  # as llama-server's clients ask for one of several
        MODEL.set(name)
    asked = {"type": "info", "template": template}
    info: dict[str, Any] = (await link_of(request).ask(asked))["info"]
    return info


async def loaded_model(request: Request, *, template: bool = False) -> dict[str, Any]:
    """The model that the request names, or the default; empty while it is not loaded.

    A model that is named and asleep is loaded first.
    """
    model = (await info_of(request, template=template))["model"]
    if model is None and MODEL.get():
        await link_of(request).ask({"type": "tokenize", "text": ""}, None)
        model = (await info_of(request, template=template))["model"]
    return model if model is not None and "name" in model else {}


async def known_models(request: Request) -> list[dict[str, Any]]:
    """The models that can be asked for by their ``id``; those that are not loaded have no
    ``name``."""
    models: list[dict[str, Any]] = (await info_of(request))["models"]
    return [each for each in models if "name" in each or not each["default"]]


def is_called(model: dict[str, Any], name: str) -> bool:
    """Whether a model has that name."""
    return name in (model["id"], model.get("name"), *model["aliases"])


async def read_request(request: Request) -> dict[str, Any]:
    """The body, whose ``model`` is empty where it names none.  Raises ``Refusal``.

    The daemon names the model when the answer begins, so it need not be asked before.
    """
    body = await read_object(request)
    body["model"] = text_of(body, "model")
    return body


async def read_named(request: Request) -> dict[str, Any]:
    """As `read_request`, with the model that serves, for what tells it before an answer begins."""
    body = await read_request(request)
    if not body["model"]:
        try:
            body["model"] = (await loaded_model(request)).get("name", "")
        except Refusal:  # of a daemon that cannot be asked; first it is said what is wrong here
            body["model"] = ""
    return body


async def serving_model(request: Request, *, template: bool = False) -> dict[str, Any]:
    """The model that serves.  Raises ``Refusal`` while none does."""
    model = await loaded_model(request, template=template)
    if not model:
        raise Refusal(503, "E_MODEL_001", "no model is loaded")
    return model


def context_of(model: dict[str, Any]) -> int:
    """Tokens that one request may have; 0 for a model that is not loaded."""
    cells: int = model.get("n_ctx", 0)
    return min(cells, model.get("n_ctx_train", 0) or cells)


def note_of(model: dict[str, Any]) -> dict[str, str]:
    """Return the ``note`` for users of the model as a field; empty for most models."""
    return {"note": model["note"]} if model.get("note") else {}
