"""The second program of ``benchmarks.hostile``: one that behaves, or one that does not.

``python -m benchmarks.hostile_app KIND SOCKET`` until it is killed.  ``polite`` keeps as many
streams running as its number says.  ``hostile`` does all that a program can do over the socket, at
once, with a thread for each; the name of one attack does that alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.daemon import Client

WORDS = ["river", "stone", "window", "garden", "letter", "market", "engine", "silver", "forest"]
MiB = 1 << 20


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def stream(path: str, number: int) -> None:
    """The same requests as a hostile program sends, one after the other, each read as it comes."""
    rng = random.Random(number)
    while True:
        with Client(path) as client, contextlib.suppress(RuntimeError):  # a prompt that is too long
            for turn in itertools.count():
                words = rng.choice((4, 300, 1500))
                client.generate(f"{turn}", text(rng, words), max_tokens=1000)


# --- what a hostile program does ------------------------------------------------------------------


def connections(path: str, rng: random.Random) -> None:
    """300 at a time, opened and closed."""
    kept = []
    while True:
        with contextlib.suppress(OSError):
            made = socket.socket(socket.AF_UNIX)
            kept.append(made)
            made.connect(path)
        if len(kept) > 300:
            for one in kept[:150]:
                one.close()
            del kept[:150]


def garbage(path: str, rng: random.Random) -> None:
    """Bytes that are no frames, no JSON, no objects."""
    bodies = [b"{", b"[1]", b"\xff\xfe", b'{"id":1}', b'{"type":"x"}', b"[" * 5000]
    while True:
        with Client(path) as client:
            for _ in range(200):
                body = rng.choice(bodies)
                client.socket.sendall(struct.pack("<I", len(body)) + body)
            client.socket.sendall(rng.randbytes(64))


def partial(path: str, rng: random.Random) -> None:
    """Frames of a mebibyte that never become whole."""
    kept = []
    while True:
        client = Client(path)
        kept.append(client)
        if len(kept) > 100:
            for one in kept:
                one.socket.close()
            kept.clear()
        client.socket.sendall(struct.pack("<I", MiB) + b" " * (MiB - 1))


def requests(path: str, rng: random.Random) -> None:
    """400 at once, long ones and short ones, of both lanes; then all are given up."""
    while True:
        with Client(path) as client:
            for i in range(400):
                words, lane = rng.choice((4, 300, 1500)), rng.choice(("interactive", "background"))
                client.send(id=f"{i}", prompt=text(rng, words), max_tokens=1000, priority=lane)
            until_s = time.monotonic() + 5
            while time.monotonic() < until_s:
                client.receive()


def cancels(path: str, rng: random.Random) -> None:
    """Requests that are cancelled as soon as they are sent, and cancels of what others may run."""
    with Client(path) as client:
        for i in itertools.count():
            client.send(id=f"c{i}", prompt=text(rng, 200), max_tokens=100)
            client.send(type="cancel", id=f"c{i}")
            client.send(type="cancel", id=f"{i % 100}")
            client.send(type="priority", id=f"{i % 100}", priority="background")
            if i % 50 == 49:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while client.socket.recv(1 << 16):
                        pass
                client.socket.setblocking(True)


def unread(path: str, rng: random.Random) -> None:
    """Answers that are read by half."""
    while True:
        with Client(path) as client:
            for i in range(8):
                client.send(id=f"{i}", prompt="x", max_tokens=2000, ignore_eos=True, logprobs=20)
            for _ in range(10):
                client.receive()
            for i in range(2000):
                client.send(type="metrics", id=f"m{i}", sessions=True)


def texts(path: str, rng: random.Random) -> None:
    """Texts to be tokenised, 32 at a time."""
    with Client(path) as client:
        for i in itertools.count():
            client.send(type="tokenize", id=f"{i}", text="a1 " * 20_000)
            if i > 32:
                client.receive()


def chats(path: str, rng: random.Random) -> None:
    """Long conversations, 32 at a time."""
    with Client(path) as client:
        for i in itertools.count():
            turns = [{"role": "user", "content": text(rng, 20)} for _ in range(200)]
            client.send(id=f"{i}", messages=turns, max_tokens=1)
            if i > 32:
                client.receive()


def admin(path: str, rng: random.Random) -> None:
    """Questions, and metrics as often as they are to be had."""
    with Client(path) as client:
        for _ in range(60):
            client.send(type="metrics", interval_ms=50, sessions=True)
        while True:
            client.send(type="info")
            client.receive()


ATTACKS = (
    connections, garbage, partial, requests, cancels, unread, texts, chats, admin,
)  # fmt: skip


def keep(attack: Callable[[str, random.Random], None], path: str) -> None:
    """Until the process is killed, whatever the daemon does about it."""
    rng = random.Random(attack.__name__)
    while True:
        try:
            attack(path, rng)
        except (OSError, EOFError, RuntimeError, ValueError):
            time.sleep(0.01)


def main() -> None:
    kind, path = sys.argv[1:3]
    os.nice(19)  # what it does to the daemon counts, not what it does to the processor
    if kind == "polite":
        jobs = [(stream, (path, i)) for i in range(int(sys.argv[3]))]
    else:
        chosen = [attack for attack in ATTACKS if kind in ("hostile", attack.__name__)]
        jobs = [(keep, (attack, path)) for attack in chosen]  # type: ignore[misc]
    for job, arguments in jobs:
        threading.Thread(target=job, args=arguments, daemon=True).start()
    print("in", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
