"""uma-eyes by itself: files of pictures in, embeddings or words out, whatever the files are."""

from __future__ import annotations

import base64
import os
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import trio

from tests.support.pictures import ROWS, build_with_eyes, model_with_eyes, png
from umaserve.eyes import seen as seen_module
from umaserve.eyes.answers import Answer, RunOf
from umaserve.eyes.seen import Seen, SeenPictures, pseudo_tokens
from umaserve.server.requests.conversations import eyes as front
from umaserve.server.requests.conversations.eyes import Eyes, Outcome, Projector
from umaserve.wire import messages as m

WIDTH = 128  # of the model

pytestmark = pytest.mark.timeout(300)  # the first test may build uma-eyes


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Projector:
    folder = tmp_path_factory.mktemp("eyes")
    model = model_with_eyes(folder)
    program = str(build_with_eyes().eyes_program)
    return Projector(program, model, str(folder / "mmproj-f32.gguf"), 1, WIDTH, 512)


def photo() -> bytes:
    """llama.cpp's own test picture."""
    return (build_with_eyes().eyes_dir / "test-1.jpeg").read_bytes()


def gif() -> bytes:
    """One black pixel."""
    head = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff"
    return head + b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"


def bmp(width: int = 4, height: int = 4) -> bytes:
    data = bytes(width * height * 4)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 32, 0, len(data), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + head + data


def looked(
    projector: Projector, files: Sequence[bytes], domain: str | None = "", times: int = 1,
    folder: Path | None = None,
) -> tuple[list[list[Outcome]], Eyes]:  # fmt: skip
    """What comes of files of one conversation, asked so many times."""
    found: list[list[Outcome]] = []
    eyes = Eyes(lambda *_: None)
    if folder is not None:
        eyes.keep_in(str(folder))

    async def ask() -> None:
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(eyes.run)
                for _ in range(times):
                    done = trio.Event()

                    def take(outcomes: list[Outcome], done: trio.Event = done) -> None:
                        found.append(outcomes)
                        done.set()

                    data = [base64.b64encode(file).decode() for file in files]
                    eyes.put(projector, data, domain, 0, take)
                    await done.wait()
                nursery.cancel_scope.cancel()

    trio.run(ask)
    return found, eyes


def test_every_format_is_encoded_once(projector: Projector) -> None:
    files = [png(64, 48), png(1, 1), png(900, 3), photo(), gif(), bmp()]
    (first, second), eyes = looked(projector, files, times=2)
    for seen in first:
        assert isinstance(seen, Seen), seen
        assert seen.answer.rows == ROWS == sum(token < 0 for token in seen.tokens)
        assert seen.n_bytes == 4 * WIDTH * ROWS and not Path(seen.path).exists(), "it has ended"
    assert first == second and eyes.encoded == len(files)
    assert len({tuple(seen.tokens) for seen in first if isinstance(seen, Seen)}) == len(files)


def test_the_next_daemon_encodes_nothing_again(projector: Projector, tmp_path: Path) -> None:
    folder, files = tmp_path / "kept", [png(64, 48), png(9, 9)]
    (first,), eyes = looked(projector, files, folder=folder)
    assert eyes.encoded == 2 and folder.stat().st_mode & 0o777 == 0o700
    (second,), eyes = looked(projector, files, folder=folder)
    assert eyes.encoded == 0
    for one, other in zip(first, second, strict=True):
        assert isinstance(one, Seen) and isinstance(other, Seen)
        assert one.tokens == other.tokens and one.answer == other.answer
        embeddings = Path(other.path).read_bytes()[other.start :]
        assert len(embeddings) == other.n_bytes == 4 * WIDTH * ROWS
    (other_domain,), eyes = looked(projector, files[:1], domain="b", folder=folder)
    assert eyes.encoded == 1 and isinstance(other_domain[0], Seen)
    damaged = Path(second[0].path) if isinstance(second[0], Seen) else folder
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    _, eyes = looked(projector, files, folder=folder)
    assert eyes.encoded == 1


def test_kept_pictures_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used longest ago go; neither one in use, nor a file of somebody else."""
    monkeypatch.setattr(seen_module, "MOST_BYTES", 3000)
    other = tmp_path / "thesis.txt"
    other.write_bytes(b"t" * 5000)
    pictures = SeenPictures(str(tmp_path))
    answer = Answer(width=1, runs=(RunOf(rows=200),))
    held = []
    for n in range(6):
        seen = pictures.add(bytes([n]) * 32, answer, b"d", memoryview(bytes(800)))
        os.utime(seen.path, (n, n))
        held += [seen] if n == 1 else []
    left = {path.name[:2] for path in tmp_path.iterdir() if path != other}
    assert left == {"01", "04", "05"} and other.exists()
    assert pictures.get(b"\1" * 32, b"d") is held[0]


def test_a_folder_that_others_may_change_keeps_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    pictures = SeenPictures(str(folder))
    answer = Answer(width=1, runs=(RunOf(rows=200),))
    seen = pictures.add(b"k" * 32, answer, b"d", memoryview(bytes(800)))
    assert Path(seen.path).parent != folder and not list(folder.iterdir())
    pictures.close()


def test_a_picture_that_somebody_waits_for_gets_its_share(projector: Projector) -> None:
    """The background's leaves nearly all to streams."""
    eyes, seen = Eyes(lambda *_: None), []

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(eyes.run)
            for n, lane in enumerate((m.LANE_INTERACTIVE, m.LANE_BACKGROUND, m.LANE_INTERACTIVE)):
                done = trio.Event()
                data = base64.b64encode(png(8 + n, 8)).decode()
                wanted = projector._replace(nice=front.NICE[lane], threads=2)
                eyes.put(wanted, [data], "", lane, lambda _, done=done: done.set())
                await done.wait()
                assert eyes._process is not None
                pid = eyes._process.pid
                threads = psutil.Process(pid).threads()
                seen.append({os.getpriority(os.PRIO_PROCESS, each.id) for each in threads})
            nursery.cancel_scope.cancel()

    trio.run(ask)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert seen == [{max(own, front.NICE[lane])} for lane in (0, 1, 0)]


def test_nobody_finds_the_pictures_of_another_domain(projector: Projector) -> None:
    (first, second), eyes = looked(projector, [png(9, 9)], domain=None, times=2)
    assert first != second and eyes.encoded == 2
    assert isinstance(first[0], Seen) and isinstance(second[0], Seen)
    assert first[0].tokens == second[0].tokens


def test_pseudo_tokens_are_below_all_marks() -> None:
    tokens = pseudo_tokens(b"x", 10_000)
    assert max(tokens) <= -3 and min(tokens) >= -(2**31) and len(set(tokens)) > 9_990


def deep_png() -> bytes:
    """16 bits a channel."""
    return png_of(struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0), (b"\0" + bytes(8 * 6)) * 8)


def cmyk() -> bytes:
    """A JPEG of 8 x 8 pixels with four channels, all of whose coefficients are 0."""
    channels = b"".join(bytes([n, 0x11, 0]) for n in range(1, 5))
    one_code = b"\1" + bytes(15) + b"\0"
    parts = {
        0xDB: b"\0" + b"\1" * 64, 0xC0: b"\x08\0\x08\0\x08\4" + channels,
        0xC4: b"\0" + one_code + b"\x10" + one_code,
        0xDA: b"\4\1\0\2\0\3\0\4\0\0\x3f\0",
    }  # fmt: skip
    marked = [bytes([0xFF, mark]) + struct.pack(">H", len(data) + 2) + data
              for mark, data in parts.items()]  # fmt: skip
    return b"\xff\xd8" + b"".join(marked) + b"\0\xff\xd9"


def animated() -> bytes:
    one = gif()
    return one[:-1] + one[19:-1] * 40 + b";"


def test_files_of_every_kind_are_encoded(projector: Projector) -> None:
    (outcomes,), _ = looked(projector, [deep_png(), cmyk(), animated(), gif(), png(1, 1)])
    assert all(isinstance(each, Seen) for each in outcomes), outcomes


def test_a_thousand_damaged_files_cost_themselves_alone(projector: Projector) -> None:
    """The program goes on or is replaced, the next one is encoded, and the front does not grow."""
    chance = random.Random(3)
    kinds = [png(64, 48), photo()[:20_000], photo(), gif(), bmp(), deep_png(), cmyk(), animated()]
    front_limit = front.MAX_PICTURES
    files = []
    while len(files) < 1000:
        data = bytearray(chance.choice(kinds))
        for _ in range(chance.choice([1, 3, 30])):
            data[chance.randrange(min(len(data), 2_000))] = chance.randrange(256)
        files.append(bytes(data[: chance.choice([len(data), len(data), len(data) // 2, 9])]))
    me, sizes = psutil.Process(), []
    for at in range(0, len(files), front_limit - 1):
        (outcomes,), _ = looked(projector, [*files[at : at + front_limit - 1], png(8, 8)])
        assert all(isinstance(each, Seen) or each for each in outcomes)
        assert isinstance(outcomes[-1], Seen)
        sizes.append(me.memory_info().rss)
    assert sizes[-1] < sizes[len(sizes) // 3] + (16 << 20)
    assert not [child for child in me.children() if "uma-eyes" in child.name()]


def inflating(n_bytes: int) -> bytes:
    """A PNG of a few pixels, whose data inflates to so many bytes."""
    return png_of(struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0), bytes(n_bytes))


def png_of(head: bytes, rows: bytes) -> bytes:
    body = zlib.compress(rows, 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    )


def test_lying_and_huge_files_are_refused_in_words(projector: Projector) -> None:
    lies = png(64, 48)
    wide = lies[:16] + struct.pack(">II", 10_000, 10_000) + lies[24:]
    files = [wide, bmp(1, 1)[:18] + struct.pack("<ii", 50_000, 50_000) + bmp()[26:],
             inflating(3 << 30), b"RIFF\0\0\0\0WEBPVP8 " + bytes(99), b"%PDF-1.7", b"\0",
             bytes(17 << 20)]  # fmt: skip
    (outcomes,), _ = looked(projector, [*files, lies])
    assert [isinstance(each, str) for each in outcomes] == [True] * len(files) + [False], outcomes
    assert "10000 x 10000 pixels" in str(outcomes[0]) and "16 MiB" in str(outcomes[6])


def test_a_projector_of_another_model_is_told(projector: Projector) -> None:
    (outcomes,), _ = looked(projector._replace(width=64), [png(8, 8)])
    assert "is not for this model" in str(outcomes[0])
    (outcomes,), _ = looked(projector._replace(path=projector.model), [png(8, 8)])
    assert "projector" in str(outcomes[0])
    (outcomes,), _ = looked(projector._replace(most_rows=8), [png(8, 8)])
    assert "--n-ubatch 16" in str(outcomes[0])


def test_what_takes_too_long_is_ended(
    projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "LOOK_S", 0.0)
    (outcomes,), _ = looked(projector, [png(8, 8)])
    assert "took more than" in str(outcomes[0])
