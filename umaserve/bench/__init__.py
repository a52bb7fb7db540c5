"""``umaserve bench``: interactive streams alone, then beside long jobs, over the daemon's socket.

``target`` finds or starts the daemon.  ``load`` is the clients and their clock, ``run`` the phases,
``desk`` the last one, and ``result`` what follows from them.  ``table``, ``charts`` (drawn with
``drawing``) and ``page`` are how people see it.  The benchmark knows the client's half of the
protocol and nothing of the daemon's insides.
"""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot be run or went wrong; the text says why and what to do."""
