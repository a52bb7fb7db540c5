"""Lines, the terminal and its keys, a picture."""
