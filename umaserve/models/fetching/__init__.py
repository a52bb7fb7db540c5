"""Fetching GGUF files from a hub into the cache that its own tools use."""
