"""The prefix cache: the KV of texts that were computed before, and what of it goes first; pure."""
