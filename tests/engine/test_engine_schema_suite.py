"""The schemas of JSON-Schema-Test-Suite: each answer validates, or the schema was refused.

The suite (MIT, see `json_schema_suite.LICENSE` beside the file) is there to test validators, so its
schemas try every keyword and every corner.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.engine_driver import DrivenEngine
from umaserve.wire import messages as m
from umaserve.wire import table as t

SUITE = Path(__file__).parents[1] / "support/fixtures/json_schema_suite.json.gz"
TOGETHER = 8
SEEDS = 2
MOST_TOKENS = 200


def schemas() -> list[tuple[str, Any]]:
    """Name and schema of each group of tests; those of several drafts."""
    found = json.loads(gzip.decompress(SUITE.read_bytes()))
    assert len(found) > 1500
    return [(name, schema) for name, schema in found]


def validate(text: str, schema: Any) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:  # an older draft's that does not say so
        kind = jsonschema.Draft7Validator
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_answer_validates_or_its_schema_is_refused() -> None:
    asked = [(name, schema, seed) for name, schema in schemas() for seed in range(SEEDS)]
    ended = {t.REASON_STOP: 0, t.REASON_LENGTH: 0, "refused": 0}
    wrong: list[str] = []
    unjudged = 0
    with DrivenEngine() as engine:
        for at in range(0, len(asked), TOGETHER):
            serials = {}
            for name, schema, seed in asked[at : at + TOGETHER]:
                binding = m.Constraint(m.SCHEMA, json.dumps(schema))
                sampling = m.Sampling(temperature=1.0, seed=seed)
                serial = engine.submit(
                    '{"a": ', sampling=sampling, constraint=binding, max_tokens=MOST_TOKENS
                )
                serials[serial] = name, schema
            for serial, (name, schema) in serials.items():
                refused = engine.ended(serial)
                if refused is not None:
                    assert refused.code == "E_PROTO_005", refused
                    ended["refused"] += 1
                    continue
                text, reason = engine.text(serial), engine.reason(serial)
                engine.release(serial)
                if reason == t.REASON_ERROR:
                    why = engine.expect(m.Failed).message
                    wrong.append(f"{name}: {text!r} is the beginning of none: {why}")
                    continue
                ended[reason] += 1
                if reason == t.REASON_STOP:
                    try:
                        validate(text, schema)
                    except re.error:
                        unjudged += 1  # JavaScript has regular expressions that Python has not
                    except Exception as error:  # whatever a validator raises
                        wrong.append(f"{name}: {text!r}: {error!r:.200}")
    assert not wrong, "\n".join(wrong)
    assert unjudged < 0.01 * len(asked)
    assert ended[t.REASON_STOP] > 0.2 * len(asked), ended
