"""The engine: the child process that owns libllama, the weights and the hot loop.

Two halves live here.  The client half, ``table`` and ``messages``, is what the front may import: it
knows numpy and msgspec and nothing of numba or libllama.  Everything else runs in the child only.
"""
