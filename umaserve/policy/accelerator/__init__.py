"""Prompts beside ticks, and decoders that ride along, on an accelerator."""
