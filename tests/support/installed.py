"""Installations of this package by the tools that people use, each in a home of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.package_index import no_index_reachable
from umaserve.jit.cache import jit_cache_dir
from umaserve.llama import builds
from umaserve.llama.building import BuildError, toolchain
from umaserve.llama.building.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 900.0
ANSWER_S = 300.0
OURS = ("UMA_", "NUMBA_", "PYTHON", "VIRTUAL_")


def some_build() -> builds.Build:
    """What this machine has of libllama.  Skips where it has none."""
    build = builds.select("cpu") or builds.select()
    if build is None:
        pytest.skip("no build of libllama is in the cache: run `make llama` first")
    return build


def environment_without(*others: str) -> dict[str, str]:
    """The variables of this process, without settings of ours and those that begin so."""
    left_out = (*OURS, *others)
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def locked_versions(path: Path) -> Path:
    """The versions of requirements.lock, as a file that limits what an installer takes."""
    text = (ROOT / "requirements.lock").read_text("utf-8")
    lines = re.findall(r"(?m)^([\w.-]+==[^\\\n]*?) *\\?$", text)
    assert len(lines) > 20
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@dataclass
class Installation:
    """A user's home with one of the two packages installed in it; the commands are in ``bin``."""

    home: Path
    environment: dict[str, str]
    remove: list[str]

    @property
    def bin(self) -> Path:
        return self.home / ".local/bin"

    @property
    def socket(self) -> str:
        return str(self.home / "run/uma.sock")

    @property
    def build(self) -> Path:
        (found,) = (self.home / ".cache/umaserve/llama").iterdir()
        return found

    def command(self, *words: str) -> list[str]:
        return [str(self.bin / words[0]), *words[1:]]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.home / "elsewhere", env={**self.environment, **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S,
        )  # fmt: skip

    def files(self) -> dict[str, float]:
        """Of the home without our cache; with the times of their change.

        What Python itself keeps of the modules that it has read is left out.
        """
        cache = self.home / ".cache/umaserve"
        return {
            str(path): path.lstat().st_mtime
            for path in self.home.rglob("*")
            if not path.is_dir() and path.suffix != ".pyc" and not path.is_relative_to(cache)
        }


def install(package: Path, home: Path) -> Installation:
    """A wheel by uv, a source distribution by pipx.  Skips where no package index answers."""
    for name in ("elsewhere", "run", "tmp"):
        (home / name).mkdir(parents=True, mode=0o700)
    limits = locked_versions(home.parent / "limits.txt")
    environment = environment_without("XDG_", "PIPX_") | {
        "HOME": str(home), "TMPDIR": str(home / "tmp"), "XDG_RUNTIME_DIR": str(home / "run"),
        "UMA_THREADS": "1",
    }  # fmt: skip
    if package.suffix == ".whl":
        try:
            log = home.parent / "uv.log"
            program = [toolchain.from_index("uv", log, Reporter())]
        except BuildError as error:
            if no_index_reachable(log.read_text("utf-8")):
                pytest.skip("no package index can be reached, so uv cannot be fetched")
            raise AssertionError(str(error)) from None
        words = [*program, "tool", "install", "--constraints", str(limits)]
        remove = [*program, "tool", "uninstall", "umaserve"]
        variables = {"UV_PYTHON_DOWNLOADS": "never"}
    else:
        program = [sys.executable, "-m", "pipx"]
        words, remove = [*program, "install"], [*program, "uninstall", "umaserve"]
        # also for what builds the package
        variables = {"PIP_CONSTRAINT": str(limits), "PIP_BUILD_CONSTRAINT": str(limits)}
    done = subprocess.run(
        [*words, "--python", sys.executable, package],
        cwd=home, env=environment | variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S,
    )  # fmt: skip
    if done.returncode and no_index_reachable(done.stdout):
        pytest.skip("no package index can be reached, so nothing can be installed")
    assert done.returncode == 0, done.stdout
    return Installation(home, environment, remove)


def give_library(installation: Installation, build: builds.Build) -> None:
    """What the first start would build in minutes: libllama and samplers, but not the binding."""
    cache = installation.home / ".cache/umaserve"
    for name in ("llama", "jit"):
        (cache / name).mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    shutil.copytree(build.path, cache / "llama" / build.key, symlinks=True)
    shutil.rmtree(cache / "llama" / build.key / "python", ignore_errors=True)
    if jit_cache_dir().exists():
        shutil.copytree(jit_cache_dir(), cache / "jit" / jit_cache_dir().name)
