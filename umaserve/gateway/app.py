"""All families' routes as one application, which the guard runs."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.families import absent, own, rerank
from umaserve.gateway.families.anthropic import messages as anthropic
from umaserve.gateway.families.llama_server import about as llama_server_about
from umaserve.gateway.families.llama_server import completion as llama_server
from umaserve.gateway.families.ollama import chat as ollama
from umaserve.gateway.families.ollama import embed as ollama_embed
from umaserve.gateway.families.ollama import models as ollama_models
from umaserve.gateway.families.openai import (
    chat,
    completions,
    embeddings,
    kept_responses,
    models,
    responses,
)
from umaserve.gateway.families.openai.kept import Kept
from umaserve.gateway.families.openapi import openapi_endpoint
from umaserve.gateway.settings import Settings
from umaserve.gateway.translate.endpoint import Endpoint

FAMILIES = (
    own, models, chat, completions, embeddings, responses, kept_responses, anthropic, ollama,
    ollama_embed, ollama_models, llama_server, llama_server_about, rerank, absent,
)  # fmt: skip
ENDPOINTS: tuple[Endpoint, ...] = tuple(
    endpoint for family in FAMILIES for endpoint in family.ENDPOINTS
)


class Routes:
    """The routes; what is none is refused in the shape of the family that the path names."""

    def __init__(self, settings: Settings, link: Link) -> None:
        self._settings, self._link, self._kept = settings, link, Kept()
        by_path: dict[str, list[Endpoint]] = {}
        for endpoint in (*ENDPOINTS, openapi_endpoint(ENDPOINTS)):
            by_path.setdefault(endpoint.path, []).append(endpoint)
        routes = [
            Route(each.path, each.handler, methods=[each.method])
            for all_of_path in by_path.values()
            for each in all_of_path
        ]
        self._methods = {path: [e.method for e in of_path] for path, of_path in by_path.items()}
        self._router = Router(routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise where it would answer in plain text
        scope["state"].update(link=self._link, settings=self._settings, kept=self._kept)
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            raise self._refusal(scope, error) from None

    def _refusal(self, scope: Scope, error: HTTPException) -> Refusal:
        if error.status_code != 405:
            return Refusal(error.status_code, "bad_request", error.detail)
        route = scope.get("route")  # of several methods of this path, the first one
        path = route.path if isinstance(route, Route) else scope["path"]
        methods = self._methods.get(path, ["GET"])
        names = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
        text = f"{scope['path']} takes {' and '.join(names)}, not {scope['method']}"
        return Refusal(405, "method_not_allowed", text, (("allow", ", ".join(names)),))


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    text = f"{scope['method']} {scope['path']} is not served here; /openapi.json has what is"
    raise Refusal(404, "unknown_url", text)
