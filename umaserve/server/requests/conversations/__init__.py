"""Conversations to prompts, and text to messages: questions to uma-chat and uma-eyes."""
