"""The blocks of `vector` in numpy, for Python with the compiler switched off (NUMBA_DISABLE_JIT=1).

Tests run the samplers so, to see what the compiler's types would hide.  The arguments and results
are those of the functions of the same names; exponentials differ in their last bits.  Sums are
Python's floats: numpy would add a float32 to one as float32, and compiled code does as float64.
"""

from __future__ import annotations

import numpy as np

BLOCK = 64
EXP_FLOOR = np.float32(-87.0)
_BITS = np.uint64(1) << np.arange(BLOCK, dtype=np.uint64)


def _mask(lanes: np.ndarray) -> np.uint64:
    return np.bitwise_or.reduce(_BITS[lanes], initial=np.uint64(0))


def _inside(values: np.ndarray, center: float, distance: float) -> np.ndarray:
    return np.abs(values - np.float32(center)) <= np.float32(distance)


def _exp(x: np.ndarray) -> np.ndarray:
    return np.exp(np.fmax(x, EXP_FLOOR))


def block_max(array: np.ndarray, start: int) -> np.float32:
    return np.fmax.reduce(array[start : start + BLOCK], initial=np.float32(-np.inf))


def block_at_least(array: np.ndarray, start: int, low: float) -> np.uint64:
    return _mask(array[start : start + BLOCK] >= np.float32(low))


def block_within(array: np.ndarray, start: int, center: float, distance: float) -> np.uint64:
    return _mask(_inside(array[start : start + BLOCK], center, distance))


def block_exp_sum(array: np.ndarray, start: int, top: float, inverse: float) -> float:
    away = array[start : start + BLOCK] - np.float32(top)
    return float(_exp(away * np.float32(inverse)).sum(dtype=np.float32))


def block_exp_within(
    array: np.ndarray, start: int, top: float, center: float, distance: float
) -> float:
    values = array[start : start + BLOCK]
    inside = values[_inside(values, center, distance)]
    return float(_exp(inside - np.float32(top)).sum(dtype=np.float32))


def block_exp_moment(array: np.ndarray, start: int, top: float) -> float:
    away = np.fmax(array[start : start + BLOCK] - np.float32(top), EXP_FLOOR)
    return float((np.exp(away) * away).sum(dtype=np.float32))


def exp_negative(x: float) -> float:
    return float(np.exp(np.fmax(np.float32(x), EXP_FLOOR)))


def float_bits(x: float) -> np.int32:
    return np.float32(x).view(np.int32)


def float_of_bits(bits: int) -> np.float32:
    return np.int32(bits).view(np.float32)


def count_bits(mask: int) -> int:
    return int(mask).bit_count()


def lowest_bit(mask: int) -> int:
    whole = int(mask)
    return (whole & -whole).bit_length() - 1
