"""Plans for the simulated machines are those that were recorded: no move of files changes one."""

from __future__ import annotations

import json
import platform
import sys

import numpy as np
import pytest

from tests.support.record_plans import FEW, record
from tools.sim_run import note_plan
from umaserve.policy.base import Plan


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="mathematical libraries round in their own ways, and plans follow from times",
)
def test_every_plan_is_the_one_that_was_recorded() -> None:
    recorded, made = json.loads(FEW.read_text("utf-8")), record(few=True)
    others = [load for load in {**recorded, **made} if recorded.get(load) != made.get(load)]
    assert not others, (
        f"{others}: where the policy was changed on purpose, "
        "python -m tests.support.record_plans --few tests/support/fixtures/plans.json"
    )


def digest(*changes: tuple[str, int | str, int]) -> list[int]:
    """Of a plan of three rows and two prompts beside it, with ``(part, index, value)`` changed."""
    plan, noted = Plan.empty(8), np.zeros(2, np.int64)
    plan.slots[:3], plan.counts[:3], plan.aside[:2] = (4, 0, 2), (1, 1, 9), (5, 6)
    for part, index, value in changes:
        getattr(plan, part)[index] = value
    note_plan(noted, plan, 3)
    return noted.tolist()


def test_a_plan_that_differs_anywhere_has_another_digest() -> None:
    changes = [
        ("slots", 1, 7),
        ("slots", 0, 5),
        ("counts", 2, 8),
        ("aside", 0, 6),
        ("aside", 1, -1),
    ]
    changes += [("info", field, 1) for field in ("mode", "marks", "chunk_beside")]
    found = [digest(), *(digest(change) for change in changes)]
    assert len({tuple(each) for each in found}) == len(found)
    assert digest(("slots", 5, 3)) == digest()  # no entry of the plan
