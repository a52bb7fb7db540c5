"""Faults and spies that tests put into processes of the product: the one place that does so.

A test names a function of ``engine_faults``, ``engine_spies`` or ``front``.  The process that the
test starts calls it first.  ``chat`` is a program of its own.
Whoever moves or renames a part of the product mends what is patched here, and nothing in the tests.
"""
