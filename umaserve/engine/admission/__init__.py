"""Requests on their way into the session table: tokenised, refused, or given a row."""
