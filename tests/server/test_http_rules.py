"""Which format and which host a request gets: pure functions."""

from __future__ import annotations

import pytest

from umaserve.gateway.families.own import FORMATS
from umaserve.gateway.host import host_is_ours, host_of
from umaserve.gateway.translate.answers.accept import preferred

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        (BROWSER, "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/plain", "text/plain"),
        ("TEXT/Plain; Version=0.0.4", "text/plain"),
        ("text/*", "text/plain"),
        ("application/*", "application/json"),
        ("text/plain;q=0.9, application/json;q=0.8", "text/plain"),
        ("text/plain;q=0.5, application/json ; q = 0.8", "application/json"),
        ("*/*;q=0.9, application/json;q=0.1", "text/plain"),  # the specific one counts
        ("*/*, application/json;q=0", "text/plain"),
        ("text/html, image/gif, *; q=.2, */*; q=.2", "application/json"),  # as Java's client sends
        ("application/openmetrics-text", "application/openmetrics-text"),
        (PROMETHEUS_2, "application/openmetrics-text"),
        (PROMETHEUS_3, "application/openmetrics-text"),
        ("image/png", None),
        ("application/json;q=0", None),
        ("text/plain;q=nan", None),
        ("text/plain;q=7", None),
        ("text/plain;q=", None),
        (",;,", None),
    ],
)
def test_what_a_client_likes_best(accept: str, chosen: str | None) -> None:
    assert preferred(accept, FORMATS) == chosen


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8080", "10.1.2.3:1", "[::1]", "[::1]:8080", "localhost",
        "LocalHost:99", "localhost.", "box.example:8080", "Box.Example", "box.example.",
    ],
)  # fmt: skip
def test_hosts_that_are_ours(host: str) -> None:
    assert host_is_ours(host, ["other.example", "box.EXAMPLE"])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil.example@127.0.0.1", "evil.example#127.0.0.1", "127.0.0.1/x", "127.0.0.1:x", "[::1",
        "127.0.0.1\t", "", ":8080", "localhost:99999999", "xbox.example", "127.1",
    ],
)  # fmt: skip
def test_hosts_that_are_not(host: str) -> None:
    assert not host_is_ours(host, ["box.example"])


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("/metrics", "ours"),
        ("//evil.example/metrics", "ours"),
        ("http://evil.example/metrics?x", "evil.example"),
        ("http://evil.example", "evil.example"),
        ("*", "ours"),
        ("evil.example:443", "ours"),
    ],
)
def test_targets(target: str, host: str) -> None:
    assert host_of(target, "ours") == host


def test_target_that_is_no_url() -> None:
    with pytest.raises(ValueError, match="."):
        host_of("http://[x/", "ours")
