"""How code is compiled, where it is kept, and how Python calls it."""
