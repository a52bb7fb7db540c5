"""Policies: ``SchedulerState -> Plan``, pure, with no clock and no I/O of their own.

``base`` has the nouns, ``guarded`` the policy in use, which composes the other modules.  ``cost``
is what a tick is expected to take, ``greedy`` a policy in plain Python.  The rest is numba's subset
of Python: compiled in the engine, interpreted when ``NUMBA_DISABLE_JIT=1`` is set, and run by the
simulator (``tools/simulate.py``) without either process.
"""
