"""``umaserve pull`` as a process, against a hub on this machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hub as hubs
from tests.support.fixtures.commands import TIMEOUT, environment
from tests.support.fixtures.commands import run as run_command
from tests.support.hub import Hub, Repository
from tests.support.server_harness import eventually
from umaserve.models.fetching.hub import TRIES
from umaserve.models.finding.places import places
from umaserve.models.finding.reference import locate

NAME = "ann/some-model-GGUF"
REF = f"hf:{NAME}"
DATA = random.Random(32).randbytes(1_500_000)
SMALL = random.Random(33).randbytes(300_000)
PARTS = {f"m-Q2_K-{n:05d}-of-00003.gguf": random.Random(n).randbytes(200_000) for n in (1, 2, 3)}
FILES = {
    "README.md": b"# a model", "m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": SMALL,
    "mmproj-F16.gguf": b"beside", **PARTS,
}  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hubs.running() as hub:
        hub.repositories[NAME] = Repository(dict(FILES), in_git=frozenset({"README.md"}))
        yield hub


class Puller:
    """The command, with a cache and a hub of its own."""

    def __init__(self, hub: Hub, home: Path) -> None:
        self.hub, self.home = hub, home
        hidden = ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE")
        kept = {name: value for name, value in environment().items() if name not in hidden}
        self.environment = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home)}

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "umaserve", "pull", *words],
            env={**self.environment, **more}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIMEOUT,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "umaserve", "pull", *words], env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def blob(self, data: bytes) -> Path:
        folder = self.home / "hub" / ("models--" + NAME.replace("/", "--"))
        return folder / "blobs" / hubs.sha256(data)

    def partial(self, data: bytes) -> Path:
        return self.blob(data).with_name(f"{hubs.sha256(data)}.incomplete")

    def located(self, reference: str) -> bytes:
        where = places({"HF_HOME": str(self.home)}, self.home)
        return Path(locate(reference, where)).read_bytes()


@pytest.fixture
def pull(hub: Hub, tmp_path: Path) -> Puller:
    return Puller(hub, tmp_path / "hf")


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"])
def test_an_empty_variable_is_none(pull: Puller, name: str, tmp_path: Path) -> None:
    for other in ("XDG_CACHE_HOME", "HF_HOME"):
        pull.environment.pop(other, None)
    done = pull(REF, **{name: "", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / ".cache/huggingface/hub")


def test_a_model_is_fetched_and_found(pull: Puller, hub: Hub) -> None:
    done = pull(REF)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.name == "m-Q4_K_M.gguf" and path.read_bytes() == DATA
    assert f"`umaserve --model {REF}` serves it" in done.stderr
    told, *_ = done.stderr.partition("`umaserve --model")
    assert "1 MiB to fetch into " in told and "serving it takes at least 301 MiB" in told
    assert pull.located(REF) == DATA
    # as other tools expect the cache
    assert path.resolve() == pull.blob(DATA)
    assert (path.parents[2] / "refs/main").read_text() == hubs.COMMIT
    again = pull(REF)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "it is here already" in again.stderr
    assert hub.began_at == [0]


def test_a_file_that_was_cut_later_is_made_whole(pull: Puller, hub: Hub) -> None:
    path = Path(pull(REF).stdout.strip())
    os.truncate(path.resolve(), 400_000)
    done = pull(REF)
    assert done.returncode == 0 and "1 MiB to fetch" in done.stderr, done.stderr
    assert path.read_bytes() == DATA
    assert hub.began_at == [0, 400_000]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_fills_up(hub: Hub, tmp_path: Path) -> None:
    """Others write to it while a model comes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)])
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        hub.stops = [200_000]
        hub.wait = lambda: (disk / "other").write_bytes(bytes(1_200_000)) and None
        done = Puller(hub, disk / "hf")(REF)
        assert done.returncode == 1 and done.stdout == ""
        assert f"umaserve: the disk of {disk}/hf/hub is full; what came so far is" in done.stderr
        assert "standard output" not in done.stderr
        (disk / "other").unlink()
        hub.wait = None
        assert Puller(hub, disk / "hf")(REF).returncode == 0
        assert hub.began_at[-1] > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_short_name_is_a_reference(pull: Puller, hub: Hub) -> None:
    hub.repositories["Qwen/Qwen3-4B-GGUF"] = Repository(
        {"Qwen3-4B-Q4_K_M.gguf": SMALL, "Qwen3-4B-Q8_0.gguf": DATA}
    )
    done = pull("qwen3-4b")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == SMALL
    assert "`umaserve load qwen3-4b`" in done.stderr
    assert pull.located("qwen3:4b") == SMALL


def test_what_an_interrupted_download_still_takes(pull: Puller, hub: Hub) -> None:
    part = pull.partial(DATA)
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:1_200_000])
    assert "0 MiB to fetch" in pull(REF).stderr


def test_a_model_that_this_machine_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from umaserve.cli.models import pull as command
    from umaserve.models.fetching import hub as fetching

    plan = fetching.Plan(NAME, hubs.COMMIT, (fetching.HubFile("m.gguf", 18 << 30, "a" * 64),))
    for memory, too_little in ((16 << 30, True), (24 << 30, False)):
        monkeypatch.setattr(command, "memory_here", lambda memory=memory: (memory, False))
        text = command._what_it_takes(plan)
        assert f"this machine has {memory >> 30}.0 GiB of memory" in text
        assert text.endswith(", which is too little") == too_little


@pytest.mark.parametrize(
    ("wanted", "data"), [("q8_0", SMALL), ("m-Q8_0.gguf", SMALL), ("mmproj-F16.gguf", b"beside")]
)
def test_a_quantisation_or_a_file_may_be_named(pull: Puller, wanted: str, data: bytes) -> None:
    done = pull(f"{REF}:{wanted}")
    assert done.returncode == 0, done.stderr
    assert pull.located(f"{REF}:{wanted}") == data


def test_all_files_of_a_split_model_come(pull: Puller) -> None:
    done = pull(f"{REF}:Q2_K")
    first = Path(done.stdout.strip())
    assert first.name == "m-Q2_K-00001-of-00003.gguf"
    assert {path.name: path.read_bytes() for path in first.parent.iterdir()} == PARTS


def test_a_pull_that_is_interrupted_five_times_ends_with_the_right_hash(
    pull: Puller, hub: Hub
) -> None:
    """By Ctrl-C, by signals that leave no time, and by a connection that breaks."""
    gone = threading.Event()
    hub.wait = lambda: gone.wait(TIMEOUT) and None
    sizes = [0]
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        gone.clear()
        hub.stops = [200_000]
        child = pull.start(REF)
        eventually(grown(pull, sizes[-1] + 130_000), "bytes came")
        child.send_signal(number)
        out, err = child.communicate(timeout=TIMEOUT)
        gone.set()
        if number == signal.SIGINT:
            assert child.returncode == 130 and f"umaserve pull {REF} goes on from here" in err
        else:
            assert child.returncode == -number
        assert out == "" and "Traceback" not in err
        assert not pull.blob(DATA).exists()
        sizes.append(pull.partial(DATA).stat().st_size)
    hub.wait = None
    hub.stops = [100_000, 0, 50_000]  # and then connections break, one before anything came
    done = pull(REF)
    assert done.returncode == 0, done.stderr
    assert hubs.sha256(Path(done.stdout.strip()).read_bytes()) == hubs.sha256(DATA)
    assert not pull.partial(DATA).exists()
    last = sizes[-1]
    assert hub.began_at == [*sizes, last + 100_000, last + 100_000, last + 150_000]
    assert sizes == sorted(set(sizes))


def grown(pull: Puller, size: int) -> Callable[[], bool]:
    path = pull.partial(DATA)
    return lambda: path.exists() and path.stat().st_size >= size


def test_a_server_that_knows_no_ranges_begins_anew(pull: Puller, hub: Hub) -> None:
    hub.ranges, hub.stops = False, [200_000]
    done = pull(REF)
    assert done.returncode == 0, done.stderr
    assert hub.began_at == [0, 0] and pull.located(REF) == DATA


def test_a_longer_file_of_an_earlier_try_is_begun_anew(pull: Puller, hub: Hub) -> None:
    partial = pull.partial(SMALL)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(SMALL + b"more")
    assert pull(f"{REF}:Q8_0").returncode == 0
    assert hub.began_at == [0] and pull.located(f"{REF}:Q8_0") == SMALL


def test_other_bytes_than_described_are_thrown_away(pull: Puller, hub: Hub) -> None:
    hub.changed = bytes(len(SMALL))
    done = pull(f"{REF}:Q8_0")
    assert done.returncode == 1 and done.stdout == ""
    assert "m-Q8_0.gguf came with other bytes than the hub describes" in done.stderr
    assert not pull.blob(SMALL).exists() and not pull.partial(SMALL).exists()
    hub.changed = None
    assert pull(f"{REF}:Q8_0").returncode == 0


def test_a_page_instead_of_the_file_is_not_asked_for_for_ever(pull: Puller, hub: Hub) -> None:
    """As of a proxy that wants somebody to log in: a whole answer, and no more than that."""
    hub.ranges, hub.changed = False, b"<p>please log in</p>"
    done = pull(f"{REF}:Q8_0")
    assert done.returncode == 1 and "ends before its end, each time" in done.stderr
    assert len(hub.began_at) == TRIES + 1  # the first brings something


def test_a_file_that_git_itself_keeps(pull: Puller, hub: Hub) -> None:
    hub.repositories[NAME] = Repository({"m.gguf": SMALL}, in_git=frozenset({"m.gguf"}))
    assert pull(REF).returncode == 0
    assert pull.located(REF) == SMALL
    hub.repositories[NAME].files["m.gguf"] = SMALL[::-1]
    hub.changed = bytes(len(SMALL))
    assert "other bytes" in pull(REF).stderr


def test_two_pulls_at_once(pull: Puller, hub: Hub) -> None:
    gone = threading.Event()
    hub.wait, hub.stops = lambda: gone.wait(TIMEOUT) and None, [200_000]
    first = pull.start(REF)
    eventually(grown(pull, 130_000), "bytes came")
    second = pull(REF)
    assert second.returncode == 1 and "another pull fetches the same file" in second.stderr
    gone.set()
    out, err = first.communicate(timeout=TIMEOUT)
    assert first.returncode == 0, err
    assert Path(out.strip()).read_bytes() == DATA


# --- who may, and what is there -------------------------------------------------------------------


def test_a_gated_repository(pull: Puller, hub: Hub) -> None:
    hub.repositories[NAME].gated = True
    refused = pull(REF)
    assert refused.returncode == 1
    assert f"accept its terms at {hub.url}/{NAME}, then set HF_TOKEN" in refused.stderr
    assert not pull.partial(DATA).exists()
    wrong = pull(REF, HF_TOKEN="hf_" + "b" * 34)
    assert wrong.returncode == 1 and "the token in HF_TOKEN is not accepted" in wrong.stderr
    done = pull(REF, HF_TOKEN=hubs.TOKEN)
    assert done.returncode == 0, done.stderr
    assert pull.located(REF) == DATA
    assert hub.tokens_told == []  # the files' server is somebody else


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["hf:ann/none"], 1, "shows no repository ann/none: check the name"),
        ([f"{REF}:Q3_K_S"], 1, "has no Q3_K_S; it has Q2_K, Q4_K_M, Q8_0"),
        ([f"{REF}:none.gguf"], 1, "has no none.gguf; it has"),
        (["hf:ann/empty"], 1, "ann/empty has no GGUF file: it is a Hugging Face checkpoint"),
        (["hf:ann/half"], 1, "lacks m-00002-of-00002.gguf, a part of m-00001-of-00002.gguf"),
        (["hf:ann/evil"], 1, "the hub does not say what m.gguf holds"),
        ([NAME], 2, f"did you mean {REF}?"),
        (["ollama:llama3"], 2, "names no repository of a hub"),
        (["qwen3-5b"], 2, "did you mean qwen3-"),
        ([], 2, "any other GGUF model of https://huggingface.co: umaserve pull hf:OWNER/REPO"),
    ],
)
def test_what_cannot_be_fetched(
    pull: Puller, hub: Hub, words: list[str], status: int, says: str
) -> None:
    hub.repositories["ann/empty"] = Repository({"model.safetensors": b"x"})
    hub.repositories["ann/half"] = Repository({"m-00001-of-00002.gguf": b"x"})
    hub.repositories["ann/evil"] = Repository({"m.gguf": b"x"}, digest="../../../out")
    done = pull(*words)
    assert done.returncode == status and says in done.stderr, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.parametrize("page", [b"<html>", b"{}", b"[]", b'{"id": 1, "siblings": [{}]}'])
def test_a_server_that_is_no_hub(pull: Puller, hub: Hub, page: bytes) -> None:
    hub.page = page
    done = pull(REF)
    assert done.returncode == 1 and done.stderr.startswith("umaserve: ")
    assert "is HF_ENDPOINT right?" in done.stderr or "has no GGUF file" in done.stderr


def test_a_hub_that_cannot_be_reached(pull: Puller) -> None:
    done = pull(REF, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    offline = pull(REF, HF_HUB_OFFLINE="1")
    assert offline.returncode == 1 and "unset it to fetch a model" in offline.stderr


def test_a_disk_that_is_too_small(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umaserve.models.fetching import hub as fetching
    from umaserve.models.fetching.problems import PullError

    file = fetching.HubFile("m.gguf", 5_000_000_000, "a" * 64)
    free = type("Usage", (), {"free": 1_000_000_000})
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: free)
    with pytest.raises(PullError, match=r"5\.0 GB are to come and .* has room for 1\.0 GB"):
        fetching._require_space(tmp_path, fetching.Plan(NAME, hubs.COMMIT, (file,)))
    (tmp_path / f"{'a' * 64}.incomplete").write_bytes(b"")
    os.truncate(tmp_path / f"{'a' * 64}.incomplete", 4_500_000_000)
    fetching._require_space(tmp_path, fetching.Plan(NAME, hubs.COMMIT, (file,)))


def test_no_other_command_imports_the_hub_s_package() -> None:
    code = (
        "import sys, umaserve.cli as cli\n"
        "for words in (['models'], ['pull', 'x'], ['--version']):\n"
        "    cli.main(words)\n"
        "print(sorted(m for m in sys.modules if m.startswith('huggingface_hub')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_says_what_a_reference_is() -> None:
    done = run_command("pull", "--help")
    assert done.returncode == 0 and "hf:OWNER/REPO" in done.stdout and "HF_TOKEN" in done.stdout
