"""Prompts aside: on a processor, prompts are computed on cores of their own while others decode.

Decoding is bound by memory and prefill by arithmetic, so they hardly hinder each other on different
cores (disaggregated prefill: Splitwise, Patel et al. 2023; DistServe, Zhong et al. 2024).  The
price is one thread fewer for the ticks, paid only while it keeps interactive streams under the cap.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import (
    ASIDE,
    GUARD,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_PROMPT,
    LANES,
)
from umaserve.policy.cost.prediction import predict
from umaserve.policy.latency_guard import noise, strictest_cap
from umaserve.policy.prompts import sooner

TOLERANCE = 1.04  # the choice is all or nothing, and costs are known to a few per cent
HYSTERESIS = 1.05  # more before it is given up again
WORTH_IT = 1.6  # nobody interactive decodes, or somebody interactive waits for a first token


@njit(**INNER)
def offload(state, knobs, cost, memory, plan):
    """List the prompts to compute aside in ``plan.aside``; returns 1 if there are any, else 0.

    They are marked ``KIND_ASIDE``: the tick leaves them alone.
    """
    plan.aside[0] = -1
    if knobs.can_aside and knobs.features & ASIDE and _worth(state, knobs, cost, memory):
        return list_prompts(state, knobs, cost, memory, plan, True)
    take_back(state, knobs, memory)
    return 0


@njit(**INNER)
def take_back(state, knobs, memory):
    """Give all prompts that were computed aside back to the ticks."""
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_ASIDE:
            back = knobs.features & LANES and state.lane[s] != 0
            memory.kind[s] = KIND_BACK_PROMPT if back else KIND_PROMPT
            memory.found[memory.kind[s]] += 1
    memory.found[KIND_ASIDE] = 0


@njit(**INNER)
def _worth(state, knobs, cost, memory):
    """Whether prompts should be computed aside now."""
    found = memory.found
    decoding = found[KIND_DECODE] + found[KIND_BACK_DECODE]
    prompts = found[KIND_PROMPT] + found[KIND_BACK_PROMPT] + found[KIND_ASIDE]
    if decoding == 0 or prompts == 0:
        return False
    waits = found[KIND_PROMPT] > 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_ASIDE and state.lane[s] == 0:
            waits = True
    if waits and found[KIND_DECODE] == 0:
        return False  # it gets all cores; background waits
    n = found[KIND_DECODE] if found[KIND_DECODE] else decoding
    base, aside = memory.round_ms[0, n], memory.round_ms[1, n]
    if base > 0.0 and aside > 0.0:
        limit = WORTH_IT
        if found[KIND_DECODE] and knobs.features & GUARD and not waits:
            limit = strictest_cap(state, knobs, memory)
            if not memory.kept.shared:  # else the others have their share, and no less
                limit *= TOLERANCE
        if found[KIND_ASIDE] and memory.kept.last_mode and not memory.kept.shared:
            limit *= HYSTERESIS
        # 95th percentiles, as the promise is
        aside *= noise(memory, cost, 1, n)
        return aside <= limit * base * noise(memory, cost, 0, n)
    return True


@njit(**INNER)
def list_prompts(state, knobs, cost, memory, plan, interactive):
    """Fill ``plan.aside``; new ``interactive`` ones only if told.  Returns 1 if there are any.

    An interactive prompt whose tick no reader notices is left to the ticks.  Aside it would wait
    for the chunk that runs there, and would have fewer cores.
    """
    found = memory.found
    count = 0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] not in (KIND_PROMPT, KIND_BACK_PROMPT, KIND_ASIDE):
            continue
        if state.aside[s] < 0:
            continue  # the worker cannot
        if memory.kind[s] == KIND_PROMPT and (
            not interactive or _unnoticed(state, knobs, cost, memory, s)
        ):
            continue
        if memory.kind[s] != KIND_ASIDE:
            found[memory.kind[s]] -= 1
            found[KIND_ASIDE] += 1
            memory.kind[s] = KIND_ASIDE
        i = count
        while i > 0 and _sooner(state, memory, s, plan.aside[i - 1]):
            plan.aside[i] = plan.aside[i - 1]
            i -= 1
        plan.aside[i] = s
        count += 1
    plan.aside[count] = -1
    return 1 if count else 0


@njit(**INNER)
def _unnoticed(state, knobs, cost, memory, s):
    """Whether the rest of a prompt takes no longer than a reader's time between tokens."""
    left = state.n_tokens[s] - state.n_past[s]
    return 0.0 < predict(cost, 0, 0, left, memory.past[KIND_PROMPT]) <= knobs.reading_ms


@njit(**INNER)
def _sooner(state, memory, a, b):
    """Interactive before background; among those, who is first in rank."""
    if state.lane[a] != state.lane[b]:
        return state.lane[a] < state.lane[b]
    return sooner(state, memory, a, b)
