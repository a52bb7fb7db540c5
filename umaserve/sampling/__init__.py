"""Samplers: numba code that reads a logits row where the backend left it.

``params`` holds the settings of every row of the session table as numpy columns.  ``sampler`` has
the chain, the entry that the engine calls once per tick, and the scratch it works in.  The steps:

- ``vector``: 64 logits at a time, as LLVM vectors;
- ``select``: maxima, thresholds, top-k;
- ``mass``: softmax sums, nuclei, drawing;
- ``kernels``: the truncating samplers;
- ``history``: biases, penalties, DRY;
- ``breakers``: DRY's strings as token sequences;
- ``mask``: what a constraint forbids.
"""
