"""The HTTP gateway: figures and health for whoever watches."""
