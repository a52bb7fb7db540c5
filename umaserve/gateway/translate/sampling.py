"""How tokens are chosen: the families' names for it, as the socket has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.gateway.daemon.refusal import encode
from umaserve.gateway.translate.body import whole_of
from umaserve.gateway.translate.messages import CONSTRAINTS, constraint_fields
from umaserve.gateway.translate.samplers import in_our_order
from umaserve.protocol.tables.fields import MAX_LOGPROBS
from umaserve.protocol.tables.settings import HANDLING, SAMPLING

SAME = tuple(field.name for field in (*SAMPLING, *HANDLING))
OWN = (*(field.name for field in HANDLING), *CONSTRAINTS)  # no field of another server
# as llama-server and Ollama call them
OTHER = {"repeat_last_n": "penalty_last_n", "typ_p": "typical_p"}
RANDOM_SEEDS = (-1, 0xFFFFFFFF)
MAX_CHOICES = 128


def settings_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and the constraint that a body gives, by the socket's names.

    The daemon checks their values and names a wrong field.  Raises ``Refusal`` for a choice of
    samplers that is not available.
    """
    fields = {name: body[name] for name in SAME if body.get(name) is not None}
    for theirs, ours in OTHER.items():
        if body.get(theirs) is not None:
            fields.setdefault(ours, body[theirs])
    if fields.get("seed") in RANDOM_SEEDS:
        del fields["seed"]
    return in_our_order(body, fields) | constraint_fields(body)


def most_tokens(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """``max_tokens`` by the first of ``names`` that is given; -1 is no limit."""
    value = next((body[name] for name in names if body.get(name) is not None), -1)
    return {} if value == -1 else {"max_tokens": value}


def n_probs(body: dict[str, Any]) -> int:
    """How many alternatives llama-server's field of that name asks for.  Raises ``Refusal``."""
    return whole_of(body, "n_probs", 0, 0, MAX_LOGPROBS)


def several(messages: list[dict[str, Any]], choices: int) -> list[dict[str, Any]]:
    """Return each request so many times; a seed goes on from one to the next.

    Nothing is drafted for equal requests, unless that is asked for: drafts would give each of them
    ticks of another shape.
    """
    if choices > 1 or len({encode(each) for each in messages}) < len(messages):
        messages = [{"speculate": False, **each} for each in messages]
    return [
        {**each, "seed": each["seed"] + number} if isinstance(each.get("seed"), int) else each
        for each in messages
        for number in range(choices)
    ]
