"""Daemons that the programs of all tests here share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client_programs import Scripted
from tests.support.http_client import port_of
from tests.support.real_daemon import real


@pytest.fixture(scope="session")
def real_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a daemon with the bundled model."""
    with real(tmp_path_factory.mktemp("real"), http="127.0.0.1:0") as daemon:
        yield f"http://127.0.0.1:{port_of(daemon)}"
        daemon.idle()  # no stream that a client has left goes on


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """Of a daemon whose model says what each test gives it to say."""
    made = Scripted(tmp_path_factory.mktemp("scripted"))
    with made.daemon as daemon:
        yield made
        daemon.idle()
