"""What is kept in the user's cache, and for how long."""
