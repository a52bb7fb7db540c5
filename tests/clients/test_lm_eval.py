"""lm-eval on tasks in files: by completions and chats whose answers are given, and by the
log-probabilities of the bundled model."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients
DOORS = [{"door": "front", "colour": "green"}, {"door": "back", "colour": "blue"},
         {"door": "cellar", "colour": "grey"}]  # fmt: skip
SAID = [
    ("front door?", " green\nAnd"),
    ("back door?", " blue\nAnd"),
    ("cellar door?", " black\nAnd"),
]
TASK = """
task: doors
dataset_path: json
dataset_kwargs:
  data_files:
    test: doors.jsonl
test_split: test
output_type: generate_until
doc_to_text: "What colour is the {{door}} door?"
doc_to_target: "{{colour}}"
target_delimiter: ""
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 16
filter_list:
  - name: bare
    filter:
      - function: remove_whitespace
      - function: take_first
metric_list:
  - metric: exact_match
"""


@pytest.mark.parametrize(
    ("which", "arguments", "options"),
    [(0, "", ""), (0, ",num_concurrent=2", "--batch_size 2"), (1, "", "")],
    ids=["completions", "several at once", "chats"],
)
def test_a_task(
    tmp_path: Path, scripted_model: c.Scripted, which: int, arguments: str, options: str
) -> None:
    """Two of the three answers are right."""
    programs = c.Programs("lm-eval", tmp_path)
    key, *commands = c.setups("lm-eval", scripted_model.url)
    command = commands[which].strip()
    assert command.endswith(" \\\n  --tasks YOUR_TASK")
    command = command.replace("/completions", f"/completions{arguments}")
    scripted_model.says(SAID)
    (tmp_path / "doors.yaml").write_text(TASK)
    (tmp_path / "doors.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOORS))
    said = programs.shell(
        f"{key}{command.replace('YOUR_TASK', 'doors')} {options}"
        " --include_path . --output_path out.json",
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
    )  # fmt: skip
    assert ("Using remote tokenizer" in said) == (which == 0), said
    (out,) = tmp_path.glob("out*.json")
    results = json.loads(out.read_text())["results"]["doors"]
    assert results["exact_match,bare"] == pytest.approx(2 / 3), said


CHOICES = ["14 * r * r", "potatoes"]
QUESTION = "def area(r):\n    return 3."
CHOOSING = """
task: area
dataset_path: json
dataset_kwargs:
  data_files:
    test: area.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def test_log_likelihoods(tmp_path: Path, real_url: str) -> None:
    """A choice is as likely as the answer says of its tokens."""
    programs = c.Programs("lm-eval", tmp_path)
    key, command, _ = c.setups("lm-eval", real_url)
    (tmp_path / "area.yaml").write_text(CHOOSING)
    doc = {"question": QUESTION, "choices": CHOICES, "answer": 0}
    (tmp_path / "area.jsonl").write_text(json.dumps(doc) + "\n")
    said = programs.shell(
        f"{key}{command.strip().replace('YOUR_TASK', 'area')}"
        " --include_path . --log_samples --output_path out",
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
    )  # fmt: skip
    (samples,) = tmp_path.glob("out/**/samples_area*.jsonl")
    (sample,) = [json.loads(line) for line in samples.read_text().splitlines()]
    for choice, (answer,) in zip(CHOICES, sample["resps"], strict=True):
        told = completion(real_url, prompt=QUESTION + choice)
        tokens, logprobs = told["tokens"], told["token_logprobs"]
        assert "".join(tokens[:-1]) == QUESTION + choice
        first = completion(real_url, prompt=QUESTION)
        behind = len(first["tokens"]) - 1  # where the choice begins, if no token spans it
        assert "".join(tokens[:behind]) == QUESTION
        assert float(answer[0]) == pytest.approx(sum(logprobs[behind:-1]), abs=0.02), said
    assert sample["acc"] == 1.0


def completion(url: str, **body: Any) -> dict[str, Any]:
    asked = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, **body}
    headers = {"Authorization": f"Bearer {c.KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)["choices"][0]["logprobs"]
    return told
