"""Benchmarks: every figure is a ratio inside one run on one machine."""
