"""The engine's loop: what happens in Python between the compiled ticks."""
