"""llama-server's other routes: texts and tokens, the model, what runs.

Its ``/tokenize`` and ``/detokenize`` answer in vLLM's words as well, by which lm-eval asks.
"""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.link import MODEL, link_of, with_model
from umaserve.gateway.daemon.refusal import Refusal, encode, wrong
from umaserve.gateway.families.llama_server.shapes import settings
from umaserve.gateway.translate.answers.answering import json_response
from umaserve.gateway.translate.body import flag_of, list_of, read_json, read_object, text_of
from umaserve.gateway.translate.caller import own_rows, require_admin
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import chat_fields, chat_messages
from umaserve.gateway.translate.model import (
    context_of,
    info_of,
    loaded_model,
    note_of,
    serving_model,
)
from umaserve.gateway.translate.pictures import MARKER
from umaserve.gateway.translate.prompts import (
    mixed_tokens,
    pieces_of,
    rendered,
    text_of_tokens,
    tokens_of,
)
from umaserve.gateway.translate.schemas import CHAT, FLAG
from umaserve.protocol.tables.fields import MAX_PATH_BYTES


async def tokenize(request: Request) -> Response:
    """Token ids of a text, with their texts where ``with_pieces`` asks."""
    body = await read_object(request)
    link = link_of(request)
    if "prompt" in body:  # vLLM's
        special = flag_of(body, "add_special_tokens", True)
        tokens = await tokens_of(link, text_of(body, "prompt"), add_special=special)
        context = context_of(await serving_model(request))
        told = {"tokens": tokens, "count": len(tokens), "max_model_len": context}
        return json_response(told)
    content = body.get("content")
    tokens = await mixed_tokens(
        link,
        content if isinstance(content, list) else [text_of(body, "content")],
        add_special=flag_of(body, "add_special"),
        parse_special=flag_of(body, "parse_special", True),
    )
    if not flag_of(body, "with_pieces"):
        return json_response({"tokens": tokens})
    groups, at = [], 0
    async for pieces in pieces_of(link, tokens):
        ids = tokens[at : (at := at + len(pieces))]
        named = zip(ids, pieces, strict=True)
        groups.append(encode([{"id": id, "piece": _piece(piece)} for id, piece in named])[1:-1])
    return Response(b'{"tokens":[%b]}' % b",".join(groups), media_type="application/json")


def _piece(data: bytes) -> str | list[int]:
    """A token's text; its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read_object(request)
    tokens = list_of(body, "tokens")
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in tokens):
        raise wrong("tokens", "be a list of token ids")
    text = await text_of_tokens(link_of(request), tokens)
    return json_response({"content": text, "prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """The texts of the tokens at the ends of a text; ``null`` where the model has none."""
    model = await serving_model(request)
    ends = {f"{name}_token": model.get(name) or None for name in ("bos", "eos")}
    return json_response({"tokenizer_class": model["architecture"], **ends})


async def apply_template(request: Request) -> Response:
    """Render a conversation as the prompt that the model reads."""
    body = await read_object(request)
    fields = {"messages": chat_messages(body), **chat_fields(body)}
    prompt, unread = await rendered(link_of(request), fields)
    return json_response({"prompt": prompt, **unread})


# --- the server ----------------------------------------------------------------------------------


async def props(request: Request) -> Response:
    """The model and what it can do."""
    model, link = await serving_model(request, template=True), link_of(request)
    around: dict[str, int] = model.get("gap") or {}
    path = str(model["path"])
    names = [name for name in ("prefix", "suffix", "middle") if name in around]
    gap = {name: await text_of_tokens(link, [around[name]]) for name in names}
    return json_response(
        {
            "default_generation_settings": {"n_ctx": context_of(model), "params": settings({}, {})},
            "total_slots": model["n_seq"],
            "model_alias": model["name"],
            "model_path": path if request.state.admin else os.path.basename(path),
            "chat_template": model.get("template") or "",
            "chat_template_caps": _template_caps(model),
            **note_of(model),
            "media_marker": MARKER,
            "bos_token": model.get("bos") or "",
            "eos_token": model.get("eos") or "",
            "modalities": {"vision": bool(model.get("vision")), "video": False, "audio": False},
            "gap": gap,
            "thinks": bool((model.get("chat") or {}).get("thinks")),
            "lora_adapters": _adapters(request, model.get("adapters") or []),
            "build_info": model["library_version"],
            "is_sleeping": False,
        }
    )


def _adapters(request: Request, adapters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The adapters of a model; an administrator alone is told where their files lie."""
    if request.state.admin:
        return adapters
    return [{**each, "path": os.path.basename(each["path"])} for each in adapters]


async def lora_adapters(request: Request) -> Response:
    """LoRA adapters, and the scales of requests that name none."""
    model = await loaded_model(request)
    return json_response(_adapters(request, model.get("adapters") or []))


async def set_lora_adapters(request: Request) -> Response:
    """Change the scales of requests that name none; an adapter that is not named is off."""
    require_admin(request, "changing the adapters of all requests")
    scales = await read_json(request)
    if not isinstance(scales, list):
        raise Refusal(400, "invalid_json", "the body must be a JSON array")
    MODEL.set(request.query_params.get("model", "")[:MAX_PATH_BYTES])
    await link_of(request).ask(with_model({"type": "adapters", "lora": scales}), None)
    return json_response({"success": True})


def _template_caps(model: dict[str, Any]) -> dict[str, Any]:
    """Abilities of the chat template, by llama.cpp's names; empty until it is examined."""
    found: dict[str, Any] = model.get("chat") or {}
    if "error" in found:
        return {"supports_tools": False, "supports_tool_calls": False}
    return {name: can for name, can in found.items() if name.startswith("supports_")}


async def slots(request: Request) -> Response:
    """List the caller's running and waiting requests, without their texts."""
    info = await info_of(request)
    context = context_of(info["model"]) if info["model"] and "name" in info["model"] else 0
    return json_response(
        [
            {
                "id": number,
                "id_task": row["serial"],
                "n_ctx": context,
                "is_processing": True,
                "state": row["state"],
                "lane": row["lane"],
                "n_prompt_tokens": row["prompt_tokens"],
                "n_decoded": row["tokens"],
                "age_s": row["age_s"],
            }
            for number, row in enumerate(own_rows(request, info["sessions"]))
        ]
    )


async def change_props(request: Request) -> Response:
    """Settings are the daemon's matter."""
    raise Refusal(403, "not_done_here", "settings are not changed over HTTP")


_TEXTS = {"type": ["string", "array"]}
_TOKENIZE = {"content": _TEXTS, "add_special": FLAG, "parse_special": FLAG, "with_pieces": FLAG}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
ENDPOINTS = (
    Endpoint("GET", "/props", props, "the model", "llama-server"),
    Endpoint("POST", "/props", change_props, "not done here: 403", "llama-server"),
    Endpoint("GET", "/lora-adapters", lora_adapters, "LoRA adapters", "llama-server"),
    Endpoint(
        "POST", "/lora-adapters", set_lora_adapters, "change scales of adapters", "llama-server",
    ),
    Endpoint("GET", "/slots", slots, "what runs and waits", "llama-server"),
    Endpoint("POST", "/tokenize", tokenize, "token ids of a text", "llama-server", _TOKENIZE),
    Endpoint(
        "POST", "/detokenize", detokenize, "the text of token ids", "llama-server",
        {"tokens": _TOKENS},
    ),
    Endpoint("GET", "/tokenizer_info", tokenizer_info, "the ends of a text", "llama-server"),
    Endpoint(
        "POST", "/apply-template", apply_template, "what a conversation becomes", "llama-server",
        CHAT, ("messages",),
    ),
)  # fmt: skip
