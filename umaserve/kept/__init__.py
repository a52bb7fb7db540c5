"""Folders in the user's cache, and how long each is kept."""
