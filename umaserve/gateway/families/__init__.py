"""The dialects of HTTP: each module translates one family of routes to the socket and back."""
