"""The child that renders chat templates, with one second for a question.

    python -m tests.support.patches.chat
"""

from __future__ import annotations

import sys

from umaserve.chat import __main__ as chat_main

if __name__ == "__main__":
    chat_main.QUESTION_CPU_S = 1
    sys.exit(chat_main.main())
