"""How long prompts and answers took, as llama-server tells it."""

from __future__ import annotations

import time
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.translate.body import flag_of


def timings(end: Event) -> dict[str, Any]:
    """Return ``timings`` of a request that has ended, by the daemon's clock."""
    prompt, cached = end.tokens("prompt_tokens"), end.tokens("cached_tokens")
    prompt_ms = max(0.0, end.ms("ttft_ms") - end.ms("queue_ms"))
    predicted_ms = max(0.0, end.ms("total_ms") - end.ms("ttft_ms"))
    told = _told(cached, prompt - cached, prompt_ms, end.tokens("completion_tokens"), predicted_ms)
    drafted = end.tokens("drafted_tokens")
    if drafted:
        told |= {"draft_n": drafted, "draft_n_accepted": end.tokens("accepted_tokens")}
    return told


def progress_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The socket's field for a stream that tells how far the prompt is.  Raises ``Refusal``."""
    return {"begin": True, "progress": True} if flag_of(body, "return_progress") else {}


class Progress:
    """Times of the requests of one answer as they run, where the body asks for these.

    The constructor raises ``Refusal``.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self._per_token = flag_of(body, "timings_per_token")
        self._of_prompt = flag_of(body, "return_progress")
        self._running: dict[int, _Running] = {}

    def begun(self, number: int, begin: Event) -> None:
        """Take the beginning of the request with that number."""
        self._running[number] = _Running(begin)

    def of_prompt(self, number: int, event: Event) -> dict[str, Any]:
        """Count an event; return the fields that tell how far the prompt is, if it says so."""
        running = self._running.get(number)
        if running is None or not running.takes(event) or not self._of_prompt:
            return {}
        return {"prompt_progress": running.progress(), **self.timings(number)}

    def timings(self, number: int) -> dict[str, Any]:
        """Return the field that goes with each token."""
        running = self._running.get(number)
        return {"timings": running.timings()} if self._per_token and running is not None else {}


class _Running:
    """Times and token counts of a request that runs, by the gateway's clock."""

    def __init__(self, begin: Event) -> None:
        self.prompt, self.cached = begin.tokens("prompt_tokens"), begin.tokens("cached_tokens")
        self.begun_s = time.monotonic()
        self._first_s = self._last_s = self.begun_s  # until a token: the newest part of the prompt
        self._done = self.cached
        self.count = 0

    def takes(self, event: Event) -> bool:
        """Count an event; return True if it tells of the prompt, as the first token does."""
        if event.event not in ("begin", "progress", "token"):
            return False
        if event.event == "token":
            self._last_s = time.monotonic()
            self.count += 1
        if event.event == "progress" or self.count == 1:
            self._first_s = self._last_s = time.monotonic()
            self._done = self.prompt if self.count else event.processed
        return self.count <= 1

    def timings(self) -> dict[str, Any]:
        """Return ``timings`` up to the newest token, or the newest part of the prompt."""
        prompt_ms = 1e3 * (self._first_s - self.begun_s)
        predicted_ms = 1e3 * (self._last_s - self._first_s)
        return _told(self.cached, self._done - self.cached, prompt_ms, self.count, predicted_ms)

    def progress(self) -> dict[str, Any]:
        """How much of the prompt is there, with what was cached."""
        since_ms = round(1e3 * (time.monotonic() - self.begun_s))
        return {
            "total": self.prompt, "cache": self.cached, "processed": self._done,
            "time_ms": since_ms,
        }  # fmt: skip


def _told(
    cached: int, fed: int, prompt_ms: float, predicted: int, predicted_ms: float
) -> dict[str, Any]:
    steps = max(0, predicted - 1)  # the first token comes of the prompt's last row
    return {
        "cache_n": cached,
        "prompt_n": fed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / fed if fed else 0.0,
        "prompt_per_second": 1e3 * fed / prompt_ms if prompt_ms else 0.0,
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
        "predicted_per_second": 1e3 * steps / predicted_ms if predicted_ms else 0.0,
    }
