"""Memory that graphics cards have of their own, as a child process finds it.

    python -m umaserve.cli.models.graphics

prints the devices as JSON.  libllama may abort, or hang in a driver: so it is not loaded here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from umaserve.llama.builds import select
from umaserve.system.own_python import run_module

LONGEST_S = 30.0


def graphics_bytes() -> int | None:
    """Bytes of all cards together; None where main memory holds the model, 0 where nobody knows."""
    build = select()
    if build is None or build.backend in ("cpu", "metal"):
        return None
    try:
        done = subprocess.run(
            run_module("umaserve.cli.models.graphics"), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=LONGEST_S, check=True,
        )  # fmt: skip
        return own_memory(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0


def own_memory(devices: Iterable[Mapping[str, Any]]) -> int | None:
    """Bytes of all cards among ``devices``, which are as ``llama.devices`` has them.

    None without a card.  A processor's graphics have no memory of their own.
    """
    cards = [device for device in devices if device["type"] == "gpu"]
    return sum(card["memory_total"] for card in cards) if cards else None


def main() -> None:
    from umaserve import llama

    print(json.dumps(llama.devices(llama.load("auto"))), flush=True)


if __name__ == "__main__":
    main()
