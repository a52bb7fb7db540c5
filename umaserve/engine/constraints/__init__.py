"""Schemas and grammars that bind an answer: which tokens may come next, as masks."""
