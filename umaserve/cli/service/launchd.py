"""launchd on macOS.  Written from its documentation, and not run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from umaserve.cli.service.settings import Service
from umaserve.cli.service.units import LABEL, launch_agent
from umaserve.client.connect import DEFAULT_SOCKET

SETTLE_S = 20.0  # for which launchd may still be at the end of the job before
_AGAIN_S = 0.5
_NOT_YET = (5, 37)  # EIO and EALREADY of <sys/errno.h>


class Launchd:
    """The agents of the user who is logged in; the methods are those of `Systemd`."""

    def problem(self) -> str:
        return "" if shutil.which("launchctl") else "there is no launchctl on PATH"

    def files(self, service: Service) -> dict[Path, bytes]:
        """Raises ``ValueError`` for settings that launchd cannot apply."""
        if service.on_demand:
            raise ValueError("--on-demand needs systemd; launchd's sockets are not taken over")
        return {_plist(): launch_agent(service, str(_log()))}

    def paths(self) -> list[Path]:
        return [_plist()]

    def socket_path(self, service: Service) -> str:
        return service.socket or DEFAULT_SOCKET

    def is_running(self) -> bool:
        """Whether launchd knows the agent."""
        return _run("print", _target(), quiet=True) == 0

    def has_failed(self) -> bool:
        """False: launchd starts a daemon again, whatever it ended with."""
        return False

    def start(self, service: Service) -> int:
        """Take the file as it is now; launchd's exit status."""
        self.stop()
        _log().parent.mkdir(parents=True, exist_ok=True)
        until_s = time.monotonic() + SETTLE_S
        while True:  # `bootout` returns before the job's name is free again
            status = _run("bootstrap", _domain(), str(_plist()), quiet=True)
            if status not in _NOT_YET:
                return status
            if time.monotonic() > until_s:
                return _run("bootstrap", _domain(), str(_plist()))
            time.sleep(_AGAIN_S)

    def stop(self) -> None:
        if self.is_running():
            _run("bootout", _target())

    def forget(self) -> None:
        """The file is gone; launchd keeps nothing else."""

    def status(self) -> int:
        return _run("print", _target())

    def logs(self, lines: int, follow: bool) -> int:
        command = ["tail", "-n", str(lines), *(["-f"] if follow else []), str(_log())]
        return subprocess.run(command, check=False).returncode


def _plist() -> Path:
    return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def _log() -> Path:
    return Path.home() / "Library" / "Logs" / "umaserve.log"


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _target() -> str:
    return f"{_domain()}/{LABEL}"


def _run(*words: str, quiet: bool = False) -> int:
    out = subprocess.DEVNULL if quiet else None
    return subprocess.run(["launchctl", *words], stdout=out, stderr=out, check=False).returncode
