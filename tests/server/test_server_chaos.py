"""Everything at once: kills, loads, cancels, clients that vanish; every answer still exact."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, engines_of, eventually, model_file

WORKERS, TURNS = 8, 12


@pytest.mark.slow
def test_every_answer_is_exact_whatever_happens(tmp_path: Path) -> None:
    """Long: one story, whose faults have to overlap."""
    models = [model_file(tmp_path / name) for name in ("a.gguf", "b.gguf", "load-fails.gguf")]
    failures: list[str] = []
    outcomes: dict[str, int] = {}
    over = threading.Event()

    def worker(daemon: DaemonProcess, number: int) -> None:
        rng = random.Random(number)
        client = daemon.client()
        for turn in range(TURNS):
            asked = []
            for part in range(rng.randint(1, 4)):
                id, tokens = f"{number}-{turn}-{part}", rng.randint(1, 150)
                prompt = f"prompt {id}" + rng.choice(["", "", "[stop@9]"])
                lane = rng.choice(["interactive", "background"])
                client.ask(id, prompt, max_tokens=tokens, priority=lane)
                asked.append((id, prompt, tokens))
                if rng.random() < 0.15:
                    client.send(type="cancel", id=id)
                elif tokens > 60 and rng.random() < 0.2:
                    client.send(type="priority", id=id, priority="background")
            if rng.random() < 0.1:
                client.socket.close()
                client = daemon.client()
                continue
            for id, prompt, tokens in asked:
                (result,) = client.finish(id)
                whole = 9 if "[stop@9]" in prompt and tokens > 9 else tokens
                good = result.eos is not None and result.error is None
                if good:
                    reason = result.eos["reason"]
                    outcomes[reason] = outcomes.get(reason, 0) + 1
                    good = bytes(result.tokens) == answer(prompt, len(result.tokens))
                    good = good and (reason == "cancel" or len(result.tokens) == whole)
                if not good:
                    failures.append(f"{id} {prompt} {tokens}: {result}")
        client.socket.close()

    def killer(daemon: DaemonProcess) -> None:
        rng = random.Random(1)
        while not over.wait(rng.uniform(0.1, 0.4)):
            try:
                os.kill(daemon.engine_pid(), signal.SIGKILL)
            except ProcessLookupError:  # a load has just retired it
                continue

    def loader(daemon: DaemonProcess) -> None:
        rng = random.Random(2)
        while not over.wait(rng.uniform(0.3, 1.0)):
            with daemon.client() as admin:
                admin.send(type="load", model=rng.choice(models))
                eventually(lambda: admin.receive()["event"] != "progress")

    def guarded(function, *arguments) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            failures.append(f"{function.__name__}{arguments[1:]}: {error!r}")

    settings = {"n_ctx": 1024, "max_sessions": 12, "drain_s": 60}
    with DaemonProcess(tmp_path, model=models[0], **settings) as daemon:
        workers = [
            threading.Thread(target=guarded, args=(worker, daemon, i)) for i in range(WORKERS)
        ]
        others = [threading.Thread(target=guarded, args=(f, daemon)) for f in (killer, loader)]
        for thread in (*workers, *others):
            thread.start()
        for thread in workers:
            thread.join()
        over.set()
        for thread in others:
            thread.join()
        assert failures == []
        assert set(outcomes) == {"length", "stop", "cancel"}
        daemon.idle()
        front = daemon.process.pid
        eventually(lambda: len(engines_of(front)) == 1, "engines that retired have gone")
        metrics = daemon.metrics()
        assert metrics["engine_restarts_total"] > 0
        assert set(metrics["errors_total"]) <= {"E_MODEL_002"}
