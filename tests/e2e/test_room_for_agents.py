"""Prompts as long as the context, over the real socket, where nobody set a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient, Result
from tests.support.small_models import write_model

TRAINED = 8192  # of the bundled model
LONG = 16384


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), n_ctx=0) as daemon:
        yield daemon


def run(client: RawClient, **fields: object) -> Result:
    client.results["a"] = Result()
    # what is drafted varies from run to run, and usage counts it
    client.send(id="a", temperature=0.0, speculate=False, **fields)
    return client.finish("a")[0]


def tokens_of(client: RawClient, text: str, **fields: object) -> list[int]:
    client.send(type="tokenize", text=text, **fields)
    return list(client.answer("tokens")["tokens"])


def text_of(client: RawClient, tokens: list[int]) -> str:
    client.send(type="detokenize", tokens=tokens)
    return str(client.answer("text")["text"])


def test_the_context_is_what_all_sessions_can_use(daemon: DaemonProcess) -> None:
    info = daemon.info()
    model, limits = info["model"], info["limits"]
    assert model["n_ctx_train"] == TRAINED
    assert model["n_ctx"] == TRAINED * model["n_seq"]
    assert (limits["max_tokens"], limits["max_prompt_bytes"]) == (TRAINED, 8 * TRAINED)


@pytest.mark.slow  # the next test fills a context in a third of the time
def test_a_prompt_that_fills_the_context(client: RawClient) -> None:
    ids = tokens_of(client, "def add(a, b):\n    return a + b\n\n" * 800)[: TRAINED - 4]
    assert len(ids) == TRAINED - 4
    result = run(client, tokens=ids, ignore_eos=True, session="a")
    assert result.eos is not None, result.error
    assert result.eos["reason"] == "length"
    usage = {"prompt_tokens": TRAINED - 4, "cached_tokens": 0, "completion_tokens": 4}
    assert result.eos["usage"] == usage
    assert None not in result.eos["timings"].values()


def test_a_prompt_of_more_than_64_kib_in_a_context_of_16k(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    model = write_model(path, "moe-micro", n_layer=1, n_head=1, n_head_kv=1, n_ctx=LONG)
    with real(tmp_path, model=model, n_ctx=0, n_seq=2, max_sessions=4) as daemon:
        assert daemon.info()["model"]["n_ctx"] == 2 * LONG
        with daemon.client() as client:
            per_word = len(tokens_of(client, " meaning" * 100)) / 100
            text = " meaning" * int((LONG - 8) / per_word)
            assert len(text) > 65536
            result = run(client, prompt=text, max_tokens=4, ignore_eos=True)
            assert result.eos is not None, result.error
            assert result.eos["usage"]["prompt_tokens"] > LONG - 32
            assert result.eos["usage"]["completion_tokens"] == 4
            refused = run(client, prompt=text, max_tokens=LONG, ignore_eos=True)
            assert refused.error is not None and refused.error["code"] == "E_LIMIT_003"


def test_text_and_its_token_ids_are_the_same_prompt(client: RawClient) -> None:
    text = "def fibonacci(n):"
    ids = tokens_of(client, text, add_special=True)
    assert text_of(client, ids).endswith(text)
    by_text = run(client, prompt=text, max_tokens=12, stream=False, echo=True)
    by_ids = run(client, tokens=ids, max_tokens=12, stream=False, echo=True)
    assert by_text.eos is not None and by_ids.eos is not None
    assert by_text.eos["usage"] == by_ids.eos["usage"]
    assert by_text.eos["text"].startswith(text)
    start = text_of(client, ids[: len(ids) - len(tokens_of(client, text))])
    assert by_ids.eos["text"] == start + by_text.eos["text"]


def test_ids_beyond_the_vocabulary_are_refused(client: RawClient) -> None:
    result = run(client, tokens=[1, 2_000_000], max_tokens=4)
    assert result.error is not None and result.error["code"] == "E_PROTO_003"
    assert '"tokens" names token 2000000; the vocabulary has ' in result.error["message"]


def test_special_tokens_are_text_where_the_client_says_so(client: RawClient) -> None:
    text = "a<|endoftext|>b"
    read = run(client, prompt=text, max_tokens=1)
    spelled = run(client, prompt=text, max_tokens=1, parse_special=False)
    assert read.eos is not None and spelled.eos is not None
    count = read.eos["usage"]["prompt_tokens"]
    assert count == len(tokens_of(client, text, add_special=True))
    assert spelled.eos["usage"]["prompt_tokens"] > count
    as_text = tokens_of(client, text, add_special=True, parse_special=False)
    assert spelled.eos["usage"]["prompt_tokens"] == len(as_text)


def test_ids_get_a_start_token_when_asked_for(client: RawClient) -> None:
    ids = tokens_of(client, "Hello")
    plain = run(client, tokens=ids, max_tokens=1)
    started = run(client, tokens=ids, max_tokens=1, add_bos=True)
    assert plain.eos is not None and started.eos is not None
    assert plain.eos["usage"]["prompt_tokens"] == len(ids)
    assert started.eos["usage"]["prompt_tokens"] == len(ids) + 1
