"""Report on the prefix cache for the daemon's own user: the ``cache`` event of the socket.

The engine reports token ids; this module turns them into texts.  The gateway never asks for this
report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from umaserve.wire import messages as m

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{1,2}:\d\d(?::\d\d)?"
    rf"|{_MONTH}\.? \d{{1,2}}|\d{{1,2}}\.? {_MONTH}"
    r"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
)
TOOL = re.compile(r'"function"\s*:\s*\{\s*"(?:name|description)"\s*:\s*"[^"]*')
REMINDER = re.compile(r"<[\w-]*reminder")
NEAR = 2  # characters, such as line ends, that may stand before what begins at a place

CLOCK_HINT = "a time or date stands here: put it at the end of the prompt, or leave it out"
TOOL_HINT = "the tools differ here: send the same ones in the same order"
REMINDER_HINT = "a reminder came or went here: put it behind what stays as it is"

Spelled = Callable[[int], bytes]


def cache_report(
    report: m.CacheReport, spelled: Spelled, app_of: Callable[[int], str]
) -> dict[str, Any]:
    """The event's ``cache``.  ``spelled`` gives a token's bytes, ``app_of`` a request's program."""
    return {
        "on": not report.why_off,
        "why_off": report.why_off,
        "entries": report.entries,
        "ram_bytes": report.bytes,
        "ram_max_bytes": report.most_bytes,
        "domains": [
            {
                **_whose(of.domain),
                "entries": of.entries,
                "tokens": of.tokens,
                "ram_bytes": of.bytes,
                "disk_bytes": of.disk_bytes,
            }
            for of in report.domains
        ],
        "texts": [
            {
                **_whose(text.domain),
                "tokens": text.tokens,
                "ram_bytes": text.bytes,
                "hits": text.hits,
                "begins": _text(text.begins, spelled),
            }
            for text in report.texts
        ],
        "prompts": [_prompt(each, spelled, app_of) for each in report.prompts],
    }


def _prompt(
    answer: m.CacheAnswer, spelled: Spelled, app_of: Callable[[int], str]
) -> dict[str, Any]:
    place = None
    if answer.wanted:
        before, kept = _text(answer.before, spelled), _text(answer.kept, spelled)
        place = {"before": before, "kept": kept, "wanted": _text(answer.wanted, spelled)}
    return {
        "app": app_of(answer.serial),
        **_whose(answer.domain or ""),
        "asked": answer.domain is not None,
        "prompt_tokens": answer.prompt,
        "cached_tokens": answer.cached,
        "known_tokens": answer.known,
        "place": place,
        "hint": hint(**place) if place else "",
    }


def _whose(domain: str) -> dict[str, str | None]:
    """The API key's name, "" = none; and the session where it is private."""
    key, mark, session = domain.rsplit(m.ADAPTED, 1)[0].partition(m.PRIVATE)
    return {"key": key, "session": session if mark else None}


def _text(tokens: Iterable[int], spelled: Spelled) -> str:
    return b"".join(map(spelled, tokens)).decode("utf-8", "replace")


def hint(before: str, kept: str, wanted: str) -> str:
    """The habit that made a prompt leave the tree, where it is clear; else "".

    ``kept`` and ``wanted`` follow on ``before``, in another text and in the prompt.
    """
    if not kept:
        return ""
    at, texts = len(before), (before + kept, before + wanted)
    if all(_spans(CLOCK, text, at) for text in texts):
        return CLOCK_HINT
    if all(_spans(TOOL, text, at) for text in texts):
        return TOOL_HINT
    if len([text for text in texts if _spans(REMINDER, text, at)]) == 1:
        return REMINDER_HINT
    return ""


def _spans(pattern: re.Pattern[str], text: str, at: int) -> bool:
    """Whether a match holds the character ``at``, or begins right behind it."""
    return any(found.start() <= at + NEAR and found.end() > at for found in pattern.finditer(text))
