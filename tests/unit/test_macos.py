"""Branches for macOS, forced on this system where that proves something."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import struct
import sys
from pathlib import Path

import pytest

from umaserve.cli.service import launchd
from umaserve.cli.service.settings import Service
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.prefill import worker
from umaserve.models.needs import free_in_vm_stat
from umaserve.server.engines import descriptors
from umaserve.system.peer import Peer, peer_of
from umaserve.system.processor import processor_name

ROOT = Path(__file__).parents[2]


class _Accepted(socket.socket):
    """A socket that answers as uipc_ctloutput of XNU does once the peer has closed."""

    def getsockopt(self, level: int, name: int, size: int = 0) -> bytes:  # type: ignore[override]
        if (level, name) == (0, 1):
            return struct.pack("=IIh", 0, 501, 1).ljust(size, b"\0")
        raise OSError(errno.ENOTCONN, "Socket is not connected")


def test_the_user_of_a_peer_is_known_after_it_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with _Accepted(socket.AF_UNIX) as sock:
        assert peer_of(sock) == Peer(0, 501)


@pytest.mark.parametrize(("connections", "most"), [(1024, 1561), (20_000, 10_240)])
def test_descriptors_are_raised_as_far_as_the_system_admits(
    connections: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard limit reads "unlimited" there, and more than OPEN_MAX is refused."""
    limits = (256, resource.RLIM_INFINITY)

    def set_limit(_which: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        if wanted[0] > 10_240:
            raise ValueError("not allowed to raise maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    descriptors.raise_limit(connections)
    assert limits == (most, resource.RLIM_INFINITY)


LAUNCHCTL = """#!/bin/sh
echo "$1" >> "$LOG"
[ "$1" = bootstrap ] && [ "$(grep -c bootstrap "$LOG")" -lt 4 ] && exit 5
exit 0
"""


def test_a_service_is_started_once_launchd_has_let_the_one_before_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "launchctl"
    program.write_text(LAUNCHCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(launchd, "_AGAIN_S", 0.0, raising=False)
    assert launchd.Launchd().start(Service(("u", "serve"), "", {})) == 0
    words = (tmp_path / "log").read_text().split()
    assert words == ["print", "bootout", *["bootstrap"] * 4]


def test_cores_and_processor_are_told_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", "/nowhere")
    assert usable_cores() >= 1 and processor_name()


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12000.
Pages active:                            310000.
Pages inactive:                          300000.
Pages speculative:                         4000.
Pages wired down:                        120000.
Pages purgeable:                           9000.
Pages occupied by compressor:            250000.
"""


def test_purgeable_pages_are_counted_once() -> None:
    assert free_in_vm_stat(VM_STAT) == 16384 * (12000 + 300000 + 4000)


def test_a_second_cache_asks_for_memory_where_there_is_no_meminfo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "available_bytes", lambda: 100 << 20)
    monkeypatch.setattr(worker, "why_not_plain", lambda loaded: "")
    why = worker.why_not_aside(_Loaded())  # type: ignore[arg-type]
    assert why == "there is no memory for a second KV cache"


class _Loaded:
    kv_bytes, n_positions, n_ctx, unused_bytes, n_cores = 1 << 20, 1024, 1024, 0, 4

    class model:
        size_bytes = 1 << 20


def test_the_makefile_asks_for_nothing_that_bsd_sed_does_not_know() -> None:
    for line in (ROOT / "Makefile").read_text("utf-8").splitlines():
        assert "sed " not in line or "\\t" not in line, "BSD sed writes a t for it"


def test_what_is_read_and_not_run_is_listed() -> None:
    """Each file that asks which system it is on, or looks into /proc, is in the list of BUILD."""
    page = (ROOT / "docs/BUILD.md").read_text("utf-8")
    rows = page.partition("\n## macOS: read, not run\n")[2].splitlines()
    places = [row.split("|")[-2] for row in rows if row.startswith("| ")]
    listed = {name for cell in places for name in re.findall(r"`([\w/]+(?:/|\.py))`", cell)}
    package = ROOT / "umaserve"
    assert [n for n in sorted(listed) if not ((package / n).exists() or (ROOT / n).exists())] == []
    asks = re.compile(r"""sys\.platform|["']/proc/|SO_PEERCRED|ru_maxrss|eventfd|epoll""")
    files = [file for file in package.rglob("*.py") if asks.search(file.read_text("utf-8"))]
    found = [file.relative_to(package) for file in files]
    assert [
        str(file) for file in sorted(found)
        if not listed & {str(file), *(f"{folder}/" for folder in file.parents)}
    ] == []  # fmt: skip
