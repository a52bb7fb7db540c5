"""Pictures that go on to the daemon: the newest, and whatever is no message goes as it is."""

from __future__ import annotations

from typing import Any

import pytest

from umaserve.gateway.daemon.pictures import fitting, has_pictures


def part(n_bytes: int) -> dict[str, Any]:
    return {"type": "image", "data": "A" * n_bytes}


def test_the_newest_pictures_keep_their_data() -> None:
    messages = [{"role": "user", "content": [part(8), "text", part(4)]},
                {"role": "user", "content": [part(4)]}]  # fmt: skip
    message = {"messages": messages, "max_tokens": 1}
    assert has_pictures(message)
    (old, words, middle), (new,) = (each["content"] for each in fitting(message, 8)["messages"])
    assert new == part(4) and middle == part(4) and words == "text"
    assert "data" not in old and old["type"] == "image" and "MiB" in old["why"]
    assert messages[0]["content"][0] == part(8)  # the request's own stays as it was


def test_pictures_of_a_prompt_are_held_to_the_same_limit() -> None:
    prompt = [part(8), {"type": "text", "text": "x"}, part(4)]
    message = {"prompt": prompt, "max_tokens": 1}
    assert has_pictures(message) and not has_pictures({"prompt": "x"})
    old, words, new = fitting(message, 8)["prompt"]
    assert new == part(4) and words == prompt[1] and "data" not in old and "MiB" in old["why"]
    assert prompt[0] == part(8)


@pytest.mark.parametrize(
    "messages",
    [None, 7, "x", {}, [1], [None], [["x"]], [{"content": 3}], [{"content": [1, None, "x"]}],
     [{"content": [{"data": 5}]}], [{}]],
)  # fmt: skip
def test_what_is_no_conversation_is_left_to_the_daemon(messages: Any) -> None:
    assert not has_pictures({"messages": messages})
    assert not has_pictures({})


def test_a_part_without_a_type_is_left_to_the_daemon() -> None:
    told = fitting({"messages": [{"content": [{"data": "AAAA"}]}]}, 0)
    assert told["messages"][0]["content"][0]["type"] is None
