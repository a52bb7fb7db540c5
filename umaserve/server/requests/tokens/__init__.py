"""From rows of the session table to text and events."""
