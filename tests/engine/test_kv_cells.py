"""Who gets KV cells, and who gives them back."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit

from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.ageing import KEEP_NS, Ageing, due
from umaserve.engine.native.batch import to_come
from umaserve.wire.states import AGED_NS
from umaserve.wire.table import FULL, RUNNING, WAITING, SessionTable, TableSpec


class Columns(NamedTuple):
    n_tokens: np.ndarray
    n_prompt: np.ndarray
    max_tokens: np.ndarray


@pytest.fixture
def table():
    made, fd = SessionTable.create(TableSpec(6, 1025))
    os.close(fd)
    return made


def put(table, slot, state, n_tokens, *, n_past=0, lane=0, arrival=None, max_tokens=100):
    table.state[slot] = state
    table.n_tokens[slot] = table.n_prompt[slot] = n_tokens
    table.n_past[slot] = n_past
    table.lane[slot] = lane
    table.arrival[slot] = slot if arrival is None else arrival
    table.max_tokens[slot] = max_tokens


def test_used_counts_what_is_in_the_cache_and_committed_what_will_be(table):
    put(table, 0, RUNNING, 300, n_past=200)
    put(table, 1, RUNNING, 50, n_past=50)
    put(table, 2, WAITING, 400)
    assert cells.cells_used(table) == 250
    assert cells.cells_committed(table) == 350


def test_cells_of_a_picture_beyond_its_positions_count(table):
    put(table, 0, RUNNING, 300, n_past=200)
    put(table, 1, RUNNING, 50)
    put(table, 2, WAITING, 400)
    table.more_cells[:3] = 100, 30, 200
    assert cells.cells_used(table) == 300, "a row that has not begun has none"
    assert cells.cells_committed(table) == 480
    assert cells.fits(table, 2, 480 + 600 + cells.MARGIN)
    assert not cells.fits(table, 2, 480 + 600 + cells.MARGIN - 1)
    table.state[:2] = WAITING
    assert cells.fits(table, 2, 600) and not cells.fits(table, 2, 599)
    assert cells.would_fit(table, 2, 0, 600 + cells.MARGIN)


def test_interactive_first_then_oldest(table):
    put(table, 0, WAITING, 10, lane=1, arrival=1)
    put(table, 1, WAITING, 10, lane=0, arrival=3)
    put(table, 2, WAITING, 10, lane=0, arrival=2)
    assert cells.next_to_admit(table) == 2
    table.state[2] = table.state[1] = RUNNING
    assert cells.next_to_admit(table) == 0
    table.state[0] = RUNNING
    assert cells.next_to_admit(table) == -1


def test_a_prompt_is_admitted_with_a_margin(table):
    put(table, 0, RUNNING, 500, n_past=500)
    put(table, 1, WAITING, 492)
    assert cells.fits(table, 1, 1024)
    put(table, 1, WAITING, 493)
    assert not cells.fits(table, 1, 1024)


def test_tokens_to_come_for_python_and_for_compiled_code(table):
    @njit
    def compiled(n_tokens, n_prompt, max_tokens, slot):
        return to_come(Columns(n_tokens, n_prompt, max_tokens), slot)

    put(table, 1, RUNNING, 10, max_tokens=3)
    for left in (3, 2, 1, 0, -1):
        assert to_come(table, 1) == left
        assert compiled(table.n_tokens, table.n_prompt, table.max_tokens, 1) == left
        table.n_tokens[1] += 1


def test_a_lone_request_may_fill_the_context(table):
    put(table, 0, WAITING, 1024)
    assert cells.fits(table, 0, 1024)


def test_the_oldest_interactive_session_is_never_evicted(table):
    put(table, 0, RUNNING, 10, lane=0, arrival=1)
    assert cells.victim(table) == -1
    put(table, 1, RUNNING, 10, lane=0, arrival=2)
    put(table, 2, RUNNING, 10, lane=1, arrival=0)
    assert cells.victim(table) == 2
    table.state[2] = WAITING
    assert cells.victim(table) == 1


def test_the_program_with_most_sessions_gives_cells_back(table):
    for slot, (program, arrival) in enumerate([(1, 5), (2, 1), (2, 3), (2, 2)]):
        put(table, slot, RUNNING, 10, arrival=arrival)
        table.program[slot] = program
    assert cells.victim(table) == 2  # its newest, though another program's is newer
    table.state[2] = table.state[3] = WAITING
    assert cells.victim(table) == 0  # each has one: the newest of all
    put(table, 4, RUNNING, 10, lane=1, arrival=0)
    table.program[4] = 9
    assert cells.victim(table) == 4  # background before all


def of_programs(table, *programs, weights=None, **values):
    for slot, program in enumerate(programs):
        put(table, slot, RUNNING, 100, arrival=slot + 1, **values)
        table.program[slot], table.weight[slot] = program, (weights or {}).get(program, 1.0)


def test_a_waiting_program_goes_first_that_holds_fewest_sequences(table):
    of_programs(table, 1, 1, 2)
    for slot, (program, arrival) in enumerate([(1, 4), (2, 5), (3, 6)], 3):
        put(table, slot, WAITING, 10, arrival=arrival)
        table.program[slot] = program
    assert cells.next_to_admit(table) == 5
    table.state[5] = RUNNING
    assert cells.next_to_admit(table) == 4, "each of them holds one; its turn is sooner"
    table.weight[:4] = [4.0, 4.0, 1.0, 4.0]
    assert cells.next_to_admit(table) == 3, "two by four are fewer than one"


def test_a_program_with_more_than_its_share_gives_way(table):
    of_programs(table, 1, 1, 1, 2)
    put(table, 4, WAITING, 10, arrival=9)
    table.program[4] = 2
    victim = cells.victim(table, alone=True)
    assert victim == 2, "the newest of those that hold most"
    assert cells.gives_way(table, victim, 4)
    table.state[2], table.state[4] = WAITING, RUNNING
    assert not cells.gives_way(table, 1, 2), "nor does it take that back"
    table.weight[[0, 1, 2]] = 3.0
    assert cells.gives_way(table, 4, 2), "three times the weight"


def test_a_program_takes_nothing_from_itself(table):
    of_programs(table, 1, 1, 1)
    put(table, 3, WAITING, 10, arrival=9)
    table.program[3] = 1
    assert not cells.gives_way(table, cells.victim(table, alone=True), 3)


def test_a_victim_goes_by_weight(table):
    of_programs(table, 1, 1, 1, 2, 2, weights={1: 2.0})
    assert cells.victim(table) == 4


def test_what_would_fit_without_the_victims_program(table):
    of_programs(table, 1, 1, 2)
    put(table, 3, WAITING, 100, arrival=9)
    table.program[3] = 3
    assert not cells.would_fit(table, 3, 1, 200)
    assert cells.would_fit(table, 3, 1, 100 + 100 + cells.MARGIN)
    table.lane[0] = table.lane[1] = 1
    assert cells.would_fit(table, 3, 1, 100 + 100 + cells.MARGIN)


def test_a_full_row_gives_way_to_nobody(table):
    put(table, 0, FULL, 600)
    put(table, 1, RUNNING, 100, lane=1)
    put(table, 2, WAITING, 500, arrival=9)
    assert not cells.fits(table, 2, 1000) and not cells.would_fit(table, 2, 1, 1000)
    assert cells.would_fit(table, 2, 1, 600 + 500 + cells.MARGIN)


def test_background_is_due_once_it_has_waited_and_has_no_place(table):
    start = 10 * AGED_NS
    put(table, 0, RUNNING, 10)
    put(table, 1, WAITING, 10)
    for slot in (2, 3):
        put(table, slot, WAITING, 10, lane=1)
        table.t_wait_ns[slot] = start - slot
    assert due(table, start + AGED_NS - 10) == -1
    assert due(table, start + AGED_NS) == 3  # who came first
    table.state[2] = RUNNING
    assert due(table, start + AGED_NS) == -1


def test_a_parked_session_waits_anew_and_an_aged_one_keeps_its_place_for_a_while(table):
    ageing, start = Ageing(), 10 * AGED_NS
    put(table, 0, RUNNING, 10)
    put(table, 1, WAITING, 10, lane=1)
    table.serial[:] = range(1, 7)
    table.t_submit_ns[1], table.t_wait_ns[1] = 1, start
    assert due(table, start + AGED_NS - 1) == -1
    now = start + AGED_NS
    assert due(table, now) == 1
    assert ageing.keeps(table, now) == -1
    ageing.admitted(table, 1, now)
    table.state[1] = RUNNING
    assert ageing.keeps(table, now + KEEP_NS - 1) == 1
    assert cells.victim(table, alone=True, keep=1) == 0
    assert cells.victim(table, alone=True) == 1
    assert ageing.keeps(table, now + KEEP_NS) == -1
    table.serial[1] = 99  # another request in that row
    assert ageing.keeps(table, now + 1) == -1
