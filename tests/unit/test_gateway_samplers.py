"""llama-server's ``samplers``: honoured where the result is theirs, refused where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.sampling import settings_fields

OFF = {
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_k": 0,
    "typical_p": 1.0, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
}  # fmt: skip


def without(*names: str) -> dict[str, float]:
    return {name: value for name, value in OFF.items() if name not in names}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"samplers": ["top_k", "temperature"], "top_k": 5}, {"top_k": 5, **without("top_k")}),
        ({"samplers": ["top-k", "temp"]}, without("top_k")),
        ({"samplers": "kpt", "top_p": 0.5}, {"top_p": 0.5, **without("top_k", "top_p")}),
        ({"samplers": []}, {"temperature": 1.0, **OFF}),
        # steps that do nothing may stand anywhere
        ({"samplers": ["temperature", "penalties", "xtc", "dry"]},
         without("repeat_penalty", "presence_penalty", "frequency_penalty", "xtc_probability",
                 "dry_multiplier")),
        ({"samplers": ["temperature", "top_k"], "temperature": 1}, {"temperature": 1,
                                                                   **without("top_k")}),
        ({"samplers": ["top_n_sigma", "top_k", "temperature"]}, without("top_k")),
        ({"samplers": ["temperature", "top_k"], "mirostat": 2}, {"mirostat": 2}),
        ({"samplers": ["temperature", "top_k"], "temperature": 0}, {"temperature": 0,
                                                                   **without("top_k")}),
    ],
)  # fmt: skip
def test_steps_that_are_not_named_are_off(body: dict[str, Any], fields: dict[str, Any]) -> None:
    assert settings_fields(body) == fields


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"samplers": ["temperature", "top_k"]}, 501),
        ({"samplers": ["top_k", "top_k", "temperature"]}, 501),
        ({"samplers": ["min_p", "top_p"]}, 501),
        ({"samplers": ["penalties", "top_k", "dry"], "dry_multiplier": 1}, 501),
        ({"samplers": ["temperature", "dry"], "temperature": 0, "dry_multiplier": 1}, 501),
        ({"samplers": ["infill"]}, 501),
        ({"samplers": "i"}, 501),
        ({"top_n_sigma": 1.5}, 501),
        ({"dynatemp_range": 0.5}, 501),
        ({"adaptive_target": 0.5}, 501),
        ({"samplers": ["top_x"]}, 400),
        ({"samplers": [3]}, 400),
        ({"samplers": 3}, 400),
    ],
)
def test_what_would_change_the_result_is_refused(body: dict[str, Any], status: int) -> None:
    with pytest.raises(Refusal) as caught:
        settings_fields(body)
    assert caught.value.status == status
