"""The options that the Python clients take are the protocol's, by name; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import umaserve
from tests.support.fixtures.fake_daemon import FakeDaemon
from tools import field_tables
from umaserve.client import Client, Eos, Options, Timings
from umaserve.client.options import Slo, check_names
from umaserve.client.wire import Router, generate_message, pack
from umaserve.protocol.tables import fields, settings


def test_the_options_are_the_protocols() -> None:
    """`python -m tools.field_tables` writes them."""
    text = field_tables.OPTIONS.read_text("utf-8")
    assert field_tables.options(text) == text
    wire = {field.name for field in fields.GENERATE_FIELDS}
    assert set(Options.__annotations__) == wire - set(field_tables.NO_OPTIONS)
    assert set(Slo.__annotations__) == {field.name for field in settings.SLO_FIELDS}


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="'max_token' is no option.*did you mean 'max_tokens'"):
        generate_message("a", "hi", None, {"max_token": 3})
    with pytest.raises(TypeError, match="PROTOCOL"):
        check_names({"zzz": 1})


def test_a_misspelt_option_sends_nothing(tmp_path: Path) -> None:
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon, Client(daemon.path, timeout=20) as client:
        with pytest.raises(TypeError):
            client.complete("hi", max_token=3)  # type: ignore[call-arg]
        assert client.ping() > 0
        assert client.complete("hi").text


def test_timings_are_attributes_and_a_streams_end_has_no_text() -> None:
    router = Router()
    router.streams["a"] = events = type(router.answers)()
    router.feed(pack({"id": "a", "event": "eos", "reason": "stop", "timings": {"ttft_ms": 4.5}}))
    (eos,) = events
    assert isinstance(eos, Eos) and eos.timings == Timings(ttft_ms=4.5)
    assert eos.timings.ttft_ms == 4.5 and eos.timings.total_ms is None
    assert eos.text == ""


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(umaserve.__file__).with_name("py.typed").exists()
