"""Figures for people and files."""
