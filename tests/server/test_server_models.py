"""Load and unload while requests run, and what an administrator can ask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.patches.front import no_memory
from tests.support.server_harness import DaemonProcess, engines_of, eventually, model_file

SLOW = {"FAKE_TICK_MS": "5"}

# section 4 of the public interface
METRICS = set(
    """
model backend uptime_s active_sessions queued_interactive queued_background parked_sessions
requests_total errors_total tokens_generated_total prompt_tokens_total cached_tokens_total
batch_calls_total last_batch_size avg_batch decode_ms_last decode_ms_ewma decode_ms_p50
decode_ms_p95 decode_ms_p99 tick_overhead_us_p50 tick_overhead_us_p95 tokens_per_tick_decode
tokens_per_tick_prefill served_decoders
p50_ms p95_ms p99_ms baseline_ms ttft_ms_p50 ttft_ms_p95 worst_pause_ms
interactive.p50_ms interactive.p95_ms interactive.p99_ms interactive.ttft_ms_p50
interactive.ttft_ms_p95 interactive.worst_pause_ms background.p50_ms background.p95_ms
background.p99_ms background.ttft_ms_p50 background.ttft_ms_p95 background.worst_pause_ms
ttft_ms inter_token_ms decode_ms batch_size
latency_cap reading_ms prefill_guard_active ticks_over_budget_total slo_violations_ttft_total
slo_violations_tbt_total skipped_prefill_due_to_latency_total preemptions_total
sum_bmt_mb_per_token bmt_estimate_last_mb bmt_budget_gbps bmt_measured_gbps
sampling_ms_last sampling_us_per_token logits_to_first_chunk_ms overlap_active copy_free_ratio
copied_bytes_per_token
tokens_per_s tokens_per_s_at_cap scheduler_efficiency gpu_idle_pct residency_churn_mb_per_token
rss_gb cpu_s_per_1k_tokens
kv_cells_used kv_cells_total kv_cache_hit_ratio kv_cache_evictions_total kv_cache_resident_bytes
cache_prompts_total cache_hits_total cache_entries cache_ram_bytes cache_ram_max_bytes
cache_evictions_total
tokens_per_tick draft_tokens_total draft_accepted_total draft_gained_s
""".split()  # noqa: SIM905 - a list of 80 strings reads worse
)


@pytest.fixture(params=[None, no_memory], ids=["beside", "instead"])
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    """Two machines: one where both models fit, one where the old has to go first."""
    with DaemonProcess(
        tmp_path, n_ctx=1024, environment=SLOW, patch=request.param, drain_s=20
    ) as daemon:
        yield daemon
        daemon.idle()


def test_load_replaces_the_model_and_running_requests_end_on_the_old(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    other = model_file(tmp_path / "load-slow-other.gguf")
    old = psutil.Process(daemon.engine_pid())
    with daemon.client() as client, daemon.client() as admin:
        client.ask("a", "old model", max_tokens=300)
        client.wait_tokens("a", 3)
        admin.send(type="load", id="L", model=other)
        seen = []
        while (event := admin.receive())["event"] == "progress":
            assert event["id"] == "L"
            seen.append(event["fraction"])
        assert event == {"id": "L", "event": "loaded", "model": other}
        assert len(seen) > 3 and all(0 <= f <= 1 for f in seen)
        result = client.generate("new model", "b", max_tokens=5)
        assert bytes(result.tokens) == answer("new model", 5)
        client.finish()
        assert bytes(client.results["a"].tokens) == answer("old model", 300)
    assert daemon.metrics()["model"] == "load-slow-other"
    eventually(lambda: not old.is_running(), "the old engine has gone")
    assert len(engines_of(daemon.process.pid)) == 1


LATENCIES = ("p50_ms", "p95_ms", "p95_over_baseline", "baseline_ms", "ttft_ms_p50", "decode_ms_p50")


def test_another_model_begins_with_figures_of_its_own(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    def overview() -> dict[str, Any]:
        with daemon.client() as client:
            client.send(type="metrics", sessions=True)
            return client.receive()

    with daemon.client() as client, daemon.client() as admin:
        client.ask("a", "old model", max_tokens=100)
        client.wait_tokens("a", 20)
        old = overview()
        client.finish()
        assert None not in (old["metrics"]["p95_ms"], old["metrics"]["ttft_ms_p50"])
        assert any(old["tbt_ms"]["interactive"])
        for change in ({"type": "load", "model": model_file(tmp_path / "other.gguf")},
                       {"type": "unload"}):  # fmt: skip
            admin.send(**change)
            while admin.receive()["event"] == "progress":
                pass
            new = overview()
            assert {name: new["metrics"][name] for name in LATENCIES} == dict.fromkeys(LATENCIES)
            assert not any(new["tbt_ms"]["interactive"])
            assert [app["p95_ms"] for app in new["metrics"]["apps"].values()] == [None]
            assert new["metrics"]["tokens_generated_total"] >= 50
            if change["type"] == "load":
                client.generate("new model", "b", max_tokens=50)
                assert overview()["metrics"]["p95_ms"] is not None
    assert [row["model"] for row in daemon.info()["recent"]] == ["model", "other"]


@pytest.mark.parametrize("name", ["load-fails", "load-aborts"])
def test_failed_load_leaves_the_old_model_serving(
    daemon: DaemonProcess, tmp_path: Path, name: str
) -> None:
    bad = model_file(tmp_path / f"{name}.gguf")
    with daemon.client() as client, daemon.client() as admin:
        client.ask("a", "old model", max_tokens=60)
        client.wait_tokens("a", 3)
        admin.send(type="load", model=bad)
        answer_ = eventually(
            lambda: (e := admin.receive())["event"] != "progress" and e, "an answer"
        )
        assert answer_["code"] == "E_MODEL_002" and bad in answer_["message"]
        client.finish()
        assert bytes(client.results["a"].tokens) == answer("old model", 60)
        assert bytes(client.generate("still", "b", max_tokens=5).tokens) == answer("still", 5)
    assert daemon.metrics()["model"] == "model"


def test_old_engine_that_dies_while_it_retires_is_replaced_too(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    other = model_file(tmp_path / "other.gguf")
    old = daemon.engine_pid()
    with daemon.client() as client, daemon.client() as admin:
        for i in range(12):
            client.ask(f"r{i}", f"old model {i}", max_tokens=120)
        client.wait_tokens("r0", 20)
        admin.send(type="load", model=other)
        client.wait_tokens("r0", 60)
        os.kill(old, signal.SIGKILL)
        eventually(lambda: admin.receive()["event"] == "loaded")
        client.finish()
        for i in range(12):
            assert bytes(client.results[f"r{i}"].tokens) == answer(f"old model {i}", 120)
        assert len(client.generate("new", "n", max_tokens=3).tokens) == 3
    eventually(lambda: len(engines_of(daemon.process.pid)) == 1)
    assert daemon.metrics()["model"] == "other"


def test_bad_files_are_refused_at_once(daemon: DaemonProcess, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("Once upon a time")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\x00\x00\x00\x00")
    engine = daemon.engine_pid()
    with daemon.client() as admin:
        for path, why in (
            (tmp_path / "none.gguf", "does not exist"),
            (tmp_path, "is a directory"),
            (text, "not a usable GGUF file"),
            (cut, "is truncated"),
        ):
            admin.send(type="load", model=str(path))
            event = admin.receive()
            assert event["code"] == "E_MODEL_002" and why in event["message"]
    assert daemon.engine_pid() == engine


def test_unload_and_load_again(daemon: DaemonProcess) -> None:
    engine = psutil.Process(daemon.engine_pid())
    with daemon.client() as client, daemon.client() as admin:
        client.ask("a", "runs to its end", max_tokens=40)
        client.wait_tokens("a", 3)
        admin.send(type="unload", id="U")
        assert admin.receive() == {"id": "U", "event": "unloaded"}
        client.finish()
        assert bytes(client.results["a"].tokens) == answer("runs to its end", 40)
        assert not engine.is_running()
        result = client.generate("x", "b")
        assert result.error is not None and result.error["code"] == "E_MODEL_001"
        info = daemon.info()
        assert info["model"] is None and info["state"] == "unloaded"
        assert set(daemon.metrics()) >= METRICS
        admin.send(type="tokenize", text="x")
        assert admin.receive()["code"] == "E_MODEL_001"
        admin.send(type="unload")
        assert admin.receive()["event"] == "unloaded"
        admin.send(type="load", model=daemon.model)
        eventually(lambda: admin.receive()["event"] == "loaded")
        assert len(client.generate("x", "c", max_tokens=3).tokens) == 3


def test_second_load_at_once_is_told(daemon: DaemonProcess, tmp_path: Path) -> None:
    slow = model_file(tmp_path / "load-slow.gguf")
    with daemon.client() as first, daemon.client() as second:
        first.send(type="load", model=slow)
        assert first.receive()["event"] == "progress"
        second.send(type="load", model=slow)
        event = second.receive()
        assert event["code"] == "E_MODEL_002" and "another load" in event["message"]
        eventually(lambda: first.receive()["event"] == "loaded")


def test_load_goes_on_when_its_client_leaves(daemon: DaemonProcess, tmp_path: Path) -> None:
    slow = model_file(tmp_path / "load-slow.gguf")
    with daemon.client() as admin:
        admin.send(type="load", model=slow)
        assert admin.receive()["event"] == "progress"
    eventually(lambda: (m := daemon.info()["model"]) and m.get("name") == "load-slow")
    with daemon.client() as client:
        assert len(client.generate("x", max_tokens=3).tokens) == 3


def test_candidate_that_is_killed_disturbs_nobody(tmp_path: Path) -> None:
    slow = model_file(tmp_path / "load-slow.gguf")
    with DaemonProcess(tmp_path, n_ctx=1024) as daemon, daemon.client() as admin:
        old = daemon.engine_pid()
        admin.send(type="load", model=slow)
        assert admin.receive()["event"] == "progress"
        for process in engines_of(daemon.process.pid):
            if process.pid != old:
                os.kill(process.pid, signal.SIGKILL)
        event = eventually(lambda: (e := admin.receive())["event"] != "progress" and e)
        assert event["code"] == "E_MODEL_002" and "SIGKILL" in event["message"]
        assert daemon.engine_pid() == old


def test_metrics_have_every_name_and_true_counts(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=1024) as daemon, daemon.client() as client:
        before = daemon.metrics()
        assert METRICS - set(before) == set()
        assert before["requests_total"] == 0 and before["p50_ms"] is None
        for i in range(4):
            client.ask(f"r{i}", "hello", max_tokens=20)
        client.finish()
        slo = {"target_tbt_ms": 0.001}
        client.generate("x", "bad", max_tokens=1000, stop=["never"], slo=slo)
        after = daemon.metrics()
        assert METRICS - set(after) == set()
        assert after["requests_total"] == 5
        assert after["tokens_generated_total"] == 80 + 1000
        assert after["prompt_tokens_total"] == 4 * 5 + 1
        # those that go out together are no time apart
        assert 0 < after["slo_violations_tbt_total"] <= 999
        assert after["ttft_ms"]["count"] == 5
        assert after["inter_token_ms"]["count"] == 4 * 19 + 999
        assert after["batch_calls_total"] >= 1000
        assert after["decode_ms"]["count"] == after["batch_calls_total"]
        assert 0 < after["p50_ms"] <= after["p95_ms"] <= after["p99_ms"]
        assert after["p99_ms"] <= after["worst_pause_ms"]
        assert after["rss_gb"] > 0.01 and after["cpu_s_per_1k_tokens"] > 0
        assert after["background.p50_ms"] is None
        assert after["active_sessions"] == 0


def test_totals_go_on_over_a_restart(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=1024, environment=SLOW) as daemon, daemon.client() as client:
        client.ask("a", "x", max_tokens=60)
        client.wait_tokens("a", 30)
        before = daemon.metrics()["batch_calls_total"]
        os.kill(daemon.engine_pid(), signal.SIGKILL)
        client.finish()
        after = daemon.metrics()
        assert after["batch_calls_total"] >= max(before, 60)
        assert after["tokens_generated_total"] == 60


def test_info_tokenize_ping(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=1024, environment=SLOW) as daemon, daemon.client() as client:
        client.send(type="ping", id="p")
        assert client.receive() == {"id": "p", "event": "pong"}
        client.send(type="tokenize", id="t", text="hé")
        assert client.receive() == {"id": "t", "event": "tokens", "tokens": [104, 195, 169]}
        client.send(type="cache", id="c")
        answer = client.receive()
        assert (answer["id"], answer["event"]) == ("c", "cache")
        assert (answer["cache"]["on"], answer["cache"]["entries"]) == (False, 0)
        client.ask("running", "hello", max_tokens=100, priority="background")
        client.wait_tokens("running", 2)
        info = daemon.info()
        assert info["pid"] == daemon.process.pid and info["state"] == "serving"
        assert info["model"]["name"] == "model" and info["limits"]["max_sessions"] == 32
        (session,) = info["sessions"]
        assert session["id"] == "running" and session["lane"] == "background"
        assert session["state"] == "decode" and session["prompt_tokens"] == 5
        assert session["tokens"] >= 2 and session["age_s"] > 0
        client.finish()


def test_records_of_a_run(tmp_path: Path) -> None:
    table, trace = tmp_path / "score.csv", tmp_path / "trace.jsonl"
    with (
        DaemonProcess(
            tmp_path, scorecard=str(table), scorecard_interval_s=0.2, trace=str(trace)
        ) as daemon,
        daemon.client() as client,
    ):
        client.generate("x", max_tokens=30)
        daemon.metrics()
        eventually(lambda: table.exists() and len(table.read_text().splitlines()) >= 3)
    lines = table.read_text().splitlines()
    assert "tokens_generated_total" in lines[0].split(",")
    assert len({line.count(",") for line in lines}) == 1
    assert len(trace.read_text().splitlines()) >= 30
