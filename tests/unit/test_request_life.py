"""Steps of a request's life: those of the table are taken, any other raises."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from umaserve.protocol import Limits, parse_message
from umaserve.server.requests.life import NEXT, Answer, ImpossibleStep, Stage, step
from umaserve.server.requests.request import Request


def request() -> Request:
    message: Any = parse_message(json.dumps({"id": "a", "prompt": "x"}).encode(), Limits())
    sink: Any = None
    return Request.create(1, sink, message, time.monotonic_ns(), 20)


@pytest.mark.parametrize("kind", [Stage, Answer])
def test_only_steps_of_the_table_are_taken(kind: type[Stage] | type[Answer]) -> None:
    for now, to in itertools.product(kind, kind):
        if to in NEXT[now]:
            assert step(now, to) is to
        else:
            with pytest.raises(ImpossibleStep, match=f"{now.name} to {to.name}"):
                step(now, to)


def test_every_state_is_reached_and_the_last_ones_are_left_by_none() -> None:
    for kind, ends in ((Stage, {Stage.OVER}), (Answer, {Answer.BROKEN})):
        reached, new = set(), {next(iter(kind))}
        while new:
            reached |= new
            new = set().union(*(NEXT[state] for state in new)) - reached
        assert reached == set(kind)
        assert {state for state in kind if not NEXT[state]} == ends


def test_a_request_that_is_over_does_not_run_again() -> None:
    one = request()
    for stage in (Stage.SUBMITTED, Stage.RUNNING, Stage.OVER):
        one.enter(stage)
    with pytest.raises(ImpossibleStep):
        one.enter(Stage.RUNNING)
    assert one.stage is Stage.OVER


def test_a_client_is_told_the_end_once() -> None:
    one = request()
    assert not one.told
    one.answered(Answer.CANCELLED)
    assert not one.told and one.state() == "ending"
    one.answered(Answer.TOLD)
    assert one.told
    with pytest.raises(ImpossibleStep):
        one.answered(Answer.TOLD)


@pytest.mark.parametrize(
    ("stage", "tokens", "name"),
    [
        (Stage.RENDERING, [], "queued"),
        (Stage.SUBMITTED, [], "queued"),
        (Stage.RUNNING, [], "prefill"),
        (Stage.RUNNING, [5], "decode"),
    ],
)
def test_the_word_for_people(stage: Stage, tokens: list[int], name: str) -> None:
    one = request()
    assert one.state() == "queued"
    one.stage, one.tokens = stage, tokens
    assert one.state() == name
