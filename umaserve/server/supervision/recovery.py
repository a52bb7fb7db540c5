"""Recovery of the requests of an engine that is gone."""

from __future__ import annotations

from umaserve.models.identity import ModelIdentity
from umaserve.protocol import E_RUNTIME_001, E_RUNTIME_002
from umaserve.server.engines import blame
from umaserve.server.engines.exit import EngineExit, describe_exit
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.life import Answer
from umaserve.server.requests.request import Request
from umaserve.server.requests.sessions import Sessions
from umaserve.wire import messages as m
from umaserve.wire import table as t

CHANGED = "{} is not the file that was loaded when this request began; what ran cannot go on"


def recover(sessions: Sessions, engine: EngineHandle, exit: EngineExit) -> None:
    """Read what the engine had published, judge, and keep the rest in its backlog.

    Any consistent cut of the published tokens is right: what was not read is generated again.
    """
    if not engine.pid:
        return
    requests = sorted(engine.requests.values(), key=lambda r: r.serial)
    if requests:
        sessions.reader.read(requests, engine)
    left = [r for r in requests if r.serial in engine.requests]
    suspects = [r for r in left if engine.table.in_tick[r.slot] == t.IN_TOKENIZER]
    if not suspects and not engine.is_tokenizing:
        suspects = [r for r in left if engine.table.in_tick[r.slot]]
    others = [r for r in left if r not in suspects]
    records = [r.record for r in suspects]
    if engine.is_tokenizing:
        records.append(blame.Record())  # its own error, which `EngineHandle` gives it
    guilty = blame.judge(exit.kind, records, [r.record for r in others])
    behind, engine.backlog = engine.backlog, {}
    for request in left:
        engine.requests.pop(request.serial, None)
        request.leave_row()
        with sessions.ends.telling(request):
            _left_behind(sessions, request, engine, exit if request.record in guilty else None)
    for request in behind.values():
        request.wait_in(engine.backlog)
    sessions.reader.count(sessions.meters.engine_gone, engine)


def _left_behind(
    sessions: Sessions, request: Request, engine: EngineHandle, guilty_of: EngineExit | None
) -> None:
    if request.answer is not Answer.OPEN:
        sessions.ends.end_cancelled(request)
    elif guilty_of is not None:
        text = f"this request brought the engine down repeatedly: it {describe_exit(guilty_of)}"
        sessions.log("error", f"request {request.id!r} ends: {text}", request=request.id)
        sessions.ends.fail(request, E_RUNTIME_001, text)
    else:
        request.resumed_at = len(request.tokens)
        request.wait_in(engine.backlog)


def inherit(successor: EngineHandle, engine: EngineHandle) -> None:
    """Let ``successor`` go on with what ``engine`` left."""
    left = sorted(engine.backlog.values(), key=lambda r: r.serial)
    engine.backlog.clear()
    for request in left:
        request.wait_in(successor.backlog)
    engine.successor = successor
    successor.identity = known_identity(engine)


def known_identity(engine: EngineHandle) -> ModelIdentity | None:
    """Return the identity of the model that the engine's requests began with."""
    return engine.ready.identity if engine.ready is not None else engine.identity


def end_those_of_another_model(sessions: Sessions, engine: EngineHandle) -> None:
    """The engine is ready: end what began with other weights or adapters than it has loaded."""
    known, ready = engine.identity, engine.ready
    if known is None or ready is None or ready.identity is None:
        return
    begun = [r for r in engine.backlog.values() if r.prompt_ids is not None]
    if known.digest == ready.identity.digest:
        _end_those_of_other_adapters(sessions, begun, known, ready)
        return
    path = ready.model_path
    sessions.log(
        "warn",
        f"{path} is not the file that was loaded before: {len(begun)} requests end, and new ones "
        f"get the model that is there now, {ready.model_name}",
    )
    sessions.ends.refuse(begun, E_RUNTIME_002, CHANGED.format(path))


def _end_those_of_other_adapters(
    sessions: Sessions, begun: list[Request], known: ModelIdentity, ready: m.Ready
) -> None:
    """End the requests that use an adapter whose file is another one now."""
    assert ready.identity is not None
    both = zip(ready.adapters, known.adapters, ready.identity.adapters, strict=False)
    for number, (adapter, before, now) in enumerate(both):
        if before != now:
            users = [r for r in begun if dict(r.lora or {number: adapter.scale}).get(number)]
            text = f"the adapter {adapter.path} is not the file that was loaded before"
            sessions.log("warn", f"{text}: {len(users)} requests end, and new ones get this file")
            sessions.ends.refuse(users, E_RUNTIME_002, CHANGED.format(f"adapter {adapter.name}"))
            begun = [r for r in begun if r not in users]
