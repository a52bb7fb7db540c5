"""Work before the first request and in pauses: proof, touch, measurements."""
