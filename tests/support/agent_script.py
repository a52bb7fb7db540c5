"""What a model would say to a coding agent, step by step.

An agent sends more than its task: titles, summaries, counts.  So the answer hangs on what a request
is, not on which one it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_TOOLS = "<tools>\n"
THOUGHT = "The next step."
_END = "\n</think>\n\n"  # ends the prompt where the model is not to think
ASIDE = "A short title"  # to what is not the task


@dataclass
class Script:
    """For a model with Qwen3's template.

    ``calls`` are made one after the other in answer to ``task``.  Then it says ``says``, in which
    ``{}`` is what ``sees``, a regular expression, finds in a tool's result.
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
        if at < 0 or _TOOLS not in prompt:
            return ASIDE
        thought = "" if prompt.endswith(_END) else f"<think>\n{THOUGHT}{_END}"
        return thought + self._step(prompt, at)

    def _step(self, prompt: str, at: int) -> str:
        results = _RESULT.findall(prompt, at)
        if len(results) < len(self.calls):
            name, arguments = self.calls[len(results)]
            call = json.dumps({"name": name, "arguments": arguments})
            return f"<tool_call>\n{call}\n</tool_call>"
        seen = re.search(self.sees, "\n".join(results))
        return self.says.format(seen[1] if seen else "nothing")
