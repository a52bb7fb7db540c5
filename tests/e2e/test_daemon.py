"""The whole daemon, real engine and bundled model, over its real socket."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.oracle import Oracle
from tests.support.server_harness import DaemonProcess, RawClient, Result, engines_of, eventually
from umaserve.assets import demo_model_path

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [
    "def fibonacci(n):",
    "import os\n\n\ndef walk(top):\n    ",
    "class Stack:\n    def ",
    "for i in range(10):\n    ",
    "def is_prime(n):",
    "def read_lines(path):\n    with open(",
    "def factorial(n):",
    "def gcd(a, b):",
]


def real(directory: Path, **settings: object) -> DaemonProcess:
    settings.setdefault("model", str(demo_model_path()))
    # on a busy machine of two cores, two threads that wait for each other at every layer's barrier
    # take many times as long as one
    settings.setdefault("threads", 1)
    return DaemonProcess(directory, engine=[], **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: DaemonProcess) -> Iterator[DaemonProcess]:
    yield shared
    shared.idle()
    eventually(lambda: shared.metrics()["kv_cells_used"] == 0, "no KV cell is in use")


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with daemon.client() as connected:
        yield connected


def ended_well(result: Result, reasons: tuple[str, ...] = ("length", "stop")) -> None:
    assert result.error is None
    assert result.eos is not None and result.eos["reason"] in reasons
    assert result.eos["usage"]["completion_tokens"] == len(result.tokens)


def test_the_thirty_line_client_of_the_protocol_page_streams(daemon: DaemonProcess) -> None:
    text = (ROOT / "docs/PROTOCOL.md").read_text()
    found = re.search(r"<!-- example: client -->\n```python\n(.*?)```", text, re.S)
    assert found and len(found[1].splitlines()) <= 30
    for prompt, word in (("def fibonacci(n):", "return"), ("def is_prime(n):", "return")):
        ran = subprocess.run(
            [sys.executable, "-c", found[1], prompt, daemon.path],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert word in ran.stdout


def test_a_question_is_answered_in_legible_text(client: RawClient) -> None:
    client.results["q"] = Result()
    client.send(
        id="q", messages=[{"role": "user", "content": "What does os.path.join do?"}],
        temperature=0, max_tokens=60,
    )  # fmt: skip
    (result,) = client.finish("q")
    ended_well(result)
    assert "path" in result.text.lower() and "<|" not in result.text


def test_chat_ends_by_itself_and_stop_strings_hold(client: RawClient) -> None:
    whole = client.generate("def fibonacci(n):", "a", temperature=0, max_tokens=40).text
    stop = whole[12:15]
    result = client.generate(
        "def fibonacci(n):", "b", temperature=0, max_tokens=40, stop=[stop, "never"]
    )
    ended_well(result, ("stop",))
    assert result.text == whole[: whole.index(stop)]


def test_the_same_seed_streams_the_same_text(client: RawClient) -> None:
    fields = {"temperature": 1.5, "seed": 7, "max_tokens": 30, "top_k": 0, "min_p": 0}
    first = client.generate("x = ", "a", **fields)
    assert client.generate("x = ", "b", **fields).tokens == first.tokens
    assert client.generate("x = ", "c", **{**fields, "seed": 8}).tokens != first.tokens


def test_greedy_over_the_socket_is_llama_cpps_own(client: RawClient, oracle: Oracle) -> None:
    for i, prompt in enumerate(PROMPTS):
        result = client.generate(prompt, f"g{i}", temperature=0, max_tokens=48)
        assert result.tokens == oracle.greedy(prompt, 48)


def test_every_model_error_is_a_clear_sentence_and_the_daemon_goes_on(
    daemon: DaemonProcess, client: RawClient, tmp_path: Path
) -> None:
    whole = demo_model_path().read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    vast = tmp_path / "vast.gguf"
    vast.write_bytes(whole)
    os.truncate(vast, 1 << 42)  # sparse: looks like 4 TiB
    for path, word in (
        (cut, "truncated"),
        (text, "GGUF"),
        (empty, "GGUF"),
        (tmp_path, "directory"),
        (tmp_path / "absent.gguf", "exist"),
        (vast, "this machine has"),
    ):
        client.send(type="load", model=str(path))
        answer = client.answer("loaded")
        assert answer["event"] == "error" and answer["code"] == "E_MODEL_002", answer
        assert word.lower() in answer["message"].lower(), answer
        ended_well(client.generate("def gcd(a, b):", f"after {path.name}", max_tokens=3))


def test_load_swaps_to_another_file_under_running_requests(
    daemon: DaemonProcess, client: RawClient, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(demo_model_path().read_bytes())
    old = daemon.engine_pid()
    client.ask("long", "def f(", temperature=0, max_tokens=400, ignore_eos=True)
    client.wait_tokens("long", 5)
    client.send(type="load", model=str(other))
    assert client.answer("loaded")["event"] == "loaded"
    assert daemon.engine_pid() != old
    client.ask("new", "def g(", max_tokens=5)
    client.finish("new", "long")
    for result in client.results.values():
        ended_well(result)
    assert len(client.results["long"].tokens) == 400
    eventually(lambda: not psutil.pid_exists(old), "the old engine has gone")


def kill_five_times(daemon: DaemonProcess, number: int, pause: float) -> None:
    for _ in range(5):
        os.kill(daemon.engine_pid(), number)
        time.sleep(pause)


@pytest.mark.slow
def test_five_kills_during_twenty_streams_lose_and_double_nothing(
    tmp_path: Path, oracle: Oracle
) -> None:
    """Greedy streams equal those of an undisturbed run, or leave them at a near-tie.

    Prefill (which a resumed stream goes through) and decode differ in the last bits on most
    backends; docs/BENCHMARKS.md says how often that shows.
    """
    with real(tmp_path, n_ctx=4096) as daemon, daemon.client() as client:
        fields = {"temperature": 0, "max_tokens": 150, "ignore_eos": True}
        for i in range(20):
            client.ask(f"r{i}", PROMPTS[i % 8], **fields)
        client.wait_tokens("r0", 5)
        killer = threading.Thread(target=kill_five_times, args=(daemon, signal.SIGKILL, 0.2))
        killer.start()
        client.finish()
        killer.join()
        for i in range(20):
            result = client.results[f"r{i}"]
            ended_well(result, ("length",))
            assert len(result.tokens) == 150
            oracle.assert_followed(PROMPTS[i % 8], result.tokens)
        assert daemon.metrics()["engine_restarts_total"] == 5
        daemon.idle()


def test_an_engine_that_aborts_is_replaced_and_streams_go_on(tmp_path: Path) -> None:
    with real(tmp_path) as daemon, daemon.client() as client:
        for i, prompt in enumerate(PROMPTS):
            client.ask(f"r{i}", prompt, temperature=0, max_tokens=200, ignore_eos=True)
        client.wait_tokens("r0", 20)
        os.kill(daemon.engine_pid(), signal.SIGABRT)
        for result in client.finish():
            ended_well(result, ("length",))
            assert len(result.tokens) == 200


def test_a_stopped_engine_is_replaced(tmp_path: Path) -> None:
    with real(tmp_path, hang_timeout_s=2.0) as daemon, daemon.client() as client:
        client.ask("a", "def f(", temperature=0, max_tokens=800, ignore_eos=True)
        client.wait_tokens("a", 5)
        os.kill(daemon.engine_pid(), signal.SIGSTOP)
        (result,) = client.finish("a")
        ended_well(result, ("length",))
        assert len(result.tokens) == 800


def test_a_front_that_is_killed_takes_its_engine_along(tmp_path: Path) -> None:
    for stop_first in (False, True):
        with real(tmp_path) as daemon, daemon.client() as client:
            client.ask("a", "def f(", max_tokens=2000, ignore_eos=True)
            client.wait_tokens("a", 3)
            engine = psutil.Process(daemon.engine_pid())
            if stop_first:  # it cannot read that its socket closed
                engine.send_signal(signal.SIGSTOP)
            daemon.expected = -signal.SIGKILL
            daemon.process.kill()
            daemon.process.wait()
            psutil.wait_procs([engine], timeout=20)
            assert not engine.is_running()
            os.unlink(daemon.path)
            if os.path.exists(daemon.path + ".lock"):
                os.unlink(daemon.path + ".lock")
    if os.path.isdir("/dev/shm"):
        assert not [name for name in os.listdir("/dev/shm") if name.startswith("umaserve-")]


def test_a_storm_of_clients_leaves_nothing_behind(tmp_path: Path) -> None:
    """32 clients, 200 requests: random cancels, half-sent frames, clients killed mid-stream, one
    that never reads; every other request is what it is alone, or a near-tie away from it."""
    with real(tmp_path, n_ctx=4096, max_connections=200) as daemon:
        silent = daemon.client()  # asks for much and never reads
        for i in range(4):
            silent.ask(f"s{i}", "x = ", max_tokens=200, ignore_eos=True)
        failures: list[str] = []
        done: list[str] = []

        def worker(number: int) -> None:
            rng = random.Random(number)
            client = daemon.client()
            try:
                for turn in range(7 if number < 8 else 6):
                    id, tokens = f"{number}-{turn}", rng.randint(1, 30)
                    fate = rng.random()
                    client.ask(id, rng.choice(PROMPTS), max_tokens=tokens, seed=turn,
                               ignore_eos=True)  # fmt: skip
                    if fate < 0.15:
                        client.send(type="cancel", id=id)
                    elif fate < 0.25:
                        if rng.random() < 0.5:
                            client.wait_tokens(id, 1)
                        client.socket.sendall(b"\x40\x00\x00\x00{")
                        client.socket.close()
                        client = daemon.client()
                        done.append(id)
                        continue
                    (result,) = client.finish(id)
                    good = result.eos is not None and result.error is None
                    if good and result.eos["reason"] != "cancel":
                        good = len(result.tokens) == tokens and result.eos["reason"] == "length"
                    if not good:
                        failures.append(f"{id}: {result}")
                    done.append(id)
            except BaseException as error:
                failures.append(f"{number}: {error!r}")
            finally:
                client.socket.close()

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(done) == 200
        silent.socket.close()
        daemon.idle()
        metrics = daemon.metrics()
        assert metrics["kv_cells_used"] == 0
        assert metrics["active_sessions"] == metrics["queued_interactive"] == 0
        assert metrics["requests_total"] == 204
        assert metrics["engine_restarts_total"] == 0
        assert len(engines_of(daemon.process.pid)) == 1


def tree_rss(daemon: DaemonProcess) -> int:
    """Bytes of front and engine; pages that both map count once, as far as the system tells."""
    front = psutil.Process(daemon.process.pid)
    total = 0
    for process in [front, *daemon.children()]:
        info = process.memory_full_info()
        total += getattr(info, "pss", info.rss)
    return total


@pytest.mark.slow
def test_the_model_is_loaded_once_and_memory_stays_flat(tmp_path: Path) -> None:
    """Eight apps: within 10 % of one app's memory.

    docs/MEMORY.md predicts the KV cells that come into use on top of that: eight answers of 200
    tokens have 7 MiB of them here.
    """
    with real(tmp_path) as daemon:
        apps = [daemon.client() for _ in range(8)]
        apps[0].generate("def fibonacci(n):", max_tokens=32, ignore_eos=True)
        daemon.rest()  # what is measured in pauses has buffers of its own, some tens of MB
        one = tree_rss(daemon)
        for i, app in enumerate(apps):
            app.ask(f"a{i}", PROMPTS[i], max_tokens=200, ignore_eos=True)
        for i, app in enumerate(apps):
            app.wait_tokens(f"a{i}", 150)
        eight = tree_rss(daemon)
        for app in apps:
            app.finish()
        assert eight <= 1.10 * one, (eight, one)
        settled = 0
        for turn in range(200):
            apps[turn % 8].generate(PROMPTS[turn % 8], f"t{turn}", max_tokens=4)
            if turn == 20:
                settled = tree_rss(daemon)
        assert tree_rss(daemon) <= 1.02 * settled
        for app in apps:
            app.socket.close()


def test_a_model_that_was_trained_for_less_than_there_are_cells(tmp_path: Path) -> None:
    model = tmp_path / "small-context.gguf"
    data = demo_model_path().read_bytes()
    key = b"llama.context_length"
    at = data.index(key) + len(key) + 4
    trained = int.from_bytes(data[at : at + 4], "little")
    assert trained >= 4096
    model.write_bytes(data[:at] + (64).to_bytes(4, "little") + data[at + 4 :])
    with real(tmp_path, model=str(model), n_ctx=1024) as daemon, daemon.client() as client:
        assert daemon.info()["model"]["n_ctx"] == 1024
        assert daemon.info()["model"]["n_ctx_train"] == 64
        for i in range(8):  # more positions together than the model was trained for
            client.ask(str(i), PROMPTS[i], ignore_eos=True, temperature=0.0)
        for result in client.finish():
            assert result.eos is not None and result.eos["reason"] == "length"
            assert result.eos["usage"]["prompt_tokens"] + len(result.tokens) == 64
        result = client.generate("x = 1\n" * 40, "long")
        assert result.error is not None and result.error["code"] == "E_LIMIT_003"
        assert "trained for 64 tokens" in result.error["message"]
