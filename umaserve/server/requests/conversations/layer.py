"""Questions to uma-chat: in fair turns, and a process that takes too long is ended.

A chat template is a program by whoever made the model's file, and runs in a process of its own
(`umaserve.chat`).  Whatever it does there costs the request that asked an error, and nobody else
anything.  A question that takes long goes on by itself, and the next one gets another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import trio

from umaserve.chat import questions
from umaserve.chat.process import ChatProcess, ProcessEnded
from umaserve.protocol import E_PROTO_003, E_RUNTIME_003, ProtocolError
from umaserve.server.engines.descriptors import RESERVE
from umaserve.server.log.lines import trace
from umaserve.server.requests.queue.turns import NOBODY, Asker, Line, Turn, Turns
from umaserve.system.process_stats import process_stats

SLOW_S = 0.2  # an honest question takes some milliseconds; what takes longer gives way to others
LIMIT_S = 1.5  # of a processor's time: a busy machine ends no honest question
MOST_S = 20.0  # in all
LOOK_S = 0.1  # between two looks at its processor time
MOST_SLOW = 3  # processes that work on such questions; then the others wait

Outcome = questions.Answer | ProtocolError
Done = Callable[[Outcome], None]
Forget = Callable[[], None]


@dataclass
class _Work:
    process: ChatProcess | None = None
    limit: trio.CancelScope = field(default_factory=trio.CancelScope)
    began_s: float = 0.0  # processor time of the process before this question
    is_slow: bool = False  # it has been told to give way
    is_over: bool = False  # the process is of no use any more

    def begin(self, process: ChatProcess) -> None:
        self.process = process
        self.began_s = process_stats(process.pid).cpu_s or 0.0

    def left_s(self) -> float:
        """Processor time that the question may still take, in seconds."""
        if self.process is None:
            return LIMIT_S
        now_s = process_stats(self.process.pid).cpu_s
        return 0.0 if now_s is None else LIMIT_S - (now_s - self.began_s)


@dataclass(eq=False)
class Question:
    """``done`` is called in the loop, with the answer or with an error.

    ``body`` of ``None`` asks about the model alone.
    """

    turn: Turn
    model: questions.ChatModel
    body: bytes | None
    kind: questions.Kind
    done: Done


class ChatLayer:
    """The front's end of uma-chat.  ``run`` is its whole life; the rest never blocks.

    Questions wait in fair turns by who asks, interactive ones first.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._lines = tuple((Line[Question](), Turns()) for _ in range(2))  # by lane
        self._more = trio.Event()
        self._idle: ChatProcess | None = None
        self._slow = 0
        self._fewer_slow = trio.Event()

    def put(
        self,
        model: questions.ChatModel,
        body: bytes | None,
        kind: questions.Kind,
        done: Done,
        *,
        lane: int = 0,
        asker: Asker = NOBODY,
    ) -> Forget:
        """Ask; returns what to call when nobody wants the answer any more.

        ``done`` gets the answer, or ``ProtocolError``: ``E_PROTO_003`` where the template refuses
        the conversation, ``E_RUNTIME_003`` where it fails or takes too long.
        """
        line, turns = self._lines[lane]
        turn = turns.take(asker.program, app=asker.app)
        line.add(turn, Question(turn, model, body, kind, done))
        self._more.set()

        def forget() -> None:
            if turn in line:
                line.remove(turn)
                turns.leave(turn)

        return forget

    async def run(self) -> None:
        """Answer until cancelled; the processes end with this."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._more.wait()
                    self._more = trio.Event()
                    while (question := self._next()) is not None:
                        moved_on = trio.Event()
                        nursery.start_soon(self._answer, question, moved_on)
                        await moved_on.wait()
                        while self._slow >= MOST_SLOW:
                            await self._fewer_slow.wait()
        finally:
            idle, self._idle = self._idle, None
            if idle is not None:
                with trio.CancelScope(shield=True):
                    await idle.end()

    def _next(self) -> Question | None:
        for line, turns in self._lines:
            question = line.pop_first()
            if question is not None:
                turns.begin(question.turn)
                turns.leave(question.turn)
                return question
        return None

    async def _answer(self, question: Question, moved_on: trio.Event) -> None:
        """``moved_on`` is set when the next question need not wait for this one."""
        work = _Work()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, work, moved_on)
                outcome = await self._outcome(question, work)
                nursery.cancel_scope.cancel()
        finally:
            await self._give_back(work)
            moved_on.set()
        try:
            question.done(outcome)
        except Exception as error:  # whose fault it is, the others go on
            self._log("error", f"an answer of uma-chat could not be used: {trace(error)}")

    async def _watch(self, work: _Work, moved_on: trio.Event) -> None:
        await trio.sleep(SLOW_S)
        work.is_slow = True
        self._slow += 1
        if work.process is not None:
            work.process.give_way()
        moved_on.set()
        await trio.sleep(LIMIT_S - SLOW_S)
        while (left_s := work.left_s()) > 0.0:
            await trio.sleep(max(left_s, LOOK_S))
        work.limit.cancel()

    async def _outcome(self, question: Question, work: _Work) -> Outcome:
        what = "uma-chat" if question.kind is questions.Parsed else "the model's chat template"
        if not question.model.program:
            missing = f"there is no chat layer: {question.model.missing}"
            return ProtocolError(E_RUNTIME_003, f'{missing} (a "prompt" needs none)')
        try:
            with trio.fail_after(MOST_S) as work.limit:
                process = self._take(question.model.program)
                work.begin(process)
                return await self._ask(process, question, what)
        except trio.TooSlowError:
            how = f"{what} took more than {LIMIT_S:g} s of a processor's time and was ended"
        except ProcessEnded:
            assert work.process is not None
            how = f"{what} ended its process ({await work.process.end()})"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            how = f"{what} cannot be asked now ({error}); try again later"
        work.is_over = True
        return self._failed(how)

    async def _ask(self, process: ChatProcess, question: Question, what: str) -> Outcome:
        model = question.model
        is_told = process.told == model and question.body is not None
        if question.kind is not questions.Parsed and not is_told:
            process.told = None
            told = questions.answer_of(await process.ask(model.question()), questions.Abilities)
            if isinstance(told, questions.Refusal):
                why = told.refused or told.failed
                return self._failed(f"{what} cannot be used: {why}")
            process.told = model
            if question.body is None:
                return told
        assert question.body is not None
        answer = questions.answer_of(await process.ask(question.body), question.kind)
        if isinstance(answer, questions.Rendered):
            return msgspec.structs.replace(answer, stops=(*answer.stops, *model.stops))
        if not isinstance(answer, questions.Refusal):
            return answer
        if answer.refused is not None:
            text = f'"messages": {what} refuses them: {answer.refused}'
            return ProtocolError(E_PROTO_003, text)
        return self._failed(f"{what} failed: {answer.failed}")

    def _failed(self, text: str) -> ProtocolError:
        self._log("warn", text)
        return ProtocolError(E_RUNTIME_003, text)

    # --- processes --------------------------------------------------------------------------------

    def _take(self, program: str) -> ChatProcess:
        """A process that has nothing to do.  Raises ``OSError``."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.program == program and idle.alive:
            return idle
        if idle is not None:
            idle.close()
        with RESERVE.lent():
            return ChatProcess(program)

    async def _give_back(self, work: _Work) -> None:
        process = work.process
        if process is not None:
            # what gave way once does so for good
            keep = not (work.is_slow or work.is_over) and self._idle is None
            if keep and process.is_between:
                self._idle = process
            else:
                with trio.CancelScope(shield=True):
                    await process.end()
        if work.is_slow:
            self._slow -= 1
            self._fewer_slow.set()
            self._fewer_slow = trio.Event()
