"""The engine's loop: the compiled ticks, and what happens in Python between them."""
