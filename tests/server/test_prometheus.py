"""The exposition, read by the parser of Prometheus' own Python client."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from umaserve.metrics.names import HELP
from umaserve.metrics.prometheus import exposition
from umaserve.metrics.window import Histogram


def parsed(numbers: dict[str, Any], codes: tuple[str, ...] = ()) -> dict[str, Metric]:
    text = exposition(numbers, codes)
    assert not text or text.endswith("\n")
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family in two pieces"
    return {family.name: family for family in families}


def values(family: Metric) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for s in family.samples}


def test_counters_and_gauges() -> None:
    families = parsed({"requests_total": 7, "rss_gb": 0.25, "prefill_guard_active": True})
    # the parser takes the suffix off the name of a counter
    counter, gauge = families["umaserve_requests"], families["umaserve_rss_gb"]
    assert counter.type == "counter" and values(counter) == {("umaserve_requests_total",): 7.0}
    assert gauge.type == "gauge" and values(gauge) == {("umaserve_rss_gb",): 0.25}
    assert counter.documentation == HELP["requests_total"]
    assert (
        values(families["umaserve_prefill_guard_active"])[("umaserve_prefill_guard_active",)] == 1
    )


def test_what_may_fall_is_no_counter() -> None:
    (family,) = parsed({"draft_gained_s": -0.5}).values()
    assert family.type == "gauge" and family.samples[0].value == -0.5


def test_numbers_are_exact() -> None:
    numbers = {"a_total": 2**53 - 1, "tiny": 1e-7, "large": 1.5e22, "third": 1 / 3}
    for family in parsed(numbers).values():
        (sample,) = family.samples
        assert sample.value == numbers[sample.name.removeprefix("umaserve_")]


def test_null_has_no_line() -> None:
    assert parsed({"p95_over_baseline": None, "model": None, "interactive.p50_ms": None}) == {}


def test_lanes_are_a_label_and_said_once() -> None:
    families = parsed(
        {
            "p95_ms": 3.0, "interactive.p95_ms": 3.0, "background.p95_ms": 9.0,
            "queued_interactive": 1, "queued_background": 2, "p99_ms": None,
            "interactive.p99_ms": None, "background.p99_ms": 11.0,
        }
    )  # fmt: skip
    assert values(families["umaserve_p95_ms"]) == {
        ("umaserve_p95_ms", "interactive"): 3.0,
        ("umaserve_p95_ms", "background"): 9.0,
    }
    assert values(families["umaserve_queued"]) == {
        ("umaserve_queued", "interactive"): 1.0,
        ("umaserve_queued", "background"): 2.0,
    }
    assert values(families["umaserve_p99_ms"]) == {("umaserve_p99_ms", "background"): 11.0}
    assert families["umaserve_p95_ms"].samples[0].labels == {"lane": "interactive"}
    assert set(families) == {f"umaserve_{n}" for n in ("p95_ms", "queued", "p99_ms")} | {
        "vllm:num_requests_waiting"
    }


def test_load_balancers_find_their_names() -> None:
    numbers = {
        "queued_interactive": 1, "queued_background": 2, "active_sessions": 5, "kv_cells_used": 64,
        "kv_cells_total": 256, "uma_p95_headroom": 0.5, "uma_bandwidth_headroom": None,
    }  # fmt: skip
    text = exposition(numbers)
    for line in (
        "vllm:num_requests_waiting 3", "vllm:num_requests_running 5",
        "vllm:kv_cache_usage_perc 0.25", "uma_p95_headroom 0.5",
    ):  # fmt: skip
        name, value = line.split()
        assert f"\n{line}\n" in text
        assert values(parsed(numbers)[name]) == {(name,): float(value)}
        assert f"# TYPE {name} gauge\n" in text and f"# HELP {name} {HELP[name]}\n" in text
    assert "bandwidth_headroom" not in text


def test_programs_are_a_label() -> None:
    families = parsed({"apps": {
        'a "b"': {"requests": 3, "active": 1, "tokens": 20, "share": 0.25, "cached": None,
                  "p95_ms": 12.5, "lane": "interactive", "lane_reason": None},
        "c": {"requests": 1, "active": 0, "tokens": 60, "share": 0.75, "cached": None,
              "p95_ms": None, "lane": None, "lane_reason": None},
    }})  # fmt: skip
    assert set(families) == {
        "umaserve_app_requests", "umaserve_app_active_requests", "umaserve_app_tokens_generated",
        "umaserve_app_token_share", "umaserve_app_p95_ms",
    }  # fmt: skip
    assert values(families["umaserve_app_tokens_generated"]) == {
        ("umaserve_app_tokens_generated_total", 'a "b"'): 20.0,
        ("umaserve_app_tokens_generated_total", "c"): 60.0,
    }
    assert values(families["umaserve_app_p95_ms"]) == {("umaserve_app_p95_ms", 'a "b"'): 12.5}
    assert {family.type for family in families.values()} == {"counter", "gauge"}


def test_models_are_a_label() -> None:
    families = parsed({"models": {
        "chat": {"loaded": True, "requests": 3, "p95_ms": 12.5, "kv_cells_used": 5},
        "search": {"loaded": False, "requests": 0, "p95_ms": None, "kv_cells_used": None},
    }})  # fmt: skip
    assert values(families["umaserve_model_loaded"]) == {
        ("umaserve_model_loaded", "chat"): 1.0, ("umaserve_model_loaded", "search"): 0.0,
    }  # fmt: skip
    assert values(families["umaserve_model_requests"]) == {
        ("umaserve_model_requests_total", "chat"): 3.0,
        ("umaserve_model_requests_total", "search"): 0.0,
    }
    assert values(families["umaserve_model_p95_ms"]) == {("umaserve_model_p95_ms", "chat"): 12.5}


def test_evictions_by_cause() -> None:
    counts = {"errors_total": {}, "cache_evictions_total": {"room": 3, "memory": 0}}
    family = parsed(counts, ("E_A",))["umaserve_cache_evictions"]
    assert family.type == "counter"
    assert {s.labels["cause"]: s.value for s in family.samples} == {"room": 3.0, "memory": 0.0}


def test_errors_by_code_begin_at_zero() -> None:
    family = parsed({"errors_total": {"E_B": 2}}, ("E_A", "E_B"))["umaserve_errors"]
    assert family.type == "counter"
    assert {s.labels["code"]: s.value for s in family.samples} == {"E_A": 0.0, "E_B": 2.0}


@pytest.mark.parametrize("lane", ["", "interactive."])
def test_histogram_is_cumulative(lane: str) -> None:
    histogram = Histogram((1, 2.5, 10))
    for value in (0.5, 1.0, 2.0, 7.0, 11.0, 12.0):
        histogram.add(value)
    family = parsed({f"{lane}ttft_ms": histogram.snapshot()})["umaserve_ttft_ms"]
    assert family.type == "histogram"
    buckets = [s for s in family.samples if s.name == "umaserve_ttft_ms_bucket"]
    assert [(s.labels["le"], s.value) for s in buckets] == [
        ("1.0", 2.0), ("2.5", 3.0), ("10.0", 4.0), ("+Inf", 6.0),
    ]  # fmt: skip
    rest = {s.name: s.value for s in family.samples if s not in buckets}
    assert rest == {"umaserve_ttft_ms_sum": 33.5, "umaserve_ttft_ms_count": 6.0}
    assert all(("lane" in s.labels) == bool(lane) for s in family.samples)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_as_a_label(name: str) -> None:
    text = exposition({"model": name, "backend": "cpu", "uptime_s": 1.0})
    families = {f.name: f for f in text_string_to_metric_families(text)}
    (sample,) = families["umaserve_model_info"].samples
    assert sample.labels == {"model": name, "backend": "cpu"} and sample.value == 1.0
    assert set(families) == {"umaserve_model_info", "umaserve_uptime_s"}


def test_every_line_has_the_form_of_the_format() -> None:
    """The parser forgives more than Prometheus does."""
    numbers = {
        "model": 'a"b\\c\nd', "errors_total": {"E_A": 1}, "decode_ms": Histogram().snapshot(),
        "interactive.p50_ms": 1.25, "new_thing": 4,
    }  # fmt: skip
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = rf"umaserve_[a-z0-9_]+(?:\{{{label}(?:,{label})*\}})? (?:[0-9.e+-]+)"
    comment = r"# (?:HELP umaserve_[a-z0-9_]+ [^\n\\]+|TYPE umaserve_[a-z0-9_]+ \w+)"
    lines = exposition(numbers).split("\n")
    assert lines.pop() == ""
    for line in lines:
        assert re.fullmatch(f"{sample}|{comment}", line), line


def test_helps_are_lines() -> None:
    assert all(text and "\n" not in text and "\\" not in text for text in HELP.values())
