"""Answers of the daemon as HTTP has them: whole ones, streams, and their parts."""
