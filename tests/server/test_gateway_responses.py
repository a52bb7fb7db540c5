"""Responses that are kept: read again, deleted, and nobody else's."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Posted, gateway, post, sse
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess
from umaserve.gateway.families.openai import kept, kept_responses
from umaserve.gateway.families.openai.kept import Entry, Kept

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


def send(port: int, method: str, path: str, **headers: str) -> Posted:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        return Posted(connection.getresponse())
    finally:
        connection.close()


def made(port: int, **body: Any) -> dict[str, Any]:
    body = {"input": "hello", "max_output_tokens": 4, **body}
    reply = post(port, PATH, body)
    told: dict[str, Any] = reply.json if not body.get("stream") else sse(reply.body)[-1]["response"]
    return told


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_is_read_again_and_deleted(daemon: DaemonProcess, stream: bool) -> None:
    port = port_of(daemon)
    told = made(port, stream=stream)
    path = f"{PATH}/{told['id']}"
    assert send(port, "GET", path).json == told and told["output"]
    again = made(port, previous_response_id=told["id"])
    assert send(port, "DELETE", path).json == {
        "id": told["id"], "object": "response", "deleted": True,
    }  # fmt: skip
    for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        reply = send(port, method, path + end)
        assert (reply.status, reply.json["error"]["code"]) == (404, "response_not_found")
    assert post(port, PATH, {"input": "x", "previous_response_id": told["id"]}).status == 404
    assert send(port, "GET", f"/responses/{again['id']}").json == again


def test_items_of_the_input(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    texts = [{"role": "user", "content": f"{number}"} for number in range(3)]
    call = {"type": "function_call", "id": "mine", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    path = f"{PATH}/{made(port, input=[*texts, call, output])['id']}/input_items"
    whole = send(port, "GET", path + "?order=asc").json
    items = whole["data"]
    assert [item["type"] for item in items[2:]] == [
        "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert items[0]["content"] == [{"type": "input_text", "text": "0"}]
    assert items[3] == call and len({item["id"] for item in items}) == 5
    assert (whole["first_id"], whole["has_more"]) == (items[0]["id"], False)
    assert send(port, "GET", path).json["data"] == items[::-1]
    page = send(port, "GET", f"{path}?limit=2&after={items[4]['id']}").json
    assert page["data"] == [items[3], items[2]] and page["has_more"]
    for query in ("order=up", "limit=0", "limit=x", "limit=101", "after=none"):
        assert send(port, "GET", f"{path}?{query}").status == 400, query
    (only,) = send(port, "GET", f"{PATH}/{made(port)['id']}/input_items").json["data"]
    assert (only["role"], only["content"][0]["text"]) == ("user", "hello")


def reference(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"]}


def test_references_stand_for_the_items_that_were_kept(daemon: DaemonProcess) -> None:
    """As the AI SDK sends its second step."""
    port = port_of(daemon)
    asked = {"role": "user", "content": [{"type": "input_text", "text": "one"}], "id": "msg_mine"}
    first = made(port, input=[asked])
    (said,) = first["output"]
    more = {"role": "user", "content": "two"}
    for given in ([reference(asked), reference(said), more], [{"id": "msg_mine"}, said, more]):
        second = made(port, input=given)
        items = send(port, "GET", f"{PATH}/{second['id']}/input_items?order=asc").json["data"]
        assert [item["id"] for item in items[:2]] == ["msg_mine", said["id"]]
        assert second["usage"]["input_tokens"] == made(port, input=[asked, said, more])["usage"][
            "input_tokens"
        ]  # fmt: skip
        counted = post(port, PATH + "/input_tokens", {"input": given}).json
        assert counted == {
            "object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"],
        }  # fmt: skip
    unknown = [reference(said), {"type": "item_reference", "id": "msg_none"}, {"id": "rs_none"}]
    for path in (PATH, PATH + "/input_tokens"):
        reply = post(port, path, {"input": unknown})
        assert (reply.status, reply.json["error"]["code"]) == (404, "item_not_found")
        for name in ("msg_none", "rs_none"):
            assert f"'{name}'" in reply.json["error"]["message"]
        assert said["id"] not in reply.json["error"]["message"]


def test_references_to_what_another_key_has(daemon: DaemonProcess) -> None:
    keys = {"a-key-of-the-first-1": "first", "a-key-of-the-second-2": "second"}
    with gateway(daemon.path, keys=keys) as port:
        first, second = ({"x-api-key": key} for key in keys)
        body = {"input": "hello", "max_output_tokens": 2}
        (said,) = post(port, PATH, body, **first).json["output"]
        for headers, status in ((first, 200), (second, 404)):
            given = {**body, "input": [reference(said), {"role": "user", "content": "x"}]}
            assert post(port, PATH, given, **headers).status == status


def test_a_response_is_streamed_again(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    live = sse(post(port, PATH, {"input": "hello", "max_output_tokens": 3, "stream": True}).body)
    told = live[-1]["response"]
    path = f"{PATH}/{told['id']}?stream=true"
    reply = send(port, "GET", path)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = sse(reply.body)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[-1]["response"] == told

    def kinds(of: list[Any]) -> list[str]:
        """With several deltas in a row as one."""
        names = [event["type"] for event in of]
        return [n for n, before in zip(names, ["", *names], strict=False) if n != before]

    assert kinds(events) == kinds(live)
    for ours, theirs in ((events[-2], live[-2]), (events[0], live[0]), (events[3], live[3])):
        assert ours.keys() == theirs.keys()
    assert sse(send(port, "GET", path + "&starting_after=4").body) == events[5:]
    assert send(port, "GET", path + "&starting_after=x").status == 400


def test_calls_are_streamed_again() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "id": "fc_2", "call_id": "d", "name": "g", "input": "x"}
    told = {"id": "resp_1", "status": "completed", "output": [call, custom]}
    events = list(kept_responses._events(told))
    deltas = [(e["type"], e["item_id"], e["delta"]) for e in events if "delta" in e]
    assert deltas == [
        ("response.function_call_arguments.delta", "fc_1", "{}"),
        ("response.custom_tool_call_input.delta", "fc_2", "x"),
    ]
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert (added[0]["arguments"], added[1]["input"]) == ("", "")


def test_tokens_of_a_chat(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    messages = [{"role": "user", "content": "hello"}]
    for start in ("/v1", ""):
        path = start + "/chat/completions"
        used = post(port, path, {"messages": messages, "max_tokens": 1}).json["usage"]
        counted = post(port, path + "/input_tokens", {"messages": messages}).json
        assert counted == {
            "object": "response.input_tokens", "input_tokens": used["prompt_tokens"],
        }  # fmt: skip
    assert post(port, "/v1/chat/completions/input_tokens", {}).status == 400


def test_what_is_not_kept(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    told = made(port, store=False)
    assert send(port, "GET", f"{PATH}/{told['id']}").status == 404
    kept_one = made(port)
    reply = send(port, "PUT", f"{PATH}/{kept_one['id']}")
    assert reply.status == 405 and reply.headers["allow"] == "DELETE, GET, HEAD"


def test_nobody_finds_what_another_key_has(daemon: DaemonProcess) -> None:
    keys = {"a-key-of-the-first-1": "first", "a-key-of-the-second-2": "second"}
    with gateway(daemon.path, keys=keys) as port:
        first, second = ({"x-api-key": key} for key in keys)
        body = {"input": "hello", "max_output_tokens": 2}
        path = f"{PATH}/{post(port, PATH, body, **first).json['id']}"
        for method, end in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            assert send(port, method, path + end, **second).status == 404
            assert send(port, method, path + end).status == 401
        assert send(port, "DELETE", path, **first).status == 200


def entry(text: str = "", metadata: Any = None) -> Entry:
    items = [{"id": "msg_1", "content": text}]
    return Entry.of([{"role": "user", "content": text}], {"metadata": metadata}, items)


def found(some: Kept, names: str, owner: str = "me") -> str:
    return "".join(name for name in names if some.get(name, owner))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 3)
    some = Kept()
    for name in "abc":
        some.put(name, "me", entry(name))
    assert some.get("a", "me") is not None  # used again
    some.put("d", "me", entry("d"))
    assert found(some, "bacd") == "acd"
    monkeypatch.setattr(kept, "MOST_BYTES", entry("x" * 500).size() + 200)
    some.drop("a", "me")
    some.put("e", "me", entry("x" * 500))
    some.put("f", "me", entry("x" * 500))
    assert found(some, "cdef") == "f"
    some.put("g", "me", entry("x" * 1000))  # has no room alone
    assert found(some, "fg") == "f"


def test_a_key_beyond_its_share_throws_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Kept()
    some.put("o", "other", entry())
    for number in range(kept.MOST + 3):
        some.put(f"{number}", "me", entry())
    assert found(some, "o", "other") and not found(some, "012") and found(some, "3")

    monkeypatch.setattr(kept, "MOST_BYTES", 10 * entry("x" * 500).size())
    some = Kept()
    for name in "abcdefghij":
        some.put(name, "me", entry("x" * 500))
    some.put("o", "other", entry("x" * 500))  # a new key gets its share of a full room
    assert (found(some, "o", "other"), found(some, "abcdefghij")) == ("o", "bcdefghij")
    for name in "klmnopqrstuvwxyz":
        some.put(name, "me", entry("x" * 500))
    assert (found(some, "o", "other"), found(some, "bijrstuvwxyz")) == ("o", "rstuvwxyz")
    for name in "abcdefgh":
        some.put(name, "other", entry("x" * 500))
    assert (found(some, "oabcdefgh", "other"), found(some, "rstuvwxyz")) == ("defgh", "vwxyz")


@pytest.mark.parametrize("text, metadata", [("", [[]] * 20_000), ("", None), ("x" * 9999, {})])
def test_what_is_counted_is_what_is_held(text: str, metadata: Any) -> None:
    some = Kept()
    names = [f"resp_{number}" for number in range(50)]
    tracemalloc.start()
    try:
        for name in names:
            some.put(name, "me", entry(text, metadata))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = sum(each.size() for name in names if (each := some.get(name, "me")))
    assert 0.4 * counted < held < 1.05 * counted


def test_ids_of_items_are_texts(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    for id in (["a"], {"a": 1}, 7):
        for path in (PATH, PATH + "/input_tokens"):
            reply = post(port, path, {"input": [{"role": "user", "content": "x", "id": id}]})
            assert reply.status == 400 and "input[].id" in reply.json["error"]["message"], id
    told = made(port, input=[{"role": "user", "content": "x", "id": None}])
    (item,) = send(port, "GET", f"{PATH}/{told['id']}/input_items").json["data"]
    assert item["id"].startswith("msg_")


def test_references_cannot_make_a_body_longer_than_one_may_be(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    asked = {"role": "user", "content": "x" * 2000, "id": "msg_long"}  # 40 MB of them
    made(port, input=[asked])
    for path in (PATH, PATH + "/input_tokens"):
        reply = post(port, path, {"input": [reference(asked)] * 20_000})
        assert (reply.status, reply.json["error"]["code"]) == (413, "body_too_large")


def test_the_log_does_not_hold_them(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        told = made(port_of(daemon), input="a secret of mine")
        assert send(port_of(daemon), "GET", f"{PATH}/{told['id']}/input_items").status == 200
        assert "a secret of mine" not in daemon.log
