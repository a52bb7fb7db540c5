"""Requests that clients of llama-server make, and right values for them.

It covers what llama-server's own tests check of a text model.  What differs on purpose stands in
docs/HTTP.md, under "llama-server".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Right = dict[str, Any]
HI = [{"role": "user", "content": "Hi"}]
CONTENT = {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
PROMPT = "def area(r):\n    return"
COMPLETION, CHAT, TEXT = "/completion", "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, INFILL, TEMPLATE = "/v1/embeddings", "/infill", "/apply-template"
TIMES = (
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
    "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
)  # fmt: skip


class Case(NamedTuple):
    """``right`` has a value, or a test of it, for each path into the answer.

    ``a/0/b`` leads through objects and lists; an empty path is the whole answer.  For a stream, the
    answer is the list of its events.
    """

    name: str
    path: str
    body: dict[str, Any] | None  # of a POST; None: a GET
    right: Right
    status: int = 200


# --- tests of values -----------------------------------------------------------------------------


def is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def has(text: str) -> Callable[[Any], bool]:
    return lambda value: text in value


def long(count: int) -> Callable[[Any], bool]:
    return lambda value: len(value) == count


def above(least: float) -> Callable[[Any], bool]:
    return lambda value: value > least


def absent(value: Any) -> bool:
    return value is ABSENT


def are_times(value: Any) -> bool:
    return {*TIMES} <= {*value} and all(value[name] >= 0 for name in TIMES)


def all_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: len(values) > 0 and all(map(test, values))


ABSENT = object()


# --- the list ------------------------------------------------------------------------------------

GREEDY = {"temperature": 0.0, "n_predict": 8}
ABOUT = (
    Case("health", "/health", None, {"status": "ok"}),
    Case("health below v1", "/v1/health", None, {"status": "ok"}),
    Case("props", "/props", None, {
        "model_path": has(".gguf"), "total_slots": above(0), "default_generation_settings/n_ctx":
        above(0), "default_generation_settings/params/temperature": 0.8,
        "default_generation_settings/params/seed": is_a(int), "chat_template": has("messages"),
        "bos_token": is_a(str), "eos_token": has("<|"), "modalities/vision": False,
        "build_info": is_a(str), "is_sleeping": False, "chat_template_caps": is_a(dict),
    }),
    Case("models", "/models", None, {"data": long(1), "data/0/id": is_a(str)}),
    Case("slots that nobody uses", "/slots", None, {"": []}),
)  # fmt: skip
TOKENS = (
    Case("tokenize", "/tokenize", {"content": "What is it?"}, {"tokens": all_of(is_a(int))}),
    Case("tokenize nothing", "/tokenize", {}, {"tokens": []}),
    Case("tokenize a list", "/tokenize", {"content": [5, "a", 7]}, {
        "tokens/0": 5, "tokens/1": is_a(int), "tokens/2": 7,
    }),
    Case("tokenize a wrong list", "/tokenize", {"content": [5, None]}, {"error/code": 400}, 400),
    Case("tokenize with pieces", "/tokenize", {"content": "a 媽🤗", "with_pieces": True}, {
        "tokens": all_of(lambda each: each["id"] > 0 and len(each["piece"]) > 0),
        "tokens/0/piece": "a", "tokens/2/piece": lambda piece: bytes(piece) in "媽".encode(),
    }),
    Case("detokenize", "/detokenize", {"tokens": [70, 70]}, {"content": "aa"}),
    Case("detokenize text", "/detokenize", {"tokens": ["a"]}, {"error/code": 400}, 400),
)  # fmt: skip
COMPLETIONS = (
    Case("completion", COMPLETION, {"prompt": PROMPT, **GREEDY}, {
        "content": is_a(str), "tokens": [], "stop": True, "truncated": False, "tokens_predicted": 8,
        "stop_type": "limit", "stopping_word": "", "has_new_line": is_a(bool), "prompt": PROMPT,
        "timings": are_times, "timings/predicted_n": 8, "index": 0, "id_slot": is_a(int),
        "generation_settings/n_predict": 8, "generation_settings/adaptive_target": is_a(float),
        "generation_settings/adaptive_decay": is_a(float), "generation_settings/stop": [],
    }),
    Case("completion with token ids", COMPLETION, {"prompt": "x", "return_tokens": True, **GREEDY},
         {"tokens": long(8)}),
    Case("one token takes no step", COMPLETION, {"prompt": "x", "n_predict": 1}, {
        "timings/predicted_n": 1, "timings/predicted_per_second": 0.0,
        "timings/predicted_per_token_ms": 0.0, "timings/prompt_ms": above(0),
    }),
    Case("a new line", COMPLETION, {"prompt": "x", "n_predict": 2, "grammar": 'root ::= "a\\n"'},
         {"content": "a\n", "has_new_line": True}),
    Case("no new line", COMPLETION, {"prompt": "x", "n_predict": 9, "grammar": 'root ::= "ab"'},
         {"content": "ab", "has_new_line": False, "stop_type": "eos"}),
    Case("streamed", COMPLETION, {"prompt": PROMPT, "stream": True, **GREEDY}, {
        "": all_of(lambda part: isinstance(part["stop"], bool)), "0/tokens": long(1),
        "0/stop": False, "-1/stop": True, "-1/has_new_line": is_a(bool), "-1/timings": are_times,
        "-1/generation_settings/n_predict": 8, "-1/tokens_predicted": 8, "0/timings": absent,
    }),
    Case("streamed with timings", COMPLETION, {
        "prompt": PROMPT, "stream": True, "timings_per_token": True, "return_progress": True,
        "cache_prompt": False, **GREEDY,
    }, {
        "": all_of(lambda part: are_times(part["timings"])), "0/prompt_progress/cache": 0,
        "0/prompt_progress/processed": 0, "0/timings/predicted_n": 0, "0/timings/prompt_n": 0,
        "0/timings/prompt_ms": 0.0, "1/prompt_progress/processed": above(3),
        "1/prompt_progress/total": above(3), "3/prompt_progress": absent,
    }),
    Case("several answers", COMPLETION, {"prompt": "x", "n_predict": 2, "n_cmpl": 3}, {
        "": long(3), "2/index": 2, "2/content": is_a(str),
    }),
    Case("several by OpenAI's name", COMPLETION, {"prompt": "x", "n_predict": 2, "n": 2},
         {"": long(2)}),
    Case("several answers to a prompt that is computed once", COMPLETION, {
        "prompt": "n = 7\n" * 15, "n_predict": 2, "n": 4,
    }, {
        "": lambda told: sorted(each["timings"]["prompt_n"] for each in told)[:3] == [1, 1, 1],
    }),
    Case("equal prompts are computed once", TEXT, {
        "prompt": ["m = 8\n" * 15] * 3, "max_tokens": 2,
    }, {
        "choices": long(3), "usage/prompt_tokens_details/cached_tokens": above(60),
    }),
    Case("several streamed", COMPLETION, {"prompt": "x", "n_predict": 2, "n": 2, "stream": True}, {
        "": lambda parts: sorted(p["index"] for p in parts if p["stop"]) == [0, 1],
    }),
    Case("a list of prompts", COMPLETION, {"prompt": ["x", [70, 71], {"prompt_string": "y"}],
                                           **GREEDY}, {"": long(3), "1/prompt": is_a(str)}),
    Case("texts and ids in a row", COMPLETION, {"prompt": [70, 71, "x = ", 72], **GREEDY},
         {"content": is_a(str), "tokens_evaluated": above(4)}),
    Case("an object", COMPLETION, {"prompt": {"prompt_string": "x"}, **GREEDY}, {"prompt": "x"}),
    Case("pictures", COMPLETION, {"prompt": {"prompt_string": "x", "multimodal_data": ["aa"]}},
         {"error/code": 400}, 400),
    Case("no prompt", COMPLETION, {}, {"error/code": 400, "error/message": has("prompt")}, 400),
    Case("a wrong limit", COMPLETION, {"prompt": "x", "n_predict": "x"}, {"error/code": 400}, 400),
    Case("too many texts", COMPLETION, {"prompt": [1, *["a"] * 300]}, {"error/code": 400}, 400),
    Case("an empty list of prompts", COMPLETION, {"prompt": []}, {"error/code": 400}, 400),
    Case("response fields", COMPLETION, {
        "prompt": "x", "response_fields": ["content", "generation_settings/n_predict", "none"],
        **GREEDY,
    }, {"": lambda told: {*told} == {"content", "generation_settings/n_predict"}}),
    Case("n_probs", COMPLETION, {"prompt": "x", "n_probs": 10, **GREEDY}, {
        "completion_probabilities": long(8), "completion_probabilities/0/id": above(0),
        "completion_probabilities/0/token": is_a(str), "completion_probabilities/0/bytes":
        all_of(is_a(int)), "completion_probabilities/0/top_logprobs": long(10),
        "completion_probabilities/0/top_logprobs/0/logprob": lambda value: value <= 0,
        "completion_probabilities/0/top_logprobs/9/bytes": is_a(list),
    }),
    *(
        Case(f"too many n_probs: {path}", path, {"prompt": "x", "messages": HI, "n_probs": 30},
             {"error/message": has("n_probs")}, 400)
        for path in (COMPLETION, CHAT, TEXT)
    ),
    Case("n_probs of none", COMPLETION, {"prompt": "x", "n_probs": 0, **GREEDY},
         {"completion_probabilities": absent}),
    Case("post_sampling_probs", COMPLETION, {
        "prompt": "x", "n_predict": 5, "n_probs": 10, "temperature": 1.0, "top_k": 4, "min_p": 0,
        "top_p": 1, "post_sampling_probs": True,
    }, {
        "completion_probabilities": all_of(
            lambda token: 0 < token["prob"] <= 1 and len(token["top_probs"]) == 4
            and abs(sum(each["prob"] for each in token["top_probs"]) - 1) < 1e-4
        ),
        "completion_probabilities/0/logprob": absent,
    }),
    Case("post_sampling_probs of the best", COMPLETION, {
        "prompt": "x", "n_probs": 3, "post_sampling_probs": True, **GREEDY,
    }, {
        "completion_probabilities": all_of(
            lambda token: token["prob"] == 1 and [each["id"] for each in token["top_probs"]]
            == [token["id"]]
        ),
    }),
    Case("post_sampling_probs streamed", COMPLETION, {
        "prompt": "x", "n_probs": 3, "post_sampling_probs": True, "stream": True, **GREEDY,
    }, {"0/completion_probabilities/0/prob": 1}),
    Case("a chat's post_sampling_probs", CHAT, {
        "messages": HI, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 3,
        "post_sampling_probs": True,
    }, {"choices/0/logprobs/content/0/logprob": 0, "choices/0/logprobs/content/0/top_logprobs":
        long(1)}),
    Case("a stop string", COMPLETION, {"prompt": "x", "n_predict": 9, "stop": ["b"],
                                       "grammar": 'root ::= "aabaa"'},
         {"content": "aa", "stop_type": "word", "stopping_word": "b", "truncated": False}),
    Case("the end of the context", COMPLETION, {"prompt": "x", "ignore_eos": True,
                                                "temperature": 0},
         {"truncated": True, "stop_type": "limit", "tokens_predicted": above(200)}),
    Case("a full context is shifted", COMPLETION, {
        "prompt": "x = 1\n" * 20, "ignore_eos": True, "n_predict": 250, "context_shift": True,
    }, {"truncated": True, "tokens_predicted": 250}),
    Case("too long", COMPLETION, {"prompt": "x = 1\n" * 3000}, {"error/code": 400}, 400),
    Case("nothing is wanted", COMPLETION, {"prompt": "x", "n_predict": 0},
         {"content": "", "tokens_predicted": 0, "timings/predicted_n": 0, "truncated": False}),
)  # fmt: skip
OFF = tuple(
    Case(f"off: {field}", COMPLETION, {"prompt": "x", "n_predict": 2, **field}, {"stop": True})
    for field in (
        {"top_k": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1}, {"min_p": 0}, {"typical_p": 0},
        {"temperature": -1}, {"stop": ""}, {"stop": [""]}, {"stop": [str(n) for n in range(60)]},
        {"mirostat": 0}, {"n_probs": 0}, {"grammar": ""}, {"repeat_last_n": -1}, {"n_predict": -1,
        "stop": ["a", "e", "\n", " "]}, {"seed": -1}, {"dry_base": 0}, {"t_max_predict_ms": -1},
        {"top_n_sigma": -1}, {"adaptive_target": -1}, {"dynatemp_range": 0}, {"json_schema": None},
    )
)  # fmt: skip
BIAS = (
    Case("biases by text", COMPLETION, {
        "prompt": "x", "n_predict": 3, "temperature": 0, "logit_bias": [["q", 100]],
    }, {"content": "qqq"}),
    Case("biases by text in an object", COMPLETION, {
        "prompt": "x", "n_predict": 3, "temperature": 0, "logit_bias": {"q": 100, "70": -1},
    }, {"content": "qqq"}),
    Case("a text without end", COMPLETION, {
        "prompt": "x", "n_predict": 3, "logit_bias": {"q": "much"},
    }, {"error/code": 400, "error/message": has("logit_bias")}, 400),
    Case("a chat's biases by text", CHAT, {
        "messages": HI, "max_tokens": 3, "temperature": 0, "logit_bias": {"q": 100},
    }, {"choices/0/message/content": "qqq"}),
)  # fmt: skip
CHATS = (
    Case("chat", CHAT, {"messages": BOOK, "max_tokens": 8}, {
        "id": has("cmpl"), "object": "chat.completion", "choices/0/message/role": "assistant",
        "usage/completion_tokens": lambda count: count <= 8, "timings": are_times,
        "choices/0/finish_reason": is_a(str), "system_fingerprint": is_a(str),
    }),
    Case("chat streamed", CHAT, {"messages": BOOK, "max_tokens": 4, "stream": True}, {
        "0/choices/0/delta/role": "assistant", "0/timings": absent, "-2/timings": are_times,
        "-1": "[DONE]",
    }),
    Case("chat with timings", CHAT, {
        "messages": BOOK, "max_tokens": 4, "stream": True, "timings_per_token": True,
        "stream_options": {"include_usage": True},
    }, {
        "0/timings": absent, "1/timings": are_times, "-2/choices": [], "-2/timings": are_times,
        "-2/timings/predicted_n": lambda count: count <= 4,
    }),
    Case("chat with progress", CHAT, {
        "messages": BOOK, "max_tokens": 4, "stream": True, "return_progress": True,
        "cache_prompt": False,
    }, {
        "1/prompt_progress/cache": 0, "1/prompt_progress/processed": 0,
        "1/prompt_progress/time_ms": is_a(int), "2/prompt_progress": lambda progress:
        progress["processed"] == progress["total"] > 5,
    }),
    Case("chat with logprobs", CHAT, {
        "messages": BOOK, "max_tokens": 4, "logprobs": True, "top_logprobs": 10, "temperature": 0,
    }, {
        "choices/0/logprobs/content/0/top_logprobs": long(10),
        "choices/0/logprobs/content/0/id": above(0),
        "choices/0/logprobs/content/0/top_logprobs/9/id": is_a(int),
        "choices/0/logprobs/content/0/bytes": is_a(list),
    }),
    Case("no alternatives are asked for", CHAT, {"messages": HI, "max_tokens": 1,
                                                 "top_logprobs": 0}, {"choices/0/logprobs": None}),
    Case("no thoughts are asked for", "/api/chat", {"messages": HI, "think": "", "stream": False,
                                                    "options": {"num_predict": 2}}, {"done": True}),
    Case("no effort is asked for", CHAT, {"messages": HI, "max_tokens": 1, "reasoning_effort": ""},
         {"choices": long(1)}),
    Case("tokens of a chat", CHAT + "/input_tokens", {"messages": BOOK},
         {"input_tokens": above(5)}),
    Case("tokens of a response", "/v1/responses/input_tokens", {"input": "Hi"},
         {"input_tokens": above(3)}),
    Case("ending thoughts that run", CHAT + "/control", {"id": "x", "action": "reasoning_end"},
         {"error": is_a(dict)}, 501),
    Case("choices", CHAT, {"messages": BOOK, "max_tokens": 2, "n": 2, "id_slot": 0},
         {"choices": long(2)}),
    Case("both at the end", CHAT, {
        "messages": [*HI, {"role": "assistant", "content": "Hello"}],
        "add_generation_prompt": True, "continue_final_message": True,
    }, {"error/message": has("cannot both be true")}, 400),
    Case("a chat in a format", CHAT, {"messages": HI, "max_tokens": 9, "response_format": {
        "type": "json_object", "schema": {"const": "42"}}},
        {"choices/0/message/content": '"42"'}),
    Case("a chat by a schema", CHAT, {"messages": HI, "max_tokens": 9, "json_schema": {
        "const": "42"}}, {"choices/0/message/content": '"42"'}),
    Case("a chat by a grammar", CHAT, {"messages": HI, "max_tokens": 9,
                                       "grammar": 'root ::= "a"{5,5}'},
         {"choices/0/message/content": "aaaaa"}),
    *(
        Case(f"a wrong format: {form}", CHAT, {"messages": HI, "response_format": form},
             {"error": is_a(dict)}, 400)
        for form in (
            {"type": "sound"}, {"type": "json_object", "schema": 123},
            {"type": "json_object", "schema": {"type": 123}},
            {"type": "json_object", "schema": {"type": "hiccup"}},
        )
    ),
    Case("a wrong grammar", CHAT, {"messages": HI, "grammar": "root ::= this is (not valid"},
         {"error": is_a(dict)}, 400),
    *(
        Case(f"wrong messages: {messages}", CHAT, {"messages": messages},
             {"error": is_a(dict)}, 400)
        for messages in (None, "string", [123], [{}], [{"role": 123}],
                         [{"role": "system", "content": 123}])
    ),
    Case("completions", TEXT, {"prompt": "x", "max_tokens": 2}, {
        "id": has("cmpl"), "choices/0/text": is_a(str), "timings": are_times,
    }),
    Case("completions streamed", TEXT, {"prompt": "x", "max_tokens": 2, "stream": True,
                                        "timings_per_token": True}, {
        "0/timings": are_times, "-2/timings": are_times,
    }),
    Case("completions of texts and ids", TEXT, {"prompt": [70, "x"], "max_tokens": 2},
         {"choices": long(1)}),
)  # fmt: skip
RESPONSES = (
    Case("a response with timings and progress", "/v1/responses", {
        "input": "This is a test" * 10, "max_output_tokens": 4, "stream": True,
        "timings_per_token": True, "return_progress": True,
    }, {
        "2/type": "response.in_progress", "2/timings": are_times, "2/prompt_progress/total":
        above(10), "3/type": "response.in_progress", "3/prompt_progress": lambda told:
        told["processed"] == told["total"], "-1/timings": are_times, "": lambda events: all(
            are_times(each["timings"]) for each in events if each["type"].endswith(".delta")
        ), "-1/timings/predicted_n": 4,
    }),
    Case("a response without them", "/v1/responses", {
        "input": "x", "max_output_tokens": 2, "stream": True,
    }, {
        "-1/timings": are_times, "-1/response/usage/output_tokens": 2,
        "": lambda events: not any("timings" in each for each in events[:-1]),
    }),
)  # fmt: skip
MESSAGES, WEATHER = "/v1/messages", {
    "name": "get_weather", "description": "Get the weather", "input_schema": {
        "type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"],
    },
}  # fmt: skip
USED = {"role": "assistant", "content": [
    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"location": "Paris"}},
]}  # fmt: skip


def result(*before: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """A conversation whose tool has answered."""
    block = {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny, 25\u00b0C", **fields}
    return [*HI, USED, {"role": "user", "content": [*before, block]}]


IS_MESSAGE: Right = {
    "type": "message", "role": "assistant", "content/0/type": "text", "content/0/text": is_a(str),
    "stop_reason": lambda reason: reason in ("end_turn", "max_tokens"), "timings": absent,
    "usage/cache_read_input_tokens": is_a(int), "usage/input_tokens": is_a(int),
    "usage/output_tokens": above(0),
}  # fmt: skip
ANTHROPIC = (
    *(
        Case(f"a message: {name}", MESSAGES, {"messages": HI, "max_tokens": 4, **fields},
             IS_MESSAGE)
        for name, fields in (
            ("plain", {}), ("system", {"system": "You are helpful."}),
            ("parts", {"messages": [{"role": "user", **CONTENT}]}),
            ("turns", {"messages": [*HI, {"role": "assistant", "content": "Hello!"}, *HI]}),
            ("top_k", {"top_k": 40}), ("top_p", {"top_p": 0.9}),
            ("temperature", {"temperature": 0.5}), ("metadata", {"metadata": {"user_id": "u"}}),
            ("result", {"messages": result()}),
            ("result behind text", {"messages": result({"type": "text", "text": "Here:"})}),
            ("error of a tool", {"messages": result(is_error=True)}),
            ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 50}}),
        )
    ),
    Case("a message with tools", MESSAGES, {
        "messages": HI, "max_tokens": 4, "tools": [WEATHER],
    }, {"type": "message", "content": all_of(is_a(dict))}),
    Case("a message that a string ends", MESSAGES, {
        "messages": HI, "max_tokens": 40, "stop_sequences": ["e", "o", " "],
    }, {"stop_reason": "stop_sequence", "stop_sequence": is_a(str)}),
    Case("a message streamed", MESSAGES, {"messages": HI, "max_tokens": 3, "stream": True}, {
        "0/type": "message_start", "0/message/content": [], "0/message/role": "assistant",
        "0/message/usage/input_tokens": above(0), "-1/type": "message_stop",
        "-1/timings": absent, "-2/type": "message_delta", "-2/usage/output_tokens": above(0),
        "-2/delta/stop_reason": is_a(str), "-3/type": "content_block_stop", "-3/index": 0,
        "": lambda events: [
            (each["index"], each["content_block"]["type"]) for each in events
            if each["type"] == "content_block_start"
        ] == [(0, "text")],
    }),
    Case("tokens of a message", MESSAGES + "/count_tokens", {"messages": HI}, {
        "input_tokens": above(0), "output_tokens": absent,
    }),
    Case("tokens of tools", MESSAGES + "/count_tokens", {
        "messages": HI, "tools": [WEATHER], "system": "Be brief.",
    }, {"input_tokens": above(10)}),
    Case("no messages", MESSAGES, {"max_tokens": 5}, {"error": is_a(dict)}, 400),
    Case("an empty list of messages", MESSAGES, {"messages": [], "max_tokens": 5},
         {"error/type": "invalid_request_error"}, 400),
)  # fmt: skip
TEMPLATES = (
    Case("a template", TEMPLATE, {"messages": HI}, {
        "prompt": lambda prompt: prompt.endswith("<|im_start|>assistant\n"),
    }),
    Case("a template without the answer's start", TEMPLATE, {
        "messages": HI, "add_generation_prompt": False,
    }, {"prompt": lambda prompt: "Hi" in prompt and "assistant" not in prompt}),
    Case("a template that goes on", TEMPLATE, {
        "messages": [*HI, {"role": "assistant", "content": "Whill"}], "continue_final_message":
        True, "add_generation_prompt": False,
    }, {"prompt": lambda prompt: prompt.endswith("Whill")}),
    Case("a template with both", TEMPLATE, {
        "messages": [*HI, {"role": "assistant", "content": "Whill"}], "continue_final_message":
        True, "add_generation_prompt": True,
    }, {"error/code": 400}, 400),
)  # fmt: skip
GAPS = (
    Case("a gap", INFILL, {"input_prefix": "def f(", "input_suffix": "\n", "n_predict": 2},
         {"content": is_a(str)}),
    *(
        Case(f"a wrong extra: {extra}", INFILL, {
            "input_extra": [extra], "input_prefix": "def f(", "input_suffix": "\n",
        }, {"error/code": 400}, 400)
        for extra in ({}, {"filename": "ok"}, {"filename": 123}, {"filename": 123, "text": "abc"},
                      {"filename": 123, "text": 456})
    ),
)  # fmt: skip
VECTORS = (
    *(
        Case(f"vectors: {given}", EMBEDDINGS, {"input": given}, {"data": long(count)})
        for given, count in (
            ("string", 1), ([12, 34, 56], 1), ([12, "string", 56], 1), (["a", "b"], 2),
            (["a", [12, 34]], 2), ([[12], [12, "string", 34]], 2), ({"prompt_string": "a"}, 1),
            (CONTENT, 1), (["a", {"prompt_string": "b"}, CONTENT], 3),
        )
    ),
    Case("a content is its text", EMBEDDINGS, {"input": ["hello world", CONTENT]}, {
        "data": lambda data: data[0]["embedding"] == data[1]["embedding"],
    }),
    *(
        Case(f"no vectors: {given}", EMBEDDINGS, {"input": given}, {"error": is_a(dict)}, 400)
        for given in ({"content": "string"}, {"content": [{"type": "unknown"}]}, [None], [[]],
                      {"content": [{"type": "image_url", "image_url": {"url": "data:x"}}]})
    ),
    Case("no input", EMBEDDINGS, {},
         {"error/message": '"input" or "content" must be provided'}, 400),
    Case("an empty list", EMBEDDINGS, {"input": []},
         {"error/message": '"input" must not be empty'}, 400),
    Case("an empty text", EMBEDDINGS, {"input": ""},
         {"error/message": "Input content cannot be empty"}, 400),
    Case("an unknown format", EMBEDDINGS, {"input": "a", "encoding_format": "hex"},
         {"error/message": has("Can be either float or base64")}, 400),
    Case("vectors in base64", EMBEDDINGS, {"input": "a", "encoding_format": "base64"},
         {"data/0/embedding": is_a(str)}),
    Case("usage of vectors", EMBEDDINGS, {"input": ["a", "a"]},
         {"usage": lambda usage: usage["prompt_tokens"] == usage["total_tokens"] == 2}),
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "test", "description": "", "parameters": {
    "type": "object", "properties": {"success": {"type": "boolean", "const": True}},
    "required": ["success"],
}}}  # fmt: skip
WITHOUT_CALL = {"choices/0/message/tool_calls": absent, "choices/0/message/content": is_a(str)}
# the template of the bundled model knows no calls, so none can be required of it
TOOLS = (
    *(
        Case(f"tools: {told}", CHAT, {"messages": HI, "max_tokens": 4, **told}, WITHOUT_CALL)
        for told in (
            {"tools": None, "tool_choice": None},
            {"tools": [], "tool_choice": None},
            {"tools": [TOOL], "tool_choice": None},
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
        )
    ),
    *(
        Case(f"a required call, parallel: {parallel}", CHAT, {
            "messages": HI, "max_tokens": 4, "tools": [TOOL], "tool_choice": "required",
            "parallel_tool_calls": parallel,
        }, {"error/message": has("knows no calls")}, 400)
        for parallel in (False, True)
    ),
    Case("a message with a call at most", MESSAGES, {
        "messages": HI, "max_tokens": 4, "tools": [{
            "name": "test", "input_schema": TOOL["function"]["parameters"],
        }], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }, {"content/0/type": "text"}),
)  # fmt: skip
REFUSED = {"error/message": has("not supported"), "error/type": "not_supported_error"}
STREAM = "/v1/stream?conv_id=conv-stream-test%3A%3Aowner%2Fmodel&from=0"
NOT_HERE = (
    *(
        Case(f"ranks: {', '.join(told)}", path, {"query": "Machine learning is", **told},
             {"error/message": is_a(str), "error/type": "invalid_request_error"}, 400)
        for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking")
        for told in ({"documents": ["A machine", "Paris"]}, {"texts": ["Paris"], "top_n": 2},
                     {"documents": None})
    ),
    *(
        Case(f"slots: {action}", f"/slots/1?action={action}", {"filename": "slot1.bin"},
             REFUSED, 501)
        for action in ("save", "restore", "erase")
    ),
    Case("a slot of a request", COMPLETION, {"prompt": "x", "id_slot": 1, "n_predict": 2},
         {"tokens_predicted": 2, "id_slot": -1}),
    Case("a stream again", STREAM, None, REFUSED, 501),
    Case("streams of conversations", "/v1/streams/lookup", {"conversation_ids": ["a"]}, REFUSED,
         501),
    Case("adapters", "/lora-adapters", None, {"": []}),
    *(
        Case(f"adapters of a request: {lora}", COMPLETION,
             {"prompt": "x", "lora": lora, "n_predict": 2}, {"tokens_predicted": 2})
        for lora in ([], [{"id": 0, "scale": 0.0}], [{"id": 0, "scale": 1.0}])
    ),
)  # fmt: skip
CASES: tuple[Case, ...] = (
    *ABOUT, *TOKENS, *COMPLETIONS, *OFF, *BIAS, *CHATS, *RESPONSES, *ANTHROPIC, *TEMPLATES, *GAPS,
    *VECTORS, *TOOLS, *NOT_HERE,
)  # fmt: skip
