"""Pictures that are named by address: fetched within limits, and from public servers alone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from umaserve.gateway.daemon import addresses
from umaserve.gateway.daemon import fetched as fetched_module
from umaserve.gateway.daemon.addresses import NotFetched, fetch, is_public
from umaserve.gateway.daemon.fetched import MAX_ADDRESSES, TOO_MANY, Fetched
from umaserve.gateway.daemon.pictures import ADDRESS, filled
from umaserve.gateway.translate.pictures import picture_part

FILE = b"\x89PNG picture"
Asked = list[bytes]


def answer(status: int = 200, body: bytes = FILE, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Fine", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def web(answers: dict[str, bytes], host: str = "127.0.0.1") -> AsyncIterator[tuple[str, Any]]:
    """A web server with these answers by path: its address, and the heads of requests."""
    heads: Asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            path = head.split(b" ")[1].decode()
            if path == "/slow":
                await asyncio.sleep(60)
            writer.write(answers[path])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


def run(what: Callable[..., Awaitable[Any]], answers: dict[str, bytes]) -> Any:
    async def all_of_it() -> Any:
        async with web(answers) as (at, heads):
            return await what(at, heads)

    return asyncio.run(all_of_it())


def anywhere(address: str) -> bool:
    return True


async def why_not(url: str, allowed: Callable[[str], bool] = is_public) -> str:
    with pytest.raises(NotFetched) as refused:
        await fetch(url, 1 << 20, 2.0, allowed)
    return str(refused.value)


def test_a_file_is_fetched_through_redirections() -> None:
    async def check(at: str, heads: Asked) -> None:
        assert await fetch(f"{at}/moved", 1 << 20, 9.0, anywhere) == FILE
        assert [head.split(b" ")[1] for head in heads] == [b"/moved", b"/%C3%A9.png"]
        assert b"accept-encoding: identity" in heads[0].lower()

    run(check, {"/moved": answer(302, b"", Location="/\u00e9.png"), "/%C3%A9.png": answer()})


def test_what_cannot_be_fetched_is_said() -> None:
    async def check(at: str, heads: Asked) -> None:
        to = functools.partial(why_not, allowed=anywhere)
        assert await to(f"{at}/gone") == "its server answered with status 404"
        assert await to(f"{at}/long") == "its file has more than 1 MiB"
        assert await to(f"{at}/round") == "its server redirects more than 3 times"
        assert await to(f"{at}/odd") == "its address is of no web server"
        assert await to(f"{at}/slow") == "its server took more than 2 s"
        assert "cannot be asked" in await to(f"{at}/noise")
        assert "cannot be asked" in await to("http://127.0.0.1:1/")
        assert await to("http://[::1/a.png") == "its address is of no web server"
        assert "cannot be asked" in await to("http://no.such.host.invalid/a.png")

    run(check, {
        "/gone": answer(404), "/long": answer(body=bytes(2 << 20)), "/noise": b"\0\1\2\r\n\r\n",
        "/round": answer(301, Location="/round"), "/odd": answer(301, Location="file:///etc/passwd"),
    })  # fmt: skip


def test_this_machine_and_its_network_are_never_asked() -> None:
    async def check(at: str, heads: Asked) -> None:
        port = at.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            said = await why_not(f"http://{host}:{port}/a.png")
            assert said == f"{host} is not on the public internet"
        assert not heads
        # a public server that redirects to a private one
        said = await why_not(f"{at}/moved", allowed=lambda address: address == "127.0.0.1")
        assert said == "127.0.0.2 is not on the public internet" and len(heads) == 1

    run(check, {"/moved": answer(302, b"", Location="http://127.0.0.2/a.png")})


@pytest.mark.parametrize("address, public", [
    ("8.8.8.8", True), ("2606:4700::1111", True), ("::ffff:8.8.8.8", True),
    ("127.0.0.1", False), ("10.1.2.3", False), ("192.168.0.1", False), ("172.16.9.9", False),
    ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
    ("255.255.255.255", False), ("::1", False), ("fe80::1%2", False), ("fd00::1", False),
    ("::ffff:10.0.0.1", False), ("64:ff9b::a00:1", False), ("2002:a00:1::", False), ("::", False),
    ("2001:0:a00:1::1", False), ("ff02::1", False), ("64:ff9b:1::a00:1", False),
    ("fec0::1", False), ("::a00:1", False), ("::ffff:0:a00:1", False), ("5f00::1", False),
])  # fmt: skip
def test_public_addresses_are_told_from_others(address: str, public: bool) -> None:
    assert is_public(address) == public


def test_addresses_of_a_conversation_become_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "fetch", functools.partial(fetch, allowed=anywhere))

    async def check(at: str, heads: Asked) -> None:
        parts = [
            picture_part("image_url", {"image_url": {"url": f"{at}/a.png"}}),
            picture_part("input_image", {"image_url": f"{at}/gone"}),
            picture_part("image", {"source": {"type": "url", "url": f"{at}/a.png"}}),
            {"type": "text", "text": "x", "url": f"{at}/a.png"},
        ]
        message = {"messages": [{"role": "user", "content": parts}], "prompt": parts[:1]}
        files = Fetched()
        found = await filled(message, files, 1 << 20)
        data = {"data": base64.b64encode(FILE).decode()}
        assert found["messages"][0]["content"] == [
            {"type": "image_url", **data},
            {"type": "input_image", "why": "its server answered with status 404"},
            {"type": "image", **data},
            parts[3],
        ]
        assert found["prompt"] == [{"type": "image_url", **data}]
        assert await filled(message, files, 1 << 20) == found  # another choice of the request
        assert len(heads) == 2  # each address once
        assert Fetched.taken == len(FILE)
        files.forget()
        assert Fetched.taken == 0
        kept = await filled(message, None, 1 << 20)
        assert kept["prompt"] == [{"type": "image_url", "why": ADDRESS}] and len(heads) == 2

    run(check, {"/a.png": answer(), "/gone": answer(404)})


async def echo(url: str, most_bytes: int, within_s: float) -> bytes:
    return url.encode()[:most_bytes]


def test_a_request_has_some_addresses_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "fetch", echo)
    parts = [{"type": "image", "url": f"http://host/{n}"} for n in range(MAX_ADDRESSES + 2)]
    message = {"messages": [{"content": parts[:3]}, {"content": parts[3:]}]}
    messages = asyncio.run(filled(message, Fetched(), 1 << 20))["messages"]
    assert ["why" in part for part in messages[0]["content"]] == [True, True, False]
    assert all("data" in part for part in messages[1]["content"])


def test_bytes_are_bounded_for_a_request_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(url: str, most_bytes: int, within_s: float) -> bytes:
        return bytes(min(most_bytes, 6 << 20))

    monkeypatch.setattr(addresses, "fetch", full)
    monkeypatch.setattr(Fetched, "taken", 0)
    parts = [{"type": "image", "url": f"http://host/{n}"} for n in range(4)]
    first, second = Fetched(), Fetched()

    async def check() -> None:
        found = (await filled({"prompt": parts}, first, 16 << 20))["prompt"]
        assert found[0] == {"type": "image", "why": TOO_MANY.format(16)}
        assert sum(len(part.get("data", "")) for part in found) <= 16 << 20
        monkeypatch.setattr(fetched_module, "MOST_BYTES", (12 << 20) + 1)
        found = (await filled({"prompt": parts[:1]}, second, 16 << 20))["prompt"]
        assert found[0]["why"] == fetched_module.NO_ROOM
        first.forget()
        assert Fetched.taken == 0

    asyncio.run(check())
