"""The gateway's end of the socket: a few connections that all HTTP requests share."""
