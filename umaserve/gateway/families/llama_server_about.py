"""llama-server's other routes: texts and tokens, the model, what runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from umaserve.gateway.daemon.refusal import Refusal, wrong
from umaserve.gateway.translate.answering import (
    json_response,
    link_of,
)
from umaserve.gateway.translate.body import (
    flag_of,
    list_of,
    read_object,
    text_of,
)
from umaserve.gateway.translate.endpoint import Endpoint
from umaserve.gateway.translate.messages import chat_fields, chat_messages
from umaserve.gateway.translate.model import context_of, info_of, loaded_model
from umaserve.gateway.translate.prompts import (
    rendered,
    text_of_tokens,
    tokens_of,
)
from umaserve.gateway.translate.schemas import CHAT, FLAG, TEXT


async def tokenize(request: Request) -> Response:
    """Token ids of a text, with their texts where ``with_pieces`` asks."""
    body = await read_object(request)
    link = link_of(request)
    tokens = await tokens_of(
        link,
        text_of(body, "content"),
        add_special=flag_of(body, "add_special"),
        parse_special=flag_of(body, "parse_special", True),
    )
    if not flag_of(body, "with_pieces"):
        return json_response({"tokens": tokens})
    pieces = [{"id": each, "piece": await text_of_tokens(link, [each])} for each in tokens]
    return json_response({"tokens": pieces})


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read_object(request)
    tokens = list_of(body, "tokens")
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in tokens):
        raise wrong("tokens", "be a list of token ids")
    return json_response({"content": await text_of_tokens(link_of(request), tokens)})


async def apply_template(request: Request) -> Response:
    """What a conversation becomes, as the model reads it."""
    body = await read_object(request)
    fields = {"messages": chat_messages(body), **chat_fields(body)}
    return json_response({"prompt": await rendered(link_of(request), fields)})


# --- the server ----------------------------------------------------------------------------------


async def props(request: Request) -> Response:
    """The model and what it can do."""
    model = await loaded_model(request)
    if not model:
        raise Refusal(503, "E_MODEL_001", "no model is loaded")
    return json_response(
        {
            "default_generation_settings": {"n_ctx": context_of(model), "params": {}},
            "total_slots": model["n_seq"],
            "model_alias": model["name"],
            "model_path": model["path"],
            "chat_template": model.get("chat_template_text", ""),
            "chat_template_caps": model.get("chat_template_caps", {}),
            "modalities": {"vision": False, "audio": False},
            "build_info": model["library_version"],
            "is_sleeping": False,
        }
    )


async def slots(request: Request) -> Response:
    """What runs and waits; no text of it, and not whose it is."""
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
            for number, row in enumerate(info["sessions"])
        ]
    )


async def change_props(request: Request) -> Response:
    """Settings are the daemon's matter."""
    raise Refusal(403, "not_done_here", "settings are not changed over HTTP")


_TOKENIZE = {"content": TEXT, "add_special": FLAG, "parse_special": FLAG, "with_pieces": FLAG}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
ENDPOINTS = (
    Endpoint("GET", "/props", props, "the model", "llama-server"),
    Endpoint("POST", "/props", change_props, "not done here: 403", "llama-server"),
    Endpoint("GET", "/slots", slots, "what runs and waits", "llama-server"),
    Endpoint(
        "POST", "/tokenize", tokenize, "token ids of a text", "llama-server", _TOKENIZE
    ),
    Endpoint(
        "POST", "/detokenize", detokenize, "the text of token ids", "llama-server",
        {"tokens": _TOKENS},
    ),
    Endpoint(
        "POST", "/apply-template", apply_template, "what a conversation becomes", "llama-server",
        CHAT, ("messages",),
    ),
)  # fmt: skip
