"""The model that serves, as the daemon tells of it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.answering import link_of
from umaserve.gateway.translate.body import read_object, text_of


async def info_of(request: Request, *, template: bool = False) -> dict[str, Any]:
    """Ask the daemon for its ``info``; ``template``: with the text of the chat template."""
    asked = {"type": "info", "template": template}
    info: dict[str, Any] = (await link_of(request).ask(asked))["info"]
    return info


async def loaded_model(request: Request, *, template: bool = False) -> dict[str, Any]:
    """The model that serves; empty while none does."""
    model = (await info_of(request, template=template))["model"]
    return model if model is not None and "name" in model else {}


async def read_named(request: Request) -> dict[str, Any]:
    """The body, whose ``model`` is the one that serves where it names none.  Raises ``Refusal``."""
    body = await read_object(request)
    if not text_of(body, "model"):
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
    """Tokens that one request may have."""
    return min(model["n_ctx"], model["n_ctx_train"] or model["n_ctx"])


def note_of(model: dict[str, Any]) -> dict[str, str]:
    """Return the ``note`` for users of the model as a field; empty for most models."""
    return {"note": model["note"]} if model.get("note") else {}
