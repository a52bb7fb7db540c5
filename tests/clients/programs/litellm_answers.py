"""Whole answers and streams through LiteLLM's providers."""

import asyncio

import litellm
from given import routes

messages = [{"role": "user", "content": "hello"}]
limits = {"temperature": 0, "max_tokens": 12, "num_retries": 0}
texts = {}
for name, route in routes.items():
    whole = litellm.completion(messages=messages, **limits, **route)
    text = whole.choices[0].message.content
    assert 0 < whole.usage.completion_tokens <= 12, whole
    asked = {**limits, **route, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=messages, **asked))
    parts = [each.choices[0].delta.content or "" for each in chunks if each.choices]
    assert "".join(parts) == text, (name, parts, text)
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    assert built.usage.total_tokens == whole.usage.total_tokens, (name, built.usage, whole.usage)
    later = asyncio.run(litellm.acompletion(messages=messages, **limits, **route))
    assert later.choices[0].message.content == text
    texts[name] = text
assert texts["openai"] == texts["anthropic"] == texts["ollama"], texts

# the same server by the other ways there are
generate = {**routes["ollama"], "model": "ollama/default"}
whole = litellm.completion(messages=messages, **limits, **generate)
parts = litellm.completion(messages=messages, **limits, **generate, stream=True)
text = "".join(each.choices[0].delta.content or "" for each in parts)
assert text == whole.choices[0].message.content
openai = routes["openai"]
text = litellm.text_completion(prompt="def f(", **limits, **openai).choices[0].text
parts = litellm.text_completion(prompt="def f(", **limits, **openai, stream=True)
assert "".join(each.choices[0].text or "" for each in parts) == text
answer = litellm.responses(input="hello", temperature=0, max_output_tokens=20, **openai)
assert answer.output_text.startswith(texts["openai"]), answer
print("done")
