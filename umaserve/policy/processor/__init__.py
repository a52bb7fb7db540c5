"""Prompts beside ticks where a processor computes both."""
