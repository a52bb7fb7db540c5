"""Headers of GGUF files: reading them, and their faults."""
