"""Reasons why a request with a tokenised prompt gets no row."""

from __future__ import annotations

from umaserve.engine.model.loaded import Loaded
from umaserve.sampling.params import MAX_LOGIT_BIAS
from umaserve.wire import messages as m

Refusal = tuple[str, str, int]  # code, text, and the size of a prompt that is too long


def room_behind(loaded: Loaded, message: m.Submit, n_prompt: int) -> int:
    """Return how many tokens a session can have behind its prompt."""
    return min(loaded.n_positions, loaded.n_ctx - _more_cells(message)) - n_prompt


def why_refused(
    loaded: Loaded, message: m.Submit, tokens: list[int], n_prompt: int
) -> Refusal | None:
    """Return why a request is refused, or None."""
    if not tokens:
        return "E_PROTO_003", "prompt has no tokens; send at least one character", 0
    if tokens[-1] < 0:
        return "E_PROTO_003", "a prompt cannot end with a picture", 0
    pictures, room = _more_cells(message), room_behind(loaded, message, n_prompt)
    if room < 1 or (message.strict_fit and message.max_tokens > room):
        wanted = f" and max_tokens is {message.max_tokens}" if message.strict_fit else ""
        size = f"{n_prompt} tokens"
        if pictures:
            size += f" (its pictures take {pictures} more)"
        text = f"prompt is {size}{wanted}; {_bound(loaded, pictures)}"
        return "E_LIMIT_003", text, n_prompt + pictures
    why = _why_no_bias(loaded, message) or _why_no_adapters(loaded, message)
    return ("E_PROTO_003", why, 0) if why else None


def _more_cells(message: m.Submit) -> int:
    return sum(picture.more_cells for picture in message.pictures)


def _why_no_bias(loaded: Loaded, message: m.Submit) -> str:
    """Why ``logit_bias`` cannot be had; empty where it can."""
    bias = message.sampling.logit_bias
    bad = [i for i, _ in bias if not 0 <= i < loaded.n_vocab]
    if bad:
        return f"logit_bias names token {bad[0]}; the vocabulary has {loaded.n_vocab}"
    return f"logit_bias has more than {MAX_LOGIT_BIAS} entries" * (len(bias) > MAX_LOGIT_BIAS)


def _why_no_adapters(loaded: Loaded, message: m.Submit) -> str:
    """Why a request cannot have the adapters that it names; empty where it can."""
    sets = loaded.adapters
    strangers = [i for i, scale in message.lora if scale and not 0 <= i < len(sets)]
    if strangers and len(sets):
        return f"lora names adapter {strangers[0]}; there are {len(sets)}, from 0 on"
    if message.prompt_logprobs >= 0 and sets.scales(message.lora) != sets.home:
        return "prompt_logprobs cannot be told with other adapters than those of the start"
    return ""


def _bound(loaded: Loaded, more_cells: int) -> str:
    """Text that says what bounds a session's tokens, and what to do about that."""
    less = "shorten the prompt, lower max_tokens"
    n = loaded.n_positions
    if (n < loaded.n_ctx or n == loaded.model.n_ctx_train) and n <= loaded.n_ctx - more_cells:
        return (
            f"the model was trained for {loaded.n_positions} tokens, and a session holds no "
            f"more ({less}, or load a model with a longer context)"
        )
    return (
        f"the context holds {loaded.n_ctx} tokens "
        f"({less}, or start the daemon with a larger --n-ctx)"
    )
