"""The options of a request by name and type, as docs/PROTOCOL.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict


class Slo(TypedDict, total=False):
    """Latency targets of a request; each is optional."""

    target_ttft_ms: float
    target_tbt_ms: float
    latency_cap: float


class Options(TypedDict, total=False):
    """Keyword arguments of ``generate`` and ``complete``; ``None`` stands for the default."""

    tokens: list[int] | None
    tools: list[dict[str, Any]] | None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None
    parallel_tool_calls: bool | None
    thinking: bool | str | None
    thinking_budget: int | None
    thinking_budget_message: str | None
    chat_template_kwargs: dict[str, Any] | None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None
    add_generation_prompt: bool | None
    images: Literal["left_out", "refuse"] | None
    deltas: bool | None
    response_format: dict[str, Any] | None
    json_schema: dict[str, Any] | bool | None
    regex: str | None
    grammar: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    seed: int | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_last_n: int | None
    logit_bias: dict[str, Any] | list[list[Any]] | None
    post_sampling_probs: bool | None
    ignore_eos: bool | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: list[str] | None
    mirostat: Literal[0, 2] | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    logprobs: int | None
    stop: str | list[str] | None
    slo: Slo | None
    add_bos: Literal["auto"] | bool | None
    parse_special: bool | None
    t_max_predict_ms: int | None
    context_shift: bool | None
    n_keep: int | None
    cache_prompt: bool | None
    cache_scope: Literal["shared", "private"] | None
    speculate: Literal["auto"] | bool | None
    deterministic: bool | None
    lora: list[dict[str, Any]] | None
    stream: bool | None
    priority: Literal["auto", "interactive", "background"] | None
    session: str | None
    echo: bool | None
    return_tokens: bool | None
    begin: bool | None
    progress: bool | None
    prompt_logprobs: int | None
    model: str | None
    app: str | None
    metadata: Any


NAMES = tuple(Options.__annotations__)


def check_names(options: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` for a name that is no option, with the nearest that is."""
    for name in options:
        if name not in NAMES:
            from difflib import get_close_matches

            near = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/PROTOCOL.md lists them"
            raise TypeError(f"{name!r} is no option of a request; {hint}")
