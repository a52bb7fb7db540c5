"""What front and engine share: the session table, the control messages, the states."""
