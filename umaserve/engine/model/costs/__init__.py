"""Costs of ticks, kept from one start to the next."""
