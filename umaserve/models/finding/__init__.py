"""Finding GGUF files where other tools keep them, and by the names that `umaserve models` shows."""
