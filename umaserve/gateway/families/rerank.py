"""Reranking, as Jina, Cohere and llama-server have it; with ``texts``, as TEI has it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.link import Link, link_of
from umaserve.gateway.daemon.refusal import wrong
from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.answers.vectors import MAX_INPUTS, first_group, same_model
from umaserve.gateway.translate.body import flag_of, list_of, read_object, text_of, whole_of
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.schemas import TEXT


async def rerank(request: Request) -> Response:
    """The documents by their scores for a query, the highest first."""
    body = await read_object(request)
    if body.get("query") is None:
        raise wrong("query", "be given")
    is_tei = "texts" in body
    documents = [_text(each) for each in list_of(body, "texts" if is_tei else "documents")]
    if not 0 < len(documents) <= MAX_INPUTS:
        raise wrong("documents", f"be a list of 1 to {MAX_INPUTS} texts")
    top_n = whole_of(body, "top_n", MAX_INPUTS, 1, 1 << 31)
    asked = {
        "type": "rerank", "query": text_of(body, "query"), "truncate": flag_of(body, "truncate")
    }  # fmt: skip
    results, tokens, name = await _ranked(link_of(request), asked, documents)
    results = sorted(results, key=lambda each: each["relevance_score"], reverse=True)[:top_n]
    if is_tei:
        texts = documents if flag_of(body, "return_text") else None
        return json_response([_for_tei(each, texts) for each in results])
    if flag_of(body, "return_documents"):
        for each in results:
            each["document"] = {"text": documents[each["index"]]}
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    told = {"model": text_of(body, "model") or name, "object": "list", "usage": usage}
    return json_response({**told, "results": results})


async def _ranked(
    link: Link, asked: dict[str, Any], documents: list[str]
) -> tuple[list[dict[str, Any]], int, str]:
    """The scores of all documents, the tokens, and the model.

    As many documents go in one message as a frame takes beside the query.
    """
    await link.connection()  # which tells the limits
    results: list[dict[str, Any]] = []
    tokens, name, room = 0, "", link.max_frame_bytes // 2 - len(asked["query"].encode())
    while len(results) < len(documents):
        at = len(results)
        group = first_group(documents[at:], MAX_INPUTS, room)
        answer = await link.ask({**asked, "documents": group, "top_n": len(group)}, None)
        name = same_model(name, answer["model"])
        tokens += answer["usage"]["prompt_tokens"]
        results += [{**each, "index": each["index"] + at} for each in answer["results"]]
    return results, tokens, name


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
