"""Pictures of a conversation, or among the parts of a prompt, on their way into the prompt.

They are encoded first, so that a picture that cannot be read is a sentence when the template runs.
For all others the template gets markers, as in llama-server.  What stands for a picture then takes
the marker's place among the tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from umaserve.chat.questions import Rendered
from umaserve.eyes.seen import Seen
from umaserve.protocol import history
from umaserve.protocol.generate import refuse_unread
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.conversations import eyes
from umaserve.server.requests.request import Request
from umaserve.texts import path_of
from umaserve.wire import messages as m

APART = 'a request with "deterministic" reads text only'


def projector_for(request: Request, engine: EngineHandle) -> eyes.Projector | str:
    """Return the projector for the pictures of a request, or why they are left out."""
    ready = engine.ready
    assert ready is not None
    if request.message.deterministic:
        return APART
    if ready.why_no_eyes:
        return ready.why_no_eyes
    return eyes.Projector(
        path_of(ready.eyes_program), ready.model_path, engine.start.mmproj,
        max(ready.n_threads_batch, 1), ready.n_embd_input, ready.n_ubatch,
        eyes.NICE[request.lane] if ready.backend == "cpu" else eyes.NICE_BESIDE_A_DEVICE,
    )  # fmt: skip


def take(request: Request, outcomes: Sequence[eyes.Outcome]) -> None:
    """Put a marker or a sentence in place of each picture.  Raises ``ProtocolError``.

    A prompt of parts is whole then, and has its pictures.
    """
    message, left = request.message, list(outcomes)[::-1]
    name, unread = secrets.token_hex(8), list(message.chat.unread)

    def put(part: history.ContentPart) -> history.ContentPart:
        outcome = left.pop()
        if isinstance(outcome, str):
            refuse_unread(message.chat, [part.type], outcome)
            unread.append(part.type)
            return history.left_out(part, outcome)
        marker = f"<__media_{name}_{len(request.seen)}__>"
        request.seen[marker] = outcome
        return history.marker_part(marker)

    changed: dict[str, Any] = {}
    if message.messages is not None:
        changed["messages"] = history.with_pictures(message.messages, put)
    else:
        text = "".join(part.text or "" for part in history.parts_with(message.parts, put))
        whole, request.pictures = placed(Rendered(text), request.seen)
        changed |= {"prompt": whole.prompt, "parts": ()}
    changed["chat"] = msgspec.structs.replace(message.chat, unread=tuple(unread))
    if request.seen:  # a shift would cut pictures in two
        changed["context_shift"] = False
    request.message = msgspec.structs.replace(message, **changed)


def is_of_another(request: Request, engine: EngineHandle) -> bool:
    """Whether its pictures were encoded for another model than this engine's."""
    by = request.seen_by
    return by is not None and (by.model, by.path) != (engine.start.model_path, engine.start.mmproj)


def placed(rendered: Rendered, seen: dict[str, Seen]) -> tuple[Rendered, tuple[m.Picture, ...]]:
    """The prompt without markers, and the pictures that stood there."""
    if not seen:
        return rendered, ()
    prompt, pictures, cuts, at = [], [], [], 0
    for match in re.finditer("|".join(map(re.escape, seen)), rendered.prompt):
        prompt.append(rendered.prompt[at : match.start()])
        pictures.append(picture_of(seen[match[0]], sum(map(len, prompt))))
        cuts.append((match.start(), match.end()))
        at = match.end()
    prompt.append(rendered.prompt[at:])

    def moved(place: int) -> int:
        return place - sum(min(end, place) - start for start, end in cuts if start < place)

    plain = tuple((moved(start), moved(end)) for start, end in rendered.plain)
    changed = msgspec.structs.replace(rendered, prompt="".join(prompt), plain=plain)
    return changed, tuple(pictures)


def picture_of(seen: Seen, at: int) -> m.Picture:
    """A picture for the engine, in front of that character."""
    runs, width, offset = [], 4 * seen.answer.width, seen.start
    for run in seen.answer.runs:
        if run.rows:
            runs.append(
                m.Run(seen.path, offset, run.rows, run.positions, run.columns, run.non_causal)
            )
            offset += run.rows * width
    return m.Picture(at, seen.tokens, tuple(runs))

