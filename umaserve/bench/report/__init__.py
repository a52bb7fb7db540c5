"""The report of a run: page, charts and table."""
