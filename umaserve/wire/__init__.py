"""Memory and words that front and engine share: session table, control messages, states."""
