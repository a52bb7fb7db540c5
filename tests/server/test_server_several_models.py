"""Several models in one daemon: who answers, what is loaded, and what happens to the others."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from tests.support.fake_engine import answer
from tests.support.real_daemon import real
from tests.support.server_harness import (
    DaemonProcess,
    RawClient,
    engines_of,
    eventually,
    model_file,
)
from umaserve.assets import demo_model_path
from umaserve.server.clients.questions import Questions
from umaserve.server.supervision.supervisor import Supervisor
from umaserve.server.text_answers import TextAnswers

SLOW = {"FAKE_TICK_MS": "5"}
ONE_MODEL = 500 << 20  # bytes: an engine by itself counts 300 MiB


def models_in(directory: Path, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of two models beside the default one."""
    found = {}
    for name in ("coder", "helper"):
        path = model_file(directory / f"{name}-file.gguf")
        found[name] = {"path": path, "aliases": [f"{name}-alias"], **more.get(name, {})}
    return found


def daemon_with(directory: Path, **settings: Any) -> DaemonProcess:
    models = settings.pop("models", None) or models_in(directory)
    return DaemonProcess(directory, n_ctx=1024, models=models, drain_s=20, **settings)


def who_answers(client: RawClient, model: str | None, prompt: str = "who?") -> str:
    """The model that the beginning of an answer names."""
    client.other.clear()
    result = client.generate(prompt, max_tokens=3, model=model, begin=True)
    assert result.error is None and bytes(result.tokens) == answer(prompt, 3), result
    (begin,) = [event for event in client.other if event["event"] == "begin"]
    return str(begin["model"])


def states(daemon: DaemonProcess) -> dict[str, str]:
    return {each["id"]: each["state"] for each in daemon.info()["models"]}


def test_a_request_names_its_model_and_unknown_names_get_the_default(tmp_path: Path) -> None:
    with daemon_with(tmp_path) as daemon, daemon.client() as client:
        assert states(daemon) == {"model": "serving", "coder": "asleep", "helper": "asleep"}
        assert len(engines_of(daemon.process.pid)) == 1
        for name in (None, "", "gpt-4o", "model", "MODEL.gguf", daemon.model):
            assert who_answers(client, name) == "model", name
        for name in ("coder", "Coder:latest", "coder-alias", "coder-file", "coder-file.gguf"):
            assert who_answers(client, name) == "coder-file", name
        assert who_answers(client, "helper") == "helper-file"
        assert set(states(daemon).values()) == {"serving"}
        assert len(engines_of(daemon.process.pid)) == 3
        client.send(type="tokenize", id="t", text="ab", model="coder")
        assert client.answer("tokens")["tokens"] == [97, 98]
        client.send(type="models", id="m")
        listed = client.answer("models")["models"]
        assert [each["id"] for each in listed] == ["model", "coder", "helper"]
        client.send(type="info", id="i", model="helper")
        assert client.answer("info")["info"]["model"]["name"] == "helper-file"


def test_requests_that_wait_for_one_model_start_it_once(tmp_path: Path) -> None:
    with daemon_with(tmp_path) as daemon, daemon.client() as client:
        for number in range(12):
            client.ask(f"r{number}", "burst", max_tokens=5, model="coder")
        assert all(bytes(r.tokens) == answer("burst", 5) for r in client.finish())
        assert len(engines_of(daemon.process.pid)) == 2


def test_a_dead_engine_takes_nothing_from_the_other_model(tmp_path: Path) -> None:
    with daemon_with(tmp_path, environment=SLOW) as daemon, daemon.client() as client:
        client.ask("default", "first", max_tokens=200)
        client.ask("other", "second", max_tokens=200, model="coder")
        client.wait_tokens("other", 3)
        coder = daemon.info()["models"][1]["engine_pid"]
        os.kill(coder, signal.SIGKILL)
        client.finish()
        assert bytes(client.results["default"].tokens) == answer("first", 200)
        assert bytes(client.results["other"].tokens) == answer("second", 200)
        assert daemon.info()["models"][1]["engine_pid"] != coder
        assert psutil.pid_exists(daemon.info()["models"][0]["engine_pid"])


def test_a_question_is_answered_though_its_model_dies_while_it_is_loaded(tmp_path: Path) -> None:
    models = {"coder": {"path": model_file(tmp_path / "load-slow.gguf")}}
    with daemon_with(tmp_path, models=models) as daemon, daemon.client() as client:
        before = {each.pid for each in engines_of(daemon.process.pid)}
        client.send(type="detokenize", id="d", tokens=[97, 98], model="coder")

        def loading() -> list[psutil.Process]:
            return [each for each in engines_of(daemon.process.pid) if each.pid not in before]

        eventually(loading, "the model is being loaded")
        loading()[0].kill()
        assert client.answer("text")["text"] == "ab"


def test_unload_and_load_go_by_name(tmp_path: Path) -> None:
    with daemon_with(tmp_path) as daemon, daemon.client() as client:
        who_answers(client, "coder")
        client.send(type="unload", id="u", model="coder-alias")
        assert client.answer("unloaded")["event"] == "unloaded"
        assert states(daemon)["coder"] == "unloaded"
        refused = client.generate("x", model="coder").error
        assert refused is not None and refused["code"] == "E_MODEL_001"
        assert "`umaserve load coder`" in refused["message"]
        assert who_answers(client, None) == "model"
        client.send(type="load", id="l", model="coder")
        assert client.answer("loaded")["model"].endswith("coder-file.gguf")
        assert who_answers(client, "coder") == "coder-file"
        client.send(type="unload", id="v", model="nobody")
        assert "there are: model, coder, helper" in client.answer("unloaded")["message"]


def test_a_default_model_with_a_name_is_loaded_again_by_it(tmp_path: Path) -> None:
    settings = {"default_model": "coder", "model": model_file(tmp_path / "coder-file.gguf")}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        assert states(daemon) == {"coder": "serving", "helper": "asleep"}
        client.send(type="unload", id="u")
        assert client.answer("unloaded")["event"] == "unloaded"
        client.send(type="load", id="l", model="coder")
        assert client.answer("loaded")["model"].endswith("coder-file.gguf")
        assert who_answers(client, None) == "coder-file"


def test_what_does_not_fit_beside_the_others_waits_for_them_and_idle_ones_leave(
    tmp_path: Path,
) -> None:
    settings = {"models_memory": ONE_MODEL, "environment": SLOW}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        client.ask("long", "first", max_tokens=150)
        client.wait_tokens("long", 2)
        client.ask("next", "second", max_tokens=5, model="coder")
        client.finish("next")
        assert client.results["long"].eos is not None, "it left with a request in it"
        assert states(daemon) == {"model": "asleep", "coder": "serving", "helper": "asleep"}
        assert len(engines_of(daemon.process.pid)) == 1
        assert who_answers(client, None) == "model"
        assert states(daemon)["coder"] == "asleep"


def test_a_model_comes_back_after_its_engine_was_killed_beside_no_more_than_fit(
    tmp_path: Path,
) -> None:
    """Another model that waits for room does not take that of an engine that is started again."""
    models = {"coder": {"path": model_file(tmp_path / "load-slow.gguf")}}
    settings = {"models": models, "models_memory": ONE_MODEL, "environment": SLOW}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        for turn in range(3):
            client.ask(f"coder-{turn}", "first", max_tokens=5, model="coder")
            eventually(lambda: states(daemon)["coder"] == "loading", "the model is being loaded")
            client.ask(f"default-{turn}", "second", max_tokens=5)
            time.sleep(0.05)
            engines_of(daemon.process.pid)[0].kill()
            eventually(lambda: states(daemon)["coder"] == "serving", "the model is loaded again")
            assert states(daemon)["model"] == "asleep"
            client.finish(f"coder-{turn}", f"default-{turn}")
            assert len(engines_of(daemon.process.pid)) == 1


def test_a_model_with_questions_that_wait_does_not_leave() -> None:
    """Those that wait for their turn have asked no engine yet."""
    service: Any = SimpleNamespace(number=0, engine=None, room=(), asking=0)
    engine: Any = SimpleNamespace(
        ready=object(), settled=trio.Event(), requests={}, backlog={}, asked={}
    )
    model: Any = SimpleNamespace(
        service=service, current=engine, is_changing=False, is_waking=False
    )
    daemon: Any = SimpleNamespace(models=SimpleNamespace(engine=lambda _: engine_of()))
    questions = defaultdict[int, Questions](Questions)
    may_leave: list[Any] = []

    async def engine_of() -> Any:
        return engine

    async def ask(_: Any) -> int:
        may_leave.append(Supervisor.is_idle.fget(model))  # type: ignore[attr-defined]
        return 1

    async def one_waits() -> None:
        texts = TextAnswers(daemon)
        async with trio.open_nursery() as nursery:
            for program in range(2):
                nursery.start_soon(texts.by_engine, service, questions, program, ask)
            await trio.testing.wait_all_tasks_blocked()
            may_leave.append(Supervisor.is_idle.fget(model))  # type: ignore[attr-defined]
            engine.settled.set()
        may_leave.append(Supervisor.is_idle.fget(model))  # type: ignore[attr-defined]

    trio.run(one_waits)
    assert may_leave == [False, False, False, True]


def test_a_default_model_that_is_loaded_again_has_room_made_for_it(tmp_path: Path) -> None:
    with daemon_with(tmp_path, models_memory=ONE_MODEL) as daemon, daemon.client() as client:
        client.send(type="unload", id="u")
        assert client.answer("unloaded")["event"] == "unloaded"
        who_answers(client, "coder")
        client.send(type="load", id="l", model=daemon.model)
        assert client.answer("loaded")["event"] == "loaded"
        assert states(daemon) == {"model": "serving", "coder": "asleep", "helper": "asleep"}
        assert len(engines_of(daemon.process.pid)) == 1


def test_the_model_that_was_used_longest_ago_leaves(tmp_path: Path) -> None:
    with daemon_with(tmp_path, models_memory=700 << 20) as daemon, daemon.client() as client:
        for first, last in ((None, "coder"), ("coder", None)):
            who_answers(client, first)
            who_answers(client, last)
            assert who_answers(client, "helper") == "helper-file"
            left = "coder" if first else "model"
            assert states(daemon)[left] == "asleep" and len(engines_of(daemon.process.pid)) == 2


def test_a_model_that_wakes_finds_its_prefixes_on_disk(tmp_path: Path) -> None:
    cache = tmp_path / "kv"
    cache.mkdir(0o700)
    models = {"second": {"path": str(demo_model_path()), "ttl_s": 2.0}}
    prompt = "def walk(top):\n    return os.listdir(top)\n" * 30
    settings = {"models": models, "cache_dir": str(cache), "n_ctx": 2048}
    with real(tmp_path, **settings) as daemon, daemon.client() as client:
        first = client.generate(prompt, model="second", max_tokens=2, temperature=0)
        eventually(lambda: states(daemon)["second"] == "asleep", "the idle model has left")
        again = client.generate(prompt, model="second", max_tokens=2, temperature=0)
        assert first.eos is not None and again.eos is not None and again.text == first.text
        usage = again.eos["usage"]
        assert first.eos["usage"]["cached_tokens"] == 0
        assert usage["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_model_that_could_never_fit_is_refused_in_words(tmp_path: Path) -> None:
    settings = {"models_memory": 200 << 20}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        error = client.generate("x", model="coder").error
        assert error is not None and error["code"] == "E_MODEL_002"
        assert "--models-memory is 200 MiB" in error["message"]
        assert who_answers(client, None) == "model"


def test_what_does_not_fit_beside_pinned_models_is_refused_in_words(tmp_path: Path) -> None:
    default = {"path": model_file(tmp_path / "model.gguf"), "pin": True}
    models = {"main": default, **models_in(tmp_path)}
    settings = {"models": models, "default_model": "main", "models_memory": ONE_MODEL}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        error = client.generate("x", model="coder").error
        assert error is not None and "beside the pinned models" in error["message"]
        assert who_answers(client, "main") == "model"


def test_idle_models_leave_and_pinned_ones_stay(tmp_path: Path) -> None:
    models = models_in(tmp_path, coder={"ttl_s": 1.0}, helper={"pin": True})
    settings = {"models": models, "idle_unload_s": 0.0}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        eventually(lambda: states(daemon)["helper"] == "serving", "the pinned model is loaded")
        who_answers(client, "coder")
        eventually(lambda: states(daemon)["coder"] == "asleep", "the idle model has left")
        assert states(daemon) == {"model": "serving", "coder": "asleep", "helper": "serving"}
        assert who_answers(client, "coder") == "coder-file"


def test_a_model_that_cannot_be_loaded_ends_its_requests_alone(tmp_path: Path) -> None:
    models = {"bad": {"path": model_file(tmp_path / "load-fails.gguf")}}
    models["gone"] = {"path": str(tmp_path / "gone.gguf")}
    with daemon_with(tmp_path, models=models) as daemon, daemon.client() as client:
        for name in ("bad", "gone", "bad"):  # it is tried again
            error = client.generate("x", model=name).error
            assert error is not None and error["code"] in ("E_MODEL_002", "E_RUNTIME_001"), error
        client.send(type="tokenize", id="t", text="ab", model="gone")
        assert "gone.gguf" in client.answer("tokens")["message"]
        client.send(type="detokenize", id="d", tokens=[97], model="bad")
        told = client.answer("text")
        assert told["code"] == "E_MODEL_002" and "load-fails.gguf" in told["message"], told
        assert who_answers(client, None) == "model"


def test_without_load_on_demand_only_load_loads(tmp_path: Path) -> None:
    with daemon_with(tmp_path, load_on_demand=False) as daemon, daemon.client() as client:
        error = client.generate("x", model="coder").error
        assert error is not None and error["code"] == "E_MODEL_001"
        client.send(type="load", id="l", model="coder")
        assert client.answer("loaded")["event"] == "loaded"
        assert who_answers(client, "coder") == "coder-file"


def test_what_umaserve_models_lists_may_be_asked_for_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    folder.mkdir()
    listed = model_file(folder / "extra.gguf")
    settings: dict[str, Any] = {"model_dir": str(folder), "idle_unload_s": 0.0}
    with DaemonProcess(tmp_path, n_ctx=1024, **settings) as daemon, daemon.client() as client:
        assert who_answers(client, "extr.gguf") == "model"
        assert client.generate("x", model="extra.gguf", key="alice").error is None
        assert list(states(daemon)) == ["model"], "a key may not"
        assert eventually(lambda: who_answers(client, "extra.gguf") == "extra")
        assert states(daemon) == {"model": "serving", "extra.gguf": "serving"}
        assert daemon.info()["models"][1]["path"] == listed
        assert who_answers(client, "extra") == "extra" and who_answers(client, None) == "model"
        client.send(type="tokenize", id="t", text="ab", model="extra", key="alice")
        assert client.answer("tokens")["tokens"] == [97, 98]
        model_file(folder / "later.gguf")  # it is found within some seconds
        assert eventually(lambda: who_answers(client, "later.gguf") == "later")
        client.send(type="unload", id="u", model="later")
        assert client.answer("unloaded")["event"] == "unloaded"
    settings["load_on_demand"] = False
    with DaemonProcess(tmp_path, n_ctx=1024, **settings) as daemon, daemon.client() as client:
        assert who_answers(client, "extra.gguf") == "model"


@pytest.mark.slow
def test_random_requests_cancels_and_kills_lose_and_mix_up_nothing(tmp_path: Path) -> None:
    """Memory for two of three models."""
    chosen = random.Random(5)
    settings = {"models_memory": 700 << 20, "environment": {"FAKE_TICK_MS": "1"}}
    with daemon_with(tmp_path, **settings) as daemon, daemon.client() as client:
        files = {None: "model", "coder": "coder-file", "helper": "helper-file"}
        for turn in range(60):
            asked = {}
            for number in range(chosen.randrange(1, 12)):
                id, name = f"{turn}-{number}", chosen.choice(list(files))
                asked[id] = (name, f"prompt {id}", chosen.randrange(1, 60))
                client.ask(id, asked[id][1], max_tokens=asked[id][2], model=name, begin=True)
            cancelled = [id for id in asked if chosen.random() < 0.1]
            for id in cancelled:
                client.send(type="cancel", id=id)
            if chosen.random() < 0.2:
                for engine in engines_of(daemon.process.pid)[:1]:
                    engine.kill()
            client.finish(*asked)
            begun = {e["id"]: e["model"] for e in client.other if e["event"] == "begin"}
            for id, (name, prompt, most) in asked.items():
                result = client.results[id]
                if id not in cancelled:
                    assert result.error is None, result
                    assert bytes(result.tokens) == answer(prompt, most)
                    assert begun[id] == files[name]
            client.other.clear()
        daemon.idle()
        assert len(engines_of(daemon.process.pid)) <= 2
