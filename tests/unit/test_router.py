"""What a load balancer is told and given, without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from umaserve.cli import main
from umaserve.cli.router import haproxy, llmd
from umaserve.cli.router.nodes import Node, read_nodes
from umaserve.server.agent_check import LEAST, MOST, STEP, NodeWeight

SHARE = st.floats(0.0, 1.0)
NODES = "mini=10.0.0.5:8080+8081,10.0.0.6:8080,box=unix:/run/uma.sock+127.0.0.1:9000"


def test_a_session_stays_by_its_name_else_by_its_key() -> None:
    text = haproxy.config(read_nodes(NODES), "127.0.0.1:8000", 64, 128, "1h")
    asked = [line.split("req.hdr(")[1].split(")")[0] for line in text.splitlines()
             if "set-var(txn.uma_session)" in line]  # fmt: skip
    assert asked == [*haproxy.SESSION_HEADERS, "x-api-key", "authorization"]
    # what is a secret does not lie in the table
    assert text.count(",sha2(256),hex") == 2


def test_nodes_are_read() -> None:
    assert read_nodes(NODES) == [
        Node("mini", "10.0.0.5", 8080, "", "10.0.0.5", 8081),
        Node("node2", "10.0.0.6", 8080),
        Node("box", "", 0, "/run/uma.sock", "127.0.0.1", 9000),
    ]
    assert read_nodes("six=[::1]:80+81")[0].agent_host == "::1"


HOSTILE = ["\n    stats enable", " ssl crt /x", "#", "\t", "\r", "$HOME", '"', "'", "\\", "\x00"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_word_adds_a_line_to_the_configuration(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["--listen", f"127.0.0.1:8000{hostile}"], ["--expire", f"1h{hostile}"],
        ["--listen", ""], ["--expire", ""],
    ):  # fmt: skip
        assert main(["router", "--nodes", NODES, *words]) == 2
        told = capsys.readouterr()
        assert told.out == "" and f"{words[0]} " in told.err and "must be one word" in told.err
    for node in (f"10.0.0.5{hostile}:80", f"unix:/run/u{hostile}.sock", f"a{hostile}=10.0.0.5:80"):
        with pytest.raises(ValueError):
            read_nodes(node)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "names no node"), ("host", "is no node"), ("a b=h:1", "no name"), ("h:0", "no port"),
        ("h:1,h:1", "place"), ("a=h:1,a=h:2", "name 'a'"), ("unix:relative", "whole path"),
        ("unix:/x+81", "agent's host"), ("h:1+x", "no port"), ("::1:80", "is no node"),
    ],
)  # fmt: skip
def test_what_is_no_node_is_refused(
    text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=word):
        read_nodes(text)
    assert main(["router", "--nodes", text]) == 2
    assert word in capsys.readouterr().err


@given(looks=st.lists(st.tuples(SHARE, st.none() | SHARE, st.integers(0, 9)), min_size=1))
def test_a_weight_falls_at_once_and_changes_by_steps(
    looks: list[tuple[float, float | None, int]],
) -> None:
    weight, told = NodeWeight(), MOST
    for p95, bandwidth, waiting in looks:
        now = weight.look(p95, bandwidth, waiting)
        wanted = MOST * min(p95, 1.0 if bandwidth is None else bandwidth) * 0.5 ** min(waiting, 3)
        assert LEAST <= now <= MOST
        assert now <= told or now <= wanted + 1
        if wanted < told - STEP:
            assert now == round(max(wanted, LEAST))
        assert now == told or abs(now - told) >= STEP - 1 or now in (LEAST, MOST)
        told = now


def test_a_node_that_has_room_again_is_back_in_a_few_looks() -> None:
    weight = NodeWeight()
    assert weight.look(0.0, 1.0, 0) == LEAST
    rising = [weight.look(1.0, 1.0, 0) for _ in range(7)]
    assert rising == sorted(rising) and rising[0] < 60 and rising[-1] == MOST


def test_files_for_llmd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = "mini=10.0.0.5:8080,laptop=10.0.0.6:8080"
    assert main(["router", "--for", "llm-d", "--nodes", nodes, "--out", str(tmp_path)]) == 0
    endpoints = yaml.safe_load((tmp_path / "endpoints.yaml").read_text())["endpoints"]
    assert [(e["name"], e["address"], e["port"]) for e in endpoints] == [
        ("mini", "10.0.0.5", "8080"), ("laptop", "10.0.0.6", "8080"),
    ]  # fmt: skip
    picker = yaml.safe_load((tmp_path / "epp.yaml").read_text())
    plugins = {each["name"]: each for each in picker["plugins"]}
    assert plugins["file-discovery"]["parameters"]["path"] == f"{tmp_path}/endpoints.yaml"
    (engine,) = plugins["metrics-extractor"]["parameters"]["engineConfigs"]
    assert endpoints[0]["labels"]["llm-d.ai/engine-type"] == engine["name"]
    gauges = {each["metricSpec"] for each in engine["customMetrics"]}
    assert gauges == {"uma_p95_headroom", "uma_bandwidth_headroom"}
    assert plugins["metrics-source"]["parameters"]["path"] == "/metrics/prometheus"
    used = {each["pluginRef"] for each in picker["schedulingProfiles"][0]["plugins"]}
    assert used <= set(plugins)
    with pytest.raises(ValueError, match="IPv4"):
        llmd.endpoints([Node("x", "mini.local", 80)])
