"""Compiled code of the tests lies where the engine's does; the bundled model for tests of parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import build_llama
from tests.support import leftovers
from tests.support.engine_driver import DrivenEngine
from tests.support.fixtures.choices import forget_choices
from tests.support.fixtures.signals import let_children_hear
from tests.support.oracle import Oracle
from tests.support.page import Page, page_of
from tests.support.plain_python import leave_out_callbacks
from tests.support.run_report import RunReport
from tests.support.server_harness import DaemonProcess, RawClient
from tests.support.threaded import environment_of_threads
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.jit.cache import use_jit_cache
from umaserve.llama.builds import cache_root

os.environ.setdefault("UMA_CHECK_CELLS", "1")  # engines look at all that they know when idle
let_children_hear()
leftovers.watch()
forget_choices()
use_jit_cache()  # under the hash of all sources
leave_out_callbacks()
hypothesis.settings.register_profile("any machine", deadline=None)  # others may have the cores
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RunReport(), "run-report")


@pytest.fixture(scope="module")
def model() -> Iterator[llama.Model]:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    with llama.Model.open(llama.load(), demo_model_path(), n_gpu_layers=0) as model:
        yield model


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle(n_ctx=4096)
    yield made
    made.close()


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which a program has a second thread."""
    return environment_of_threads(tmp_path_factory.mktemp("threaded"))


@pytest.fixture(scope="module")
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The gateway's page in Chromium, with the answers ``REPLIES`` of a file of tests."""
    with page_of(tmp_path_factory.mktemp("page"), request.module.REPLIES) as opened:
        opened.size(1400)
        yield opened


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    """The page opened anew; its console stays empty."""
    opened.open()
    yield opened
    assert opened.browser.complaints() == []


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    """Of the ``daemon`` that a file of tests has; it leaves nothing that runs."""
    with daemon.client() as client:
        yield client
    daemon.idle()


@pytest.fixture
def start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., DrivenEngine]]:
    """Starts engines of 4096 cells that know nothing of what ticks cost; ends them."""
    for part in cache_root().iterdir():
        if part.name != "costs":
            (tmp_path / part.name).symlink_to(part)
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    running: list[DrivenEngine] = []

    def make(**options: Any) -> DrivenEngine:
        running.append(DrivenEngine(**{"n_ctx": 4096, **options}))
        return running[-1]

    yield make
    for engine in running:
        if engine.process.poll() is None:
            assert engine.close() == 0
