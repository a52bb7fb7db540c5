"""Vector code over 64 logits at a time, as LLVM vectors of 16 float32.

LLVM lowers these to the machine's own registers: one AVX-512, two AVX2, four SSE or NEON ones.
They are written out for two reasons.  A maximum or a sum of floats in a plain loop may not be
reordered, so that LLVM leaves it scalar.  Flags that allow reordering would also spoil the
exponential's last bits.

Every function takes a C-contiguous float32 array and reads ``array[start:start + BLOCK]``, without
a check of bounds.  NaN is never the larger one and never inside a range.  The scalar forms below
are for the end of an array whose length is no multiple of BLOCK; their arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from umaserve.jit.compiled import intrinsic

from . import plain

BLOCK = 64
LANES = 16
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)

# exp(r) = 1 + r + r * r * p(r) on [-ln2/2, ln2/2]; least largest relative error, which is 1.05e-7
_EXP_COEFFICIENTS = (0.008312520571053028, 0.04189015552401543, 0.16667114198207855, 0.499992311)
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
EXP_FLOOR = -87.0  # below, results would be denormal
_ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds a float32 to a whole number


def _constant(kind: ir.Type, value: float) -> ir.Constant:
    """``value`` as a scalar, or in every lane."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def _splat(builder: Any, value: Any) -> Any:
    """A vector with ``value`` in every lane."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    zeros = _constant(ir.VectorType(_I32, LANES), 0)
    return builder.shuffle_vector(first, undefined, zeros)


def _load(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> list[Any]:
    """The block's vectors."""
    data = context.make_array(array_type)(context, builder, array).data
    vectors = []
    for at in range(0, BLOCK, LANES):
        where = builder.gep(data, [builder.add(start, ir.Constant(_I64, at))])
        pointer = builder.bitcast(where, ir.PointerType(_VECTOR))
        vectors.append(builder.load(pointer, align=4))
    return vectors


def _larger(builder: Any, x: Any, best: Any) -> Any:
    """max(x, best); ``best`` where x is NaN, which is what one vmaxps does."""
    return builder.select(builder.fcmp_ordered(">", x, best), x, best)


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes combined into one scalar, by halves."""
    width = LANES // 2
    while width:
        lanes = [ir.Constant(_I32, (i + width) % LANES) for i in range(LANES)]
        order = ir.Constant(ir.VectorType(_I32, LANES), lanes)
        vector = combine(builder, builder.shuffle_vector(vector, vector, order), vector)
        width //= 2
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _add(builder: Any, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


def _exp(builder: Any, x: Any) -> Any:
    """exp(x) for x <= 0, within 3e-7 of itself; next to nothing below EXP_FLOOR and for NaN."""
    kind = x.type
    whole_kind = ir.VectorType(_I32, LANES) if isinstance(kind, ir.VectorType) else _I32
    x = _larger(builder, x, _constant(kind, EXP_FLOOR))

    def fused(a: Any, b: Any, c: Any) -> Any:  # a * b + c, as one instruction where there is one
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    shifted = fused(x, _constant(kind, _LOG2_E), _constant(kind, _ROUND))
    power = builder.fsub(shifted, _constant(kind, _ROUND))
    rest = fused(power, _constant(kind, -_LN2_HIGH), x)
    rest = fused(power, _constant(kind, -_LN2_LOW), rest)
    value = _constant(kind, _EXP_COEFFICIENTS[0])
    for coefficient in (*_EXP_COEFFICIENTS[1:], 1.0, 1.0):
        value = fused(value, rest, _constant(kind, coefficient))
    # 2**power: its low bits are the whole number itself, moved to where the exponent is
    bits = builder.shl(builder.bitcast(shifted, whole_kind), _constant(whole_kind, 23))
    return builder.bitcast(builder.add(builder.bitcast(value, whole_kind), bits), kind)


def _mask(builder: Any, conditions: list[Any]) -> Any:
    """64 bits from 4 vectors of conditions, bit i for lane i."""
    mask = ir.Constant(_I64, 0)
    for i, lanes in enumerate(conditions):
        bits = builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), _I64)
        mask = builder.or_(mask, builder.shl(bits, ir.Constant(_I64, i * LANES)))
    return mask


def _within(builder: Any, x: Any, center: Any, distance: Any) -> Any:
    """The lanes where abs(x - center) <= distance."""
    away = builder.fsub(x, center)
    below = builder.fcmp_ordered("<=", away, distance)
    return builder.and_(below, builder.fcmp_ordered(">=", away, builder.fneg(distance)))


def _on_row(array: Any, result: Any, emit: Callable[..., Any], *scalars: Any) -> Any:
    """Return an intrinsic's signature (array, start, *scalars) -> result and its code, for numba.

    ``None`` where ``array`` is no row.
    """
    if not isinstance(array, types.Array) or array.dtype != types.float32 or array.layout != "C":
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(
            builder, _load(context, builder, signature.args[0], args[0], args[1]), *args[2:]
        )

    return result(array, types.int64, *scalars), codegen


@intrinsic(plain.block_max)
def block_max(typingctx, array, start):  # type: ignore[no-untyped-def]
    """Largest value of the block; -inf where all are NaN."""

    def emit(builder: Any, vectors: list[Any]) -> Any:
        best = _constant(_VECTOR, float("-inf"))
        for vector in vectors:
            best = _larger(builder, vector, best)
        return _fold(builder, best, _larger)

    return _on_row(array, types.float32, emit)


@intrinsic(plain.block_at_least)
def block_at_least(typingctx, array, start, low):  # type: ignore[no-untyped-def]
    """Bit i of the result: ``array[start + i] >= low``."""

    def emit(builder: Any, vectors: list[Any], low: Any) -> Any:
        lows = _splat(builder, low)
        return _mask(builder, [builder.fcmp_ordered(">=", v, lows) for v in vectors])

    return _on_row(array, types.uint64, emit, types.float32)


@intrinsic(plain.block_within)
def block_within(typingctx, array, start, center, distance):  # type: ignore[no-untyped-def]
    """Bit i of the result: ``abs(array[start + i] - center) <= distance``."""

    def emit(builder: Any, vectors: list[Any], center: Any, distance: Any) -> Any:
        centers, far = _splat(builder, center), _splat(builder, distance)
        return _mask(builder, [_within(builder, v, centers, far) for v in vectors])

    return _on_row(array, types.uint64, emit, types.float32, types.float32)


@intrinsic(plain.block_exp_sum)
def block_exp_sum(typingctx, array, start, top, inverse):  # type: ignore[no-untyped-def]
    """Sum of ``exp((x - top) * inverse)`` over the block; ``top`` is no smaller than any x."""

    def emit(builder: Any, vectors: list[Any], top: Any, inverse: Any) -> Any:
        tops, scale = _splat(builder, top), _splat(builder, inverse)
        sums = [_exp(builder, builder.fmul(builder.fsub(v, tops), scale)) for v in vectors]
        while len(sums) > 1:
            sums = [builder.fadd(a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return _fold(builder, sums[0], _add)

    return _on_row(array, types.float32, emit, types.float32, types.float32)


@intrinsic(plain.block_exp_within)
def block_exp_within(typingctx, array, start, top, center, distance):  # type: ignore[no-untyped-def]
    """Sum of ``exp(x - top)`` over those with ``abs(x - center) <= distance``."""

    def emit(builder: Any, vectors: list[Any], top: Any, center: Any, distance: Any) -> Any:
        tops, centers, far = (_splat(builder, value) for value in (top, center, distance))
        zero, total = _constant(_VECTOR, 0.0), _constant(_VECTOR, 0.0)
        for v in vectors:
            inside = _within(builder, v, centers, far)
            term = _exp(builder, builder.fsub(v, tops))
            total = builder.fadd(total, builder.select(inside, term, zero))
        return _fold(builder, total, _add)

    return _on_row(array, types.float32, emit, types.float32, types.float32, types.float32)


@intrinsic(plain.block_exp_moment)
def block_exp_moment(typingctx, array, start, top):  # type: ignore[no-untyped-def]
    """Sum of ``exp(x - top) * (x - top)`` over the block (for the entropy)."""

    def emit(builder: Any, vectors: list[Any], top: Any) -> Any:
        tops = _splat(builder, top)
        total = _constant(_VECTOR, 0.0)
        for v in vectors:
            away = _larger(builder, builder.fsub(v, tops), _constant(_VECTOR, EXP_FLOOR))
            total = builder.fadd(total, builder.fmul(_exp(builder, away), away))
        return _fold(builder, total, _add)

    return _on_row(array, types.float32, emit, types.float32)


def _of_one(result: Any, argument: Any, emit: Callable[[Any, Any], Any]) -> Any:
    """Return the signature and the code of an intrinsic of one number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, args[0])

    return result(argument), codegen


@intrinsic(plain.exp_negative)
def exp_negative(typingctx, x):  # type: ignore[no-untyped-def]
    """exp(x) for one float32 x <= 0; the lanes' own arithmetic."""
    if not isinstance(x, types.Float):
        return None
    return _of_one(types.float32, types.float32, _exp)


@intrinsic(plain.float_bits)
def float_bits(typingctx, x):  # type: ignore[no-untyped-def]
    """The int32 with the bits of a float32."""
    return _of_one(types.int32, types.float32, lambda builder, x: builder.bitcast(x, _I32))


@intrinsic(plain.float_of_bits)
def float_of_bits(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float32 with the bits of an int32."""
    return _of_one(types.float32, types.int32, lambda builder, x: builder.bitcast(x, _F32))


@intrinsic(plain.count_bits)
def count_bits(typingctx, mask):  # type: ignore[no-untyped-def]
    """How many bits of a uint64 are set."""
    return _of_one(types.int64, types.uint64, lambda builder, mask: builder.ctpop(mask))


@intrinsic(plain.lowest_bit)
def lowest_bit(typingctx, mask):  # type: ignore[no-untyped-def]
    """Number of the lowest bit set in a uint64, which is not 0."""
    undefined_at_0 = ir.Constant(ir.IntType(1), 1)
    return _of_one(types.int64, types.uint64, lambda builder, x: builder.cttz(x, undefined_at_0))
