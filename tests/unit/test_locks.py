"""The lock files pin, with hashes, what pyproject.toml asks for; `make` installs nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import client_venvs
from tests.support.fixtures.tiny_wheel import lock_line, only_from, write_wheel
from umaserve.llama.building import toolchain

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
TEST_LOCK = ROOT / "requirements-test.lock"
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))

_MACHINES = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64"))
PLACES = [
    {
        "sys_platform": system,
        "platform_system": system.capitalize(),
        "platform_machine": machine,
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.1",
        "platform_python_implementation": "CPython",
    }
    for system, machine in _MACHINES
    for minor in range(10, 16)
    if (system, machine) != ("darwin", "x86_64") or minor < 14  # numba has no wheel for it
]


def asked(project: dict[str, Any]) -> list[str]:
    """What `make setup` needs: to run, and to install the project itself."""
    return [*project["project"]["dependencies"], *project["build-system"]["requires"]]


def asked_by_tests(project: dict[str, Any]) -> list[str]:
    """What `make setup-test` needs."""
    return [*asked(project), *project["project"]["optional-dependencies"]["test"]]


def read_lock(text: str) -> list[Requirement]:
    """The pinned packages; AssertionError for a line that is no pin and none of its hashes."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for entry in re.split(r"\n(?=\S)", "\n".join(kept)):
        first, *hashes = entry.split(" \\\n")
        assert hashes, f"{first} has no hash"
        for line in hashes:
            assert re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", line.rstrip("\n")), line
        found.append(Requirement(first))
        assert re.fullmatch(r"==[\w.+]+", str(found[-1].specifier)), first
    return found


def files_of(text: str) -> dict[str, str]:
    """Of each pinned version (``numpy==2.4.6``): the hashes that pip may install, as lines."""
    found = {}
    for entry in re.split(r"\n(?=\S)", re.sub(r"(?m)^ *#.*\n", "", text).strip()):
        first, hashes = entry.split(" \\\n", 1)
        found[first.split()[0]] = hashes
    return found


def applying(found: Iterable[Requirement], place: dict[str, str]) -> list[Requirement]:
    return [one for one in found if one.marker is None or one.marker.evaluate(place)]


def faults(wanted: list[str], lock: str) -> list[str]:
    """What the lock file does not pin, or not as it is asked for, on some machine."""
    pinned, said = read_lock(lock), []
    for place in PLACES:
        here = applying(pinned, place)
        versions = {canonicalize_name(one.name): str(one.specifier)[2:] for one in here}
        assert len(versions) == len(here), f"a package is pinned twice for {place}"
        for want in applying(map(Requirement, wanted), place):
            have = versions.get(canonicalize_name(want.name))
            if have is None or not want.specifier.contains(have):
                said.append(f"{want} is asked for, {have} locked")
    return said


def test_the_packages_are_pinned_as_pyproject_asks() -> None:
    assert faults(asked(PROJECT), LOCK.read_text("utf-8")) == [], "run `make lock`"
    assert faults(asked_by_tests(PROJECT), TEST_LOCK.read_text("utf-8")) == [], "run `make lock`"


def test_what_runs_is_what_was_tested() -> None:
    """The same versions with the same hashes, and nothing that the tests alone ask for."""
    run, tested = (files_of(lock.read_text("utf-8")) for lock in (LOCK, TEST_LOCK))
    assert run.items() < tested.items()
    names = {canonicalize_name(pin.partition("==")[0]) for pin in run}
    extra = PROJECT["project"]["optional-dependencies"]["test"]
    assert names.isdisjoint(canonicalize_name(Requirement(one).name) for one in extra)


def test_the_build_tools_are_pinned_as_pyproject_asks() -> None:
    wanted = PROJECT["dependency-groups"]["tools"]
    assert faults(wanted, toolchain.LOCK.read_text("utf-8")) == [], "run `make lock`"
    for want in map(Requirement, wanted):
        version, lines = toolchain.locked(want.name)
        (pin,) = read_lock(lines)
        assert (pin.name, str(pin.specifier)) == (want.name, f"=={version}")
    package = PROJECT["tool"]["setuptools"]["package-data"]["umaserve.llama.building"]
    assert toolchain.LOCK.name in package, "a copy that pip installed needs it too"


def test_the_clients_are_pinned_as_pyproject_asks() -> None:
    groups = PROJECT["dependency-groups"]
    for name, too_new in {"clients": (4,), **client_venvs.OWN}.items():
        wanted = groups[name if name == "clients" else f"client-{name}"]
        lock = (client_venvs.LOCKS / f"{name}.lock").read_text("utf-8")
        assert faults(wanted, lock) == [], "run `make lock`"
        for place in PLACES:  # what has no lock for a Python is left out there, and told
            new = tuple(map(int, place["python_version"].split("."))) >= too_new
            assert bool(applying(map(Requirement, wanted), place)) != new


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("anything-new>=1", "anything-new>=1 is asked for, None locked"),
        ("numba>=99", "numba>=99 is asked for, 0."),
        ("anything-new>=1; python_version < '3.11'", "is asked for, None locked"),
        ("anything-new>=1; python_version < '3.10'", ""),
    ],
)
def test_a_change_of_pyproject_alone_is_found(change: str, said: str) -> None:
    found = faults([*asked(PROJECT), change], LOCK.read_text("utf-8"))
    assert bool(found) == bool(said) and all(said in fault for fault in found)


@pytest.mark.parametrize(
    "lines",
    [
        "numpy==2.0\n",
        "numpy>=2.0 \\\n    --hash=sha256:" + "a" * 64 + "\n",
        "numpy==2.0 \\\n    --hash=md5:" + "a" * 32 + "\n",
        "--index-url somewhere\nnumpy==2.0 \\\n    --hash=sha256:" + "a" * 64 + "\n",
    ],
)
def test_a_lock_that_pins_too_little_is_found(lines: str) -> None:
    with pytest.raises(AssertionError):
        read_lock(lines)


@pytest.mark.parametrize(
    "lock",
    [LOCK, TEST_LOCK, toolchain.LOCK, *client_venvs.LOCKS.glob("*.lock")],
    ids=lambda lock: lock.name,
)
def test_a_lock_names_no_index(lock: Path) -> None:
    """Which one pip uses is the machine's business; the hashes hold for any."""
    text = lock.read_text("utf-8")
    options = [line for line in text.splitlines() if line.lstrip().startswith(("-i", "--"))]
    assert "://" not in text and "index-url" not in text and "find-links" not in text
    assert all(line.lstrip().startswith("--hash=") for line in options)


# --- make ---------------------------------------------------------------------------------------


def make(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "ARGS"))}
    return subprocess.run(
        ["make", *words], cwd=folder, env={**kept, "PYTHON": sys.executable, **more},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder where everything is installed, as far as make can see."""
    folder = tmp_path / "project"
    (folder / ".venv").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", LOCK.name, TEST_LOCK.name):
        shutil.copyfile(ROOT / name, folder / name)
        os.utime(folder / name, (1, 1))
    (folder / "tools").mkdir()
    shutil.copyfile(ROOT / "tools/room.py", folder / "tools/room.py")
    for stamp in (".ready", ".ready-test"):
        (folder / ".venv" / stamp).touch()
    return folder


def would_install(folder: Path, target: str) -> list[str]:
    """The commands of pip that `make target` would run."""
    lines = make(folder, "-n", target).stdout.replace("\\\n", " ").splitlines()
    return [line for line in lines if "pip install" in line]


@pytest.mark.parametrize("changed", ["pyproject.toml", LOCK.name])
def test_setup_installs_by_hash_after_a_change(project: Path, changed: str) -> None:
    assert would_install(project, "setup") == []
    later = os.stat(project / ".venv/.ready").st_mtime + 10
    os.utime(project / changed, (later, later))
    packages, itself = would_install(project, "setup")
    for word in ("--require-hashes", "--only-binary :all:", f"-r {LOCK.name}"):
        assert word in packages
    for word in ("--no-index", "--no-deps", "--no-build-isolation"):
        assert word in itself
    *_, tests = would_install(project, "setup-test")  # which may ask for other versions now
    assert f"-r {TEST_LOCK.name}" in tests


def test_what_tests_need_is_not_installed_to_run(project: Path) -> None:
    (project / ".venv/.ready-test").unlink()
    for target in ("setup", "run", "llama"):
        assert would_install(project, target) == []
    for target in ("setup-test", "test", "test-slow", "lint", "bench"):
        (packages,) = would_install(project, target)
        for word in ("--require-hashes", "--only-binary :all:", f"-r {TEST_LOCK.name}"):
            assert word in packages


def test_setup_refuses_a_package_with_another_hash(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / ".venv")
    digest = write_wheel(tmp_path / "index", "tiny", "1.0", "another")
    (project / "requirements.lock").write_text(lock_line("tiny", "1.0", "0" * 64), "utf-8")
    done = make(project, "setup", **only_from(tmp_path / "index"))
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout and digest in done.stdout
    assert "The packages of requirements.lock were not installed" in done.stdout
    assert not (project / ".venv/.ready").exists()
    assert not (project / ".venv/bin/tiny").exists()
