"""Answers of a real engine that schemas bind, judged by a validator."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import Any

import jsonschema

from tests.support.engine_driver import DrivenEngine
from umaserve.wire import messages as m
from umaserve.wire import table as t

TOGETHER = 8


def judged(
    engine: DrivenEngine,
    asked: Iterable[tuple[str, Any, int]],
    most_tokens: int,
) -> tuple[Counter[str], list[str]]:
    """How the answers to (name, schema, seed) ended, and a line for each that is wrong.

    They end ``valid``, ``cut`` by ``most_tokens``, ``refused`` before anything was said,
    ``unjudged`` where the validator cannot read the schema, or ``wrong``.
    """
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    more = iter(asked)
    while some := list(islice(more, TOGETHER)):
        serials = {}
        for name, schema, seed in some:
            binding = m.Constraint(m.SCHEMA, json.dumps(schema))
            sampling = m.Sampling(temperature=1.0, seed=seed)
            serial = engine.submit(
                '{"a": ', sampling=sampling, constraint=binding, max_tokens=most_tokens
            )
            serials[serial] = name, schema
        for serial, (name, schema) in serials.items():
            how, why = _end(engine, serial, schema)
            ended[how] += 1
            if how == "wrong":
                wrong.append(f"{name}: {why}")
    return ended, wrong


def _end(engine: DrivenEngine, serial: int, schema: Any) -> tuple[str, str]:
    refused = engine.ended(serial)
    if refused is not None:
        assert refused.code == "E_PROTO_005", refused
        return "refused", ""
    text, reason = engine.text(serial), engine.reason(serial)
    engine.release(serial)
    if reason == t.REASON_ERROR:
        why = engine.expect(m.Failed).message
        return "wrong", f"{text!r} is the beginning of none: {why}"
    if reason == t.REASON_LENGTH:
        return "cut", ""
    try:
        _validate(text, schema)
    except re.error:
        return "unjudged", ""  # JavaScript has regular expressions that Python has not
    except Exception as error:  # whatever a validator raises
        return "wrong", f"{text!r}: {error!r:.200}"
    return "valid", ""


def _validate(text: str, schema: Any) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:  # an older draft's that does not say so
        kind = jsonschema.Draft7Validator
        if isinstance(schema.get("exclusiveMaximum", schema.get("exclusiveMinimum")), bool):
            kind = jsonschema.Draft4Validator  # there it is a word about the other bound
    answer = json.loads(text, parse_float=Written)
    for error in kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(answer):
        number, step = error.instance, error.validator_value
        if error.validator != "multipleOf" or not _is_multiple(number, step):
            raise error


class Written(float):
    """A number as it was written: the nearest binary fraction is another one."""

    def __new__(cls, text: str) -> Written:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __str__(self) -> str:
        return self.text


def _is_multiple(number: float, step: float) -> bool:
    """Whether it is one as decimals, where the validator divides binary fractions."""
    return Fraction(str(number)) % Fraction(str(step)) == 0
