"""What a dashboard is told: rows of the running requests, curves, and requests named by serial."""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.untimed import untimed
from tests.server_harness import DaemonProcess, eventually
from umaserve.client import Client, TrioClient
from umaserve.metrics import quantile
from umaserve.server.overview import log_entry
from umaserve.server.recent_gaps import POINT_NS, POINTS, RecentGaps

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


# --- log lines -----------------------------------------------------------------------------------


def test_both_forms_of_a_log_line():
    assert log_entry("12:00:01 warn: the engine died: badly") == {
        "time": "12:00:01", "level": "warn", "text": "the engine died: badly",
    }  # fmt: skip
    assert log_entry("12:00:01 loading x: weights")["level"] == "info"
    assert log_entry("12:00:01 loading x: weights")["text"] == "loading x: weights"
    line = json.dumps({"time": "2025-01-01T12:00:01.5Z", "level": "error", "message": "m"})
    assert log_entry(line) == {"time": "12:00:01", "level": "error", "text": "m"}


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
        later = overview(daemon)
        assert later["sessions"][0]["tokens"] > row["tokens"] - 1
        assert daemon.info()["sessions"][0]["serial"] == row["serial"]


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
