"""Who waits for a row, who gets the next, and who makes room when there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, RawClient, Result, eventually
from umaserve.app_settings import AppSettings
from umaserve.protocol import Generate, Limits, parse_message
from umaserve.server.requests.life import Stage
from umaserve.server.requests.queue.waiting import WaitingRoom
from umaserve.server.requests.request import Request
from umaserve.server.requests.submission import submission
from umaserve.wire import table as t
from umaserve.wire.states import AGED_NS, LANE_BACKGROUND, LANE_INTERACTIVE

SERIALS = iter(range(1, 1_000_000))


def request(
    program: str, priority: str = "interactive", age_ns: int = 0, app: str | None = None,
    prompt: str = "hi", apps: dict[str, AppSettings] | None = None, key: str | None = None,
) -> Request:  # fmt: skip
    body = {"id": "x", "prompt": prompt, "priority": priority, "app": app, "key": key}
    message = parse_message(json.dumps(body).encode(), Limits())
    assert isinstance(message, Generate)
    sink: Any = SimpleNamespace(program=program, app=str(program), relays=program == "gateway")
    came_ns = time.monotonic_ns() - age_ns
    return Request.create(next(SERIALS), sink, message, came_ns, 16, apps or {})


def enter(room: WaitingRoom, *requests: Request) -> None:
    for one in requests:
        room.take_turn(one)
        room.enter(one)


def order(room: WaitingRoom, free: int = 32, running: list[Request] | None = None) -> list[Request]:
    """All that would get rows, one after the other."""
    out = []
    while (one := room.next(free, running or [])) is not None:
        one.stop_waiting()
        out.append(one)
    return out


def test_interactive_ones_first_and_programs_in_turn() -> None:
    room = WaitingRoom(256, 4)
    job = request("agent", "background")
    flood = [request("greedy") for _ in range(3)]
    late = request("editor")
    enter(room, job, *flood, late)
    assert order(room) == [flood[0], late, flood[1], flood[2], job]


def test_programs_that_are_named_take_turns_over_one_connection() -> None:
    room = WaitingRoom(256, 4)
    flood = [request("gateway", app="greedy") for _ in range(3)]
    late = request("gateway", app="editor")
    enter(room, *flood, late)
    assert order(room) == [flood[0], late, flood[1], flood[2]]


def test_a_key_has_one_share_whatever_app_it_names() -> None:
    room = WaitingRoom(256, 4)
    flood = [request("gateway", key="bob", app=f"app {n}") for n in range(3)]
    late = request("gateway", key="alice", app="app 0")
    enter(room, *flood, late)
    assert order(room) == [flood[0], late, flood[1], flood[2]]
    assert late.program != request("gateway", app="alice").program
    programs = {one.program for one in flood}
    assert len(programs) == 1 and late.program not in programs


def test_apps_of_a_key_take_turns_within_its_share() -> None:
    room = WaitingRoom(256, 4)
    flood = [request("gateway", key="bob", app="agent") for _ in range(3)]
    editor = [request("gateway", key="bob", app="editor") for _ in range(2)]
    alice = [request("gateway", key="alice", app=f"app {n}") for n in range(3)]
    enter(room, *flood, *editor, *alice)
    assert order(room) == [
        flood[0], alice[0], editor[0], alice[1], flood[1], alice[2], editor[1], flood[2],
    ]  # fmt: skip


def test_apps_of_a_process_take_turns_within_its_share() -> None:
    room = WaitingRoom(256, 4)
    flood = [request("relay", app="agent") for _ in range(3)]
    late = request("relay", app="editor")
    enter(room, *flood, late)
    assert order(room) == [flood[0], late, *flood[1:]]


def test_an_app_makes_room_for_another_one_of_its_key() -> None:
    room = WaitingRoom(4, 0)
    flood = [request("gateway", key="bob", app="agent") for _ in range(3)]
    editor = request("gateway", key="bob", app="editor")
    enter(room, *flood, editor)
    assert room.who_makes_room(request("gateway", key="bob", app="agent")) is None
    assert room.who_makes_room(request("gateway", key="bob", app="editor")) is flood[2]
    # and for another key it is the flood's newest that goes, not the other app's only one
    assert room.who_makes_room(request("gateway", key="alice")) is flood[2]


def test_a_process_has_one_share_whatever_app_it_names() -> None:
    room = WaitingRoom(256, 4)
    flood = [request("greedy", app=f"app {n}", key=f"key {n}") for n in range(3)]
    late = request("editor", app="app 0")
    enter(room, *flood, late)
    assert order(room) == [flood[0], late, flood[1], flood[2]]


@pytest.mark.parametrize(
    "who", [("greedy", "zed", None), ("gateway", "zed", "bob"), ("greedy", "zed", "zed")]
)
def test_the_weight_and_lane_of_another_cannot_be_had(who: tuple[str, str, str | None]) -> None:
    program, app, key = who
    apps = {"zed": AppSettings(weight=8.0, lane="interactive"), "carol": AppSettings(weight=3.0)}
    one = request(program, "auto", app=app, key=key, apps=apps)
    assert one.weight == 1.0 and one.auto
    assert one.program != request("zed", apps=apps).program
    own = request("gateway", app=app, key="carol", apps=apps)
    assert own.weight == 3.0 and own.program != request("carol", apps=apps).program


def test_long_prompts_take_more_turns() -> None:
    room = WaitingRoom(256, 4)
    long = [request("reader", prompt="w" * 20_000) for _ in range(2)]
    short = [request("editor") for _ in range(4)]
    enter(room, *long, *short)
    assert order(room) == [long[0], *short[:4], long[1]]


def test_turns_are_by_the_weight_of_the_configuration() -> None:
    room, apps = WaitingRoom(256, 4), {"zed": AppSettings(weight=2.0)}
    light = [request("light", apps=apps) for _ in range(3)]
    zed = [request("zed", apps=apps) for _ in range(5)]
    enter(room, *light, *zed)
    assert order(room) == [light[0], zed[0], zed[1], light[1], zed[2], zed[3], light[2], zed[4]]
    assert {submission(one).weight for one in zed} == {2.0}


def test_processes_of_a_name_that_is_configured_are_one_program() -> None:
    apps = {"zed": AppSettings()}
    one, other = request("zed", apps=apps), request("zed", apps=apps)
    cast(Any, other.sink).program = "another process"
    assert one.program == other.program == request("gateway", app="zed").program
    assert request("vim", apps=apps).program == "vim"


@pytest.mark.parametrize("label", ["auto", "interactive", "background"])
@pytest.mark.parametrize("lane", ["auto", "interactive", "background"])
def test_a_configured_lane_is_of_requests_without_a_label(label: str, lane: str) -> None:
    one = request("zed", label, apps={"zed": AppSettings(lane=lane)})
    decided = label if label != "auto" else lane
    assert one.auto == (decided == "auto")
    assert one.lane == (LANE_BACKGROUND if decided == "background" else LANE_INTERACTIVE)
    why = {"auto": "nobody named a lane"}.get(decided, "the configuration of its program")
    assert one.lane_reason == ("asked for" if label != "auto" else why)


def test_the_last_rows_are_for_other_programs() -> None:
    room = WaitingRoom(256, 4, 2)
    flood, late = [request("greedy") for _ in range(3)], request("editor")
    running = [request("greedy") for _ in range(6)]
    enter(room, *flood)
    assert room.next(3, running) is flood[0]
    assert room.next(2, running) is None, "six of eight rows are its own"
    enter(room, late)
    assert room.next(2, running) is late
    late.stop_waiting()
    assert room.next(2, [*running[:5], late]) is flood[0]


def test_the_lane_is_the_engines_until_somebody_names_one() -> None:
    columns = {"serial": [0, 0], "lane": [0, 1], "auto": [t.AUTO_NEW, t.AUTO_SUNK]}
    table = SimpleNamespace(**{name: np.array(values) for name, values in columns.items()})
    for priority, lane, why in (
        ("auto", LANE_BACKGROUND, "its program has used up its allowance"),
        ("interactive", LANE_INTERACTIVE, "asked for"),
    ):
        one = request("editor", priority)
        one.engine, one.slot, one.stage = cast(Any, SimpleNamespace(table=table)), 1, Stage.RUNNING
        table.serial[1] = one.serial
        assert one.lane_now() == (lane, why)
        assert submission(one).auto == (priority == "auto")
        table.serial[1] = 0  # the row is somebody else's
        assert one.lane_now()[0] == LANE_INTERACTIVE


def test_an_answer_that_goes_on_with_another_engine_is_being_read() -> None:
    one = request("editor", "auto")
    one.slot, one.prompt_ids, one.tokens = 0, [5] * 1000, [7]
    assert not submission(one).auto and submission(one).lane == LANE_INTERACTIVE


def test_a_lane_that_is_not_decided_is_waited_for_where_others_are() -> None:
    table = SimpleNamespace(auto=np.array([t.AUTO_NEW]))
    engine = SimpleNamespace(table=table, requests={1: None, 2: None})
    one = request("editor", "auto")
    one.engine, one.slot, one.stage = cast(Any, engine), 0, Stage.RUNNING
    assert not one.lane_is_known()
    del engine.requests[2]
    assert one.lane_is_known()
    engine.requests[2] = None
    table.auto[0] = t.AUTO
    assert one.lane_is_known()


def test_background_ones_leave_the_last_rows() -> None:
    room = WaitingRoom(256, 4)
    enter(room, request("agent", "background"))
    assert not order(room, free=4) and len(order(room, free=5)) == 1


def test_background_ones_that_waited_long_go_first_once() -> None:
    room = WaitingRoom(256, 4)
    job, typed = request("agent", "background", AGED_NS), request("editor")
    enter(room, job, typed)
    assert room.next(1, [request("agent", "background")]) is typed
    assert room.next(1, [request("editor")]) is job


def test_the_largest_holder_makes_room_and_its_background_first() -> None:
    room = WaitingRoom(4, 0)
    jobs = [request("greedy", "background") for _ in range(2)]
    flood = [request("greedy") for _ in range(2)]
    enter(room, *jobs, *flood)
    assert room.who_makes_room(request("editor")) is jobs[1]
    assert room.who_makes_room(request("other", "background")) is jobs[1]
    for one in jobs:
        one.stop_waiting()
    assert room.who_makes_room(request("third")) is flood[1]


def test_a_program_makes_no_room_for_itself_but_for_what_is_urgent() -> None:
    room = WaitingRoom(2, 0)
    flood = [request("greedy") for _ in range(2)]
    enter(room, *flood)
    assert room.who_makes_room(request("greedy")) is None
    flood[0].stop_waiting()
    job = request("greedy", "background")
    enter(room, job)
    assert room.who_makes_room(request("greedy", "background")) is None
    assert room.who_makes_room(request("greedy")) is job


def test_equals_do_not_push_each_other_out() -> None:
    room = WaitingRoom(3, 0)
    enter(room, request("a"), request("b"), request("c", "background"))
    assert room.who_makes_room(request("d", "background")) is None
    victim = room.who_makes_room(request("d"))
    assert victim is not None and victim.sink.program == "c"


def test_a_change_of_lane_is_a_new_turn_there() -> None:
    room = WaitingRoom(9, 0)
    typed = [request("editor") for _ in range(2)]
    job = request("agent", "background")
    enter(room, *typed, job)
    room.change_lane(job, 0)
    assert room.counts() == (3, 0)
    assert order(room) == [typed[0], job, typed[1]]


# --- in a daemon --------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    settings: dict[str, Any] = {"n_ctx": 1024, "max_sessions": 4, "n_seq": 2, "max_queue": 8}
    environment = {"FAKE_TICK_MS": getattr(request, "param", "5")}
    with DaemonProcess(tmp_path, environment=environment, **settings) as daemon:
        yield daemon


@pytest.mark.parametrize("daemon", ["50"], indirect=True, ids=["slow ticks"])
def test_a_flood_is_refused_and_nobody_else(daemon: DaemonProcess) -> None:
    with daemon.other_client() as greedy, daemon.other_client() as other:
        for i in range(400):  # no answer ends before the last of them has come
            greedy.ask(f"g{i}", "flood", max_tokens=900)
        eventually(lambda: sum(daemon.metrics()["errors_total"].values()) == 400 - 12)
        other.ask("one", "hello", max_tokens=5)
        while len(_refused(greedy)) < 400 - 12 + 1:  # the newest that waited makes room
            assert greedy.receive()
        for i in range(4):  # as many as run
            greedy.send(type="cancel", id=f"g{i}")
        assert bytes(other.finish("one")[0].tokens) == answer("hello", 5)
        assert len(_refused(greedy)) == 400 - 12 + 1
        assert {r.error["code"] for r in _refused(greedy) if r.error} == {"E_LIMIT_002"}
        assert "makes room" in _refused(greedy)[0].error["message"] or any(
            "makes room" in r.error["message"] for r in _refused(greedy) if r.error
        )
    daemon.idle()


def _refused(client: RawClient) -> list[Result]:
    return [r for r in client.results.values() if r.error]


def test_who_comes_late_waits_for_a_row_and_not_for_the_flood(daemon: DaemonProcess) -> None:
    with daemon.other_client() as greedy, daemon.other_client() as other:
        for i in range(12):
            greedy.ask(f"g{i}", "flood", max_tokens=40)
        eventually(lambda: len(daemon.info()["sessions"]) == 12)
        other.generate("hello", max_tokens=5)
        done = sum(r["state"] == "queued" for r in daemon.info()["sessions"])
        assert done >= 4, "much of the flood still waits"
        greedy.finish()
    daemon.idle()


def test_background_requests_make_room_for_interactive_ones(daemon: DaemonProcess) -> None:
    with daemon.other_client() as greedy, daemon.other_client() as other:
        for i in range(12):
            greedy.ask(f"g{i}", "flood", max_tokens=40, priority="background")
        eventually(lambda: len(daemon.info()["sessions"]) == 12)
        assert other.generate("hello", max_tokens=5).error is None
        assert greedy.generate("mine", "urgent", max_tokens=5).error is None
        greedy.finish()
        refused = [r for r in greedy.results.values() if r.error]
        assert len(refused) <= 2
    daemon.idle()
