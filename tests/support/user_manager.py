"""A real user manager of systemd with a journal, in a mount namespace of its own.

``systemd --user`` wants a system that was booted with systemd, so ``/run`` is an empty folder there
that looks as if it had been.  It sits in the cgroup of a user who logged in: from its name the
journal tells whose lines it gets.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_DAEMONS = Path("/lib/systemd")
_SLICE = "user.slice"
_GROUP = f"{_SLICE}/user-{os.geteuid()}.slice/user@{os.geteuid()}.service/init.scope"
_START_S = 20.0
_END_S = 60.0
# A manager takes all processes of its cgroup for its own and moves them.  So it must not begin in
# that of anybody else.
_SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/journal
for group in "$@"; do echo $$ > "$group/cgroup.procs"; done
/lib/systemd/systemd-journald &
exec /lib/systemd/systemd --user
"""


class Absent(Exception):
    """No manager can be started here; the text says why."""


class UserManager:
    """``run`` has a program see this manager; ``home`` is the user's home."""

    def __init__(self, home: Path, runtime: Path, process: subprocess.Popen[bytes]) -> None:
        self.home, self.runtime, self._process = home, runtime, process
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("UMA_", "XDG_", "DBUS_")) or name == "UMA_CACHE_DIR"
        }
        self.environment = {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}

    def run(self, *words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "-t", str(self._process.pid), "-m", "--", "env", "-C", self.home, *words],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout,
        )  # fmt: skip

    def state(self, unit: str) -> str:
        return self.run("systemctl", "--user", "is-active", unit).stdout.strip()


@contextlib.contextmanager
def user_manager(folder: Path) -> Iterator[UserManager]:
    """One that runs while the context lasts.  Raises `Absent`."""
    roots = _roots()
    home, runtime = folder / "home", folder / "run"
    for path in (home, runtime):
        path.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack, (folder / "manager.log").open("wb") as log:
        stack.callback(_remove_groups, roots)
        try:
            for root in roots:
                (root / _GROUP).mkdir(parents=True)
        except OSError as error:
            raise Absent(f"cgroups cannot be made here: {error}") from None
        process = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private",
             "sh", "-c", _SCRIPT, "sh", *(str(root / _GROUP) for root in roots)],
            env={**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        manager = UserManager(home, runtime, process)
        stack.callback(_end, manager, process)
        _await(manager, process, folder / "manager.log")
        yield manager


def _roots() -> list[Path]:
    """Where the hierarchies of cgroups are mounted that systemd uses.  Raises `Absent`."""
    if os.geteuid() != 0:
        raise Absent("only root may make a mount namespace for it")
    programs = ("unshare", "nsenter", "systemctl", "journalctl")
    missing = [name for name in programs if shutil.which(name) is None]
    missing += [name for name in ("systemd", "systemd-journald") if not (_DAEMONS / name).exists()]
    if missing:
        raise Absent(f"this system has no {', '.join(missing)}")
    roots = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "cpuset" not in options.split(",")):
            roots.append(Path(where))
    if not roots:
        raise Absent("no cgroups are mounted here")
    if Path("/run/systemd/system").exists() or any((root / _SLICE).exists() for root in roots):
        raise Absent("systemd runs this system, and the test would be in the way of its managers")
    return roots


def _await(manager: UserManager, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + _START_S
    while manager.run("systemctl", "--user", "is-system-running").stdout.strip() != "running":
        if process.poll() is not None or time.monotonic() > until_s:
            raise Absent(f"systemd --user does not start here: {log.read_text()[-500:]}")
        time.sleep(0.1)


def _end(manager: UserManager, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        others = psutil.Process(process.pid).children(recursive=True)  # the journal is one
        manager.run("systemctl", "--user", "exit")
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for other in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.terminate()
        psutil.wait_procs(others, timeout=_END_S)


def _remove_groups(roots: list[Path]) -> None:
    for root in roots:
        top = root / _SLICE
        for path in (*sorted(top.rglob("*"), reverse=True), top):
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()
