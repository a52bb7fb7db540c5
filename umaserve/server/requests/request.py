"""Request for text: the client's wishes, the tokens read so far, the engine that runs it.

Long: all that is known of a request has one owner.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from umaserve.app_settings import AppSettings
from umaserve.chat.questions import ChatModel, OpenPart, Rendered
from umaserve.eyes.seen import Seen
from umaserve.metrics.window import quantile
from umaserve.protocol import Generate, Overflow, Rated, Timings, TokenEncoder, Usage
from umaserve.protocol.chat import size_of
from umaserve.server.engines.blame import Record
from umaserve.server.requests.client import Client, is_key, number_of, sharer_name, sharer_of
from umaserve.server.requests.conversations.reply import Reply
from umaserve.server.requests.life import Answer, Stage, step
from umaserve.server.requests.queue.turns import Asker, Turn
from umaserve.server.requests.tokens.prompt_text import PromptText
from umaserve.server.requests.tokens.text import TextAssembler
from umaserve.wire import messages as m
from umaserve.wire import table as t

if TYPE_CHECKING:
    from umaserve.server.engines.handle import EngineHandle
    from umaserve.server.requests.conversations.eyes import Projector
    from umaserve.server.requests.meters.apps import App

# of ``auto`` the engine's policy decides anew in every tick
LANES = {
    "auto": m.LANE_INTERACTIVE,
    "interactive": m.LANE_INTERACTIVE,
    "background": m.LANE_BACKGROUND,
}
LANE_NAMES = ("interactive", "background")
LABELLED, UNLABELLED, MOVED = "asked for", "nobody named a lane", "moved there"
CONFIGURED = "the configuration of its program"
TURNS = 16  # that a short request of a program of weight 1 costs
LONG_BYTES = 4096  # of a prompt that costs as much again
LEAST_SHIFTED = 4  # tokens of a full context that are not kept whatever the client wants
# why a lane that nobody named is what it is (`umaserve.policy.urgency`)
DECIDED = {
    t.AUTO: "nobody named a lane",
    t.AUTO_SUNK: "its program has used up its allowance",
}


class Sink(Client, Protocol):
    """Where the frames of a request's events go.  Plain calls that never block."""

    def begin(self, request: Request) -> None: ...

    def put(self, frame: bytes) -> None:
        """Keep a frame for `flush`."""
        ...

    def over(self, request: Request) -> None:
        """Forget a request, whose last frame comes next."""
        ...

    def flush(self) -> None: ...

    def abandon(self) -> None:
        """Take nothing more: the client is to see that its connection closes.  Never raises."""
        ...

    def send_now(self) -> bool:
        """`flush` without touching trio; False: that is still to be called."""
        ...


@dataclass(eq=False)
class Request:
    """``tokens`` and ``token_ns`` are the generated tokens read so far, over all engines; times are
    ``time.monotonic_ns()``.  All waiting begins at ``arrived_ns``, see ``ArrivalClock``."""

    serial: int
    id: str
    sink: Sink
    message: Generate
    sampling: m.Sampling
    lane: int
    auto: bool  # nobody has named the lane
    lane_reason: str  # in a few words
    arrived_ns: int
    assembler: TextAssembler
    encode: TokenEncoder  # of its token events
    quick: bool = False  # its tokens go out as they come, with nothing but their text
    stage: Stage = Stage.WAITING  # changed by `enter`
    answer: Answer = Answer.OPEN  # changed by `answered`
    record: Record = field(default_factory=Record)
    weight: float = 1.0  # of its program's share
    by_name: bool = False  # the configuration knows its program's name: all of that name are one

    processed: int = 0  # tokens of the prompt that its client knows to be computed
    turn: Turn = field(default_factory=lambda: Turn(None, 1))  # in its lane, see `WaitingRoom`
    leave: Callable[[], object] | None = None  # takes it out of what it waits in
    rendered: Rendered | None = None  # its conversation, by ``rendered_by``
    rendered_by: ChatModel | None = None
    seen: dict[str, Seen] = field(default_factory=dict)  # its pictures, by markers in its messages
    seen_by: Projector | None = None  # what encoded them
    pictures: tuple[m.Picture, ...] = ()  # those that are in its prompt
    reply: Reply | None = None  # the message that its text makes, where that is wanted
    service: Any = None  # the `Service` of the model that it is for
    engine: EngineHandle | None = None
    model: str = ""  # of the newest engine that it was on
    slot: int = -1
    prompt_ids: list[int] | None = None
    kept: int = 0  # tokens in front of those that left the full context, see `shift`
    dropped: int = 0  # tokens that left it
    row_shifts: int = 0  # times that the context was shifted in the row that it has
    resumed_at: int = 0  # generated tokens when it was last given to a new engine
    lora: tuple[tuple[int, float], ...] = ()  # its adapters and their scales; none: the start's
    max_tokens: int = 0  # the limit; as resolved by the engine that accepted it first
    tokens: list[int] = field(default_factory=list)
    token_ns: list[int] = field(default_factory=list)
    emitted: int = 0  # tokens whose event was made
    timed: int = 0  # of those, that the meters have the time of
    sent_ns: int = 0  # when the newest of these went out
    baseline_ns: int = 0  # the engine's baseline at that time
    first_ns: int = 0  # when the first token went out
    figures: App | None = None  # of the program that asks
    admitted_ns: int = 0
    cached: int = 0  # tokens of the prompt that did not have to be computed
    former_drafts: tuple[int, int] = (0, 0)  # `drafts` of the rows that it had before
    ended_ns: int = 0
    failure: tuple[str, str] | None = None  # code and message, where it is to end so
    overflow: Overflow | None = None  # of a prompt that is too long
    failing: int = 0  # wakes since its row ended with an error whose message is on the way
    rated: PromptText | None = None  # what was told of the prompt's tokens, where that is wanted
    parts: list[str] = field(default_factory=list)  # of answers that do not stream
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    has_line: bool = False  # a line of its text has ended
    is_late: bool = False  # it has taken longer than its client wants
    end_token: int | None = None  # with which the model ended its text
    end_name: bytes = b""  # of that token
    end_rated: tuple[int, Rated] | None = None  # that token, where it is told
    # newest token, where characters wait that have to go out with it if the text ends
    withheld: tuple[str, int, Rated | None] | None = None

    @classmethod
    def create(
        cls,
        serial: int,
        sink: Sink,
        message: Generate,
        arrived_ns: int,
        max_tokens: int,
        apps: Mapping[str, AppSettings] = MappingProxyType({}),
    ) -> Request:
        """``max_tokens`` holds where the client named none, ``apps`` what is configured by program
        where it says nothing else."""
        settings = apps.get(sharer_name(message, sink)) if apps else None
        priority, reason = message.priority, LABELLED
        if priority == "auto":
            reason = UNLABELLED
            if settings is not None and settings.lane != "auto":
                priority, reason = settings.lane, CONFIGURED
        seed = message.sampling["seed"]
        seed = secrets.randbits(63) if seed is None else seed & (2**63 - 1)
        sampling = m.Sampling(**message.sampling | {"seed": seed})
        return cls(
            serial=serial,
            id=message.id,
            sink=sink,
            message=message,
            sampling=sampling,
            lane=LANES[priority],
            auto=priority == "auto",
            lane_reason=reason,
            weight=1.0 if settings is None else settings.weight,
            by_name=settings is not None,
            arrived_ns=arrived_ns,
            assembler=TextAssembler(message.stop),
            encode=TokenEncoder(message.id),
            quick=message.stream
            and sampling.logprobs < 0
            and not (message.stop or message.echo or message.t_max_predict_ms),
            max_tokens=max_tokens if message.max_tokens is None else message.max_tokens,
            rated=None if message.prompt_logprobs is None else PromptText(message.prompt),
        )

    def take_rendered(self, rendered: Rendered, reply: Reply | None) -> None:
        """Its prompt, and what reads its answer; before it begins."""
        self.rendered, self.reply = rendered, reply
        stops = (*self.message.stop, *rendered.stops)
        self.assembler = TextAssembler(stops)
        self.quick = self.quick and not stops and reply is None

    def enter(self, stage: Stage) -> None:
        """Go on to ``stage``; raise `ImpossibleStep` where no step leads there."""
        self.stage = step(self.stage, stage)

    def answered(self, answer: Answer) -> None:
        """Note what the client is told; raise `ImpossibleStep` where that cannot be."""
        self.answer = step(self.answer, answer)

    @property
    def told(self) -> bool:
        """Whether no more tokens are delivered."""
        return self.answer not in (Answer.OPEN, Answer.CANCELLED)

    @property
    def begin_due(self) -> bool:
        """Whether its client wants to hear when it begins, and has not."""
        return self.message.begin and not self.admitted_ns

    def wait_in(self, queue: dict[int, Request]) -> None:
        self.enter(Stage.WAITING)
        queue[self.serial] = self
        self.leave = lambda: queue.pop(self.serial, None)

    def stop_waiting(self) -> None:
        leave, self.leave = self.leave, None
        if leave is not None:
            leave()

    @property
    def app(self) -> str:
        """The program that asks, as it calls itself or as the system does."""
        return self.message.app or self.sink.app

    def lane_is_known(self) -> bool:
        """Whether the engine has taken it in, and the policy has given it a lane."""
        engine = self.engine
        if self.stage is not Stage.RUNNING:
            return False
        if not self.auto or engine is None or len(engine.requests) == 1:
            return True
        return int(engine.table.auto[self.slot]) != t.AUTO_NEW

    def lane_now(self) -> tuple[int, str]:
        """The lane that it has now, and why in a few words."""
        engine = self.engine
        if not self.auto or engine is None or self.stage is not Stage.RUNNING:
            return self.lane, self.lane_reason
        table, slot = engine.table, self.slot
        lane, why = int(table.lane[slot]), DECIDED.get(int(table.auto[slot]))
        if why is None or table.serial[slot] != self.serial:
            return self.lane, self.lane_reason
        return lane, why

    @cached_property
    def program(self) -> int:
        """Number of the program whose share the request takes: the process that connected.  The
        number is below 0 for a program with a name, from the configuration or a gateway."""
        if self.by_name and not (self.sink.relays and is_key(self.message.key)):
            return number_of("app", sharer_name(self.message, self.sink))
        return sharer_of(self.sink, self.message.key, self.message.app)

    @property
    def asker(self) -> Asker:
        """Its program, and the app that it names among that program's."""
        return Asker(self.program, self.message.app or "")

    @cached_property
    def cost(self) -> int:
        """Turns that it takes of its program's (`umaserve.server.requests.queue.turns`)."""
        message = self.message
        size = len(message.prompt or "") + 4 * len(message.tokens or ())
        if message.messages is not None:
            size += size_of(message.messages)
        return max(int(TURNS * (1.0 + size / LONG_BYTES) / self.weight), 1)

    @property
    def stored(self) -> int:
        """Tokens of its row that were read: the prompt's and the generated ones."""
        return len(self.prompt_ids or ()) + len(self.tokens) - self.dropped

    @property
    def context(self) -> list[int]:
        """Tokens in the request's context: all of its tokens, less those dropped by a shift."""
        tokens = [*(self.prompt_ids or ()), *self.tokens]
        return tokens[: self.kept] + tokens[self.kept + self.dropped :]

    @property
    def left(self) -> list[int]:
        """Generated tokens that are not in its context any more."""
        return self.tokens[: max(self.kept + self.dropped - len(self.prompt_ids or ()), 0)]

    @property
    def outlives_context(self) -> bool:
        """Whether it wants more tokens than a full context has given it."""
        return self.message.context_shift and len(self.tokens) < self.max_tokens

    def shift(self, adds_bos: bool) -> m.Shift:
        """Drop half of what its full context holds behind the first tokens, as llama-server does.

        ``adds_bos``: the model's texts begin with a start token.
        """
        prompt, stored = len(self.prompt_ids or ()), self.stored
        keep = prompt if self.message.n_keep < 0 else self.message.n_keep + adds_bos
        self.kept = max(min(keep, prompt, stored - LEAST_SHIFTED), 0)
        dropped = (stored - self.kept) // 2
        self.dropped += dropped
        self.row_shifts += 1
        self.enter(Stage.SUBMITTED)  # until the engine has done the same
        return m.Shift(self.serial, self.kept, dropped, self.max_tokens)

    @property
    def open_parts(self) -> tuple[OpenPart, ...]:
        """Parts of its tools' schemas that bind nothing."""
        return () if self.rendered is None else self.rendered.open

    @property
    def stop(self) -> str | None:
        """The client's stop string that ended the answer; those of a template are not told."""
        met = self.assembler.stop
        return met if met in self.message.stop else None

    def drafts(self) -> tuple[int, int]:
        """Tokens that were drafted for it so far, and of these those that it got, over all
        engines."""
        drafted, got = self.former_drafts
        if self.engine is not None and self.engine.table.serial[self.slot] == self.serial:
            drafted += int(self.engine.table.drafted[self.slot])
            got += int(self.engine.table.accepted[self.slot])
        return drafted, got

    def leave_row(self) -> None:
        """It has no row of an engine any more."""
        self.former_drafts = self.drafts()
        self.engine, self.slot = None, -1

    def usage(self) -> Usage:
        counts = len(self.prompt_ids or ()), self.cached, len(self.tokens)
        drafted, got = self.drafts()
        return Usage(*counts, drafted, got) if drafted else Usage(*counts)

    def timings(self, now_ns: int) -> Timings:
        times = self.token_ns
        gaps = [(b - a) / 1e6 for a, b in zip(times, times[1:], strict=False)]

        def ms(at_ns: int) -> float | None:
            return round((at_ns - self.arrived_ns) / 1e6, 3) if at_ns else None

        def rounded(value: float | None) -> float | None:
            return None if value is None else round(value, 3)

        return Timings(
            queue_ms=ms(self.admitted_ns),
            ttft_ms=ms(times[0]) if times else None,
            total_ms=ms(now_ns),
            tbt_p50_ms=rounded(quantile(gaps, 0.5)),
            tbt_p95_ms=rounded(quantile(gaps, 0.95)),
        )

    def state(self) -> str:
        """For people: queued, prefill, decode or ending."""
        if self.answer is not Answer.OPEN:
            return "ending"
        if self.stage is Stage.RUNNING:
            return "decode" if self.tokens else "prefill"
        is_rated = self.stage is Stage.SUBMITTED and self.rated is not None
        return "prefill" if is_rated else "queued"
