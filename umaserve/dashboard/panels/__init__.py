"""Parts of the screen, each made of one overview."""
