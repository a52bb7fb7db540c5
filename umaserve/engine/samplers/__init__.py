"""Rows of logits to tokens, dealt out among threads."""
