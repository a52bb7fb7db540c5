"""The engine: the child process that owns libllama, the weights and the hot loop.

``loop`` has the ticks, ``prefill`` what is computed beside them.  The front imports nothing of
this: what both share is in ``umaserve.wire``.
"""
