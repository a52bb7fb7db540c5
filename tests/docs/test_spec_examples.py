"""The examples of the documents that the project began with are right, or listed as superseded."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.server_harness import DaemonProcess
from umaserve.config import Config, ConfigError, add_flags, flag_values, load_config
from umaserve.config.spellings import RENAMED, SUPERSEDED
from umaserve.protocol import (
    ERRORS,
    Ending,
    Limits,
    Timings,
    TokenEncoder,
    Usage,
    eos_event,
    error_event,
    parse_message,
)

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "tests/support/fixtures/spec"
PAGE = (ROOT / "docs" / "notes" / "README.md").read_text("utf-8")
PART = PAGE[PAGE.index("## The first documents' examples") : PAGE.index("## Charts")]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PART.splitlines()
    if line.startswith("| ")
][2:]

METRICS_NOW = {
    "sessions": "active_sessions",
    "tokens_total": "tokens_generated_total",
    "decode_ms_avg": "decode_ms_ewma",
}


def load(path: Path) -> Config:
    return load_config({"config": str(path)}, {})


def test_the_yaml_of_the_brief_means_what_it_says() -> None:
    config = load(SPEC / "brief.yaml")
    assert (config.latency_cap, config.bmt_budget) == (1.2, "320GBps")
    assert (config.max_merge, config.scorecard_interval_s) == (4, 5.0)
    assert config.warnings == ()
    assert config.origin["latency_cap"].endswith("brief.yaml: latency_cap")


def test_the_yaml_of_the_tracker_means_what_it_says() -> None:
    config = load(SPEC / "tracker.yaml")
    assert (config.model, config.socket) == ("/models/qwen-coder-30b-q8.gguf", "/tmp/uma.sock")
    assert (config.max_sessions, config.max_prompt_bytes, config.max_tokens) == (32, 65536, 2048)
    assert config.tick_budget_ms == 30
    assert [warning.split(": ")[1:] for warning in config.warnings] == [
        [f"{key} has no effect any more", reason] for key, reason in SUPERSEDED.items()
    ]


@pytest.mark.parametrize("budget", ["60.5", "auto", "off", "320GBps"])
def test_a_budget_in_gigabytes(tmp_path: Path, budget: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"bmt_budget_gbps: {budget}\n")
    expected = f"{budget}GBps" if budget == "60.5" else budget
    assert load(path).bmt_budget == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scheduler: {preempt_at_token: false}", "scheduler.preempt_at_token must be true"),
        ("qos: {interactive: {priority: 1}, background: {priority: 10}}", "must be the larger"),
        ("qos: {interactive: {priority: 1}, background: {priority: 1}}", "must be the larger"),
        ("qos: {interactive: {priority: high}}", "priority must be a whole number, not 'high'"),
        ("latency_cap: 0.5", "latency_cap: 0.5 is not possible"),
        ("bmt_budget_gbps: 0", "bmt_budget_gbps: '0GBps' is not possible"),
        ("bmt_budget_gbps: true", "bmt_budget_gbps: True is not possible"),
        ("latency_cap: 2\nqos: {interactive: {latency_cap: 3}}", "are the same; give one"),
        ("ipc: {uds_path: /tmp/a, socket: /tmp/b}", "ipc.uds_path and [ipc] socket are the same"),
        ("preempt_at_token: true", "unknown section or key 'preempt_at_token'"),
        ("qos: {interactive: {prio: 1}}", "unknown key 'prio' in [qos.interactive]"),
        ("model: [x]", "model: ['x'] is not possible: it takes a path"),
    ],
)
def test_what_is_not_so_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kv_type", ["f16", "q8", "q6"])
def test_the_command_line_of_the_brief(kv_type: str) -> None:
    text = (SPEC / "command.txt").read_text().replace("f16|q8|q6", kv_type)
    program, command, *words = shlex.split(text.replace("\\\n", " "))
    assert f'\n{program} = "umaserve.cli:main"' in (ROOT / "pyproject.toml").read_text()
    assert command == "serve"
    parser = argparse.ArgumentParser()
    add_flags(parser)
    values = flag_values(parser.parse_args(words))
    if kv_type != "f16":  # superseded
        with pytest.raises(ConfigError, match="q8:f16"):
            load_config(values, {})
        values["kv_type"] = f"{kv_type}:f16"
    config = load_config(values, {})
    assert config.model == "qwen-coder-30b-q8.gguf"
    assert (config.latency_cap, config.bmt_budget) == (1.2, "320GBps")
    assert (config.kv_type_v, config.kv_pack) == ("f16", "head-major")
    assert (config.ipc, config.http) == ("uds", "off")


def test_the_metrics_have_the_names_of_the_examples(tmp_path: Path) -> None:
    brief = json.loads((SPEC / "brief_metrics.json").read_text())
    tracker = json.loads((SPEC / "tracker_metrics.json").read_text())
    names = set(brief) | {METRICS_NOW.get(name, name) for name in tracker}
    with DaemonProcess(tmp_path) as daemon:
        assert names <= set(daemon.metrics())
    assert set(METRICS_NOW) < set(tracker)


def test_the_request_of_the_tracker() -> None:
    got = parse_message((SPEC / "tracker_request.json").read_bytes(), Limits())
    assert (got.id, got.prompt, got.max_tokens, got.stream) == ("uuid", "string", 512, True)
    assert (got.sampling["temperature"], got.sampling["top_p"]) == (0.0, 1.0)


def test_the_events_of_the_tracker() -> None:
    lines = (SPEC / "tracker_events.jsonl").read_text().splitlines()
    said = {event["event"]: event for event in map(json.loads, lines)}
    ours = [
        TokenEncoder("...")("...", 123),
        error_event("...", "E_MODEL_001", "..."),
        *(
            eos_event("...", Ending(reason=reason, usage=Usage(), timings=Timings()))
            for reason in said["eos"]["reason"].split("|")
        ),
    ]
    for frame in ours:
        assert int.from_bytes(frame[:4], "little") == len(frame) - 4
        event = json.loads(frame[4:])
        example = said[event["event"]]
        assert set(example) <= set(event)
        for name in set(example) - {"reason"}:
            assert event[name] == example[name]


def test_the_error_codes_of_the_tracker() -> None:
    for code in ("E_PROTO_001", "E_LIMIT_001", "E_MODEL_001", "E_RUNTIME_001", "E_IO_001"):
        assert code in ERRORS


def test_what_is_superseded_is_listed_with_its_reason() -> None:
    assert all(len(row) == 4 and all(row) for row in ROWS)
    said = " ".join(row[1] for row in ROWS)
    keys = {*RENAMED, *SUPERSEDED, *METRICS_NOW, "scheduler.preempt_at_token"}
    keys |= {"qos.interactive.priority", "qos.background.priority", "--kv-pack head-major"}
    for key in keys:
        assert f"`{key}`" in said or f"{key}`" in said
    for key, reason in SUPERSEDED.items():
        (row,) = [row for row in ROWS if f"`{key}`" in row[1]]
        assert reason in row[3]
    assert set(re.findall(r"`([a-z_]+)`", " ".join(r[2] for r in ROWS if "metrics" in r[0]))) == {
        *METRICS_NOW.values()
    }
