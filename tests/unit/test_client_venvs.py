"""Environments of programs that others wrote: by hash, once, and whole or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import client_venvs
from tests.support.fixtures.tiny_wheel import lock_line, only_from, write_wheel


def test_what_is_locked_is_installed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in only_from(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client_venvs, "LOCKS", tmp_path)
    monkeypatch.setattr(client_venvs, "OWN", {"tiny": (9,), "old": (3, 9)})
    digest = write_wheel(tmp_path / "index", "tiny", "1.0", "hello")
    (tmp_path / "old.lock").write_text("")

    (tmp_path / "tiny.lock").write_text(lock_line("tiny", "1.0", "0" * 64))
    assert client_venvs.main() == 1
    assert "tiny was not installed" in capfd.readouterr().err
    assert "make test-clients" in client_venvs.why_missing("tiny")

    (tmp_path / "tiny.lock").write_text(lock_line("tiny", "1.0", digest))
    assert client_venvs.main() == 0
    folder = client_venvs.folder_of("tiny")
    assert client_venvs.why_missing("tiny") == "" and folder.is_relative_to(tmp_path / "cache")
    assert subprocess.check_output([folder / "bin/tiny"], text=True) == "hello\n"
    said = capfd.readouterr().out
    assert "installing tiny" in said and "old does not run with Python" in said

    (tmp_path / "index/tiny-1.0-py3-none-any.whl").unlink()
    assert client_venvs.main() == 0
    assert "installing" not in capfd.readouterr().out
