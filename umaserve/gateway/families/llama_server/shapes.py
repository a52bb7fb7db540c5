"""Answers of ``/completion`` as llama-server writes them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.refusal import Refusal, llama_error
from umaserve.gateway.translate.answers.answering import Translator, sse
from umaserve.gateway.translate.answers.parts import unread_field
from umaserve.gateway.translate.answers.rated import token_of
from umaserve.gateway.translate.answers.timings import Progress, timings
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
    "adaptive_target": -1.0, "adaptive_decay": 0.9, "n_discard": 0, "min_keep": 0, "grammar": "",
}  # fmt: skip


class Answers(Translator):
    """An object with all answers, or a part for each token and for the end.

    ``fields`` are the socket's.  ``wants_text``: False where the prompt is only to be read.  Each
    of ``prompts`` has ``choices`` answers.  ``most``: the most tokens that any answer may have.
    """

    def __init__(
        self,
        body: dict[str, Any],
        fields: Mapping[str, Any],
        prompts: list[str],
        choices: int,
        most: int,
    ) -> None:
        self._body, self._choices = body, choices
        self._after = body.get("post_sampling_probs") is True
        wanted = fields.get("max_tokens")
        self._most = min(wanted, most) if isinstance(wanted, int | float) else most
        self._most_ms = fields.get("t_max_predict_ms") or 0
        self._has_line = [False] * (len(prompts) * choices)
        self.wants_text = fields.get("max_tokens") != 0
        self._model, self._prompts = body["model"], prompts
        self._paths = [str(name) for name in body.get("response_fields") or ()]
        self._settings = settings(body, fields)

    def whole(self, ends: list[Event]) -> Any:
        answers = [self._whole(number, end) for number, end in enumerate(ends)]
        return answers if len(answers) > 1 else answers[0]

    def begin(self) -> bytes:
        self._progress = Progress(self._body)
        return b""

    def begun(self, number: int, begin: Event) -> None:
        self._model = self._model or begin.model
        self._progress.begun(number, begin)

    def feed(self, number: int, event: Event) -> bytes:
        if event.event == "eos":
            return sse(self._chosen(self._last(number, event)))
        told = self._progress.of_prompt(number, event)
        part: dict[str, Any] = {"index": number, "content": "", "tokens": []}
        part |= {"stop": False, "id_slot": -1, **self._progress.timings(number)}
        before = sse(part | told) if told else b""
        if event.event != "token" or not self.wants_text:
            return before
        text = event.text or ""
        self._has_line[number] = self._has_line[number] or "\n" in text
        part |= {"content": text, "tokens": [event.token_id]}
        if event.top_logprobs is not None:
            part["completion_probabilities"] = [probability(token_of(event), self._after)]
        return before + sse(part)

    def fail(self, refusal: Refusal) -> bytes:
        return sse(llama_error(refusal))

    def _whole(self, number: int, end: Event) -> dict[str, Any]:
        told = self._last(number, end)
        if self.wants_text:
            told["content"], told["tokens"] = end.text or "", end.token_ids or []
        if end.logprobs is not None:
            told["completion_probabilities"] = [
                probability(token, self._after) for token in end.logprobs
            ]
        return self._chosen(told)

    def _last(self, number: int, end: Event) -> dict[str, Any]:
        stop_type = "word" if end.stop is not None else _STOP_TYPES.get(end.reason, "eos")
        predicted = end.tokens("completion_tokens") if self.wants_text else 0
        times = timings(end)
        return {
            "index": number,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self._model or end.model,
            "tokens_predicted": predicted,
            "tokens_evaluated": end.tokens("prompt_tokens"),
            "tokens_cached": end.tokens("cached_tokens"),
            "generation_settings": self._settings,
            "prompt": self._prompts[number // self._choices],
            "has_new_line": self._has_line[number] or "\n" in (end.text or ""),
            "truncated": end.dropped_tokens > 0 or self._is_full(end, predicted),
            "stop_type": stop_type if self.wants_text else "limit",
            "stopping_word": end.stop or "",
            "timings": times if self.wants_text else {**times, "predicted_n": 0},
            **unread_field(end),
        }

    def _is_full(self, end: Event, predicted: int) -> bool:
        """Whether the context ended the answer, rather than a limit that was asked for."""
        late = 0 < self._most_ms < end.ms("total_ms") - end.ms("ttft_ms")
        return end.reason == "length" and self.wants_text and predicted < self._most and not late

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


def probability(token: dict[str, Any], after: bool) -> dict[str, Any]:
    """A token with its alternatives; ``after``: probabilities of what the settings left."""
    name, tops = ("prob", "top_probs") if after else ("logprob", "top_logprobs")

    def entry(of: dict[str, Any]) -> dict[str, Any]:
        value = of["logprob"]
        if after:
            value = 0.0 if value is None else math.exp(value)
        return {
            "id": of["token_id"],
            # without a character that its bytes leave unfinished
            "token": codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(of["bytes"])),
            "bytes": of["bytes"],
            name: value,
        }

    return entry(token) | {tops: [entry(top) for top in token["top_logprobs"] or ()]}


def settings(body: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
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
        "lora": fields.get("lora") or [],
        "stream": body.get("stream") is True,
        "n_keep": fields.get("n_keep", 0),
        "n_probs": fields.get("logprobs", 0),
        "samplers": body.get("samplers") or list(STEPS),
        **_ABSENT,
        "post_sampling_probs": body.get("post_sampling_probs") is True,
        "timings_per_token": body.get("timings_per_token") is True,
    }
