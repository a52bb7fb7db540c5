"""Conversations to prompts, and texts of models to messages: the client half of uma-chat.

uma-chat (``native/``) is a small program with llama.cpp's own chat layer.  A chat template is a
program by whoever made the model's file, so it runs in that process.  The front bounds the process
in time and ends it (`umaserve.server.requests.conversations.layer`).
"""
