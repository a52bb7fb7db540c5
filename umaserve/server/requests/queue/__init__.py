"""Requests that wait, and whose turn it is."""
