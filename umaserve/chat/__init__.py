"""Conversations to prompt texts: the program that renders a model's chat template.

The template is a program by whoever made the model's file.  So it runs in a process of its own
(``python -m umaserve.chat``), which the front bounds in time and kills
(`umaserve.server.requests.chat`).
"""
