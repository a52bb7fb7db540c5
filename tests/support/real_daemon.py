"""A daemon with the real library and the bundled model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.server_harness import DaemonProcess
from umaserve.assets import demo_model_path

N_TOKENS = 20


def steering(number: int) -> dict[str, Any]:
    ids = [300 + 37 * (number % 60) + 5 * k for k in range(N_TOKENS)]
    return {
        "max_tokens": N_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
        "repeat_penalty": 10.0,
        "penalty_last_n": -1,
        "logit_bias": [[token, 1000 - 42 * k] for k, token in enumerate(ids)],
    }


def real(directory: Path, **settings: Any) -> DaemonProcess:
    # one thread: another would spin in barriers while the tests need the second core
    settings = {
        "n_ctx": 2048,
        "threads": 1,
        "backend": os.environ.get("UMA_BACKEND", "auto"),
        **settings,
    }
    settings.setdefault("model", str(demo_model_path()))
    return DaemonProcess(directory, engine=[], **settings)
