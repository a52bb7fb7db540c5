"""Answers that follow a constraint, from a real engine: whatever the model would rather say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import slow_masks
from tests.support.patches.scripted import scripted
from tests.support.small_models import write_model
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

PROMPT = "def answer():"
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 12},
        "age": {"type": "integer", "minimum": -5, "maximum": 140},
        "tags": {"type": "array", "items": {"enum": ["a", "b é", None, 3]}, "maxItems": 3},
        "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "at"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"const": "🙂"}},
            "required": ["y", "x"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: list[Any] = [
    OBJECT,
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "string", "pattern": "^[a-f]{2,5}(-[0-9]+)?$", "maxLength": 10},
    {"enum": ["left", "right", {"up": [1, 2.5]}]},
    {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    {"type": "string", "format": "date"},
]
CHOICE = m.Constraint(m.GRAMMAR, 'root ::= ("yes" | "no, ") [0-9]{1,4} "é"?')
CHOICE_MATCHES = re.compile(r"(yes|no, )[0-9]{1,4}é?")


@pytest.fixture(scope="module")
def engine() -> Iterator[DrivenEngine]:
    with DrivenEngine() as engine:
        yield engine


def hot(seed: int, **more: Any) -> m.Sampling:
    """Nearly evenly among all tokens of the vocabulary."""
    fields = {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed}
    return m.Sampling(**{**fields, **more})


def schema(value: Any) -> m.Constraint:
    return m.Constraint(m.SCHEMA, json.dumps(value))


def finished(engine: DrivenEngine, serial: int) -> tuple[str, int]:
    engine.wait(serial)
    found = engine.text(serial), engine.reason(serial)
    engine.release(serial)
    return found


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_json_validates(engine: DrivenEngine, number: int) -> None:
    serials = [
        engine.submit(PROMPT, sampling=hot(i), constraint=schema(SCHEMAS[number]))
        for i in range(6)
    ]
    for serial in serials:
        text, reason = finished(engine, serial)
        assert reason == t.REASON_STOP, text
        jsonschema.validate(
            json.loads(text), SCHEMAS[number],
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )  # fmt: skip


@pytest.mark.parametrize(
    "sampling",
    [
        m.Sampling(temperature=0.0),
        m.Sampling(temperature=1.0, logprobs=20, seed=1),
        m.Sampling(temperature=0.0, logprobs=0, repeat_penalty=1.5, presence_penalty=2.0),
        m.Sampling(temperature=2.0, mirostat=2, seed=2),
        m.Sampling(temperature=2.0, typical_p=0.3, top_k=0, seed=3),
        m.Sampling(temperature=2.0, xtc_probability=1.0, dry_multiplier=1.0, seed=4),
    ],
    ids=["greedy", "logprobs", "penalties", "mirostat", "typical", "xtc"],
)
def test_every_way_of_sampling(engine: DrivenEngine, sampling: m.Sampling) -> None:
    for binding, expected in (
        (m.Constraint(m.REGEX, "[a-f]{3,9}-[0-9]{2}"), re.compile("[a-f]{3,9}-[0-9]{2}")),
        (CHOICE, CHOICE_MATCHES),
    ):
        serial = engine.submit(PROMPT, sampling=sampling, constraint=binding)
        text, reason = finished(engine, serial)
        assert reason == t.REASON_STOP and expected.fullmatch(text)


def test_beside_rows_without_constraints(engine: DrivenEngine) -> None:
    plain = m.Sampling(temperature=0.0, ignore_eos=True)
    free = engine.submit(PROMPT, max_tokens=60, sampling=plain)
    bound = [engine.submit(PROMPT, sampling=hot(i), constraint=CHOICE) for i in range(4)]
    bound.append(engine.submit(PROMPT, sampling=hot(9), lane=1, constraint=CHOICE))
    for serial in bound:
        assert CHOICE_MATCHES.fullmatch(finished(engine, serial)[0])
    engine.wait(free)
    assert len(engine.generated(free)) == 60
    engine.release(free)


def test_one_seed_says_one_thing(engine: DrivenEngine) -> None:
    runs = [engine.run(PROMPT, sampling=hot(3), constraint=schema(OBJECT)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_end_of_the_form_ends_the_answer(engine: DrivenEngine) -> None:
    """Also where the token that would end it is banned."""
    for more in ({}, {"ignore_eos": True}):
        serial = engine.submit(
            PROMPT, sampling=hot(1, **more), constraint=m.Constraint(m.REGEX, "abc")
        )
        assert finished(engine, serial) == ("abc", t.REASON_STOP)


def test_max_tokens_cuts(engine: DrivenEngine) -> None:
    serial = engine.submit(PROMPT, sampling=hot(1), max_tokens=3, constraint=schema(OBJECT))
    text, reason = finished(engine, serial)
    assert reason == t.REASON_LENGTH and text.startswith("{")


def test_nothing_that_is_allowed_may_be_chosen(engine: DrivenEngine) -> None:
    """Never silently: the answer would be no whole one."""
    digits = [i for i in range(engine.ready.n_vocab) if engine.pieces.piece(i)[:1].isdigit()]
    banned = m.Sampling(temperature=0.0, logit_bias=tuple((i, float("-inf")) for i in digits))
    for binding in (m.Constraint(m.REGEX, "a[0-9]"), m.Constraint(m.GRAMMAR, 'root ::= "a" [0-9]')):
        serial = engine.submit(PROMPT, sampling=banned, constraint=binding)
        failed = engine.expect(m.Failed)
        assert failed.serials == [serial] and failed.code == "E_RUNTIME_003"
        assert finished(engine, serial) == ("a", t.REASON_ERROR)


@pytest.mark.parametrize(
    ("binding", "word"),
    [
        (m.Constraint(m.SCHEMA, "false"), "nothing"),
        (m.Constraint(m.SCHEMA, '{"type": "nope"}'), "nope"),
        (m.Constraint(m.SCHEMA, '{"not": {}}'), "not"),
        (m.Constraint(m.SCHEMA, '{"minimum": 3, "maximum": 2, "type": "integer"}'), "minimum"),
        (m.Constraint(m.SCHEMA, '{"$ref": "http://example.com/x"}'), "example.com"),
        (m.Constraint(m.SCHEMA, '{"items":' * 5000 + "true" + "}" * 5000), ""),
        (m.Constraint(m.REGEX, "(("), "regex"),
        (m.Constraint(m.REGEX, "(?=x)"), "look"),
        (m.Constraint(m.GRAMMAR, "root ::= x"), "x"),
        (m.Constraint(m.GRAMMAR, "no grammar"), "line 1"),
    ],
)
def test_refused_before_anything_is_said(
    engine: DrivenEngine, binding: m.Constraint, word: str
) -> None:
    serial = engine.submit(PROMPT, constraint=binding)
    rejected = engine.ended(serial)
    assert rejected is not None and rejected.code == "E_PROTO_005"
    assert word in rejected.message


def test_a_request_goes_on_where_another_engine_stopped() -> None:
    """With scripted logits: a processor's are others in the last bits for a longer batch."""
    binding = schema(OBJECT)
    with DrivenEngine(patch=partial(scripted, seed=3)) as engine:
        whole = engine.submit(PROMPT, sampling=hot(4), constraint=binding)
        engine.wait(whole)
        prompt, said = engine.prompt_tokens(whole), engine.generated(whole)
        engine.release(whole)
        assert len(said) > 8
        for known in (1, len(said) // 2, len(said) - 1):
            serial = engine.submit(
                tokens=prompt + said[:known], n_prompt=len(prompt), sampling=hot(4),
                constraint=binding,
            )  # fmt: skip
            engine.wait(serial)
            assert engine.generated(serial) == said
            engine.release(serial)


def test_cancelled_at_any_time(engine: DrivenEngine) -> None:
    endless = m.Constraint(m.REGEX, "a*b")
    banned = m.Sampling(temperature=0.0, logit_bias=((engine.ready.n_vocab - 1, 0.0),))
    for n_tokens in (None, 1, 5):
        serial = engine.submit(PROMPT, sampling=banned, constraint=endless, max_tokens=1000)
        if n_tokens is not None:
            engine.wait(serial, n_tokens=n_tokens)
        engine.send(m.Cancel(serial))
        engine.wait(serial)
        assert engine.reason(serial) in (t.REASON_CANCEL, t.REASON_STOP)
        engine.release(serial)
    assert CHOICE_MATCHES.fullmatch(
        finished(engine, engine.submit(PROMPT, sampling=hot(2), constraint=CHOICE))[0]
    )


# --- grammars that libllama does not survive ------------------------------------------------------

HOSTILE = {
    "ends the process": 'root ::= "a" !<[5]>',
    "never ends": "root ::= r\nr ::= "
    + " | ".join(f'[a-z] r "{number}"' for number in range(6))
    + ' | "-"',
    "takes all memory": "root ::= r\nr ::= "
    + " | ".join(f'. r "{number}"' for number in range(6))
    + ' | "-"',
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=list(HOSTILE))
def test_a_grammar_that_runs_wild_costs_its_own_request(
    engine: DrivenEngine, grammar: str
) -> None:
    greedy = m.Sampling(temperature=0.0, ignore_eos=True)
    beside = engine.submit(PROMPT, max_tokens=400, sampling=greedy)
    other = engine.submit(PROMPT, sampling=hot(2), constraint=CHOICE)
    pieces = map(engine.pieces.piece, range(engine.ready.n_vocab))
    long = list(pieces).index(b"abstractmethod")
    wild = m.Sampling(temperature=0.0, logit_bias=((long, 100.0),))
    serial = engine.submit(PROMPT, sampling=wild, constraint=m.Constraint(m.GRAMMAR, grammar))
    failed = engine.expect(m.Failed)
    assert failed.serials == [serial] and failed.code == "E_RUNTIME_003"
    assert finished(engine, serial)[1] == t.REASON_ERROR
    assert CHOICE_MATCHES.fullmatch(finished(engine, other)[0])
    engine.wait(beside)
    assert len(engine.generated(beside)) == 400
    engine.release(beside)
    (host,) = psutil.Process(engine.process.pid).children()
    until(lambda: not host.children())  # nothing goes on computing


def test_the_process_for_grammars_is_replaced(engine: DrivenEngine) -> None:
    assert CHOICE_MATCHES.fullmatch(
        finished(engine, engine.submit(PROMPT, sampling=hot(1), constraint=CHOICE))[0]
    )
    (host,) = psutil.Process(engine.process.pid).children()
    host.kill()
    until(lambda: host.status() == psutil.STATUS_ZOMBIE)
    serial = engine.submit(PROMPT, sampling=hot(1), constraint=CHOICE)
    assert CHOICE_MATCHES.fullmatch(finished(engine, serial)[0])
    assert psutil.Process(engine.process.pid).children() != [host]


def test_a_process_of_several_threads_follows_one_grammar_and_does_not_fork(
    monkeypatch: pytest.MonkeyPatch, threaded: dict[str, str]
) -> None:
    for name, value in threaded.items():
        monkeypatch.setenv(name, value)
    endless = m.Constraint(m.GRAMMAR, 'root ::= "x" root')
    with DrivenEngine(fresh=True) as engine:
        beside = engine.submit(PROMPT, sampling=hot(1), constraint=endless, max_tokens=100)
        engine.wait(beside, n_tokens=3)
        for _ in range(2):
            serial = engine.submit(PROMPT, sampling=hot(1), constraint=CHOICE)
            assert CHOICE_MATCHES.fullmatch(finished(engine, serial)[0])
        hosts = psutil.Process(engine.process.pid).children(recursive=True)
        assert all(host.ppid() == engine.process.pid for host in hosts)
        text, _ = finished(engine, beside)
        assert text == "x" * len(text) and len(text) >= 100
        together = [engine.submit(PROMPT, sampling=hot(i), constraint=CHOICE) for i in range(6)]
        assert all(CHOICE_MATCHES.fullmatch(finished(engine, each)[0]) for each in together)


# --- from a trigger on ----------------------------------------------------------------------------

CALLS = m.Constraint(
    m.GRAMMAR, 'root ::= "<call>" [a-c]{2,4} "</call>"', triggers=("<call>",), is_made=True
)


def test_a_grammar_binds_from_its_trigger_on(engine: DrivenEngine) -> None:
    """Up to there the model says what it wants; here that is given by steep biases."""
    asked = engine.submit("<call>", max_tokens=1)
    engine.wait(asked)
    word = [token for token in engine.prompt_tokens(asked) if engine.pieces.piece(token)]
    engine.release(asked)
    assert len(word) == len(set(word))
    steps = tuple((token, 900.0 - 50 * i) for i, token in enumerate(word))
    sampling = m.Sampling(
        temperature=0.0, logit_bias=steps, repeat_penalty=10.0, penalty_last_n=-1
    )
    serial = engine.submit(PROMPT, sampling=sampling, constraint=CALLS, max_tokens=200)
    text, reason = finished(engine, serial)
    assert reason == t.REASON_STOP
    assert re.fullmatch(r"(?s).*?<call>[a-c]{2,4}</call>", text), text


def test_nothing_binds_without_its_trigger(engine: DrivenEngine) -> None:
    greedy = m.Sampling(temperature=0.0)
    free = engine.run(PROMPT, max_tokens=20, sampling=greedy)
    assert engine.run(PROMPT, max_tokens=20, sampling=greedy, constraint=CALLS) == free


def test_what_the_prompt_has_begun_is_gone_on_with(engine: DrivenEngine) -> None:
    binding = m.Constraint(m.GRAMMAR, 'root ::= "<call>" "ok"', begun="<call>", is_made=True)
    serial = engine.submit(PROMPT, sampling=hot(1), constraint=binding)
    assert finished(engine, serial) == ("ok", t.REASON_STOP)
    binding = m.Constraint(m.GRAMMAR, 'root ::= "<call>" "ok"', begun="<other>", is_made=True)
    serial = engine.submit(PROMPT, sampling=hot(1), constraint=binding)
    assert engine.ended(serial) is not None


# --- masks that are late --------------------------------------------------------------------------


def test_a_late_mask_changes_nothing() -> None:
    """Its row is computed again, and no token is taken twice."""
    only = m.Constraint(m.GRAMMAR, 'root ::= "the door is green, and the cat is grey"')
    with DrivenEngine(patch=partial(slow_masks, seconds=0.25, number=2)) as engine:
        beside = engine.submit(PROMPT, max_tokens=900, sampling=m.Sampling(ignore_eos=True))
        engine.wait(beside, n_tokens=1)
        before = len(engine.generated(beside))
        serial = engine.submit(PROMPT, sampling=hot(5), constraint=only)
        engine.wait(serial)
        own, others = len(engine.generated(serial)), len(engine.generated(beside)) - before
        assert engine.text(serial) == "the door is green, and the cat is grey"
        assert engine.reason(serial) == t.REASON_STOP
        assert others > own  # it went on meanwhile
        engine.wait(beside)


def test_a_mask_that_takes_too_long_fails_its_request(tmp_path: Path) -> None:
    with DrivenEngine(patch=partial(slow_masks, seconds=60.0, number=2)) as engine:
        serial = engine.submit(PROMPT, sampling=hot(5), constraint=CHOICE)
        failed = engine.expect(m.Failed)
        assert failed.serials == [serial] and "too long" in failed.message
        assert finished(engine, serial)[1] == t.REASON_ERROR
        assert len(engine.run(PROMPT, max_tokens=5)) == 5


# --- random weights, another vocabulary -----------------------------------------------------------


@pytest.mark.parametrize("shape", ["mamba-micro", "gemma3-micro", "gpt2-micro"])
def test_random_weights_of_other_families(tmp_path: Path, shape: str) -> None:
    """A memory that cannot go back, and vocabularies of other kinds."""
    model = write_model(tmp_path / f"{shape}.gguf", shape)
    with DrivenEngine(model=model, n_ctx=1024) as engine:
        serials = [
            engine.submit("x", sampling=hot(i), constraint=binding)
            for binding in (CHOICE, schema(OBJECT))
            for i in range(3)
        ]
        texts = [finished(engine, serial) for serial in serials]
        assert all(reason == t.REASON_STOP for _, reason in texts), texts
        assert all(CHOICE_MATCHES.fullmatch(text) for text, _ in texts[:3]), texts
        for text, _ in texts[3:]:
            jsonschema.validate(json.loads(text), OBJECT)
