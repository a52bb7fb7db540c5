"""Damaged GGUF files, and processes that read them."""
