"""The texts of service files: systemd's units and launchd's property list.  Pure."""

from __future__ import annotations

import plistlib
import re

from umaserve.cli.service.settings import Service

MARK = "Written by `umaserve service install`; `umaserve service uninstall` removes it."
NAME = "umaserve"
LABEL = "local.umaserve"
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_STOP_S = 20.0  # for what comes after the requests have ended

_SERVICE = """\
# {mark}
[Unit]
Description=UMA Serve: one language model for all programs of this user
Requires={name}.socket
After={name}.socket
StartLimitIntervalSec=120
StartLimitBurst=4

[Service]
Type=notify
{environment}ExecStart={command}
Restart=on-failure
RestartSec=1
# 2: settings that cannot be used
RestartPreventExitStatus=2
# the first start may build libllama
TimeoutStartSec=infinity
TimeoutStopSec={stop_s:.0f}
KillMode=mixed
NoNewPrivileges=yes
{install}"""
_INSTALL = """
[Install]
WantedBy=default.target
"""
_SOCKET = """\
# {mark}
[Unit]
Description=The socket of UMA Serve

[Socket]
ListenStream={path}
SocketMode=0600
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def systemd_units(service: Service) -> dict[str, str]:
    """File names and contents.  Raises ``ValueError``: a path that a unit cannot name."""
    path = service.socket.replace("%", "%%") if service.socket else "%t/uma.sock"
    if re.search(r"[\n\r]|\s$|\\$", path):
        raise ValueError(f"a systemd unit cannot name the socket {service.socket!r}; take another")
    environment = [f"{name}={value}" for name, value in service.environment.items()]
    program, *words = service.command
    command = [_quoted(program), *(_quoted(word.replace("$", "$$")) for word in words)]
    return {
        f"{NAME}.socket": _SOCKET.format(mark=MARK, path=path),
        f"{NAME}.service": _SERVICE.format(
            mark=MARK,
            name=NAME,
            environment="".join(f"Environment={_quoted(pair)}\n" for pair in environment),
            command=" ".join(command),
            stop_s=service.drain_s + _STOP_S,
            install="" if service.on_demand else _INSTALL,
        ),
    }


def _quoted(word: str) -> str:
    """Quote a word of a unit's line: systemd expands ``%`` in it, and backslashes."""
    word = word.replace("%", "%%")
    if _PLAIN.fullmatch(word):
        return word
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in word) + '"'


def launch_agent(service: Service, log: str) -> bytes:
    """The property list of the LaunchAgent.  ``log`` is the file that gets what is printed."""
    command = [*service.command, *([f"--socket={service.socket}"] if service.socket else [])]
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": command,
            "EnvironmentVariables": dict(service.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": int(service.drain_s + _STOP_S),
            # else launchd slows it down as work that nobody waits for
            "ProcessType": "Interactive",
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    ).replace(b"<plist ", f"<!-- {MARK} -->\n<plist ".encode(), 1)
