"""Models that are served: their engines, what replaces dead ones, loads and unloads."""
