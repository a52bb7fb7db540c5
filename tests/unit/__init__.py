"""Modules by themselves."""
