"""Models in folders as four tools lay them out, and the names that lead to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import model_trees as trees
from umaserve.models.about import about
from umaserve.models.finding import lm_studio
from umaserve.models.finding import places as places_module
from umaserve.models.finding.places import Places, find_all, places
from umaserve.models.finding.reference import (
    BadReference,
    HubReference,
    NotHere,
    hub_reference,
    lasting,
    locate,
)
from umaserve.models.finding.repository import choose, models_among, short_name

MODEL, OTHER, THIRD = (trees.tiny_model(seed) for seed in (1, 2, 3))
BESIDE = {"README.md": b"x", "mmproj-F16.gguf": trees.tiny_model(9)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, on a machine where no service has models."""
    monkeypatch.setattr(places_module, "OLLAMA_SERVICE", str(tmp_path / "service"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "home"


def look(home: Path, model_dir: str = "", **environ: str) -> dict[str, str]:
    """Paths by names."""
    return {found.name: found.path for found in find_all(places(environ, home, model_dir))}


# --- the hub's cache ------------------------------------------------------------------------------


def test_the_hub_s_cache(home: Path) -> None:
    cache = home / ".cache/huggingface/hub"
    files = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": OTHER, "deep/odd.gguf": THIRD, **BESIDE}
    snapshot = trees.in_hub(cache, "ann/some-model-GGUF", files)
    name = "hf:ann/some-model-GGUF"
    assert look(home) == {
        f"{name}:Q4_K_M": str(snapshot / "m-Q4_K_M.gguf"),
        f"{name}:Q8_0": str(snapshot / "m-Q8_0.gguf"),
        f"{name}:deep/odd.gguf": str(snapshot / "deep/odd.gguf"),
        f"{name}:mmproj-F16.gguf": str(snapshot / "mmproj-F16.gguf"),
    }


def test_a_split_model_counts_once(home: Path) -> None:
    parts = {f"Q8_0/m-Q8_0-{n:05d}-of-00003.gguf": trees.tiny_model(n) for n in (1, 2, 3)}
    snapshot = trees.in_hub(home / ".cache/huggingface/hub", "a/b", parts)
    assert look(home) == {"hf:a/b:Q8_0": str(snapshot / "Q8_0/m-Q8_0-00001-of-00003.gguf")}


def test_the_newest_snapshot_that_has_a_file_counts(home: Path) -> None:
    cache = home / ".cache/huggingface/hub"
    old = trees.in_hub(cache, "a/b", {"m-Q4_0.gguf": MODEL, "m-Q8_0.gguf": OTHER}, "1" * 40)
    new = trees.in_hub(cache, "a/b", {"m-Q8_0.gguf": THIRD}, "2" * 40)
    os.utime(new, (1, 1))  # refs/main decides, not the clock
    assert look(home) == {
        "hf:a/b:Q4_0": str(old / "m-Q4_0.gguf"),
        "hf:a/b:Q8_0": str(new / "m-Q8_0.gguf"),
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_HOME": "/x/home"},
        {"HF_HUB_CACHE": "/x/cache", "HF_HOME": "/x/home"},
        {"HUGGINGFACE_HUB_CACHE": "/x/old"},
        {"XDG_CACHE_HOME": "/x/xdg"},
        {"HF_HOME": "~/there/$PART", "PART": "p"},
    ],
)
def test_the_cache_is_where_the_hub_s_own_package_has_it(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(places().hubs[0]) == told.stdout.strip()


# --- llama.cpp ------------------------------------------------------------------------------------


def test_llama_cpp_s_flat_cache(home: Path) -> None:
    cache = home / ".cache/llama.cpp"
    known = trees.in_llama_cpp(cache, "ann/some_model-GGUF", "latest", "q/m-Q4_K_M.gguf", MODEL)
    unknown = trees.write(cache / "by-url.gguf", OTHER)
    trees.write(cache / "by-url.gguf.etag", b"x")
    trees.write(cache / "manifest=a=b=c.json", b"{not json")
    assert look(home) == {
        "hf:ann/some_model-GGUF:Q4_K_M": str(known),
        "llama.cpp:by-url.gguf": str(unknown),
    }
    assert look(home, LLAMA_CACHE=str(cache)) == look(home)
    where = places({}, home)
    for text in ("hf:ann/some_model-GGUF", "hf:ann/some_model-GGUF:q4_k_m"):
        assert locate(text, where) == str(known)


def test_llama_cpp_s_cache_with_the_hub_s_layout(home: Path) -> None:
    snapshot = trees.in_hub(home / "llama", "a/b", {"m-Q8_0.gguf": MODEL})
    found = find_all(places({"LLAMA_CACHE": str(home / "llama")}, home))
    assert [(one.name, one.path, one.tool) for one in found] == [
        ("hf:a/b:Q8_0", str(snapshot / "m-Q8_0.gguf"), "Hugging Face")
    ]


def test_llama_cpp_s_cache_on_macos(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    path = trees.write(home / "Library/Caches/llama.cpp/m.gguf", MODEL)
    assert look(home) == {"llama.cpp:m.gguf": str(path)}


# --- Ollama ---------------------------------------------------------------------------------------


def test_ollama_s_manifests(home: Path) -> None:
    folder = home / ".ollama/models"
    library = trees.in_ollama(folder, "registry.ollama.ai/library/llama3.2/3b", MODEL, params=b"{}")
    of_user = trees.in_ollama(folder, "registry.ollama.ai/ann/tuned/latest", OTHER)
    of_hub = trees.in_ollama(folder, "hf.co/ann/m-GGUF/Q8_0", THIRD)
    trees.in_ollama(folder, "registry.ollama.ai/library/cloud/120b", None, license=b"MIT")
    trees.write(folder / "manifests/registry.ollama.ai/library/llama3.2/.DS_Store", b"x")
    assert look(home) == {
        "ollama:llama3.2:3b": str(library),
        "ollama:ann/tuned:latest": str(of_user),
        "ollama:hf.co/ann/m-GGUF:Q8_0": str(of_hub),
    }
    assert look(home, OLLAMA_MODELS=str(folder)) == look(home)
    where = places({}, home)
    assert locate("ollama:llama3.2:3b", where) == str(library)
    assert locate("ollama:ann/tuned", where) == str(of_user)  # its tag is "latest"
    with pytest.raises(NotHere, match=r"did you mean ollama:llama3\.2:3b\?"):
        locate("ollama:llama3.2", where)


UNREADABLE = "its manifest cannot be read; pull it again"
SECRET = "/etc/hostname"
DEEP = b"[" * 100_000


def manifest_of(folder: Path, content: bytes) -> Path:
    return trees.write(folder / "manifests/registry.ollama.ai/library/bad/1b", content)


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:" + "a" * 63, "sha256:" + "a" * 65, "sha256:" + "A" * 64, "sha256:\0", "", 7, None,
        SECRET, "../../x.gguf", "sha256-../../x.gguf", "sha256:" + "a" * 64 + "/../../x.gguf",
        "sha256:" + "a" * 64 + "\n", "md5:" + "a" * 64,
    ],
)  # fmt: skip
def test_a_digest_that_names_no_blob_is_no_path(home: Path, digest: object) -> None:
    layer = {"mediaType": trees.OLLAMA_MODEL, "digest": digest}
    manifest = manifest_of(home / ".ollama/models", json.dumps({"layers": [layer]}).encode())
    (found,) = find_all(places({}, home))
    assert (found.path, found.problem) == (str(manifest), UNREADABLE)


LONG = b" " * (5 << 20) + b'{"layers": []}'


@pytest.mark.parametrize("content", [DEEP, LONG, b'{"layers": 7}', b"\xff"])
def test_a_manifest_that_is_no_manifest(home: Path, content: bytes) -> None:
    manifest = manifest_of(home / ".ollama/models", content)
    (found,) = find_all(places({}, home))
    assert (found.path, found.problem) == (str(manifest), UNREADABLE)


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def test_nobody_waits_for_pipes_where_other_tools_have_files(home: Path) -> None:
    pipe(home / ".ollama/models/manifests/registry.ollama.ai/library/bad/1b")
    pipe(home / ".cache/llama.cpp/manifest=a=b=c.json")
    pipe(home / ".cache/huggingface/hub/models--a--b/refs/main")
    pipe(home / ".lmstudio/settings.json")
    pipe(home / lm_studio.POINTER)
    (found,) = find_all(places({}, home))
    assert found.problem == UNREADABLE
    pipe(home / "own/m.gguf")
    facts, header = about(str(home / "own/m.gguf"))
    assert header is None and "a named pipe" in facts.problem


@pytest.mark.parametrize("content", [DEEP, b'{"downloadsFolder": "a\\u0000b"}', b"[7]"])
def test_settings_of_lm_studio_that_name_no_folder(home: Path, content: bytes) -> None:
    trees.write(home / ".lmstudio/settings.json", content)
    trees.write(home / lm_studio.POINTER, b"a\0b")
    trees.write(home / ".cache/llama.cpp/manifest=a=b=c.json", content)
    assert find_all(places({}, home)) == []


def test_a_service_of_ollama(home: Path, tmp_path: Path) -> None:
    path = trees.in_ollama(tmp_path / "service", "registry.ollama.ai/library/q/0.5b", MODEL)
    assert look(home) == {"ollama:q:0.5b": str(path)}
    assert look(home, OLLAMA_MODELS=str(home)) == {}


def test_what_ollama_makes_otherwise_cannot_be_served(home: Path) -> None:
    folder = home / ".ollama/models"
    trees.in_ollama(folder, "registry.ollama.ai/library/tuned/1b", MODEL, adapter=OTHER)
    trees.write(folder / "manifests/registry.ollama.ai/library/torn/1b", b'{"layers": [')
    problems = {found.name: found.problem for found in find_all(places({}, home))}
    assert "adapter" in problems["ollama:tuned:1b"]
    assert "manifest cannot be read" in problems["ollama:torn:1b"]
    with pytest.raises(NotHere, match="adapter"):
        locate("ollama:tuned:1b", places({}, home))


# --- LM Studio, and folders -----------------------------------------------------------------------


@pytest.mark.parametrize("place", [".lmstudio", ".cache/lm-studio", "elsewhere"])
def test_lm_studio_s_homes(home: Path, place: str) -> None:
    if place == "elsewhere":
        trees.write(home / ".lmstudio-home-pointer", f"{home / place}\n".encode())
    first = trees.in_lm_studio(home / place, "ann/m-GGUF/m-Q4_K_M.gguf", MODEL)
    second = trees.in_lm_studio(home / place, "ann/m-GGUF/m-Q8_0.gguf", OTHER)
    loose = trees.in_lm_studio(home / place, "loose.gguf", THIRD)
    assert look(home) == {
        "lmstudio:ann/m-GGUF:Q4_K_M": str(first),
        "lmstudio:ann/m-GGUF:Q8_0": str(second),
        "lmstudio:loose.gguf": str(loose),
    }


def test_lm_studio_s_folder_may_be_moved(home: Path, tmp_path: Path) -> None:
    settings = f'{{"downloadsFolder": "{tmp_path / "disk"}"}}'
    trees.write(home / ".lmstudio/settings.json", settings.encode())
    path = trees.write(tmp_path / "disk/ann/m/m-Q8_0.gguf", MODEL)
    assert look(home) == {"lmstudio:ann/m:Q8_0": str(path)}


def test_folders_of_the_user(home: Path, tmp_path: Path) -> None:
    first = trees.write(tmp_path / "one/deep/m.gguf", MODEL)
    second = trees.write(tmp_path / "two/deep/m.gguf", OTHER)
    split = trees.write(tmp_path / "two/s-00001-of-00002.gguf", THIRD)
    trees.write(tmp_path / "two/s-00002-of-00002.gguf", THIRD)
    model_dir = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    assert look(home, model_dir) == {
        "deep/m.gguf": str(first),
        str(second): str(second),  # the name is taken
        split.name: str(split),
    }
    where = places({}, home, model_dir)
    assert locate("deep/m.gguf", where) == str(first)
    assert lasting("deep/m.gguf", str(first)) == str(first)


def test_one_file_under_two_names_is_one_model(home: Path) -> None:
    blob = trees.in_ollama(home / ".ollama/models", "registry.ollama.ai/library/q/1b", MODEL)
    link = home / ".lmstudio/models/ann/q/q-Q8_0.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    (found,) = find_all(places({}, home))
    assert (found.name, found.also) == ("ollama:q:1b", ("lmstudio:ann/q:Q8_0",))
    assert locate("lmstudio:ann/q:Q8_0", places({}, home)) == found.path


# --- references -----------------------------------------------------------------------------------


def test_a_reference_to_a_hub_means_what_llama_cpp_would_take(home: Path) -> None:
    files = {f"m-{tag}.gguf": trees.tiny_model(n) for n, tag in enumerate(("IQ4_XS", "Q8_0"))}
    cache = home / ".cache/huggingface/hub"
    snapshot = trees.in_hub(cache, "a/b", {**files, **BESIDE})
    where = places({}, home)
    assert locate("hf:a/b", where) == str(snapshot / "m-Q8_0.gguf")
    assert locate("hf:a/b:iq4_xs", where) == str(snapshot / "m-IQ4_XS.gguf")
    assert locate("hf:a/b:mmproj-F16.gguf", where) == str(snapshot / "mmproj-F16.gguf")
    for text in ("hf:a/b:Q4_K_M", "hf:a/c"):
        with pytest.raises(NotHere, match=f"umaserve pull {text}") as caught:
            locate(text, where)
        assert caught.value.fetch == text


def test_a_link_without_its_blob_is_not_there(home: Path) -> None:
    snapshot = trees.in_hub(home / ".cache/huggingface/hub", "a/b", {"m-Q8_0.gguf": MODEL})
    (snapshot / "m-Q8_0.gguf").resolve().unlink()
    with pytest.raises(NotHere):
        locate("hf:a/b", places({}, home))


def test_paths_go_before_names(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trees.write(tmp_path / "m.gguf", MODEL)
    trees.write(tmp_path / "dir/m.gguf", OTHER)
    trees.write(tmp_path / "demo", THIRD)
    where = places({}, home, str(tmp_path / "dir"))
    assert locate("m.gguf", where) == "m.gguf"
    assert locate("demo", where) == ""  # the bundled model, whatever lies here
    assert locate("./demo", where) == "./demo"
    assert locate("gone/x.gguf", where) == "gone/x.gguf"  # whoever opens it says so
    with pytest.raises(NotHere, match="no model here is called nothing"):
        locate("nothing", where)


@pytest.mark.parametrize(
    ("text", "repository", "wanted"),
    [
        ("hf:a/b", "a/b", ""),
        ("hf:a.b/c_d-GGUF:Q4_K_M", "a.b/c_d-GGUF", "Q4_K_M"),
        ("hf:a/b:deep/m.gguf", "a/b", "deep/m.gguf"),
    ],
)
def test_the_parts_of_a_reference(text: str, repository: str, wanted: str) -> None:
    assert hub_reference(text) == HubReference(repository, wanted)
    assert str(HubReference(repository, wanted)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf:a", "names no repository"),
        ("hf:a/b/c", "names no repository"),
        ("hf:a/b:../../x.gguf", "names no repository"),
        ("a/b:Q8_0", r"did you mean hf:a/b:Q8_0\?"),
        ("https://huggingface.co/a/b", r"did you mean hf:a/b\?"),
    ],
)
def test_what_is_no_reference(text: str, says: str) -> None:
    with pytest.raises(BadReference, match=says):
        hub_reference(text)


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("", "m-Q4_K_M.gguf"),
        ("q8_0", "m-Q8_0-00001-of-00002.gguf"),
        ("BF16", "BF16/m-00001-of-00002.gguf"),
        ("Q4_0", "m.Q4_0.gguf"),  # and not IQ4_0
        ("m-IQ4_0.gguf", "m-IQ4_0.gguf"),
        ("Q2_K", None),
        ("gone.gguf", None),
    ],
)
def test_which_file_is_meant(wanted: str, file: str | None) -> None:
    files = [
        "m-IQ4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf",
        "BF16/m-00001-of-00002.gguf", "BF16/m-00002-of-00002.gguf", "m.Q4_0.gguf",
        "mmproj-Q8_0.gguf", "imatrix.gguf", "config.json",
    ]  # fmt: skip
    assert choose(files, wanted) == file
    assert models_among(files) == [
        "BF16/m-00001-of-00002.gguf", "m-IQ4_0.gguf", "m-Q4_K_M.gguf",
        "m-Q8_0-00001-of-00002.gguf", "m.Q4_0.gguf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["m-Q4_K_M", "m.Q8_0", "m-UD-IQ1_S", "m-mxfp4_moe", "m-TQ1_0", "m-BF16", "m-F32"]
)
def test_a_quantisation_names_its_file(name: str) -> None:
    short = short_name([f"{name}.gguf", "other.gguf"], f"{name}.gguf")
    assert name.upper().endswith(short)
    assert short_name(["model.gguf", "m-7b.gguf"], "m-7b.gguf") == "m-7b.gguf"


def test_nothing_is_found_where_nothing_is() -> None:
    assert find_all(Places(hubs=(Path("/nowhere"),), own=(Path("/nowhere"),))) == []
