"""Digests of all plans that the policy makes for the simulated machines, to compare two states.

    python -m tests.support.record_plans before.json
    (change something that should change no plan)
    python -m tests.support.record_plans after.json && diff before.json after.json

``--few`` records what the tests compare: `tests/support/fixtures/plans.json`.  After a change of
the policy that is meant, record it again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from umaserve.jit.cache import use_jit_cache

if __name__ == "__main__":
    use_jit_cache()  # else code that was compiled from other sources would be recorded

import numpy as np  # noqa: E402

from tools.sim_beside import TICKS  # noqa: E402
from tools.sim_loads import PRESETS  # noqa: E402
from tools.sim_machine import presets, probed  # noqa: E402
from tools.sim_run import simulate  # noqa: E402
from tools.simulate import knobs_for, parser  # noqa: E402

FEW = Path(__file__).parent / "fixtures" / "plans.json"


Digests = Iterator[tuple[str, str]]


def simulated(seconds: float) -> Digests:
    """Every load on every machine of `tools.simulate`, with a probe and without."""
    for (name, machine), load, cold in itertools.product(presets().items(), PRESETS, (False, True)):
        options = parser().parse_args(["--cold"] if cold else [])
        knobs = knobs_for(machine, options)
        cost = probed(machine)
        if cold:
            cost.forget()
        played = simulate(PRESETS[load](), machine, knobs, cost, seconds=seconds).outcome
        what = f"{load} on {name}{', cold' if cold else ''}"
        yield what, told(played.plans, int(played.totals[TICKS]))


def told(plans: np.ndarray, ticks: int) -> str:
    return f"{plans[0]:08x}{plans[1]:08x} of {ticks} ticks"


def record(few: bool) -> dict[str, str]:
    return dict(simulated(15.0 if few else 60.0))


def main() -> int:
    program = "python -m tests.support.record_plans"
    options = argparse.ArgumentParser(prog=program, description=__doc__)
    options.add_argument("out", type=Path, help="a file of JSON")
    options.add_argument("--few", action="store_true", help="only what the tests compare")
    asked = options.parse_args()
    asked.out.write_text(json.dumps(record(asked.few), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
