"""Submission of a request: the message that hands it to its engine."""

from __future__ import annotations

import msgspec

from umaserve.protocol.chat import must_call
from umaserve.server.requests.request import Request
from umaserve.wire import messages as m


def submission(request: Request) -> m.Submit:
    """Return the message that hands the request to its engine."""
    rendered, message = request.rendered, request.message
    prompt = message.prompt if rendered is None else rendered.prompt
    resumed = request.prompt_ids is not None
    tokens = request.context if resumed else message.tokens
    n_prompt = len(tokens or ()) - len(request.tokens)
    slo = request.message.slo
    rates = request.rated is not None and not request.rated.is_whole and not resumed
    return m.Submit(
        serial=request.serial,
        slot=request.slot,
        lane=request.lane,
        prompt=None if resumed else prompt,
        plain=() if resumed or rendered is None else rendered.plain,
        tokens=tokens,
        n_prompt=n_prompt,
        max_tokens=m.NO_TOKENS if message.max_tokens == 0 else request.max_tokens,
        strict_fit=not resumed and message.max_tokens is not None and not message.context_shift,
        parse_special=message.parse_special or message.messages is not None,
        add_bos=None if resumed else message.add_bos,
        isolate=request.record.isolate,
        deterministic=message.deterministic,
        latency_cap=(slo.latency_cap if slo else None) or 0.0,
        target_ttft_ms=(slo.target_ttft_ms if slo else None) or 0.0,
        target_tbt_ms=(slo.target_tbt_ms if slo else None) or 0.0,
        came_ns=request.arrived_ns,
        turn=request.turn.at,
        prompt_logprobs=(message.prompt_logprobs or 0) if rates else -1,
        program=request.program,
        weight=request.weight,
        auto=request.auto and not request.tokens,  # what has begun is being read
        domain=domain_of(request),
        session=bool(message.session),
        shifts=message.context_shift,
        left=request.left,
        pictures=request.pictures,
        speculate=message.speculate,
        lora=request.lora,
        sampling=request.sampling,
        constraint=_constraint(request),
    )


def domain_of(request: Request) -> str | None:
    """Trust domain whose texts may share the request's prefixes; None: no text may."""
    message = request.message
    if not message.cache_prompt or message.deterministic or request.dropped:
        return None
    if message.cache_scope == "private":
        return f"{message.key}{m.PRIVATE}{message.session}" if message.session else None
    return message.key


def _constraint(request: Request) -> m.Constraint | None:
    """Constraint of the answer, with the budget of its thoughts; None: nothing binds it."""
    chat, thoughts = request.message.chat, None
    if request.rendered is not None:
        thoughts = request.rendered.thoughts
    bound = _bound(request, thoughts)
    is_all = request.message.constraint is not None and not (chat.bound or must_call(chat))
    if chat.thinking_budget is None or thoughts is None or is_all:
        return bound
    bound = bound or m.Constraint(m.NOTHING, "")
    budget = m.Budget(thoughts, chat.thinking_budget, chat.thinking_budget_message)
    return msgspec.structs.replace(bound, budget=budget)


def _bound(request: Request, thoughts: m.Thoughts | None) -> m.Constraint | None:
    """The client's own constraint, or that of the tools that it may call."""
    own, rendered = request.message.constraint, request.rendered
    if own is not None and not must_call(request.message.chat):
        return m.Constraint(
            own.kind,
            own.text,
            thoughts=thoughts if request.message.chat.bound else None,
            calls="" if rendered is None else rendered.calls,
        )
    if rendered is None or not rendered.grammar:
        return None
    triggers = rendered.triggers() if rendered.grammar_lazy else ()
    if rendered.grammar_lazy and not triggers:
        return None  # nobody can tell where a call begins
    return m.Constraint(
        m.GRAMMAR,
        rendered.grammar,
        triggers=triggers,
        begun=rendered.begun,
        is_made=True,
        thoughts=None if rendered.begun else thoughts,
    )
