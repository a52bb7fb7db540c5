"""The schemas of JSON-Schema-Test-Suite: each answer validates, or the schema was refused.

The suite (MIT, see `json_schema_suite.LICENSE` beside the file) is there to test validators, so its
schemas try every keyword and every corner.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.schema_answers import judged

SUITE = Path(__file__).parents[1] / "support/fixtures/json_schema_suite.json.gz"
SEEDS = 2
MOST_TOKENS = 200


def schemas() -> list[tuple[str, Any]]:
    """Name and schema of each group of tests; those of several drafts."""
    found = json.loads(gzip.decompress(SUITE.read_bytes()))
    assert len(found) > 1500
    return [(name, schema) for name, schema in found]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_answer_validates_or_its_schema_is_refused() -> None:
    asked = [(name, schema, seed) for name, schema in schemas() for seed in range(SEEDS)]
    with DrivenEngine() as engine:
        ended, wrong = judged(engine, asked, MOST_TOKENS)
    assert not wrong, "\n".join(wrong)
    assert ended["unjudged"] < 0.01 * len(asked)
    assert ended["valid"] > 0.2 * len(asked), ended
