"""ΣBMT: the bytes that ticks move, and the budget for them."""
