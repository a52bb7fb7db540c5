"""Requests whose numbers other requests do not change, and equal prompts of one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, clients_of_another_program

PROMPT = "def total(values):\n    result = 0\n    for value in values:\n        result"
HELLO = [{"role": "user", "content": "Count to ten, and then again, and once more."}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("same"), http="127.0.0.1:0", speculate="ngram") as daemon:
        yield daemon


@pytest.fixture
def busy(daemon: DaemonProcess) -> Iterator[None]:
    """Streams of another program, and a prompt now and then."""
    clients = clients_of_another_program(daemon.path, 3)
    for number, client in enumerate(clients):
        client.ask("one", f"# {number}\nimport os\n", max_tokens=600, temperature=1.0,
                   ignore_eos=True)  # fmt: skip
        client.wait_tokens("one", 2)
    yield
    for client in clients:
        client.socket.close()
    daemon.idle()  # their rows draft until the engine has heard of it


def test_ten_times_beside_others(daemon: DaemonProcess, busy: None) -> None:
    found = []
    with daemon.client() as client:
        for number in range(10):
            result = client.generate(
                PROMPT, id=str(number), max_tokens=20, temperature=0.0, logprobs=3, stream=False,
                deterministic=True,
            )  # fmt: skip
            assert result.eos is not None, result.error
            found.append((result.eos["text"], result.eos["logprobs"]))
            assert result.eos["usage"]["cached_tokens"] == 0
    assert len(found[0][1]) == 20
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 12, "logprobs": True}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "logprobs": 2}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 12}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 12}),
        ("/api/chat", {"messages": HELLO, "stream": False, "options": {"num_predict": 12}}),
        ("/completion", {"prompt": PROMPT, "n_predict": 12, "n_probs": 2}),
    ],
)
def test_in_every_dialect(
    daemon: DaemonProcess, busy: None, path: str, body: dict[str, Any]
) -> None:
    heat = {"options": {**body["options"], "temperature": 0}} if "options" in body else {}
    body = {"temperature": 0, **body, **heat, "deterministic": True}
    texts = []
    for _ in range(2):  # the second one would be cached
        answer = post(port_of(daemon), path, body)
        assert answer.status == 200, answer.json
        assert answer.headers["x-uma-cache"].startswith("0/")
        texts.append(_text(answer.json))
    assert texts[0] == texts[1]


def _text(answer: Any) -> Any:
    """What of an answer does not tell its number or times."""
    names = ("choices", "output", "content", "message")
    found = next(answer[name] for name in names if name in answer)
    if isinstance(found, list):
        found = [{k: v for k, v in each.items() if k != "id"} for each in found]
    return found, answer.get("completion_probabilities")


def test_a_wrong_value_is_named(daemon: DaemonProcess) -> None:
    answer = post(port_of(daemon), "/v1/completions", {"prompt": PROMPT, "deterministic": "yes"})
    assert answer.status == 400 and "deterministic" in str(answer.json)


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "n": 4}, "choices"),
        ("/v1/completions", {"prompt": PROMPT, "n": 4}, "choices"),
        ("/v1/completions", {"prompt": [PROMPT] * 4}, "choices"),
        ("/completion", {"prompt": PROMPT, "n_cmpl": 4}, ""),
        ("/completion", {"prompt": [PROMPT] * 4}, ""),
    ],
)
def test_equal_prompts_of_one_request_have_no_drafts(
    daemon: DaemonProcess, path: str, body: dict[str, Any], answers: str
) -> None:
    """Drafts give each of them ticks of another shape."""
    before = daemon.metrics()["draft_tokens_total"]
    answer = post(port_of(daemon), path, {**body, "temperature": 0, "max_tokens": 100}).json
    found = answer[answers] if answers else answer
    assert len(found) == 4
    assert daemon.metrics()["draft_tokens_total"] == before
