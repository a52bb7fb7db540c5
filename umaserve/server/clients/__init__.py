"""Clients: their sockets, their bytes, their share of what all use."""
