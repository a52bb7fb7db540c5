"""What a dashboard is told: rows of the running requests, curves, and requests named by serial."""

from __future__ import annotations

import bisect
import io
import json
import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.untimed import untimed
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.client import Client, TrioClient
from umaserve.metrics.window import quantile
from umaserve.server.figures.recent_gaps import POINT_NS, POINTS, RecentGaps
from umaserve.server.log.lines import Log
from umaserve.server.requests.meters import recent_errors
from umaserve.server.requests.meters.recent_errors import RecentErrors

SLOW = {"FAKE_TICK_MS": "5"}


# --- curves --------------------------------------------------------------------------------------


def request(lane: int, times: list[int]) -> Any:
    return SimpleNamespace(lane=lane, token_ns=times)


def points(requests: list[Any], now_ns: int) -> list[list[float | None]]:
    """The same by brute force."""
    newest, out = now_ns // POINT_NS, []
    for lane in (0, 1):
        gaps: dict[int, list[float]] = {}
        for each in requests:
            for a, b in zip(each.token_ns, each.token_ns[1:], strict=False):
                if each.lane == lane:
                    gaps.setdefault(b // POINT_NS, []).append((b - a) / 1e6)
        values = [quantile(gaps.get(n, []), 0.95) for n in range(newest - POINTS + 1, newest + 1)]
        out.append([None if v is None else round(v, 2) for v in values])
    return out


gap_lists = st.lists(st.integers(1, 3_000_000_000), max_size=30)


@untimed
@given(st.lists(st.tuples(st.integers(0, 1), gap_lists), max_size=5), st.lists(st.integers(0, 60)))
def test_the_curves_are_those_of_all_tokens(streams, looks):
    """However often somebody looks, and whenever requests end."""
    start = 1_000 * POINT_NS
    whole = [
        request(lane, [start + int(n) for n in np.cumsum([0, *gaps])]) for lane, gaps in streams
    ]
    end = max([r.token_ns[-1] for r in whole], default=start)
    recent, last = RecentGaps(), {"interactive": [], "background": []}
    live = {n: request(r.lane, []) for n, r in enumerate(whole)}
    # often enough: what came before the newest few points is closed
    times = sorted({start + n * POINT_NS for n in looks} | set(range(start, end, POINT_NS)) | {end})
    for now in times:
        for n, each in live.items():
            every = whole[n].token_ns
            each.token_ns[:] = every[: bisect.bisect_right(every, now)]
        last = recent.read(live, now)
        for n in [n for n in live if live[n].token_ns == whole[n].token_ns]:
            live.pop(n)  # ended; it was seen before, or has nothing more to say
    last = recent.read(live, end)
    assert [last["interactive"], last["background"]] == points(whole, end)


def test_a_request_that_runs_already_has_a_past():
    start = 1_000 * POINT_NS
    busy = request(0, [start + n * 10_000_000 for n in range(300)])
    now = busy.token_ns[-1]
    out = RecentGaps().read({1: busy}, now)
    assert out["interactive"] == points([busy], now)[0]
    assert sum(v is not None for v in out["interactive"]) == 6
    assert set(out["background"]) == {None} and len(out["background"]) == POINTS


def test_a_look_costs_what_is_new():
    """Nothing is collected between two looks, and none reads again what the last one has read."""
    reads = 0

    class Counting(list):
        def __getitem__(self, at):
            nonlocal reads
            reads += 1
            return super().__getitem__(at)

    start = 1_000 * POINT_NS
    busy = request(0, Counting(start + n * 10_000_000 for n in range(300)))
    recent = RecentGaps()
    assert reads == 0
    recent.read({1: busy}, busy.token_ns[-1])
    first, reads = reads, 0
    assert first >= 299
    recent.read({1: busy}, busy.token_ns[-1])
    assert reads < 10
    busy.token_ns += [start + 3_000_000_000, start + 3_010_000_000]
    recent.read({1: busy}, busy.token_ns[-1])
    assert reads < 20


def test_no_request_is_held_for_a_look_that_may_never_come():
    class Held(SimpleNamespace):
        """What a weak reference can point at."""

    start = 1_000 * POINT_NS
    times = [start, start + 5_000_000]
    busy, idle = Held(lane=0, token_ns=times), Held(lane=1, token_ns=[])
    recent = RecentGaps()
    recent.read({1: busy, 2: idle}, start + 6_000_000)
    gone = [weakref.ref(each) for each in (busy, idle)]
    del busy, idle
    assert [ref() for ref in gone] == [None, None]
    times.append(start + 15_000_000)  # its last, before it ended
    seen = recent.read({}, start + 20_000_000)
    assert seen["interactive"][-1] == 10.0


# --- last errors ---------------------------------------------------------------------------------


class App:
    def __init__(self, name: str) -> None:
        self.name, self.asked = name, 0

    @property
    def app(self) -> str:
        self.asked += 1
        return self.name


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_700_000_000.0]
    monkeypatch.setattr(recent_errors.time, "time", lambda: now[0])
    return now


def test_errors_of_one_code_within_a_second_are_one_entry(clock: list[float]) -> None:
    errors, editor = RecentErrors(), App("editor")
    for n in range(2500):
        errors.add("E_PROTO_001", f"garbage {n}", client=editor)
        clock[0] += 0.01
    errors.add("E_LIMIT_001", "too long", "r1", App("cli"))
    clock[0] += 5
    errors.add("E_PROTO_001", "once more", "r2", editor)
    first, second, third = errors.read()
    assert (first["code"], first["text"], first["count"]) == ("E_PROTO_001", "garbage 0", 2500)
    assert (second["request"], second["app"], second["age_s"]) == ("r1", "cli", 5.0)
    assert (third["text"], third["count"], third["age_s"]) == ("once more", 1, 0.0)
    assert editor.asked == 2, "who it is, is asked for once an entry"


def test_no_more_errors_are_kept_than_stated(clock: list[float]) -> None:
    errors = RecentErrors()
    for n in range(1000):
        clock[0] += 2
        errors.add("E_LIMIT_001", str(n))
    assert [entry["text"] for entry in errors.read()] == [
        str(n) for n in range(1000 - recent_errors.KEPT, 1000)
    ]


def test_warnings_of_the_log_are_kept_whatever_is_written(clock: list[float]) -> None:
    stream, errors = io.StringIO(), RecentErrors()
    log = Log("error", False, stream)
    log.on_trouble = errors.log_line
    log("info", "all is well")
    log("warn", "the engine died")
    log("warn", "the engine died")
    log("warn", "another one")
    log("error", "c1 failed: Traceback\n  File x\nValueError: y\n", connection="c1")
    log("error", "request 'a' ends", request="a")  # its client gets a code, which is kept
    assert [(e["code"], e["text"], e["count"]) for e in errors.read()] == [
        ("warn", "the engine died", 2), ("warn", "another one", 1),
        ("error", "c1 failed: Traceback ... ValueError: y", 1),
    ]  # fmt: skip
    assert "died" not in stream.getvalue()
    errors.add("warn", "x" * 9999)
    assert len(errors.read()[-1]["text"]) == recent_errors.LONGEST


# --- over the socket, with a stand-in for the engine ---------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path):
    with DaemonProcess(tmp_path, n_ctx=1024, environment=SLOW) as daemon:
        yield daemon


def overview(daemon: DaemonProcess) -> dict[str, Any]:
    with Client(daemon.path) as client:
        return client.overview()


def test_what_an_overview_holds(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "hello", max_tokens=900, priority="background")
        client.wait_tokens("a", 40)
        seen = overview(daemon)
        (row,) = seen["sessions"]
        assert (row["id"], row["lane"], row["state"]) == ("a", "background", "decode")
        assert row["prompt_tokens"] == 5 and row["tokens"] >= 40 and row["serial"] >= 1
        # this engine has no KV cache
        assert row["kv_cells"] == 0 and row["p95_ms"] > 0 and row["ttft_ms"] > 0
        assert row["tok_s"] > 0 and row["age_s"] > 0 and row["conn"].startswith("c")
        assert seen["state"] == "serving" and seen["progress"] is None
        assert seen["ticks"]["budget_ms"] == 50.0 and seen["ticks"]["count"] > 10
        assert seen["ticks"]["decode_rows"] >= 10 and seen["ticks"]["mean_ms"] > 0
        assert [v for v in seen["tbt_ms"]["background"] if v is not None]
        assert set(seen["tbt_ms"]["interactive"]) == {None}
        assert any("serving" in entry["text"] for entry in seen["log"])
        assert seen["metrics"]["active_sessions"] == 1
        machine = seen["machine"]
        assert set(machine) == {"cpu", "gpu", "memory_used_bytes", "memory_total_bytes"}
        assert 0 < machine["memory_used_bytes"] < machine["memory_total_bytes"]
        assert seen["recent"] == []
        later = overview(daemon)
        assert later["sessions"][0]["tokens"] > row["tokens"] - 1
        assert daemon.info()["sessions"][0]["serial"] == row["serial"]


def test_the_newest_ten_that_ended_are_told_without_their_ids(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for n in range(12):
            client.ask(f"secret-{n}", "hello", max_tokens=3)
            client.finish(f"secret-{n}")
        ended = overview(daemon)["recent"]
    serials = [row["serial"] for row in ended]
    assert len(serials) == 10 and serials == sorted(serials)
    assert {row["completion_tokens"] for row in ended} == {3}
    assert {row["reason"] for row in ended} == {"length"} and "secret" not in json.dumps(ended)


def test_the_last_errors_of_clients_and_of_the_engine(daemon: DaemonProcess) -> None:
    assert overview(daemon)["errors"] == []
    with daemon.client() as client:
        client.send(id="big", prompt="x" * 100_000)
        assert client.receive()["code"] == "E_LIMIT_001"
        client.generate("[reject]", "no")
        with daemon.client() as other:
            other.send_body(b"{")
            assert other.receive()["code"] == "E_PROTO_001"
        client.ask("kept", "hello", max_tokens=900)
        client.wait_tokens("kept", 3)
        psutil.Process(daemon.info()["model"]["engine_pid"]).kill()
        eventually(lambda: daemon.metrics()["engine_restarts_total"] == 1, "it is replaced")
        client.wait_tokens("kept", 20)
    seen = {entry["code"]: entry for entry in overview(daemon)["errors"]}
    assert list(seen) == ["E_LIMIT_001", "E_PROTO_003", "E_PROTO_001", "warn"]
    assert seen["E_LIMIT_001"]["request"] == "big" and seen["E_PROTO_003"]["request"] == "no"
    assert "100000" in seen["E_LIMIT_001"]["text"] and seen["E_PROTO_001"]["request"] == ""
    own = psutil.Process().name()[:15]
    assert {seen[code]["app"] for code in seen if code != "warn"} == {own}
    assert "the engine died" in seen["warn"]["text"] and seen["warn"]["app"] == ""
    assert all(entry["count"] == 1 and 0 <= entry["age_s"] < 600 for entry in seen.values())
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", entry["time"]) for entry in seen.values())
    assert sum(daemon.metrics()["errors_total"].values()) == 3


def test_requests_of_the_same_id_are_told_apart_by_serial(daemon: DaemonProcess) -> None:
    """From a third connection, as a dashboard does."""
    with daemon.client() as one, daemon.client() as two, Client(daemon.path) as other:
        for client in (one, two):
            client.ask("same", "hello", max_tokens=1000)
            client.wait_tokens("same", 2)
        first, second = (s["serial"] for s in other.overview()["sessions"])
        other.priority(second, "background")
        lanes = {s["serial"]: s["lane"] for s in other.overview()["sessions"]}
        assert lanes == {first: "interactive", second: "background"}
        assert not other.cancel("same"), "two have this id"
        assert other.cancel(second)
        assert two.finish("same")[0].eos["reason"] == "cancel"
        eventually(lambda: len(other.overview()["sessions"]) == 1, "it is gone")
        assert not other.cancel(second)
        with pytest.raises(Exception, match='"serial" must name one request'):
            other.priority(second, "interactive")
        assert other.cancel(first)
        assert one.finish("same")[0].eos["reason"] == "cancel"


def test_answers_by_serial_echo_the_message_s_id(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.ask("a", "hello", max_tokens=900)
        client.wait_tokens("a", 1)
        serial = overview(daemon)["sessions"][0]["serial"]
        client.send(type="priority", serial=serial, priority="background", id="note")
        assert client.answer("priority") == {
            "id": "note", "event": "priority", "priority": "background",
        }  # fmt: skip
        client.send(type="cancel", serial=serial)
        assert client.answer("cancelled") == {"event": "cancelled", "found": True}


def test_watching_under_trio(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with (
            TrioClient(daemon.path) as client,
            TrioClient(daemon.path) as busy,
            busy.generate("hello", max_tokens=900) as stream,
        ):
            await stream.__anext__()
            count = 0
            async for seen in client.watch_overview(50):
                count += 1
                (row,) = seen["sessions"]
                if count == 3:
                    await client.priority(row["serial"], "background")
                if count > 3 and row["lane"] == "background":
                    assert await client.cancel(row["serial"])
                    return

    trio.run(main)
    daemon.idle()
