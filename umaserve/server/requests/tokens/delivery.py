"""From a row of the session table to the events of a request."""

from __future__ import annotations

from typing import Any

from umaserve import protocol as p
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.life import Answer, Stage
from umaserve.server.requests.request import LANE_NAMES, Request
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first

PROOF_TOKENS = 2


def published(table: t.SessionTable, slot: int) -> tuple[bool, int]:
    """Whether a row has ended, and its tokens.  Read in this order: a row that has ended publishes
    no more."""
    is_ended = table.quick_state[slot] in (t.DONE, t.FULL)
    loads_first()
    end = table.quick_n_tokens[slot]
    loads_first()  # the count before what it counts
    return is_ended, end


def may_end(request: Request, engine: EngineHandle, start: int, end: int) -> bool:
    """Whether a row with tokens up to ``end``, read up to ``start``, may have no more."""
    assert engine.ready is not None
    if end >= engine.ready.n_positions:
        return True
    return len(request.tokens) + end - start >= request.max_tokens


def advance(
    request: Request, engine: EngineHandle, start: int, end: int, *, plain: bool
) -> tuple[int, bool]:
    """Pass the tokens [start, end) of a row to the request's sink.

    ``plain``: with nothing but their texts, and there are more to come, so that no token has to
    carry what else waits.  Return how many there were, and whether the text ended with them.
    """
    table, slot = engine.table, request.slot
    if not request.admitted_ns:
        tell_begin(request, table)
    ids, times = table.quick_tokens, table.quick_token_ns
    push, piece = request.assembler.push, engine.pieces.piece
    for at in range(start, end):
        token = ids[slot, at]
        if token < 0:  # not visible yet; the next wake reads it
            return at - start, False
        request.tokens.append(token)
        request.token_ns.append(times[slot, at])
        if plain:
            request.sink.put(request.encode(push(piece(token))[0], token))
            request.emitted += 1
        elif _take(request, engine, token, at):
            return at - start + 1, True
    return end - start, False


def read_row(request: Request, engine: EngineHandle) -> tuple[int, bool, int | None]:
    """Read what a row has published since the last time.

    Return the number of tokens, whether the text ended with them, and the reason of the row's end
    (``None`` while it runs).
    """
    table, slot = engine.table, request.slot
    if int(table.serial[slot]) != request.serial:
        return 0, False, None
    if request.stage is not Stage.RUNNING:
        # one that was cancelled before it was tokenised ends without ever running
        is_ending = request.answer is not Answer.OPEN
        if is_ending and int(table.state[slot]) == t.DONE and not table.n_tokens[slot]:
            return 0, False, t.REASON_CANCEL
        return 0, False, None
    is_ended, end = published(table, slot)
    read, stopped = 0, False
    start = request.stored
    if end > start and not request.told:
        plain = request.quick and not may_end(request, engine, start, end)
        read, stopped = advance(request, engine, start, end, plain=plain)
        if not stopped and request.stored < end:
            return read, False, None  # the rest is not visible yet
    if request.record.strikes and _harmless(request, table):
        request.record.absolve()
    if not is_ended:
        return read, stopped, None
    reason = int(table.reason[slot])
    if reason == t.REASON_STOP:
        token = int(table.tokens[slot, end])
        request.end_token = token if token >= 0 else None
        # the token that ended it is none of the answer, but a stop string may have its name
        if request.assembler.matches:
            request.end_name = engine.pieces.hidden(token)
        if request.rated is not None and request.sampling.logprobs >= 0:
            # whoever has the prompt's tokens rated counts on one for each that was sampled
            request.end_rated = (token, _rated(request, engine, token, end))
    return read, stopped, reason


def _harmless(request: Request, table: t.SessionTable) -> bool:
    """It is past the point where an engine died; of one in isolation the engine says so."""
    if request.record.isolate:
        return not int(table.isolate[request.slot])
    return len(request.tokens) >= request.resumed_at + PROOF_TOKENS


def _take(request: Request, engine: EngineHandle, token: int, position: int) -> bool:
    """Deliver a token; return True when it completed a stop string, or came too late."""
    assembler = request.assembler
    piece = engine.pieces.piece(token)
    name = b"" if piece or not assembler.matches else engine.pieces.hidden(token)
    text, stopped = assembler.push(piece, name)
    if request.reply is not None:
        request.reply.push(piece, b"" if piece else engine.pieces.hidden(token))
    rated = None
    if request.sampling.logprobs >= 0:
        rated = _rated(request, engine, token, position)
    if request.withheld is not None:
        _emit(request, *request.withheld)
        request.withheld = None
    # Bytes of an unfinished character come with the token that finishes it, and this one goes out
    # without them, unless there is none to come. Characters have to go out with this one if the
    # text ends here.
    if not stopped and (assembler.holds_text or (assembler.holding and _is_last(request, engine))):
        request.withheld = (text, token, rated)
    else:
        _emit(request, text, token, rated)
    return stopped or _is_late(request, piece)


def _is_late(request: Request, piece: bytes) -> bool:
    """Whether the text ends for the time that it took: once a line of it is whole."""
    limit_ms, times = request.message.t_max_predict_ms, request.token_ns
    if limit_ms:
        request.has_line = request.has_line or b"\n" in piece
        request.is_late = request.has_line and times[-1] - times[0] > limit_ms * 1_000_000
    return request.is_late


def _is_last(request: Request, engine: EngineHandle) -> bool:
    """Whether the newest token is the last one because of its number."""
    most = engine.ready.n_positions if engine.ready is not None else 0
    if len(request.tokens) >= request.max_tokens:
        return True
    return request.stored >= most and not request.outlives_context


def tell_begin(request: Request, table: t.SessionTable) -> None:
    """It has its sequence: note when and with what; say so where its client wants to know."""
    request.admitted_ns = int(table.t_admit_ns[request.slot])
    request.cached = int(table.cached[request.slot])
    if not request.message.begin:
        return
    lane, why = request.lane_now()
    usage = request.usage()
    beginning = p.Beginning(
        lane=LANE_NAMES[lane],
        lane_reason=why,
        deltas=request.reply is not None,
        model=request.model,
        usage={"prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens},
        open_parts=request.open_parts or None,
        unread=request.message.chat.unread or None,
    )
    request.sink.put(p.begin_event(request.id, beginning))


def tell_progress(request: Request, table: t.SessionTable) -> bool:
    """Tell how many tokens of the prompt are computed, if that is more than was told before.

    Returns whether it is.  When all are computed, the first token says so.
    """
    slot = request.slot
    is_there = request.stage is Stage.RUNNING and int(table.serial[slot]) == request.serial
    if request.begin_due or not is_there or not table.t_admit_ns[slot]:
        return False
    done = int(table.n_past[slot])
    if not max(request.processed, int(table.cached[slot])) < done < int(table.n_prompt[slot]):
        return False
    request.processed = done
    request.sink.put(p.progress_event(request.id, done))
    return True


def tell_prompt(request: Request, engine: EngineHandle) -> None:
    """The text of the prompt, before the first token of the answer."""
    text = request.message.prompt
    if text is None:
        spelled = b"".join(map(engine.pieces.spelled, request.prompt_ids or ()))
        text = spelled.decode("utf-8", "replace")
    if request.message.stream:
        request.sink.put(p.echo_event(request.id, text, request.prompt_ids or ()))
    else:
        request.parts.append(text)


def tell_rest(request: Request) -> None:
    """Text that waited for more, now that there is no more.

    A stream that the model ends within a character ends before it: no token is left to carry it.
    """
    rest = request.assembler.finish(request.end_name)
    if request.withheld is not None:
        text, token, rated = request.withheld
        request.withheld = None
        _emit(request, text + rest, token, rated)
    elif not request.message.stream:
        request.parts.append(rest)
    if request.end_rated is not None and not request.message.stream:
        token, told = request.end_rated
        request.logprobs.append(_entry("", token, told))


def _rated(request: Request, engine: EngineHandle, token: int, position: int) -> p.Rated:
    """Return the log-probabilities that the table has for the token at ``position``."""
    table, slot, count = engine.table, request.slot, request.sampling.logprobs
    ids = table.top_ids[slot, position, :count].tolist()
    values = table.top_logprobs[slot, position, :count].tolist()
    top = [
        p.TopLogprob(each, *_own(engine.pieces, each), value)
        for each, value in zip(ids, values, strict=True)
        if each >= 0
    ]
    return p.Rated(*_own(engine.pieces, token), float(table.logprob[slot, position]), top)


def _own(pieces: t.PieceTable, token: int) -> tuple[str, bytes]:
    """A token's own text, or the name of a token without text; and the bytes of its text."""
    return pieces.spelled(token).decode("utf-8", "replace"), pieces.piece(token)


def _emit(request: Request, text: str, token: int, rated: p.Rated | None) -> None:
    request.emitted += 1
    if request.message.stream:
        request.sink.put(request.encode(text, token, rated))
        return
    request.parts.append(text)
    if rated is not None:
        request.logprobs.append(_entry(text, token, rated))


def _entry(text: str, token: int, rated: p.Rated) -> dict[str, Any]:
    """Return an entry of the ``logprobs`` at the end of an answer."""
    return {"token_id": token, "text": text, **p.rated_fields(rated)}
