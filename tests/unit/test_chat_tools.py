"""Tools in uma-chat: schemas that the converter cannot say, and grammars that bind at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.chat_questions import Asked, conversation, model_of, templates
from umaserve.chat import questions

HELLO = [{"role": "user", "content": "hello"}]
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
# templates for which llama.cpp knows no calls of their own
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}


@pytest.fixture(scope="module")
def chat() -> Iterator[Asked]:
    with Asked() as chat:
        yield chat


def tool(parameters: Any, name: str = "read_file") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def rendered(chat: Asked, template: Path, **options: Any) -> dict[str, Any]:
    assert "abilities" in (chat.ask(model_of(template.read_text("utf-8")).question()) or {})
    answer = chat.ask(conversation(HELLO, **options))
    assert answer is not None and "prompt" in answer, answer
    return answer


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def named(name: str) -> Path:
    return next(path for path in templates() if path.stem == name)


def rule(grammar: str, name: str) -> str:
    found = re.search(rf"^{name} ::= (.*)$", grammar, re.MULTILINE)
    assert found is not None, grammar
    return found.group(1)


OPENED: list[tuple[Any, list[tuple[str, str]]]] = [
    (True, []),
    ({"type": "array", "items": True}, []),
    ({"type": "any"}, [("#/properties/x", "type")]),
    ({"type": ["any", "string"]}, [("#/properties/x", "type")]),
    ({"enum": []}, [("#/properties/x", "enum")]),
    ({"type": "string", "enum": []}, [("#/properties/x", "enum")]),
    ({"$ref": "https://example.com/x.json"}, [("#/properties/x", "$ref")]),
    ({"$ref": "#/$defs/gone"}, [("#/properties/x", "$ref")]),
    ({"not": {"type": "null"}}, [("#/properties/x", "not")]),
    ({"type": "string", "not": {"const": ""}}, [("#/properties/x", "not")]),
    ({"anyOf": []}, [("#/properties/x", "anyOf")]),
    ({"type": "object", "properties": []}, [("#/properties/x", "properties")]),
    ({"type": "object", "additionalProperties": 3}, [("#/properties/x", "additionalProperties")]),
    ({"type": "object", "patternProperties": {"^a": {}}},
     [("#/properties/x", "patternProperties")]),
    ({"type": "string", "maxLength": 100_000}, [("#/properties/x", "maxLength")]),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 5000},
     [("#/properties/x", "maxItems")]),
    ({"type": "string", "pattern": "(("}, [("#/properties/x", "pattern")]),
    ({"type": "string", "pattern": "^(?!a)b$"}, [("#/properties/x", "pattern")]),
    ({"type": "string", "pattern": "^a{1,9000}$"}, [("#/properties/x", "pattern")]),
    ({"type": "integer", "minimum": "1"}, [("#/properties/x", "minimum")]),
    ({"type": "number", "minimum": 0}, [("#/properties/x", "minimum")]),
    ({"type": "array", "items": {"type": "any"}}, [("#/properties/x/items", "type")]),
    ({"type": "array", "minItems": 3, "maxItems": 1},
     [("#/properties/x", "minItems"), ("#/properties/x", "maxItems")]),
    ("no schema", [("#/properties/x", "schema")]),
    ({"allOf": [{"type": "string"}]}, []),
    ({"$ref": "#"}, []),
    ({"$ref": "#/$defs/a~1b"}, []),
    ({"$ref": "#/$defs/loop"}, [("#/$defs/loop", "$ref")]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "open_parts"), OPENED)
@pytest.mark.parametrize("template", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "openai-gpt-oss-120b"])
def test_a_part_that_cannot_be_said_is_open_alone(
    chat: Asked, template: str, schema: Any, open_parts: list[tuple[str, str]]
) -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}
    parameters = {
        "type": "object",
        "properties": {"x": schema, "n": {"type": "integer"}},
        "required": ["n", "x"],
        "$defs": {"a/b": {"type": "integer"}, "loop": loop},
    }
    answer = rendered(chat, named(template), tools=[tool(parameters), tool(PATH, "other")])
    told = [(part["path"], part["keyword"]) for part in answer["open"]]
    assert told == open_parts
    assert {part["tool"] for part in answer["open"]} <= {"read_file"}
    integers = re.findall(r"\binteger\b", answer["grammar"])
    assert integers, "the other property binds as ever"


def test_the_model_reads_the_schema_as_it_was_written(chat: Asked) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "any", "pattern": "unsaid"}}}
    prompt = rendered(chat, named("Qwen-Qwen3-0.6B"), tools=[tool(parameters)])["prompt"]
    assert '"type": "any"' in prompt and "unsaid" in prompt


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "any"}, {"$ref": "x:y"}])
def test_arguments_are_an_object_whatever_the_schema_says(chat: Asked, parameters: Any) -> None:
    answer = rendered(chat, named("Qwen-Qwen3-0.6B"), tools=[tool(parameters)])
    assert [part["path"] for part in answer["open"]] == ["#"]
    assert rule(answer["grammar"], "tool-read-file-schema") == "object"


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_a_required_call_binds_from_the_first_token(chat: Asked, template: Path) -> None:
    answer = rendered(chat, template, tools=[tool(PATH)], tool_choice="required")
    if template.stem in WITHOUT_CALLS:
        assert answer["grammar"] == ""
        return
    assert not answer["grammar_lazy"] and answer["begun"] == ""
    assert "until" not in rule(answer["grammar"], "root")
    assert "think" not in rule(answer["grammar"], "root")


def test_models_that_think_do_so_before_a_required_call(chat: Asked) -> None:
    tools = {"tools": [tool(PATH)], "tool_choice": "required"}
    thinks = {
        path.stem for path in templates() if rendered(chat, path, **tools)["thoughts"] is not None
    }
    assert {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "GLM-4.6"} <= thinks
    off = rendered(chat, named("Qwen-Qwen3-0.6B"), thinking=False, **tools)
    assert off["thoughts"] is None


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
@pytest.mark.parametrize("text", ['{"city": "Oslo"}', '{"name": "Oslo"}', "[1]"])
def test_an_answer_by_a_form_is_content_beside_tools(
    chat: Asked, template: Path, text: str
) -> None:
    answer = rendered(chat, template, tools=[tool(PATH)], bound=True)
    if template.stem == "Cohere2MoE":  # its prompts begin thoughts that cannot be told apart
        return
    assert bool(answer["calls"]) != (template.stem in WITHOUT_CALLS)
    thoughts = answer["thoughts"]
    said = "x" + thoughts["ends"][0] + text if thoughts and thoughts["open"] else text
    parsed = chat.ask(questions.parse(said, raw(answer["syntax"]), None, partial=False))
    assert parsed is not None and parsed["message"]["content"] == text
    assert parsed["calls"] == 0 and parsed["whole"]


TWO = [tool(PATH), tool({"type": "object", "properties": {"n": {"type": "integer"}}}, "other")]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_of_calls_that_are_not_parallel_there_is_one(
    chat: Asked, template: Path, choice: str
) -> None:
    answer = rendered(chat, template, tools=TWO, tool_choice=choice, parallel_tool_calls=False)
    rules = dict(re.findall(r"^(\S+) ::= (.*)$", answer["grammar"], re.MULTILINE))
    calls = {name for name in rules if re.search(r"tool-(read-file|other)$", name)}
    assert len(calls) == 2 or not answer["grammar"]  # an empty one binds nothing
    waiting, above = ["root"] if rules else [], set[str]()
    while waiting:
        above.add(name := waiting.pop())
        body = re.sub(r'"(\\.|[^"\\])*"', "", rules[name])
        assert not re.search(r"\)[+*]|tool[\w-]*[+*]", body), (name, body)
        waiting += {*re.findall(r"[a-z][\w-]*", body)} & {*rules} - above - calls


def test_parallel_calls_stay_where_nobody_rules_them_out(chat: Asked) -> None:
    for parallel in (None, True):
        answer = rendered(
            chat, named("Qwen-Qwen3-0.6B"), tools=TWO, parallel_tool_calls=parallel
        )
        assert rule(answer["grammar"], "tool-calls").endswith("+")


TWICE = {
    "Qwen-Qwen3-0.6B": '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n'
    "</tool_call>\n",
    "openai-gpt-oss-120b": "<|start|>assistant<|channel|>commentary to=functions.read_file"
    '<|message|>{"path": "a"}<|call|>',
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "read_file", "parameters": {"path": "a"}}',
}  # fmt: skip


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("template", TWICE)
def test_a_second_call_is_not_told(chat: Asked, template: str, partial: bool) -> None:
    answer = rendered(chat, named(template), tools=TWO, parallel_tool_calls=False, thinking=False)
    text, former = TWICE[template], None
    text = text.removeprefix("<|start|>assistant") + text
    for part in (text[: len(text) // 2], text):
        is_partial = partial or part != text
        parsed = chat.ask(questions.parse(part, raw(answer["syntax"]), former, partial=is_partial))
        assert parsed is not None
        former = raw(parsed["message"])
    (call,) = parsed["message"]["tool_calls"]
    assert call["function"]["name"] == "read_file"
