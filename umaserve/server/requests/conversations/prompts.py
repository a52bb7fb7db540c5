"""Prompts of conversations: asked of uma-chat before a request takes a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from umaserve.chat.questions import Abilities, Rendered, render
from umaserve.protocol import E_PROTO_005, E_RUNTIME_001, ProtocolError, delta_event
from umaserve.protocol.chat import must_call
from umaserve.protocol.history import ContentPart, pictures_of
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.conversations.eyes import Eyes
from umaserve.server.requests.conversations.eyes import Outcome as EyesOutcome
from umaserve.server.requests.conversations.layer import ChatLayer, Outcome
from umaserve.server.requests.conversations.pictures import (
    is_of_another,
    placed,
    projector_for,
    take,
)
from umaserve.server.requests.conversations.reply import Reply
from umaserve.server.requests.ends import Ends
from umaserve.server.requests.request import Request
from umaserve.server.requests.submission import domain_of

OTHER_MODEL = "the model was changed after pictures were encoded for it; send the request again"

NO_CALLS = (
    '"tool_choice" requires a call, and llama.cpp knows no calls of tools in this model\'s chat '
    'template; leave it out, or ask for the arguments with a "response_format"'
)


class Prompts:
    """``chat`` makes prompts, ``replies`` parses answers: no template makes an answer wait.

    ``eyes`` encodes pictures, before a prompt is made.
    """

    def __init__(self, ends: Ends, log: Callable[..., None]) -> None:
        self.chat = ChatLayer(log)
        self.replies = ChatLayer(log)
        self.eyes = Eyes(log)
        self._ends = ends
        self._log = log

    @staticmethod
    def is_needed(request: Request, engine: EngineHandle) -> bool:
        """Whether its conversation was not rendered by this model's template, or pictures wait."""
        if request.prompt_ids is not None:
            return False
        if request.message.messages is not None and (
            request.rendered is None or request.rendered_by != engine.chat
        ):
            return True
        return bool(request.message.parts) or is_of_another(request, engine)

    def make(self, request: Request, engine: EngineHandle, then: Callable[[Request], None]) -> None:
        """Make a request's prompt; ``then`` is called once it is there.

        It is called too when its pictures are encoded, and the prompt is still to be made.
        """
        if pictures := pictures_of(request.message):
            self._look(request, pictures, engine, then)
            return
        if is_of_another(request, engine):
            self._ends.refuse([request], E_RUNTIME_001, OTHER_MODEL)
            return
        assert request.message.messages is not None
        request.rendered, request.rendered_by = None, engine.chat
        asked = render(request.message.messages, request.message.chat)

        def use(outcome: Outcome) -> None:
            if self._take(request, outcome, engine):
                then(request)

        self._wait(request, use, lambda done: self.chat.put(
            engine.chat, asked, Rendered, done, lane=request.lane, asker=request.asker
        ))  # fmt: skip

    def _look(
        self, request: Request, pictures: Sequence[ContentPart], engine: EngineHandle,
        then: Callable[[Request], None],
    ) -> None:  # fmt: skip
        """Have its pictures encoded, or put in words at once where the model reads none."""
        projector, data = projector_for(request, engine), [each.data or "" for each in pictures]

        def use(outcomes: Sequence[EyesOutcome]) -> None:
            try:
                take(request, outcomes)
                then(request)
            except ProtocolError as error:
                self._ends.refuse([request], error.code, error.message)

        if isinstance(projector, str):
            self._use(request, use, [projector] * len(data))
            return
        request.seen_by = projector
        self._wait(request, use, lambda done: self.eyes.put(
            projector, data, domain_of(request), request.lane, done
        ))  # fmt: skip

    def _wait(
        self,
        request: Request,
        use: Callable[[Any], None],
        put: Callable[[Callable[[Any], None]], Callable[[], None]],
    ) -> None:
        """Have a request wait for an outcome, which ``use`` gets unless the request has gone.

        ``put`` asks for the outcome; what it returns forgets the question.
        """
        is_wanted = True

        def done(outcome: Any) -> None:
            if is_wanted:
                self._use(request, use, outcome)

        def forget() -> None:
            nonlocal is_wanted
            is_wanted = False
            drop()

        drop = put(done)
        request.service.room.wait_for_text(request, forget)

    def _use(self, request: Request, use: Callable[[Any], None], outcome: Any) -> None:
        request.stop_waiting()
        try:
            use(outcome)
        except Exception as error:
            self._ends.broke(request, error)

    def _take(self, request: Request, outcome: Outcome, engine: EngineHandle) -> bool:
        """Give a request its prompt; False where it was refused."""
        if isinstance(outcome, ProtocolError):
            self._ends.refuse([request], outcome.code, outcome.message)
            return False
        assert isinstance(outcome, Rendered)
        found = engine.chat_abilities  # not there yet: then its answer is read
        thinks = found is None or found.thinks
        chat = request.message.chat
        if must_call(chat) and not outcome.grammar:
            self._ends.refuse([request], E_PROTO_005, NO_CALLS)
            return False
        if not chat.add_generation_prompt:
            outcome = outcome.without_generation_prompt()
        is_read = chat.parsed or chat.deltas and thinks
        if chat.bound and outcome.thoughts is None and not outcome.calls:
            is_read = False  # it is all content
        outcome, request.pictures = placed(outcome, request.seen)
        request.take_rendered(outcome, self._reply(request, outcome) if is_read else None)
        return True

    def _reply(self, request: Request, rendered: Rendered) -> Reply:
        message, model = request.message, request.rendered_by
        assert model is not None

        def tell(deltas: list[dict[str, Any]]) -> None:
            with self._ends.telling(request):
                for delta in deltas:
                    request.sink.put(delta_event(request.id, delta))

        on_delta = tell if message.stream else None
        stops = (*message.stop, *rendered.stops)
        return Reply(
            self.replies, model, rendered, stops, on_delta,
            lane=request.lane, asker=request.asker,
        )  # fmt: skip

    def check_template(self, engine: EngineHandle) -> None:
        """Log now that the model's template cannot be used, if so."""
        if engine.ready is None or not engine.ready.generates:
            return

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, ProtocolError):
                engine.chat_error = outcome.message
                self._log("warn", f"conversations are refused: {outcome.message}")
            else:
                assert isinstance(outcome, Abilities)
                engine.chat_abilities = outcome

        self.chat.put(engine.chat, None, Abilities, done)
