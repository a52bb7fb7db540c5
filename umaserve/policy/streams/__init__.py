"""Ticks in which interactive sessions decode, and what rides with these streams."""
