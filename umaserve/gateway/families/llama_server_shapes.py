"""Answers of ``/completion`` as llama-server writes them."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.translate.samplers import DEFAULTS, STEPS

_STOP_TYPES = {"length": "limit", "cancel": "limit"}
_NO_SEED = 0xFFFFFFFF
_SAME = (
    "temperature", "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "typical_p",
    "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat",
    "mirostat_tau", "mirostat_eta", "ignore_eos",
)  # fmt: skip
# what the daemon has not, as a server says it that does not use it
_ABSENT: dict[str, Any] = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0,
    "n_discard": 0, "min_keep": 0, "grammar": "", "timings_per_token": False,
    "post_sampling_probs": False, "lora": [],
}  # fmt: skip


class Asked:
    """What all answers of one request tell again.  ``fields`` are the socket's.

    ``wants_text``: the answer is wanted, and not only that the prompt is read.
    """

    def __init__(
        self, body: Mapping[str, Any], fields: Mapping[str, Any], prompts: list[str]
    ) -> None:
        self.wants_text = fields.get("max_tokens") != 0
        self._model, self._prompts = body["model"], prompts
        self._paths = [str(name) for name in body.get("response_fields") or ()]
        self._settings = _settings(body, fields)

    def whole(self, number: int, end: Event) -> dict[str, Any]:
        """An answer that is no stream."""
        told = self._last(number, end)
        if self.wants_text:
            told["content"], told["tokens"] = end.text or "", end.token_ids or []
        if end.logprobs is not None:
            told["completion_probabilities"] = [probability(token) for token in end.logprobs]
        return self._chosen(told)

    def last(self, end: Event) -> dict[str, Any]:
        """The last part of a stream."""
        return self._chosen(self._last(0, end))

    def _last(self, number: int, end: Event) -> dict[str, Any]:
        stop_type = "word" if end.stop is not None else _STOP_TYPES.get(end.reason, "eos")
        prompt, cached = end.tokens("prompt_tokens"), end.tokens("cached_tokens")
        predicted = end.tokens("completion_tokens") if self.wants_text else 0
        prompt_ms = max(0.0, end.ms("ttft_ms") - end.ms("queue_ms"))
        predicted_ms = max(0.0, end.ms("total_ms") - end.ms("ttft_ms"))
        return {
            "index": number,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": predicted,
            "tokens_evaluated": prompt,
            "tokens_cached": cached,
            "generation_settings": self._settings,
            "prompt": self._prompts[number],
            "truncated": end.dropped_tokens > 0,
            "stop_type": stop_type if self.wants_text else "limit",
            "stopping_word": end.stop or "",
            "timings": {
                "cache_n": cached,
                "prompt_n": prompt - cached,
                "prompt_ms": prompt_ms,
                "predicted_n": predicted,
                "predicted_ms": predicted_ms,
                "predicted_per_second": 1e3 * predicted / predicted_ms if predicted_ms else None,
                **_drafts(end),
            },
        }

    def _chosen(self, told: dict[str, Any]) -> dict[str, Any]:
        """The fields that ``response_fields`` names, such as ``timings/prompt_n``."""
        if not self._paths:
            return told
        found = {}
        for path in self._paths:
            value: Any = told
            for step in path.split("/"):
                value = value.get(step) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found


def _drafts(end: Event) -> dict[str, int]:
    """Tokens that were drafted, and those of them that are in the answer; nothing without any."""
    counts = {"draft_n": end.tokens("drafted_tokens")}
    counts["draft_n_accepted"] = end.tokens("accepted_tokens")
    return counts if counts["draft_n"] else {}


def probability(token: dict[str, Any]) -> dict[str, Any]:
    """A token with its alternatives."""

    def entry(of: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": of["token_id"],
            "token": _begun_text(bytes(of["bytes"])),
            "bytes": of["bytes"],
            "logprob": of["logprob"],
        }

    return entry(token) | {"top_logprobs": [entry(top) for top in token["top_logprobs"] or ()]}


def _begun_text(piece: bytes) -> str:
    """The text of a token without the character that its bytes leave unfinished."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(piece)


def _settings(body: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """``generation_settings``: what held, by their names."""
    stop, most = fields.get("stop") or [], fields.get("max_tokens", -1)
    return {
        "seed": fields.get("seed", _NO_SEED),
        **{name: fields.get(name, DEFAULTS[name]) for name in _SAME},
        "repeat_last_n": fields.get("penalty_last_n", DEFAULTS["penalty_last_n"]),
        "stop": [stop] if isinstance(stop, str) else stop,
        "max_tokens": most,
        "n_predict": most,
        "logit_bias": fields.get("logit_bias") or [],
        "stream": body.get("stream") is True,
        "n_keep": fields.get("n_keep", 0),
        "n_probs": fields.get("logprobs", 0),
        "samplers": body.get("samplers") or list(STEPS),
        **_ABSENT,
    }
