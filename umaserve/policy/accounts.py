"""Accounts: what a policy remembers of each program."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

ALL = 0  # the account of all programs together


@njit(**INNER)
def account_of(accounts, program, now_ns):
    """The account of a program; a new one takes the place of the one that was used least lately."""
    oldest = ALL + 1
    for i in range(ALL + 1, accounts.shape[0]):
        if accounts[i].seen_ns > 0 and accounts[i].program == program:
            accounts[i].seen_ns = now_ns
            return i
        if accounts[i].seen_ns < accounts[oldest].seen_ns:
            oldest = i
    accounts[oldest].program, accounts[oldest].seen_ns = program, now_ns
    accounts[oldest].since_ns, accounts[oldest].had = 0, 0.0
    return oldest
