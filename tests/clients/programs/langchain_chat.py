"""Whole answers and streams of LangChain's chat model, and of its completions."""

import asyncio

from given import completions, model
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage

asked = [SystemMessage("Be brief."), HumanMessage("hello")]
whole = model.invoke(asked)
usage = whole.usage_metadata
assert whole.content and usage["output_tokens"] <= 12
assert usage["input_token_details"]["cache_read"] <= usage["input_tokens"]
assert whole.response_metadata["finish_reason"] in ("stop", "length")

streamed = AIMessageChunk("")
for chunk in model.stream(asked, stream_usage=True):
    streamed += chunk
assert streamed.content == whole.content
assert streamed.usage_metadata["total_tokens"] == usage["total_tokens"]

both = asyncio.run(model.abatch([asked, "x ="]))
assert both[0].content == whole.content and len(both) == 2

scored = model.bind(logprobs=True, top_logprobs=2).invoke(asked)
tokens = scored.response_metadata["logprobs"]["content"]
assert "".join(token["token"] for token in tokens) == whole.content

text = completions.invoke("def f(")
assert "".join(completions.stream("def f(")) == text
print("done")
