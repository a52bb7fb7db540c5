"""Conversations with a model that has no chat template: a base model, which continues text.

Its turns are plain text, each below the speaker's name.  A base model goes on with the other
speaker's turn, so the names are stop strings.
"""

from __future__ import annotations

NOTE = "a base model: it continues text"

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ 'Assistant:\\n' }}"
    "{% elif message.role != 'system' %}{{ 'User:\\n' }}{% endif %}"
    "{{ message.content + '\\n\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)
STOPS = ("\n\nUser:", "\nUser:", "\n\nAssistant:", "\nAssistant:")
