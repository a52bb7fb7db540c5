"""Parts that the gateway's families share: bodies and errors, callers, streams, schemas."""
