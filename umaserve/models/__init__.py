"""GGUF files: what they hold, what is wrong with them, what serving them takes."""
