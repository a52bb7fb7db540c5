"""Drafts: tokens that a text may go on with, by what it has said before, and how many pay."""
