"""Prompts whose beginning is known: saved from the KV cache, and copied back into it."""
