"""Grammars of clients (GBNF), which a process of their own follows."""
