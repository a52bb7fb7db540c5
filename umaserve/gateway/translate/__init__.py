"""What the families of the gateway share: bodies and errors, who asks, streams, schemas."""
