"""The front: the process that owns every connection and every promise made to a client.

Nothing here imports libllama's binding or numba; the engine is a child process that is reached
through ``umaserve.wire.messages`` and the shared ``umaserve.wire.table``.
"""
