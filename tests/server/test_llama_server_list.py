"""`tests.support.llama_server_list`, asked of a real daemon with the bundled model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import post, sse
from tests.support.http_client import ask, port_of
from tests.support.llama_server_list import ABSENT, CASES, Case
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0", n_ctx=256) as daemon:
        yield daemon


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_right_answer(daemon: DaemonProcess, case: Case) -> None:
    if case.body is None:
        reply: Any = ask(daemon, case.path)
        answer = json.loads(reply.body)
    else:
        reply = post(port_of(daemon), case.path, case.body)
        streams = case.body.get("stream") and reply.status == 200
        answer = sse(reply.body) if streams else json.loads(reply.body)
    assert reply.status == case.status, answer
    for path, right in case.right.items():
        value = found_at(answer, path)
        assert right(value) if callable(right) else value == right, (path, value, answer)


def found_at(answer: Any, path: str) -> Any:
    for step in path.split("/") if path else ():
        if isinstance(answer, list):
            answer = answer[int(step)]
        else:
            answer = answer.get(step, ABSENT)
    return answer


def test_a_body_with_a_byte_order_mark(daemon: DaemonProcess) -> None:
    body = b'\xef\xbb\xbf{"content": "a"}'
    assert post(port_of(daemon), "/tokenize", body).json["tokens"]
