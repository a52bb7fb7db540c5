"""What a model would say to a coding agent, step by step.

An agent sends more than its task: titles, summaries, counts.  So the answer hangs on what a request
is, not on which one it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

_TOOLS = "<tools>\n"
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_SUMMARY = re.compile(r"Steps taken: (\d+)\. Seen: (\S+)\.")
_END = "\n</think>\n\n"  # ends the prompt where the model is not to think
THOUGHT = "The next step."
ASIDE = "A short title"  # to what is not the task


@dataclass
class Script:
    """For a model with Qwen3's template.

    ``calls`` are made one after the other in answer to ``task``.  Then it says ``says``, in which
    ``{}`` is what ``sees``, a regular expression, finds first in the tools' results.  Without
    tools, it sums results up, and goes on from there when it reads that again.
    """

    task: str
    calls: list[tuple[str, dict[str, Any]]]
    sees: str
    says: str

    @classmethod
    def read(cls, text: str) -> Script:
        """What ``str`` of a script gives."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def answer(self, prompt: str) -> str:
        """The model's next turn."""
        at = prompt.rfind(self.task)
        results = _RESULT.findall(prompt, at) if at >= 0 else []
        taken, seen = next(iter(_SUMMARY.findall(prompt)[-1:]), (0, "nothing"))
        taken = int(taken) + len(results)
        seen = next(iter(re.findall(self.sees, "\n".join(results))), seen)
        if at < 0 or _TOOLS not in prompt:
            return f"Steps taken: {taken}. Seen: {seen}." if results else ASIDE
        thought = "" if prompt.endswith(_END) else f"<think>\n{THOUGHT}{_END}"
        if taken >= len(self.calls):
            return thought + self.says.replace("{}", seen)
        name, arguments = self.calls[taken]
        call = json.dumps({"name": name, "arguments": arguments})
        return f"{thought}<tool_call>\n{call}\n</tool_call>"
