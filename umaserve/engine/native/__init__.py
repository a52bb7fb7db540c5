"""Calls into libllama by address, and the batch that they are about."""
