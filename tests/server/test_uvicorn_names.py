"""Parts of uvicorn that the gateway uses though they are not public.

pyproject.toml admits no version newer than the tested one, which may lack them.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import tomli
import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http import httptools_impl

PROJECT = tomli.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
METHODS = {
    uvicorn.Server: ("main_loop", "on_tick", "startup", "shutdown", "capture_signals"),
    httptools_impl.HttpToolsProtocol: (
        "_start_asgi_task", "_unset_keepalive_if_required", "timeout_keep_alive_handler",
        "on_message_begin", "on_headers_complete", "on_body", "on_response_complete",
    ),
}  # fmt: skip
# that their constructors set
ATTRIBUTES = {
    uvicorn.Server: ("server_state", "lifespan"),
    httptools_impl.HttpToolsProtocol: ("cycle", "pipeline", "flow", "connections",
                                       "timeout_keep_alive_task"),
    httptools_impl.RequestResponseCycle: (
        "body", "more_body", "disconnected", "message_event", "response_started",
        "response_complete", "waiting_for_100_continue", "chunked_encoding",
        "expected_content_length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_its_methods_are_there(owner: type) -> None:
    assert [name for name in METHODS[owner] if not callable(getattr(owner, name, None))] == []


@pytest.mark.parametrize("owner", ATTRIBUTES, ids=lambda owner: owner.__name__)
def test_its_attributes_are_there(owner: type) -> None:
    source = inspect.getsource(owner)
    assert [name for name in ATTRIBUTES[owner] if f"self.{name}" not in source] == []
    assert httptools_impl.STATUS_LINE[200].startswith(b"HTTP/1.1 200")


def test_no_version_is_admitted_that_was_not_tested() -> None:
    (asked,) = (
        each for line in PROJECT["project"]["dependencies"]
        if (each := Requirement(line)).name == "uvicorn"
    )  # fmt: skip
    tested = Version(uvicorn.__version__)
    assert asked.specifier.contains(tested)
    assert not asked.specifier.contains(f"{tested.major}.{tested.minor + 1}.0")
