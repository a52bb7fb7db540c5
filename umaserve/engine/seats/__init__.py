"""Rows and their KV sequences: which rows get them, run with them, and give them back."""
