"""Lines of record files."""

from __future__ import annotations

import pytest
import trio

from umaserve.server.figures import record_file
from umaserve.server.figures.record_file import RecordFile


class Lines:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __call__(self, level: str, text: str, **fields: object) -> None:
        assert fields["file"]
        self.said.append((level, text))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "WRITE_S", 0.01)
    monkeypatch.setattr(record_file, "RETRY_S", 0.02)


def write(file: RecordFile, *batches: list[bytes]) -> None:
    """Every batch at once; each is given up after a few attempts."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            for batch in batches:
                for line in batch:
                    file.put(line)
                await trio.sleep(0.15)
            nursery.cancel_scope.cancel()

    trio.run(main)
