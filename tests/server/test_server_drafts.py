"""Drafts of a real daemon with the bundled model: what clients and metrics are told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.assets import demo_model_path

SAID = "the quick brown fox jumps over the lazy dog; "
REPEATS: dict[str, Any] = {
    "prompt": SAID * 3, "n_predict": 200, "temperature": 0,
    "grammar": f"root ::= {json.dumps(SAID * 2)}",
}  # fmt: skip
TOTALS = ("draft_tokens_total", "draft_accepted_total")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, http="127.0.0.1:0", speculate="ngram") as daemon:
        yield daemon


def completion(daemon: DaemonProcess, **more: Any) -> dict[str, Any]:
    reply = post(port_of(daemon), "/completion", {**REPEATS, **more})
    return sse(reply.body)[-1] if more.get("stream") else reply.json


@pytest.mark.parametrize("stream", [False, True])
def test_timings_tell_what_was_drafted(daemon: DaemonProcess, stream: bool) -> None:
    before = daemon.metrics()
    timings = completion(daemon, stream=stream)["timings"]
    drafted, accepted = timings["draft_n"], timings["draft_n_accepted"]
    assert 0 < accepted <= drafted and accepted < timings["predicted_n"]

    def counted() -> bool:  # with the end of a tick, of which a client may hear before
        now = daemon.metrics()
        totals = [now[name] - before[name] for name in TOTALS]
        return totals[0] >= drafted and totals[1] >= accepted

    eventually(counted, "the metrics count them too")
    after = daemon.metrics()
    assert after["tokens_per_tick"] > 1.0
    assert after["draft_gained_s"] != before["draft_gained_s"]
    ticks = after["batch_calls_total"] - before["batch_calls_total"]
    assert ticks < timings["predicted_n"]


def test_a_request_may_rule_drafts_out(daemon: DaemonProcess) -> None:
    with_drafts, without = completion(daemon), completion(daemon, speculate=False)
    assert with_drafts["content"] == without["content"] == SAID * 2
    assert "draft_n" in with_drafts["timings"]
    assert not {"draft_n", "draft_n_accepted"} & set(without["timings"])
    before = daemon.metrics()["draft_tokens_total"]
    body = {**REPEATS, "max_tokens": 200, "speculate": False}
    whole = post(port_of(daemon), "/v1/completions", body).json
    assert whole["choices"][0]["text"] == SAID * 2
    assert daemon.metrics()["draft_tokens_total"] == before


def test_a_free_answer_repeats_itself(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.send(id="a", prompt="def f(", max_tokens=300, temperature=0, ignore_eos=True)
        usage = client.answer("eos")["usage"]
    assert usage["completion_tokens"] == 300
    assert 0 < usage["accepted_tokens"] <= usage["drafted_tokens"]
    recent = daemon.info()["recent"][-1]
    assert recent["accepted_tokens"] == usage["accepted_tokens"]


def test_the_setting_is_told_and_off_drafts_nothing(daemon: DaemonProcess, tmp_path: Path) -> None:
    model = daemon.info()["model"]
    assert (model["speculate"], model["why_no_drafts"]) == ("ngram", "")
    with real(tmp_path, http="127.0.0.1:0", speculate="off") as silent:
        assert silent.info()["model"]["speculate"] == "off"
        answer = completion(silent)
        assert answer["content"] == SAID * 2 and "draft_n" not in answer["timings"]
        assert silent.metrics()["draft_tokens_total"] == 0


def test_a_draft_model_is_told_and_counted(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert daemon.info()["model"]["draft_model"] == ""
    path = str(demo_model_path())
    with real(tmp_path, speculate="draft", draft_model=path) as drafting:
        model = drafting.info()["model"]
        assert (model["speculate"], model["draft_model"]) == ("draft", path)
        with drafting.client() as client:
            client.send(id="a", prompt="import os\n", max_tokens=80, temperature=0, ignore_eos=True)
            usage = client.answer("eos")["usage"]
        assert usage["completion_tokens"] == 80
        assert 40 < usage["accepted_tokens"] <= usage["drafted_tokens"]
        assert drafting.metrics()["draft_accepted_total"] >= usage["accepted_tokens"]
