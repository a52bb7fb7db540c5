"""The clients of a benchmark, before a socket that takes what they say and answers nothing."""

from __future__ import annotations

import socket
from pathlib import Path

from umaserve.bench.load import Load


def test_answers_that_are_left_have_ended(tmp_path: Path) -> None:
    """Else they would pass for silent ones in the next phase."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        with Load(str(tmp_path / "s"), lambda words: "word " * words, lambda load: None) as load:
            for _ in range(2):
                load.start("interactive", 2, 3, 5)
                load.stop_streams()
        assert all(answer.end_s is not None for answer in load.answers)
        ids = [answer.session_id for answer in load.answers]
        assert ids == ["interactive1.1", "interactive2.1", "interactive1.2", "interactive2.2"]
