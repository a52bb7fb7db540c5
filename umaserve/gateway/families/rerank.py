"""Reranking, as Jina, Cohere and llama-server have it; with ``texts``, as TEI has it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import wrong
from umaserve.gateway.translate.answering import json_response, link_of
from umaserve.gateway.translate.body import flag_of, list_of, read_object, text_of, whole_of
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.schemas import TEXT
from umaserve.gateway.translate.vectors import MAX_INPUTS


async def rerank(request: Request) -> Response:
    """The documents by their scores for a query, the highest first."""
    body = await read_object(request)
    if body.get("query") is None:
        raise wrong("query", "be given")
    is_tei = "texts" in body
    documents = [_text(each) for each in list_of(body, "texts" if is_tei else "documents")]
    if not 0 < len(documents) <= MAX_INPUTS:
        raise wrong("documents", f"be a list of 1 to {MAX_INPUTS} texts")
    asked = {
        "type": "rerank",
        "query": text_of(body, "query"),
        "documents": documents,
        "top_n": min(whole_of(body, "top_n", MAX_INPUTS, 1, 1 << 31), MAX_INPUTS),
        "truncate": flag_of(body, "truncate"),
    }
    answer = await link_of(request).ask(asked, None)
    if is_tei:
        texts = documents if flag_of(body, "return_text") else None
        return json_response([_for_tei(each, texts) for each in answer["results"]])
    if flag_of(body, "return_documents"):
        for each in answer["results"]:
            each["document"] = {"text": documents[each["index"]]}
    model = text_of(body, "model") or answer["model"]
    told = {"model": model, "object": "list", "usage": answer["usage"]}
    return json_response({**told, "results": answer["results"]})


def _text(document: Any) -> str:
    """A document, which Cohere's and Jina's clients may send as an object with its text."""
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise wrong("documents", "be a list of texts, or of objects with a text")
    return text


def _for_tei(result: dict[str, Any], texts: list[str] | None) -> dict[str, Any]:
    found = {"index": result["index"], "score": result["relevance_score"]}
    return found if texts is None else {**found, "text": texts[result["index"]]}


_STRINGS = {"type": "array", "items": TEXT}
_FIELDS = {
    "model": TEXT,
    "query": TEXT,
    "documents": {"type": "array", "items": {"type": ["string", "object"]}},
    "texts": _STRINGS,
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": {"type": "boolean"},
    "return_text": {"type": "boolean"},
    "truncate": {"type": "boolean"},
}
ENDPOINTS = tuple(
    Endpoint("POST", path, rerank, "documents by relevance", "llama-server", _FIELDS, ("query",))
    for path in ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")
)
