"""The HTTP gateway: a process that speaks HTTP with programs, and the socket with the daemon."""
