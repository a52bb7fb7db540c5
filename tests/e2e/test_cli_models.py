"""``umaserve models``, and which model a daemon serves: as processes, on a machine with models."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import hub as hubs
from tests.support import model_trees as trees
from tests.support.fixtures.commands import environment, forked, run
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from umaserve.assets import demo_model_path
from umaserve.cli.models.choose import NoModel, with_model
from umaserve.config import load_config
from umaserve.llama.builds import cache_root
from umaserve.models.suggested import suggested

ROOT = Path(__file__).parents[2]
UMASERVE = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)} -m umaserve"
FIRST, SECOND = "hf:ann/first-GGUF:Q4_K_M", "ollama:second:1b"
TOOLS = ("HF_", "HUGGINGFACE", "LLAMA_", "OLLAMA_", "XDG_")
# a daemon that ends as soon as its model is settled
ENDS = "--socket /nowhere/at/all.sock --dashboard off --log-level error"


class Desk:
    """A home with models; ``environment`` hides what this machine has."""

    def __init__(self, home: Path) -> None:
        self.home, self.state = home, home / "state"
        self.cache = home / ".cache/huggingface/hub"
        self.ollama = home / ".ollama/models"
        self.own = {
            "HOME": str(home), "OLLAMA_MODELS": str(self.ollama), "UMA_STATE_DIR": str(self.state),
            "UMA_CACHE_DIR": str(cache_root()),  # or a first start would build the library there
        }  # fmt: skip
        self.environment = {
            name: value for name, value in environment().items() if not name.startswith(TOOLS)
        } | self.own

    def fill(self) -> None:
        trees.in_hub(self.cache, "ann/first-GGUF", {"m-Q4_K_M.gguf": trees.tiny_model(1, 15)})
        os.utime(next(self.cache.rglob("blobs/*")), (1, 1))
        trees.in_ollama(
            self.ollama, "registry.ollama.ai/library/second/1b", trees.tiny_model(2)
        )  # the newer one

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = forked(words, {**self.environment, **more})
        assert "Traceback" not in done.stderr
        return done

    def pane(self, directory: Path, **more: str) -> Pane:
        hidden = {name: "" for name in os.environ if name.startswith(TOOLS)}
        return Pane(100, 24, directory, **hidden, **self.own, **more)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "home")


@pytest.fixture
def filled(desk: Desk) -> Desk:
    desk.fill()
    return desk


# --- the list -------------------------------------------------------------------------------------


def test_the_models_that_are_there(filled: Desk, tmp_path: Path) -> None:
    trees.in_lm_studio(filled.home / ".lmstudio", "bob/torn/torn-Q8_0.gguf", b"GGUF")
    trees.in_hub(filled.cache, "ann/eyes-GGUF", {"mmproj-F16.gguf": clip()})
    trees.write(tmp_path / "own/third.gguf", trees.tiny_model(3, llama__context_length=1 << 30))
    done = filled.run("models", "--model-dir", str(tmp_path / "own"))
    assert done.returncode == 0 and done.stderr == ""
    good, bad = done.stdout.split("these cannot be served:\n")
    lines = [line.split() for line in good.splitlines() if line.strip()]
    assert lines[0] == ["size", "params", "quant", "context", "fits", "tokens", "name"]
    assert [line[-1] for line in lines[1:4]] == [FIRST, SECOND, "third.gguf"]
    assert lines[1][2:6] == ["28.7K", "Q4_K_M", "2048", "yes"]
    assert lines[3][4:6] == [str(1 << 30), "to"]
    assert "about" in good and "of one stream" in good
    assert "  hf:ann/eyes-GGUF:mmproj-F16.gguf: it is no model but the projector" in bad
    assert "  lmstudio:bob/torn:Q8_0: is truncated" in bad


def test_a_base_model_is_told_beforehand(desk: Desk) -> None:
    base = trees.tiny_model(1, 15, tokenizer__chat_template="")
    trees.in_hub(desk.cache, "ann/base-GGUF", {"m-Q4_K_M.gguf": base})
    trees.in_hub(desk.cache, "ann/chat-GGUF", {"m-Q4_K_M.gguf": trees.tiny_model(2)})
    shown = desk.run("models").stdout
    assert "hf:ann/base-GGUF:Q4_K_M (a base model)\n" in re.sub(" +\n", "\n", shown)
    assert "hf:ann/chat-GGUF:Q4_K_M\n" in re.sub(" +\n", "\n", shown)
    assert "A base model continues text, and was not made for conversations." in shown
    listed = json.loads(desk.run("models", "--json").stdout)
    assert [row["base_model"] for row in listed] == [True, False]


def test_a_cut_file_says_how_it_is_fetched_again(desk: Desk, tmp_path: Path) -> None:
    cut = trees.tiny_model()
    cut = cut[: len(cut) // 2]
    trees.in_hub(desk.cache, "ann/cut-GGUF", {"m-Q4_K_M.gguf": cut})
    trees.in_ollama(desk.ollama, "registry.ollama.ai/library/cut/1b", cut + b"x")
    parts = {"m-Q8_0-00001-of-00002.gguf": trees.tiny_model(split__count=2)}
    trees.in_hub(desk.cache, "ann/half-GGUF", parts)
    trees.write(tmp_path / "own/cut.gguf", cut + b"xy")
    shown = desk.run("models", "--model-dir", str(tmp_path / "own")).stdout
    _, bad = shown.split("these cannot be served:\n")
    lines = {line.split(": ")[0].strip(): line for line in bad.splitlines()}
    told = lines["hf:ann/cut-GGUF:Q4_K_M"]
    assert "is truncated: 50% of it are there; " in told
    assert told.endswith("; fetch it again: umaserve pull hf:ann/cut-GGUF:Q4_K_M")
    assert lines["ollama:cut:1b"].endswith("; fetch it again: ollama pull cut:1b")
    assert lines["cut.gguf"].endswith("; fetch it again")
    half = lines["hf:ann/half-GGUF:Q8_0"]
    assert "lacks m-Q8_0-00002-of-00002.gguf, a part of the model; fetch it again: umaserve" in half


def test_a_checkpoint_is_no_gguf(desk: Desk, tmp_path: Path) -> None:
    data = b"\x40" + bytes(7) + b'{"__metadata__":{"format":"pt"}}'
    path = trees.write(tmp_path / "far/model.safetensors", data)
    trees.in_hub(desk.cache, "ann/plain", {"model.safetensors": data})
    what = "a Hugging Face checkpoint (safetensors)"
    for words in ([str(path)], ["--model", str(path)], ["--model", str(path.parent)],
                  ["--model", "hf:ann/plain"]):  # fmt: skip
        done = desk.run(*words, *ENDS.split())
        assert done.returncode == 1, done.stderr
        assert what in done.stderr and "umaserve takes GGUF" in done.stderr
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        done = desk.run("load", "--socket", daemon.path, "hf:ann/plain")
        assert done.returncode == 2 and what in done.stderr


def clip() -> bytes:
    return trees.tiny_model(general__architecture="clip")


def test_the_same_as_json(filled: Desk) -> None:
    trees.write(filled.home / ".lmstudio/models/torn.gguf", b"GGUF")
    first, second, torn = json.loads(filled.run("models", "--json").stdout)
    size = len(trees.tiny_model(1))
    assert (first["name"], first["tool"], first["bytes"]) == (FIRST, "Hugging Face", size)
    assert first["path"].endswith("/m-Q4_K_M.gguf") and first["problem"] is None
    assert (first["fits"], first["context_fits"], first["n_ctx_train"]) == (True, 2048, 2048)
    assert first["tokens_per_s"] > 0 and first["tokens_per_s_measured"] is False
    assert (second["name"], second["quantization"]) == (SECOND, "Q8_0")
    assert torn["problem"] and torn["fits"] is None and torn["tokens_per_s"] is None


def test_where_nothing_is(desk: Desk) -> None:
    done = desk.run("models")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "no model was found."
    heading = r"models for the [\d.]+ GiB of memory here; `umaserve pull NAME` fetches one:"
    assert re.fullmatch(heading, lines[1])
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert 3 <= len([name for name in named if suggested(name)]) <= 6
    assert "umaserve pull hf:OWNER/REPO" in done.stdout
    assert f"  {desk.cache} (not there)" in done.stdout.splitlines()
    assert desk.run("models", "--json").stdout == "[]\n"


def test_a_name_is_shown_without_what_a_terminal_obeys(desk: Desk) -> None:
    trees.write(desk.home / ".lmstudio/models/a\x1b[2Jb.gguf", trees.tiny_model())
    out = desk.run("models").stdout
    assert "lmstudio:a\\u001b[2Jb.gguf" in out and "\x1b" not in out


# --- the choice that is kept ----------------------------------------------------------------------


def test_a_choice_is_kept(filled: Desk, tmp_path: Path) -> None:
    done = filled.run("models", "--use", SECOND)
    assert done.returncode == 0 and SECOND in done.stdout
    assert (filled.state / "model").read_text() == SECOND + "\n"
    assert (filled.state.stat().st_mode & 0o777) == 0o700
    assert f"`umaserve` serves {SECOND} when none is named." in filled.run("models").stdout
    told = filled.run(*ENDS.split())
    assert told.returncode == 1 and f"serving {SECOND}, as chosen before" in told.stderr
    for name in ("nothing", "gone.gguf", "hf:ann/none", "hf:x"):
        refused = filled.run("models", "--use", name)
        assert refused.returncode == 2 and refused.stderr.startswith("umaserve: ")
    assert (filled.state / "model").read_text() == SECOND + "\n"
    path = trees.write(tmp_path / "m.gguf", trees.tiny_model())
    assert filled.run("models", "--use", os.path.relpath(path)).returncode == 0
    assert (filled.state / "model").read_text() == f"{path}\n"
    assert filled.run("models", "--use", "demo").returncode == 0
    assert "demonstration model when none is named" in filled.run("models").stdout
    assert "chosen" not in filled.run(*ENDS.split()).stderr


def test_a_choice_that_has_gone(filled: Desk, tmp_path: Path) -> None:
    path = trees.write(tmp_path / "m.gguf", trees.tiny_model())
    gone = ((SECOND, f"no model here is called {SECOND}"), (str(path), f"{path} does not exist"))
    for name, says in gone:
        filled.run("models", "--use", name)
        next((filled.ollama / "manifests").rglob("1b"), path).unlink()
        done = filled.run(*ENDS.split())
        assert done.returncode == 1
        assert f"the model that was chosen before is gone: {says}" in done.stderr
        assert "`umaserve models --use NAME`" in done.stderr
        assert "--model demo is the demonstration" in done.stderr
        assert "nowhere" not in done.stderr  # it did not go on with another
        shown = filled.run("models").stdout
        assert f"serves {name} when none is named.\nIt is gone: " in shown


def test_a_choice_that_others_could_make_is_none(filled: Desk) -> None:
    filled.run("models", "--use", SECOND)
    filled.state.chmod(0o777)
    assert "no model was named or chosen" in filled.run(*ENDS.split()).stderr


# --- what a daemon serves -------------------------------------------------------------------------


def sit_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the home of ``desk``, and no setting of this machine's tools."""
    for name in [name for name in os.environ if name.startswith(TOOLS)]:
        monkeypatch.delenv(name)
    for name, value in desk.own.items():
        monkeypatch.setenv(name, value)


def settled(desk: Desk, monkeypatch: pytest.MonkeyPatch, model: str | None = None) -> Any:
    """The path that a daemon would serve, and what it tells of that."""
    sit_at(desk, monkeypatch)
    told: list[str] = []
    config = load_config({} if model is None else {"model": model}, environ={})
    return with_model(config, False, told.append).model, told


def test_a_model_that_is_named(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = filled.cache.rglob("m-Q4_K_M.gguf")
    filled.run("models", "--use", SECOND)
    for name in (FIRST, "hf:ann/first-GGUF", str(path)):
        assert settled(filled, monkeypatch, name) == (str(path), [])
    assert settled(filled, monkeypatch, "demo") == ("", [])
    assert settled(filled, monkeypatch, "") == ("", [])
    assert settled(filled, monkeypatch)[0].startswith(str(filled.ollama))
    with pytest.raises(NoModel, match="umaserve pull hf:ann/none"):
        settled(filled, monkeypatch, "hf:ann/none")


def test_a_draft_model_that_is_named(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at(filled, monkeypatch)
    (path,) = filled.cache.rglob("m-Q4_K_M.gguf")
    for name, found in ((FIRST, str(path)), ("demo", str(demo_model_path()))):
        config = load_config({"model": "demo", "draft_model": name}, environ={})
        assert with_model(config, False, [].append).draft_model == found
    config = load_config({"model": "demo", "draft_model": "hf:ann/none"}, environ={})
    with pytest.raises(NoModel, match="umaserve pull hf:ann/none"):
        with_model(config, False, [].append)


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("hf:ann/none", 1, "fetch it with: umaserve pull hf:ann/none"),
        ("hf:none", 2, "names no repository of a hub"),
        ("ollama:secund:1b", 1, f"did you mean {SECOND}?"),
        ("gone.gguf", 1, "gone.gguf does not exist"),
    ],
)
def test_a_model_that_is_not_there(filled: Desk, name: str, status: int, says: str) -> None:
    done = filled.run("--model", name, *ENDS.split())
    assert done.returncode == status and says in done.stderr
    missing = filled.run("doctor", "--model", name)
    assert missing.returncode == 1 and says in missing.stdout


def test_nobody_is_asked_where_nobody_sits(filled: Desk) -> None:
    done = filled.run(*ENDS.split())
    assert "no model was named or chosen, so this serves the demonstration" in done.stderr
    assert "`umaserve models --use NAME`" in done.stderr and "which one" not in done.stderr
    assert re.search(r"real models for this machine: \S+ \([\d.]+ GB\), ", done.stderr)
    lines = filled.run(*ENDS.split(), "--log-json").stderr.splitlines()
    assert lines and all(json.loads(line) for line in lines)


def test_load_takes_a_name_too(filled: Desk, tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        words = ("load", "--socket", daemon.path)
        assert filled.run(*words, FIRST).returncode == 0
        assert daemon.seen[-1].model.endswith("/m-Q4_K_M.gguf")
        assert filled.run(*words, "demo").returncode == 0
        assert daemon.seen[-1].model == str(demo_model_path())
        seen = len(daemon.seen)
        refused = filled.run(*words, "hf:ann/none")
        assert refused.returncode == 2 and "umaserve pull hf:ann/none" in refused.stderr
        assert len(daemon.seen) == seen


# --- at a terminal --------------------------------------------------------------------------------

needs_tmux = pytest.mark.skipif(tmux() is None, reason=MISSING)


@needs_tmux
def test_a_list_is_offered_once(filled: Desk, tmp_path: Path) -> None:
    with filled.pane(tmp_path) as pane:
        start = f"clear; {UMASERVE} {ENDS}; echo status $?"
        pane.command(start)
        pane.shows(rf"^  1  {SECOND}  \(")
        pane.shows(rf"^  2  {FIRST}  \(")
        pane.shows("^which one")
        pane.command("9")
        pane.shows("there is no 9 in the list; 1 to 2, or Enter")
        pane.command("2")
        pane.shows("^status 1$")
        assert (filled.state / "model").read_text() == FIRST + "\n"
        pane.command(start)
        pane.shows(f"serving {FIRST}, as chosen before")
        pane.shows("^status 1$")
        assert "which one" not in pane.text()


@needs_tmux
def test_enter_is_the_demonstration_and_the_end_of_what_is_typed_is_no_choice(
    filled: Desk, tmp_path: Path
) -> None:
    with filled.pane(tmp_path) as pane:
        start = f"{UMASERVE} {ENDS}; echo status $?"
        for key, text in (("C-d", None), ("C-c", None), ("Enter", "demo\n")):
            pane.command(f"clear; echo before {key}; {start}")
            pane.shows(f"^before {key}$")  # what the one before has shown is gone
            pane.shows("^which one")
            pane.press(key)
            pane.shows("^status 130$" if key == "C-c" else "^status 1$")
            path = filled.state / "model"
            assert (path.read_text() if path.exists() else None) == text


@needs_tmux
def test_nobody_is_asked_in_the_background(desk: Desk, tmp_path: Path) -> None:
    with desk.pane(tmp_path) as pane:
        desk.fill()
        pane.command(f"clear; set +m; {UMASERVE} {ENDS} & wait; echo status $?")
        pane.shows("^status 0$")
        pane.command(f"clear; set -m; ({UMASERVE} {ENDS}; echo left) &")
        pane.shows("no model was named or chosen")
        pane.shows("^left$")
    assert not (desk.state / "model").exists()


@needs_tmux
def test_what_is_not_there_is_offered(desk: Desk, tmp_path: Path) -> None:
    with hubs.running() as hub, desk.pane(tmp_path, HF_ENDPOINT="x") as pane:
        hub.repositories["ann/far-GGUF"] = hubs.Repository({"m-Q8_0.gguf": trees.tiny_model()})
        pane.command(f"export HF_ENDPOINT={hub.url}")
        start = f"clear; {UMASERVE} --model hf:ann/far-GGUF {ENDS}; echo status $?"
        pane.command(start)
        pane.shows("^hf:ann/far-GGUF is not on this machine.$")
        pane.shows(r"^\d+ MiB to fetch into ")
        pane.shows(r"^serving it takes at least 300 MiB; this machine has [\d.]+ GiB of memory$")
        pane.shows(r"^Fetch it now\? \[Y/n\]")
        pane.command("n")
        pane.shows("^status 1$")
        assert not hub.began_at
        pane.command(start)
        pane.shows(r"Fetch it now\?")
        pane.command("")
        pane.shows("^status 1$")
        assert hub.began_at == [0] and "nowhere" in pane.text(joined=True)


@needs_tmux
def test_models_to_fetch_are_offered_where_there_is_none(desk: Desk, tmp_path: Path) -> None:
    with hubs.running() as hub, desk.pane(tmp_path, HF_ENDPOINT="x") as pane:
        files = {"Qwen3-8B-Q4_K_M.gguf": trees.tiny_model()}
        hub.repositories["Qwen/Qwen3-8B-GGUF"] = hubs.Repository(files)
        pane.command(f"export HF_ENDPOINT={hub.url}")
        start = f"clear; {UMASERVE} {ENDS}; echo status $?"
        pane.command(start)
        pane.shows("there is no model on this machine but the demonstration")
        pane.shows(r"^  qwen3-8b +5.0 GB +Apache-2.0 ")
        pane.command("")
        pane.shows("^status 1$")
        assert not (desk.state / "model").exists() and not hub.began_at
        pane.command(start)
        pane.shows("^which one to fetch")
        pane.command("qwen3-9b")
        pane.shows("there is no qwen3-9b in the list")
        pane.command("qwen3-8b")
        pane.shows(r"^Fetch it now\? \[Y/n\]")
        pane.command("y")
        pane.shows("^status 1$")
        assert (desk.state / "model").read_text() == "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M\n"
        assert hub.began_at == [0]


@needs_tmux
def test_a_daemon_serves_what_was_chosen_from_the_list(desk: Desk, tmp_path: Path) -> None:
    """The real library, with the bundled model under another name."""
    data = demo_model_path().read_bytes()
    trees.in_hub(desk.cache, "ann/chosen-GGUF", {"m-Q8_0.gguf": data})
    path = tmp_path / "own.sock"
    with desk.pane(tmp_path) as pane:
        words = f"--socket {path} --threads 1 --backend cpu --dashboard off"
        pane.command(f"clear; {UMASERVE} {words}; echo status $?")
        pane.shows(r"^  1  hf:ann/chosen-GGUF:Q8_0")
        pane.command("1")
        pane.shows("serving UMA Serve demo on", 4 * 90)
        info = json.loads(run("metrics", "--json", UMA_SOCK=str(path)).stdout)
        assert info["model"] == "UMA Serve demo"
        pane.press("C-c")
        pane.shows("^status 0$")
    assert (desk.state / "model").read_text() == "hf:ann/chosen-GGUF:Q8_0\n"
