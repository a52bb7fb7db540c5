"""Prompts that are computed beside the ticks, in a context of their own."""
