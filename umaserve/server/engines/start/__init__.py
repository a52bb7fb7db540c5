"""Starts of engine processes, and of models in them."""
