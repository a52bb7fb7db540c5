"""The choice of a format by ``Accept``."""

from __future__ import annotations

from collections.abc import Sequence


def preferred(accept: str, types: Sequence[str]) -> str | None:
    """Return the media type on offer that an ``Accept`` header prefers; ``None`` for none.

    Among equals the first on offer wins.  Parameters of a range are ignored, except its quality.
    """
    if not accept.strip():
        return types[0]
    ranges: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                quality = _quality(value)
        ranges[name] = max(quality, ranges.get(name, 0.0))

    def liked(offer: str) -> float:
        """By the most specific range that names it."""
        for name in (offer, offer.partition("/")[0] + "/*", "*/*"):
            if name in ranges:
                return ranges[name]
        return 0.0

    best = max(types, key=liked)
    return best if liked(best) > 0 else None


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
