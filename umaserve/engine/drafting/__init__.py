"""Drafted tokens in the ticks: who gets some, how they are verified, and what is cut again."""
