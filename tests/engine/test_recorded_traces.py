"""What is kept of requests that were noted: sizes and order, and no text."""

from __future__ import annotations

import json
from typing import Any

from tests.support.record_traces import lines_of, trace_of
from umaserve import llama

SAID = "What colour is the door of the old house?"


def noted(came_s: float, ended_s: float, prompt: str, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "came_ns": round(came_s * 1e9), "ended_ns": round(ended_s * 1e9), "program": "agent",
        "session": "a-secret-name", "streams": True, "prompt": prompt, "answer": answer,
        "max_tokens": 64, "tools": 3, "results": 0, "thinking": None, **more,
    }  # fmt: skip


def test_a_trace_of_what_was_noted() -> None:
    library = llama.load()
    vocabulary = library.build.vocab_dir / "ggml-vocab-qwen2.gguf"
    grown = f"{SAID} Green. And that of the cellar?"
    notes = [  # as they ended
        noted(10.3, 10.5, "Name this talk.", "Doors", program="titles", session=None),
        noted(10.0, 11.0, SAID, " Green."),
        noted(11.25, 12.0, grown, " Grey.", streams=False),
    ]
    with llama.Model.open(library, vocabulary, vocab_only=True) as model:
        trace = trace_of("doors", notes, model)
        whole = len(model.tokenize(grown, add_special=False))
        known = len(model.tokenize(f"{SAID} Green.", add_special=False))
    first, title, second = trace["requests"]
    assert trace["programs"] == ["agent", "titles"]
    assert [r["app"] for r in trace["requests"]] == [1, 2, 1]
    assert (first["at_ms"], title["at_ms"]) == (0, 300)
    assert "after" not in title, "nothing had ended before it came"
    assert (second["after"], second["wait_ms"]) == (0, 250)
    assert (second["cached"], second["prompt"]) == (known, whole - known)
    assert (second["streams"], second["session"], "session" in title) == (False, 1, False)
    text = "".join(lines_of(trace))
    assert json.loads(text) == trace
    assert not any(word in text for word in ("door of", "Green", "secret"))
