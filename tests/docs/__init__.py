"""The pages: their commands, examples and maps."""
