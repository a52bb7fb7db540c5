"""The Python packages `openai`, `anthropic` and `ollama`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client_programs import sdk_client

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")

pytestmark = pytest.mark.clients
HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}  # a field that some versions of `anthropic` do not know


# --- openai --------------------------------------------------------------------------------------


@pytest.fixture
def by_openai(real_url: str) -> Any:
    return sdk_client("openai", real_url).with_options(max_retries=0)


def test_openai_chat(by_openai: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_completion_tokens": 12}
    whole = by_openai.chat.completions.create(**asked)
    usage = whole.usage
    assert whole.choices[0].message.role == "assistant" and usage.completion_tokens <= 12
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    chunks = list(
        by_openai.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_openai_stream_helper(by_openai: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 200}
    with by_openai.chat.completions.stream(**asked, logprobs=True, top_logprobs=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    choice = final.choices[0]
    assert "".join(t.token for t in choice.logprobs.content) == choice.message.content


def test_openai_completions(by_openai: Any) -> None:
    asked: Any = {"model": "m", "prompt": ["def f(", "x ="], "temperature": 0, "max_tokens": 6}
    whole = by_openai.completions.create(**asked, logprobs=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert len(whole.choices[0].logprobs.top_logprobs[0]) == 2
    texts = ["", ""]
    for chunk in by_openai.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_openai_echo_with_logprobs(by_openai: Any) -> None:
    asked: Any = {"model": "m", "prompt": "def f(", "temperature": 0, "echo": True, "logprobs": 1}
    rated = by_openai.completions.create(**asked, max_tokens=0).choices[0]
    assert rated.text == "def f(" == "".join(rated.logprobs.tokens)
    assert rated.logprobs.token_logprobs[0] is None and rated.logprobs.token_logprobs[1] < 0
    more = by_openai.completions.create(**asked, max_tokens=2).choices[0]
    size = len(rated.logprobs.tokens)
    assert more.logprobs.tokens[:size] == rated.logprobs.tokens
    assert len(more.logprobs.top_logprobs) == len(more.logprobs.text_offset) > size


def test_openai_embeddings(by_openai: Any) -> None:
    create = by_openai.embeddings.create
    whole = create(model="m", input=["hello", "other"])  # base64, which the client decodes
    plain = create(model="m", input=["hello", "other"], encoding_format="float")
    assert len(whole.data) == 2 and whole.usage.total_tokens >= 2
    for one, other in zip(whole.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert len(create(model="m", input="hello", dimensions=8).data[0].embedding) == 8
    with pytest.raises(openai.BadRequestError, match="Input"):
        create(model="m", input=[""])


def test_openai_client_that_leaves_a_stream(by_openai: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "max_tokens": 1000}
    stream = by_openai.chat.completions.create(
        **asked, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()


def test_openai_models(by_openai: Any) -> None:
    (model,) = by_openai.models.list().data
    assert by_openai.models.retrieve(model.id).id == model.id


def test_openai_responses(by_openai: Any) -> None:
    asked: Any = {"model": "m", "input": "hello", "temperature": 0, "max_output_tokens": 8}
    whole = by_openai.responses.create(**asked)
    assert whole.output_text and whole.usage.output_tokens <= 8
    events = list(by_openai.responses.create(**asked, stream=True))
    final = events[-1].response
    assert final.status == whole.status and final.output_text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    again = by_openai.responses.create(**asked, previous_response_id=whole.id)
    assert again.usage.input_tokens > whole.usage.input_tokens


def test_openai_errors(real_url: str, by_openai: Any) -> None:
    create = by_openai.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="temperature"):
        create(model="m", messages=HELLO, temperature=100)
    with pytest.raises(openai.BadRequestError) as told:
        create(model="m", messages=[{"role": "user", "content": "a b " * 5000}])
    assert told.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{real_url}/v1", api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.NotFoundError):
        by_openai.models.retrieve("other")


# --- anthropic -----------------------------------------------------------------------------------


@pytest.fixture
def by_anthropic(real_url: str) -> Any:
    return sdk_client("anthropic", real_url).with_options(max_retries=0)


def test_anthropic_messages(by_anthropic: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "system": "Be brief.", "max_tokens": 12}
    asked["extra_body"] = GREEDY
    whole = by_anthropic.messages.create(**asked)
    assert whole.content[0].type == "text" and whole.stop_reason in ("end_turn", "max_tokens")
    with by_anthropic.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    # what is cached of the same prompt by then is counted apart
    sums = [u.input_tokens + (u.cache_read_input_tokens or 0) for u in (whole.usage, final.usage)]
    assert sums[0] == sums[1] > 0
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_anthropic_events(by_anthropic: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "max_tokens": 4}
    events = list(by_anthropic.messages.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert events[0].message.usage.input_tokens > 0


def test_anthropic_errors(real_url: str, by_anthropic: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        by_anthropic.messages.create(
            model="m", messages=HELLO, max_tokens=4, extra_body={"temperature": 100}
        )
    wrong = anthropic.Anthropic(base_url=real_url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="m", messages=HELLO, max_tokens=4)
    image = {"type": "image", "source": {"type": "real_url", "real_url": "http://x/y.png"}}
    seen = by_anthropic.messages.create(
        model="m", max_tokens=4, messages=[{"role": "user", "content": [image]}]
    )
    assert seen.model_extra == {"uma_unread": ["image"]}


# --- ollama --------------------------------------------------------------------------------------


@pytest.fixture
def by_ollama(real_url: str) -> Any:
    return sdk_client("ollama", real_url)


def test_ollama_chat(by_ollama: Any) -> None:
    asked: Any = {"model": "m", "messages": HELLO, "options": {"temperature": 0, "num_predict": 8}}
    whole = by_ollama.chat(**asked)
    parts = list(by_ollama.chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count


def test_ollama_generate(by_ollama: Any) -> None:
    options = {"temperature": 0, "num_predict": 8}
    for raw in (False, True):
        whole = by_ollama.generate("m", "hello", raw=raw, options=options)
        parts = by_ollama.generate("m", "hello", raw=raw, options=options, stream=True)
        assert "".join(part.response for part in parts) == whole.response


def test_ollama_models(by_ollama: Any) -> None:
    (model,) = by_ollama.list().models
    assert by_ollama.show(model.model).details.format == "gguf"
    assert by_ollama.ps().models[0].model == model.model
    with pytest.raises(ollama.ResponseError) as told:
        by_ollama.pull("m")
    assert told.value.status_code == 403


def test_ollama_embeddings(by_ollama: Any) -> None:
    answer = by_ollama.embed("m", ["hello", "other"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count >= 2
    assert by_ollama.embeddings("m", "hello").embedding == answer.embeddings[0]
