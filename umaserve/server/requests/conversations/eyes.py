"""Pictures to embeddings, by uma-eyes: one after the other, and a process that fails is ended.

Files of pictures come from anybody.  Whatever one does to the process costs that picture its place
in the prompt, where a sentence says so, and nobody else anything.  Encoded pictures are kept, each
for those who may share texts, so the next turn of a conversation encodes nothing.
"""

from __future__ import annotations

import binascii
import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import trio

from umaserve.chat.process import ChatProcess, ProcessEnded
from umaserve.eyes.answers import answer_of
from umaserve.eyes.seen import Seen, SeenPictures
from umaserve.server.engines.descriptors import RESERVE
from umaserve.server.log.lines import trace
from umaserve.wire import messages as m

# Niceness on a processor, where it takes all cores for long.  With a picture that somebody waits
# for it shares them about equally with a stream.  With the background's it leaves the stream nine
# parts in ten.
NICE = {m.LANE_INTERACTIVE: 2, m.LANE_BACKGROUND: 10}
NICE_BESIDE_A_DEVICE = 10
MAX_PIXELS = 40_000_000  # 8K screens have 33 million
MAX_FILE_BYTES = 16 << 20
MAX_PICTURES = 64  # of one conversation
LOAD_S, LOOK_S = 300.0, 300.0  # limits of time, on a machine whose cores others have
IDLE_S = 600.0  # without a picture, after which the process ends
MAX_ANSWER_BYTES = 256 << 20

Outcome = Seen | str  # the picture, or why there is none
Done = Callable[[list[Outcome]], None]


class Projector(NamedTuple):
    """Projector of a model, and settings of the process that encodes pictures with it.

    ``width``: numbers of an embedding that the model takes.  ``most_rows``: most embeddings that
    may see each other.  ``nice``: niceness, which a process can only raise, so a change starts a
    new process.
    """

    program: str
    model: str
    path: str
    threads: int
    width: int
    most_rows: int
    nice: int = 0


@dataclass(eq=False)
class _Job:
    projector: Projector
    pictures: Sequence[str]  # in base64
    domain: str | None
    lane: int
    done: Done
    found: list[Outcome] = field(default_factory=list)


class Eyes:
    """The front's end of uma-eyes.  ``run`` is its whole life; the rest never blocks."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._seen = SeenPictures()
        self._jobs: deque[_Job] = deque()
        self._more = trio.Event()
        self._process: ChatProcess | None = None
        self._loaded: Projector | None = None  # by the process
        self._unusable: dict[tuple[Projector, bytes], str] = {}  # by projector and its identity
        self._turns: dict[str, int] = {}  # by domain: pictures looked at since there was no job
        self.encoded = 0  # pictures so far

    def keep_in(self, folder: str) -> None:
        """Keep pictures in this folder, for the next daemon too; before any is encoded."""
        self._seen = SeenPictures(folder)

    def put(
        self, projector: Projector, pictures: Sequence[str], domain: str | None, lane: int,
        done: Done,
    ) -> Callable[[], None]:  # fmt: skip
        """Encode pictures; returns what to call when nobody wants them any more.

        ``domain``: who may share them; None: nobody.
        """
        job = _Job(projector, pictures, domain, lane, done)
        if not self._jobs:
            self._turns.clear()
        self._turns.setdefault(domain or "", min(self._turns.values(), default=0))
        self._jobs.append(job)
        self._more.set()

        def forget() -> None:
            if job in self._jobs:
                self._jobs.remove(job)

        return forget

    async def run(self) -> None:
        """Encode until cancelled; the process and the files end with this."""
        try:
            while True:
                with trio.move_on_after(IDLE_S):
                    await self._more.wait()
                if not self._more.is_set():
                    await self._end()  # its memory is for others now
                    await self._more.wait()
                self._more = trio.Event()
                while self._jobs:
                    # domains take turns, so that many pictures of one hold up nobody with few
                    job = min(self._jobs, key=lambda job: (job.lane, self._turns[job.domain or ""]))
                    self._turns[job.domain or ""] += 1
                    job.found.append(await self._look(job, len(job.found)))
                    if len(job.found) < len(job.pictures) or job not in self._jobs:
                        continue
                    self._jobs.remove(job)
                    try:
                        job.done(job.found)
                    except Exception as error:  # whose fault it is, the others go on
                        self._log("error", f"a picture could not be used: {trace(error)}")
        finally:
            with trio.CancelScope(shield=True):
                await self._end()
            self._seen.close()

    async def _look(self, job: _Job, at: int) -> Outcome:
        if len(job.pictures) - at > MAX_PICTURES:
            return f"a request has at most {MAX_PICTURES} pictures"
        try:
            return await self._encoded(job, at)
        except trio.TooSlowError:
            how = f"it took more than {LOOK_S:g} s to encode"
        except ProcessEnded:
            how = "it ended the process that encodes pictures"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            how = f"it cannot be encoded now ({error})"
        except Exception as error:  # whatever it is, the others go on
            self._log("error", f"a picture could not be encoded: {trace(error)}")
            how = "it cannot be encoded"
        await self._end()
        self._log("warn", f"a picture was left out: {how}")
        return how

    async def _encoded(self, job: _Job, at: int) -> Outcome:
        # base64 of some megabytes takes the loop's time
        given = job.pictures[at]
        if len(given) // 4 * 3 > MAX_FILE_BYTES:
            return f"its file has more than {MAX_FILE_BYTES >> 20} MiB"
        file = await trio.to_thread.run_sync(_decoded, given)
        if not file:
            return "its data is not in base64"
        digest = hashlib.sha256(_identity(job.projector) + hashlib.sha256(file).digest()).digest()
        key = None
        if job.domain is not None:
            key = hashlib.sha256(digest + job.domain.encode()).digest()
            if (seen := await trio.to_thread.run_sync(self._seen.get, key, digest)) is not None:
                return seen
        why = await self._load(job.projector)
        if why or self._process is None:
            return why
        with trio.fail_after(LOOK_S):
            answer, embeddings = answer_of(await self._process.ask(file))
        if answer.refused:
            return answer.refused
        if not answer.rows:
            return "the projector makes nothing of it"
        if any(token < 0 for run in answer.runs for token in run.tokens):
            return "the model's vocabulary has no tokens for what stands around it"
        most = max(run.rows for run in answer.runs if run.rows)
        if most > job.projector.most_rows and any(run.non_causal for run in answer.runs):
            return f"its {most} embeddings have to be computed at once: --n-ubatch {most}"
        self.encoded += 1
        return await trio.to_thread.run_sync(self._seen.add, key, answer, digest, embeddings)

    async def _load(self, projector: Projector) -> str:
        """Have a process with that projector; returns why there is none."""
        process = self._process
        is_there = process is not None and process.alive and process.is_between
        if is_there and self._loaded == projector:
            return ""
        known = projector, _identity(projector)
        if known in self._unusable:
            return self._unusable[known]
        await self._end()
        with RESERVE.lent():
            self._process = process = ChatProcess(
                projector.program, projector.model, projector.path, str(projector.threads),
                str(MAX_PIXELS), most_bytes=MAX_ANSWER_BYTES,
            )  # fmt: skip
        process.give_way(projector.nice)
        with trio.move_on_after(LOAD_S) as limit:
            await process.wait_ready()
        if limit.cancelled_caught:
            await self._end()
            return f"the projector took more than {LOAD_S:g} s to load"
        ready, _ = answer_of(process.first)
        why = ready.refused
        if not why and ready.width != projector.width:
            why = (
                f"the projector {os.path.basename(projector.path)} is not for this model: its "
                f"embeddings have {ready.width} numbers and not {projector.width}"
            )
        if why:
            self._log("warn", f"pictures are left out: {why}")
            self._unusable[known] = why
            await self._end()
            return why
        self._loaded = projector
        return ""

    async def _end(self) -> None:
        process, self._process, self._loaded = self._process, None, None
        if process is not None:
            await process.end()


def _identity(projector: Projector) -> bytes:
    """Return what tells a projector from others, by its file.  Raises ``OSError``."""
    facts = os.stat(projector.path)
    name = (
        f"{projector.path}\0{facts.st_size}\0{facts.st_mtime_ns}\0{projector.most_rows}"
        f"\0{projector.width}\0{MAX_PIXELS}\0{projector.program}\0{projector.model}"
    )
    return hashlib.sha256(name.encode()).digest()


def _decoded(text: str) -> bytes:
    """Return the bytes of a text in base64; none where it is no such text."""
    try:
        return binascii.a2b_base64(text.encode())
    except (binascii.Error, ValueError):
        return b""
