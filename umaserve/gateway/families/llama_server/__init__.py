"""llama-server's dialect."""
