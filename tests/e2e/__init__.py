"""The daemon, its clients and its commands as a user runs them."""
