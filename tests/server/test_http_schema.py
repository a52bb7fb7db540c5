"""schemathesis asks what ``/openapi.json`` describes, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode

from tests.support.http_client import ask, port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from umaserve.gateway.app import ENDPOINTS
from umaserve.gateway.translate.endpoint import Endpoint

pytestmark = pytest.mark.slow

EXAMPLES = 170  # of each way to generate them
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
HANG_S = 30.0
KEPT = 0.15  # of the optional fields: with all of them, one is always refused

# a handler by the first path that leads to it; what unloads the model would leave nothing to ask
UNLOADS = ("/unload", "/models/unload")
BY_HANDLER = {each.handler: each for each in reversed(ENDPOINTS) if each.path not in UNLOADS}
WITH_FIELDS = [each for each in BY_HANDLER.values() if each.fields]
OTHERS = [each for each in BY_HANDLER.values() if not each.fields]


def test_there_are_5000_examples() -> None:
    assert len(WITH_FIELDS) * len(MODES) * EXAMPLES >= 5000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, http="127.0.0.1:0", max_tokens=4) as daemon:
        yield daemon
        assert ask(daemon, "/health").status == 200
        assert "failed" not in daemon.log and "engine left" not in daemon.log, daemon.log


@pytest.fixture(scope="module")
def schema(daemon: DaemonProcess) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{port_of(daemon)}/openapi.json")


def thin(body: Any, required: list[str], random: Random) -> Any:
    """An object with what it must have, and a few of its other fields."""
    if not isinstance(body, dict):
        return body
    return {n: v for n, v in body.items() if n in required or random.random() < KEPT}


def required_of(operation: APIOperation) -> list[str]:
    raw = operation.definition.raw.get("requestBody")
    named = raw["content"]["application/json"]["schema"].get("required") if raw else None
    return named or ["prompt"]


def ask_all(operation: APIOperation, mode: GenerationMode, examples: int) -> None:
    required, documented = required_of(operation), operation.definition.raw["responses"]

    with requests.Session() as session:

        @seed(1)
        @settings(
            max_examples=examples, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode), st.randoms(use_true_random=False))
        def one(case: Case, random: Random) -> None:
            if mode == GenerationMode.POSITIVE:
                case.body = thin(case.body, required, random)
            answer = case.call(session=session, timeout=HANG_S)
            status = answer.status_code
            assert status < 500 or str(status) in documented, (status, answer.text)

        try:
            one()
        except Unsatisfiable:  # what takes nothing cannot be given what is wrong
            assert mode == GenerationMode.NEGATIVE and not operation.body


@pytest.mark.parametrize("endpoint", WITH_FIELDS, ids=lambda each: each.path)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_bodies_get_answers_that_are_documented(
    schema: Any, endpoint: Endpoint, mode: GenerationMode
) -> None:
    ask_all(schema[endpoint.path][endpoint.method], mode, EXAMPLES)


@pytest.mark.parametrize("endpoint", OTHERS, ids=lambda each: each.path)
def test_other_routes_get_answers_that_are_documented(schema: Any, endpoint: Endpoint) -> None:
    path = endpoint.path.replace(":path", "")
    for mode in MODES:
        ask_all(schema[path][endpoint.method], mode, 10)
