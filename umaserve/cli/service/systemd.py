"""systemd's user manager: where its units lie, and the commands that have it look at them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from umaserve.cli.service.settings import Service
from umaserve.cli.service.units import NAME, systemd_units

_SOCKET, _SERVICE = f"{NAME}.socket", f"{NAME}.service"
_REACHED = ("running", "degraded", "starting", "initializing", "maintenance")


class Systemd:
    """The manager of this user."""

    def problem(self) -> str:
        """Why no service can be installed here, and what to do; empty where it can."""
        if shutil.which("systemctl") is None:
            return (
                "there is no systemd on this system. Have your session start `umaserve` instead, "
                "or put this line into your crontab (crontab -e):\n"
                f"  @reboot {shutil.which('umaserve') or 'umaserve'} serve"
            )
        done = _ask("is-system-running")
        if done.stdout.strip() in _REACHED:
            return ""
        why = (done.stderr.strip().splitlines() or [done.stdout.strip() or "no answer"])[0]
        return (
            f"no user manager of systemd answers ({why}). Log in to a session of your own, for "
            "example by SSH: `su` and `sudo` make none. For a user that never logs in:\n"
            "  sudo loginctl enable-linger NAME"
        )

    def files(self, service: Service) -> dict[Path, bytes]:
        """Return the contents of files by path.

        Raises ``ValueError`` for settings that no unit can hold.
        """
        return {folder() / name: text.encode() for name, text in systemd_units(service).items()}

    def paths(self) -> list[Path]:
        """Return the paths of all files that an installation makes."""
        return [folder() / _SERVICE, folder() / _SOCKET]

    def socket_path(self, service: Service) -> str:
        """Where the daemon will listen."""
        return service.socket or os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "uma.sock")

    def is_running(self) -> bool:
        """Whether the manager has a daemon, or listens for its clients."""
        return _ask("is-active", "--quiet", _SOCKET).returncode == 0

    def has_failed(self) -> bool:
        """Whether the daemon ended, and the manager gave it up."""
        return _ask("is-failed", "--quiet", _SERVICE).returncode == 0

    def start(self, service: Service) -> int:
        """Take the files as they are now; 0 once the daemon serves, or waits for its first client.

        Raises ``RuntimeError`` with what systemctl says.
        """
        _do("daemon-reload")
        _do("disable", "--quiet", _SERVICE)  # the last installation may have been another
        _do("stop", _SERVICE, _SOCKET)
        _ask("reset-failed", _SERVICE, _SOCKET)  # it fails where there is nothing to forget
        _do("enable", "--quiet", _SOCKET, *([] if service.on_demand else [_SERVICE]))
        _do("start", _SOCKET)
        if service.on_demand:
            return 0
        return subprocess.run(["systemctl", "--user", "start", _SERVICE], check=False).returncode

    def stop(self) -> None:
        """Have no daemon, and start none any more.  Raises ``RuntimeError``."""
        _do("disable", "--quiet", _SOCKET, _SERVICE)
        _do("stop", _SERVICE, _SOCKET)

    def forget(self) -> None:
        """The files are gone.  Raises ``RuntimeError``."""
        _do("daemon-reload")
        _ask("reset-failed", _SERVICE, _SOCKET)  # it fails where there is nothing to forget

    def status(self) -> int:
        """Show how the service is; systemctl's exit status, 3 where it does not run."""
        command = ["systemctl", "--user", "status", "--no-pager", _SERVICE, _SOCKET]
        return subprocess.run(command, check=False).returncode

    def logs(self, lines: int, follow: bool) -> int:
        """Show what the daemon has logged."""
        # not `--user`, which finds nothing where the journal is kept in memory alone
        command = ["journalctl", f"--user-unit={_SERVICE}", f"--lines={lines}", "--no-pager"]
        return subprocess.run([*command, *(["--follow"] if follow else [])], check=False).returncode


def folder() -> Path:
    """Where this user's units lie."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "systemd", "user")


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, check=False
    )


def _do(*words: str) -> None:
    done = _ask(*words)
    if done.returncode != 0:
        raise RuntimeError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()}")
