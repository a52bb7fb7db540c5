"""Counters and times of requests."""
