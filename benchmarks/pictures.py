"""Four pictures at once beside a chat: how long nothing comes, and when the pictures are answered.

    python -m benchmarks.pictures
    python -m benchmarks.pictures --models gemma3-4b --kind gemma3 --side 896 --n-embd 1152

Our daemon and llama-server, of one build, with the same projector of random weights, are asked over
HTTP, in turns.  A chat streams alone; then four programs send a picture each, which neither server
has seen before.  Figures: the chat's gaps alone (``quiet_``) and until the last first token of the
pictures (``chat_``), and the times until the first and the last of these tokens.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from benchmarks import machine
from benchmarks.daemon import Daemon
from benchmarks.desk import add, add_common, measure_all, ratios
from benchmarks.names import OURS, THEIRS
from benchmarks.price import show
from benchmarks.price_parts import AFTER_S, CHAT, Values, chats, chatting, gaps_of, watch
from benchmarks.setting import Series
from benchmarks.sides import ServerSetting, Theirs, quiet_death
from benchmarks.timeline import Phase
from benchmarks.web import Caller, Model, Server, settle, warm_up
from umaserve.models.gguf.faults import check_gguf

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_projector  # noqa: E402

PICTURES, PARALLEL = 4, 8
PIXELS = 640, 480


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(out)
    out.add_argument("--kind", choices=make_projector.KINDS, default="janus_pro")
    out.add_argument("--side", type=int, default=224, help="pixels that a picture is scaled to")
    out.add_argument("--n-embd", type=int, default=32, help="of the projector")
    out.add_argument("--n-layer", type=int, default=2, help="of the projector")
    out.add_argument("--seconds", type=float, default=3.0, help="of the chat alone")
    return out


def bitmap(seed: int) -> str:
    """A BMP of stripes, in base64."""
    width, height = PIXELS
    line = bytes((x * (seed + 3) + c * 40) % 256 for x in range(width) for c in range(3))
    data = b"".join(bytes((value + y * seed) % 256 for value in line) for y in range(height))
    head = (40, width, height, 1 | 24 << 16, 0, len(data), 0, 0, 0, 0)
    numbers = (54 + len(data), 0, 54, *head)
    raw = b"BM" + b"".join(number.to_bytes(4, "little") for number in numbers) + data
    return base64.b64encode(raw).decode()


@contextlib.contextmanager
def servers(model: Model, projector: str, options: argparse.Namespace) -> Iterator[list[Server]]:
    """Start both servers with a projector, as `benchmarks.web.servers`."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon(
                "--model", model.path, "--parallel", str(PARALLEL), "--n-ctx", str(model.n_ctx),
                "--http", "127.0.0.1:0", "--mmproj", projector, *options.flags.split(),
            )
        )  # fmt: skip
        found = [Server(OURS, daemon.http_port(), daemon)]
        if not options.without_peer:
            setting = ServerSetting(PARALLEL, model.n_ctx)
            theirs = Theirs(model.path, setting, cached=True, extra=("--mmproj", projector))
            stack.callback(theirs.close)
            theirs.wait_ready()
            found.append(Server(THEIRS, theirs.port, None))
        yield found


async def show_picture(server: Server, picture: str, done_s: list[float]) -> None:
    """Send a picture, and note when it is answered with a token."""
    part = {"type": "image_url", "image_url": {"url": f"data:image/bmp;base64,{picture}"}}
    content = [{"type": "text", "text": "What is it?"}, part]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"User-Agent: sees\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(head.encode() + data)
        answer = b"".join([bytes(part) async for part in stream])
    if b" 200 " not in answer[:20] or b"uma_unread" in answer:
        raise RuntimeError(answer[-600:].decode(errors="replace"))
    done_s.append(time.perf_counter())


async def pictures_part(caller: Caller, options: argparse.Namespace, turn: int) -> Values:
    """A chat alone, and then beside pictures."""
    shown = [bitmap(1 + turn * PICTURES + number) for number in range(PICTURES)]
    done_s: list[float] = []
    async with chatting(caller, 1):
        quiet = await watch(caller, options.seconds)
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for picture in shown:
                nursery.start_soon(show_picture, caller.server, picture, done_s)
        await trio.sleep(AFTER_S)
        beside = Phase(CHAT, began_s, max(done_s) + AFTER_S, chats(caller))
    return {
        **gaps_of("quiet_", [quiet]),
        **gaps_of("chat_", [beside]),
        "first_ms": 1e3 * (min(done_s) - began_s),
        "last_ms": 1e3 * (max(done_s) - began_s),
    }


def measure(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    series = Series.empty()
    about = check_gguf(model.path)
    width = about.metadata[f"{about.architecture}.embedding_length"]
    assert isinstance(width, int)
    with tempfile.TemporaryDirectory() as folder:
        projector = make_projector.write_projector(
            Path(folder) / "mmproj.gguf", width, kind=options.kind, side=options.side,
            n_embd=options.n_embd, n_layer=options.n_layer,
        )  # fmt: skip
        with servers(model, str(projector), options) as found:
            for server in found:
                warm_up(server, options.seed)
                trio.run(show_picture, server, bitmap(0), [])
            for turn in range(options.rounds):
                for server in found if turn % 2 == 0 else found[::-1]:
                    caller = Caller(server, options.seed * 100 + turn, options.words_scale)
                    values = trio.run(pictures_part, caller, options, turn)
                    add(series, server.name, "pictures", values)
                    trio.run(settle, server)
    return {
        "model": f"{model.name} {options.quant}", "kind": options.kind, "side": options.side,
        "n_ctx": model.n_ctx, "figures": series.spreads(), "ratios": ratios(series),
        "over_library": {}, "rounds": series.values,
    }  # fmt: skip


def main() -> None:
    options = parser().parse_args()
    quiet_death()
    machine.build()
    measure_all(options, measure, show)


if __name__ == "__main__":
    main()
