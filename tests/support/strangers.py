"""Another user, for tests: a real one where we are root, else one that our own files stand for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 65534  # nobody, or a user without a name
NAMED = f"(uid {UID})"
IS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(
    not IS_ROOT, reason="only root can become another user; `somebody_else` stands in"
)

# says "ready", then the bytes that came on each connection until its end
LISTEN = """
sock = socket.socket(socket.AF_UNIX)
os.umask(0)
sock.bind(path)
sock.listen()
print("ready", flush=True)
while True:
    connection, _ = sock.accept()
    data = b""
    while part := connection.recv(65536):
        data += part
    print(data, flush=True)
"""
# a lock file with a number that means nothing, held
HOLD = """
os.umask(0)
fd = os.open(path, os.O_RDWR | os.O_CREAT, mode)
os.write(fd, b"1")
fcntl.flock(fd, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def stranger(code: str, path: str, mode: int = 0o666) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` as ``nobody``; it has said "ready"."""
    head = "import fcntl, os, socket, sys\npath, mode = sys.argv[1], int(sys.argv[2])\n"
    head += f"os.setgroups([]); os.setgid({UID}); os.setuid({UID})\n"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", head + code, path, str(mode)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@contextmanager
def connected_stranger(
    address: tuple[str, int], then: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """``nobody`` has connected to a TCP address.  Sends a line of hex, does ``then``, and answers
    with what came, in hex."""
    code = f"""
sock = socket.socket()
sock.connect({address!r})
print("ready", flush=True)
sock.sendall(bytes.fromhex(sys.stdin.readline()))
data = b""
{then or "while part := sock.recv(65536): data += part"}
print(data.hex(), flush=True)
"""
    with stranger(code, "") as child:
        yield child


def said_by_stranger(port: int, data: bytes) -> bytes:
    """The answer to ``nobody``, until the server closes the connection."""
    with connected_stranger(("127.0.0.1", port)) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(data.hex() + "\n")
        child.stdin.flush()
        return bytes.fromhex(child.stdout.readline())


@contextmanager
def open_folder(mode: int = 0o777) -> Iterator[Path]:
    """A folder that everybody may use, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, mode)
        yield Path(name)


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process owns looks like another user's: where nobody can become one."""
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)



def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``path`` (a link itself, not its target) belongs to another user.

    Where we are not root, we become another user as far as decisions go: then nothing is ours.
    """
    if IS_ROOT:
        os.lchown(path, UID, UID)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def as_stranger(script: str, *arguments: object) -> None:
    """Run Python as the other user, who can read nothing of ours; we must be root."""
    become = f"import os, sys\nos.setgroups([])\nos.setgid({UID})\nos.setuid({UID})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", become + script, *map(str, arguments)],
        cwd="/", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
