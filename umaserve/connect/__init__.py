"""Editors and agents, set up for this daemon: texts of their settings in, texts out; pure."""
