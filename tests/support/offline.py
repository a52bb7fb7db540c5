"""Runs a program that reaches one server and nothing else: `python offline.py PORT SOCKET PROGRAM…`

It gets a network of its own, where only the loopback is, and at ``PORT`` of that the server that
listens at the Unix socket ``SOCKET``.  Linux alone has such networks, and not every container.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import socket
import struct
import subprocess
import sys

UNSHARE = ("unshare", "--map-root-user", "--net", "--")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 1


def is_possible() -> bool:
    """Whether a program can be cut off here."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


def command(port: int, path: str, program: list[str]) -> list[str]:
    """What runs ``program``, cut off."""
    return [*UNSHARE, sys.executable, __file__, str(port), path, *program]


def _raise_loopback() -> None:
    with socket.socket() as sock:
        name = b"lo".ljust(16, b"\0")
        reply = fcntl.ioctl(sock, _SIOCGIFFLAGS, name + bytes(16))
        (flags,) = struct.unpack_from("h", reply, 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, name + struct.pack("h14x", flags | _UP))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _main(port: int, path: str, program: list[str]) -> int:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(path)
        await asyncio.gather(_pass(reader, back), _pass(there, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", port):
        process = await asyncio.create_subprocess_exec(*program)
        return await process.wait()


if __name__ == "__main__":
    _raise_loopback()
    sys.exit(asyncio.run(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
