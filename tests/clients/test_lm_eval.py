"""lm-eval on a task of its own in files, by completions and by chats; the answers are given."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert command.endswith("/completions \\\n  --tasks YOUR_TASK")
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
