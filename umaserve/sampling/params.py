"""Sampling settings of all sessions, as columns that compiled code can read."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import numpy as np

from umaserve.wire.messages import Sampling

MAX_LOGIT_BIAS = 1024  # entries per request
# what is smaller is taken for greedy: its inverse is no float32
LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)
LEAST_REPEAT = 1e-30  # logits divided by less would be no float32 any more


class Settings(NamedTuple):
    """The columns of a SamplerTable, in the form that compiled code takes (borrowed)."""

    real: np.ndarray
    whole: np.ndarray
    bias_ids: np.ndarray
    bias_values: np.ndarray


class SamplerTable:
    """Table of sampling settings, one row per slot of the session table.

    ``real`` is float64[n_slots, N_REAL], ``whole`` int64[n_slots, N_WHOLE]; the column numbers are
    the constants below.  ``bias_ids`` int32 and ``bias_values`` float32 are [n_slots,
    MAX_LOGIT_BIAS], of which the first ``whole[slot, N_BIAS]`` count.  ``real[slot, MU]`` is
    mirostat's state and changes with every token.  The engine process owns a table.
    """

    def __init__(self, n_slots: int) -> None:
        self.real = np.zeros((n_slots, N_REAL), np.float64)
        self.whole = np.zeros((n_slots, N_WHOLE), np.int64)
        self.bias_ids = np.zeros((n_slots, MAX_LOGIT_BIAS), np.int32)
        self.bias_values = np.zeros((n_slots, MAX_LOGIT_BIAS), np.float32)
        self.settings = Settings(self.real, self.whole, self.bias_ids, self.bias_values)
        self._no_breakers = np.zeros(1, np.int32)
        # compiled code has their addresses; here they are kept alive
        self._breakers = [self._no_breakers] * n_slots
        for slot in range(n_slots):
            self._point(slot)

    def set(self, slot: int, sampling: Sampling, breakers: np.ndarray | None = None) -> None:
        """Store the settings of the request in ``slot`` and start mirostat afresh.

        ``breakers`` are ``sampling.dry_sequence_breakers`` as ``BreakerCache.get`` gives them
        (int32[], borrowed until the slot is set again); without them DRY knows no breakers.
        """
        real, whole = self.real[slot], self.whole[slot]
        # at once: streams wait while Python writes one number after another
        real[_REAL_COLUMNS] = _real_of(sampling)
        whole[_WHOLE_COLUMNS] = _whole_of(sampling)
        if sampling.temperature < LEAST_TEMPERATURE:
            real[TEMPERATURE] = 0.0
        real[REPEAT] = max(sampling.repeat_penalty, LEAST_REPEAT)
        real[MU] = 2.0 * sampling.mirostat_tau
        whole[CONSTRAINT] = whole[MASK] = 0
        seed = sampling.seed & 0xFFFFFFFFFFFFFFFF
        whole[SEED] = seed - (1 << 64) if seed >= 1 << 63 else seed
        bias = sampling.logit_bias[:MAX_LOGIT_BIAS]
        whole[N_BIAS] = len(bias)
        for i, (token, value) in enumerate(bias):
            self.bias_ids[slot, i] = token
            self.bias_values[slot, i] = value
        breakers = self._no_breakers if breakers is None else breakers
        if breakers is not self._breakers[slot]:
            self._breakers[slot] = breakers
            self._point(slot)

    def bind(self, slot: int, wakes: int) -> None:
        """Let masks decide which tokens the row in ``slot`` may have; after `set`.

        A byte to the descriptor ``wakes`` asks for the next one.
        """
        whole = self.whole[slot]
        whole[MASK_AT] = NO_MASK
        whole[CONSTRAINT] = wakes + 1

    def _point(self, slot: int) -> None:
        breakers = self._breakers[slot]
        self.whole[slot, BREAKERS] = breakers.ctypes.data
        self.whole[slot, N_BREAKERS] = breakers.size


# columns of ``real``
TEMPERATURE = 0
TOP_P = 1
MIN_P = 2
TYPICAL_P = 3
REPEAT = 4
PRESENCE = 5
FREQUENCY = 6
XTC_PROBABILITY = 7
XTC_THRESHOLD = 8
DRY_MULTIPLIER = 9
DRY_BASE = 10
TAU = 11
ETA = 12
MU = 13
N_REAL = 14
# columns of ``whole``
TOP_K = 0
LAST_N = 1
LOGPROBS = 2
IGNORE_EOS = 3
SEED = 4
N_BIAS = 5
DRY_ALLOWED = 6
DRY_LAST_N = 7
MIROSTAT = 8
BREAKERS = 9  # address of an int32 array,
N_BREAKERS = 10  # and its length
CONSTRAINT = 11  # 1 + the descriptor that wakes whoever makes this row's masks; 0 = it has none
MASK_AT = 12  # number of tokens that the newest mask is for, or NO_MASK; written by its maker
NEXT_MASK = 13  # address of that mask, 0 where all tokens are allowed; written by its maker
MASK = 14  # of these, what the row is sampled with; LATE (`mask`) = the row gets no token
AFTER = 15  # 1 where log-probabilities are of what the settings leave
N_WHOLE = 16
NO_MASK = -1  # there is none yet
NO_MORE_MASKS = -2  # nor will there be one

_REAL_FIELDS = {
    TEMPERATURE: "temperature",
    TOP_P: "top_p",
    MIN_P: "min_p",
    TYPICAL_P: "typical_p",
    REPEAT: "repeat_penalty",
    PRESENCE: "presence_penalty",
    FREQUENCY: "frequency_penalty",
    XTC_PROBABILITY: "xtc_probability",
    XTC_THRESHOLD: "xtc_threshold",
    DRY_MULTIPLIER: "dry_multiplier",
    DRY_BASE: "dry_base",
    TAU: "mirostat_tau",
    ETA: "mirostat_eta",
}
_WHOLE_FIELDS = {
    TOP_K: "top_k",
    LAST_N: "penalty_last_n",
    LOGPROBS: "logprobs",
    IGNORE_EOS: "ignore_eos",
    DRY_ALLOWED: "dry_allowed_length",
    DRY_LAST_N: "dry_penalty_last_n",
    MIROSTAT: "mirostat",
    AFTER: "post_sampling_probs",
}
_REAL_COLUMNS = np.array([*_REAL_FIELDS])
_WHOLE_COLUMNS = np.array([*_WHOLE_FIELDS])
_real_of = attrgetter(*_REAL_FIELDS.values())
_whole_of = attrgetter(*_WHOLE_FIELDS.values())
