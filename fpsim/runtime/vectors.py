"""Builders of vector code in LLVM, for loops that keep many values in registers or need special instructions.

Functions here emit LLVM instructions: they take numba's builder (llvmlite's IRBuilder) and LLVM values, and return LLVM
values. A mask is a vector of bits. Vectors have 512 bits; on processors with only AVX2 (`has_avx2`) LLVM splits each
into two. Shifts, and functions that round in a mode of their own, need AVX-512. start: a pointer to bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numba
from llvmlite import ir

from fpsim.runtime.target import assembly_of

BIT, BYTE, HALF, WORD, LONG = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
SMALL, SINGLE, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
BYTES, INTS, FLOATS = ir.VectorType(BYTE, 64), ir.VectorType(WORD, 16), ir.VectorType(SINGLE, 16)
LONGS, DOUBLES = ir.VectorType(LONG, 8), ir.VectorType(DOUBLE, 8)
WIDTH = 16  # lanes of 32 bits
SIZE = 64  # bytes
DOWN, UP, TO_ZERO = WORD(9), WORD(10), WORD(11)  # rounding modes, whatever the processor's, without exceptions


@lru_cache(maxsize=1)
def has_avx512() -> bool:
    """Return whether numba's compile target has AVX-512 for 32-bit words and bytes; cached."""
    return has_avx2() and any("vpmaxsb" in line and "zmm" in line for line in _probe())


@lru_cache(maxsize=1)
def has_avx2() -> bool:
    """Return whether numba's compile target has AVX2 and F16C; cached; False if numba's compiler is disabled."""
    if numba.config.DISABLE_JIT:
        return False
    longer = any("vpmaxsb" in line and "xmm" not in line for line in _probe())
    return longer and any("vcvtph2ps" in line for line in _probe())


def widest_vectors() -> str:
    """Return the widest vectors of numba's compile target that this module supports: "avx512", "avx2" or ""."""
    return "avx512" if has_avx512() else "avx2" if has_avx2() else ""


@lru_cache(maxsize=1)
def _probe() -> list[str]:
    """Return the lines of assembly of a function that takes maxima of bytes and converts FP16.

    Their instructions show which of AVX-512, AVX2 and F16C the compile target has.
    """
    module = ir.Module()
    kind = ir.FunctionType(FLOATS, [BYTES.as_pointer(), vector(SMALL, WIDTH).as_pointer()])
    builder = ir.IRBuilder(ir.Function(module, kind, "larger_bytes_and_halves").append_basic_block())
    old, half = (builder.load(place) for place in builder.function.args)
    builder.store(larger(builder, old, builder.add(old, old)), builder.function.args[0])
    builder.ret(builder.fpext(half, FLOATS))
    return assembly_of(module).splitlines()


def vector(kind: Any, count: int) -> Any:
    """Return the LLVM type of a vector with `count` elements of the LLVM type `kind`."""
    return ir.VectorType(kind, count)


def integer(bits: int) -> Any:
    """Return the LLVM type of integers of `bits` bits."""
    return ir.IntType(bits)


def call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """Emit a call of the LLVM intrinsic `name` with the LLVM values `args`; return its result, of the LLVM type `kind`.

    builder: llvmlite's IRBuilder.
    """
    signature = ir.FunctionType(kind, [arg.type for arg in args])
    return builder.call(builder.module.declare_intrinsic(name, (), signature), args)


def start_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Emit and return the address of the first element of an array, of numba's type `kind`, as a pointer to bytes.

    context, builder: those of numba's code generation.
    """
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(data, BYTE.as_pointer())


def element(context: Any, builder: Any, kind: Any, array: Any, i: Any, j: Any) -> Any:
    """Emit and return the address of array[i, j] as a pointer to bytes.

    context, builder: those of numba's code generation; kind: the array's numba type; array: its LLVM value; i, j: LLVM
    int64.
    """
    view = context.make_array(kind)(context, builder, array)
    offset = builder.add(
        *(builder.mul(index, builder.extract_value(view.strides, n)) for n, index in enumerate((i, j)))
    )
    return builder.gep(builder.bitcast(view.data, BYTE.as_pointer()), [offset])


def row_at(builder: Any, start: Any, row: Any, size: int) -> Any:
    """Emit and return the address of row `row`, as a pointer to bytes; rows of `size` bytes begin at `start`.

    builder: llvmlite's IRBuilder; start: pointer to bytes; row: LLVM int64.
    """
    return builder.gep(start, [builder.mul(row, LONG(size))])


def at(builder: Any, start: Any, offset: Any, kind: Any) -> Any:
    """Emit and return the address `offset` bytes after `start`, as a pointer to the LLVM type `kind`.

    builder: llvmlite's IRBuilder; start: pointer to bytes; offset: a Python int or LLVM int64.
    """
    offset = LONG(offset) if isinstance(offset, int) else offset
    return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())


def load(builder: Any, start: Any, offset: Any, kind: Any) -> Any:
    """Emit the load of a value of the LLVM type `kind` from `offset` bytes after the address `start`, and return it.

    builder: llvmlite's IRBuilder; start: pointer to bytes; offset: a Python int or LLVM int64. The address need not be
    aligned.
    """
    return builder.load(at(builder, start, offset, kind), align=1)


def store(builder: Any, value: Any, start: Any, offset: Any) -> None:
    """Emit the store of an LLVM value at `offset` bytes after the address `start`.

    builder: llvmlite's IRBuilder; start: pointer to bytes; offset: a Python int or LLVM int64. The address need not be
    aligned.
    """
    builder.store(value, at(builder, start, offset, value.type), align=1)


def everywhere(builder: Any, value: Any, kind: Any) -> Any:
    """Emit with llvmlite's `builder` and return an LLVM vector of type `kind` with `value` in all elements."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, WORD(0))
    zeros = ir.Constant(ir.VectorType(WORD, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def constant(value: Any, kind: Any) -> Any:
    """Return an LLVM constant of the vector type `kind` with the Python number `value` in all elements."""
    return ir.Constant(kind, [value] * kind.count)


def lanes_of(builder: Any, vector: Any, first: int, count: int) -> Any:
    """Emit and return elements first .. first + count - 1 of an LLVM vector, as a shorter vector.

    builder: llvmlite's IRBuilder; first, count: Python ints.
    """
    places = ir.Constant(ir.VectorType(WORD, count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def joined(builder: Any, first: Any, second: Any) -> Any:
    """Emit with llvmlite's `builder` and return the concatenation of two LLVM vectors of one element type."""
    count = first.type.count + second.type.count
    return builder.shuffle_vector(first, second, ir.Constant(vector(WORD, count), list(range(count))))


def larger(builder: Any, x: Any, y: Any) -> Any:
    """Emit with llvmlite's `builder` and return the elementwise maximum of two LLVM vectors of signed integers."""
    return call(builder, f"llvm.smax.v{x.type.count}i{x.type.element.width}", x.type, x, y)


def smaller(builder: Any, x: Any, y: Any) -> Any:
    """Emit with llvmlite's `builder` and return the elementwise minimum of two LLVM vectors of signed integers."""
    return call(builder, f"llvm.smin.v{x.type.count}i{x.type.element.width}", x.type, x, y)


def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit with llvmlite's `builder` and return x * y + z of LLVM vectors of 16 float32, rounded once.

    The rounding mode is the processor's.
    """
    return call(builder, "llvm.fma.v16f32", FLOATS, x, y, z)


def rounded(builder: Any, operation: str, mode: Any, *vectors: Any) -> Any:
    """Emit and return an operation on LLVM vectors of 16 float32, rounded once; needs AVX-512.

    operation: "add" (x + y), "mul" (x * y) or "vfmadd" (x * y + z) of `vectors`. mode: DOWN, UP or TO_ZERO. builder:
    llvmlite's IRBuilder.
    """
    return call(builder, f"llvm.x86.avx512.{operation}.ps.512", FLOATS, *vectors, mode)


def floor_of(builder: Any, x: Any) -> Any:
    """Emit with llvmlite's `builder` and return a vector of 16 float32, x, rounded down to 16 int32; needs AVX-512."""
    nothing = constant(0, INTS)
    return call(builder, "llvm.x86.avx512.mask.cvtps2dq.512", INTS, x, nothing, HALF(-1), DOWN)


def odd_sum(builder: Any, x: Any, y: Any) -> Any:
    """Emit and return x + y of LLVM vectors of eight float64, rounded to odd; needs AVX-512.

    An inexact sum becomes the neighbour whose last bit is 1. Rounding the result to at most 51 bits then gives the same
    as rounding the exact sum. builder: llvmlite's IRBuilder.
    """
    below, above = (call(builder, "llvm.x86.avx512.add.pd.512", x.type, x, y, mode) for mode in (DOWN, UP))
    last = builder.and_(builder.bitcast(below, LONGS), constant(1, LONGS))
    return builder.select(builder.icmp_signed("==", last, constant(0, LONGS)), above, below)


def odd_fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit and return x * y + z of LLVM vectors of 16 float32, rounded to odd; needs AVX-512.

    An inexact result becomes the neighbour whose last bit is 1. Rounding it to at most 22 bits then gives the same as
    rounding the exact value. builder: llvmlite's IRBuilder.
    """
    below, above = (rounded(builder, "vfmadd", mode, x, y, z) for mode in (DOWN, UP))
    last = builder.and_(builder.bitcast(below, INTS), constant(1, INTS))
    return builder.select(builder.icmp_signed("==", last, constant(0, INTS)), above, below)


def shifted_down(builder: Any, x: Any, places: Any) -> Any:
    """Emit and return x shifted right arithmetically, element by element; x, places: LLVM vectors of 16 int32.

    places: numbers of bits >= 0. A shift by 32 or more gives 0 or -1, by the sign. builder: llvmlite's IRBuilder. It
    needs AVX-512.
    """
    return call(builder, "llvm.x86.avx512.psrav.d.512", INTS, x, places)


def shifted_up(builder: Any, x: Any, places: Any) -> Any:
    """Emit and return x shifted left, element by element; x, places: LLVM vectors of 16 int32.

    places: numbers of bits >= 0. A shift by 32 or more gives 0. builder: llvmlite's IRBuilder. It needs AVX-512.
    """
    return call(builder, "llvm.x86.avx512.psllv.d.512", INTS, x, places)


def above(builder: Any, x: Any, y: Any) -> Any:
    """Emit and return max(x - y, 0) of two LLVM vectors of 16 int32 whose elements are in 0 .. 2**16 - 1.

    builder: llvmlite's IRBuilder.
    """
    pairs = vector(HALF, 2 * WIDTH)
    return builder.bitcast(
        call(builder, "llvm.usub.sat.v32i16", pairs, builder.bitcast(x, pairs), builder.bitcast(y, pairs)), INTS
    )


def whole_to_zero(builder: Any, x: Any) -> Any:
    """Emit with llvmlite's `builder` and return a vector of 16 int32, x, converted to float32.

    Integers that float32 does not hold are rounded toward zero. It needs AVX-512.
    """
    return call(builder, "llvm.x86.avx512.sitofp.round.v16f32.v16i32", FLOATS, x, TO_ZERO)


def single_to_zero(builder: Any, x: Any) -> Any:
    """Emit with llvmlite's `builder` and return a vector of 8 float64, x, rounded toward zero to 8 float32.

    It needs AVX-512.
    """
    few = vector(SINGLE, WIDTH // 2)
    return call(builder, "llvm.x86.avx512.mask.cvtpd2ps.512", few, x, constant(0.0, few), BYTE(-1), TO_ZERO)


def bits_of(builder: Any, mask: Any) -> Any:
    """Emit and return a mask as an LLVM vector of bits.

    mask: such a vector, which is returned unchanged, or a vector of integers, whose negative elements give 1. builder:
    llvmlite's IRBuilder.
    """
    return mask if mask.type.element == BIT else builder.icmp_signed("<", mask, constant(0, mask.type))


def any_of(builder: Any, masks: Sequence[Any]) -> Any:
    """Emit and return whether any bit of any mask is set, as an LLVM value of one bit.

    masks: at least one; LLVM vectors of one type, of bits or of integers, whose negative elements count as set.
    builder: llvmlite's IRBuilder.
    """
    all_bits = masks[0]
    for mask in masks[1:]:
        all_bits = builder.or_(all_bits, mask)
    if all_bits.type == INTS:
        all_bits = builder.or_(*(lanes_of(builder, all_bits, first, WIDTH // 2) for first in (0, WIDTH // 2)))
    all_bits = bits_of(builder, all_bits)
    count = all_bits.type.count
    return builder.icmp_unsigned("!=", builder.bitcast(all_bits, ir.IntType(count)), ir.IntType(count)(0))


def _rolled(module: Any) -> Any:
    """Return the metadata that keeps LLVM from unrolling a loop, so that benchmarks.counting can recognise it.

    module: the LLVM module of the loop, to which it is added.
    """
    rule = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    mark = module.add_metadata([rule, rule])
    mark.operands = (mark, rule)  # the first operand of a loop's metadata is the metadata itself
    return mark


def repeated(
    builder: Any, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit a loop that runs at least once, and return the list of LLVM values after its last pass.

    count: number of passes, a Python int or LLVM int64. carried: values before the first pass. body(i, values): emits
    one pass and returns the next values, a list like `carried`; i: LLVM int64 from 0 to count - 1. builder: llvmlite's
    IRBuilder.
    """
    count = LONG(count) if isinstance(count, int) else count
    before, head = builder.block, builder.append_basic_block("loop")
    after = builder.append_basic_block("loop_end")
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(LONG)
    values = [builder.phi(value.type) for value in carried]
    new = body(i, list(values))
    following = builder.add(i, LONG(1))
    for phi, first, later in zip([i, *values], [LONG(0), *carried], [following, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    branch = builder.cbranch(builder.icmp_unsigned("<", following, count), head, after)
    branch.set_metadata("llvm.loop", _rolled(builder.module))
    builder.position_at_end(after)
    return new


def over_range(builder: Any, count: Any, body: Callable[[Any], None]) -> None:
    """Emit a loop over i from 0 to count - 1; there is no pass if count is 0 or negative.

    body(i): emits one pass; i: LLVM int64. count: LLVM int64. builder: llvmlite's IRBuilder.
    """

    def turn(i: Any, _values: list[Any]) -> list[Any]:
        body(i)
        return []

    with builder.if_then(builder.icmp_signed(">", count, LONG(0))):
        repeated(builder, count, [], turn)


def over_bits(
    builder: Any, bits: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit a loop over the set bits of an LLVM integer, from the lowest; return the LLVM values after its last pass.

    carried: values before the first pass, which are returned if no bit is set. body(index, values): emits the pass for
    the bit at an index and returns the next values, a list like `carried`. builder: llvmlite's IRBuilder.
    """
    before, head = builder.block, builder.append_basic_block("bit")
    after = builder.append_basic_block("bits_end")
    nothing = bits.type(0)
    builder.cbranch(builder.icmp_unsigned("!=", bits, nothing), head, after)
    builder.position_at_end(head)
    left = builder.phi(bits.type)
    values = [builder.phi(value.type) for value in carried]
    new = body(call(builder, f"llvm.cttz.i{bits.type.width}", bits.type, left, BIT(1)), list(values))
    fewer = builder.and_(left, builder.sub(left, bits.type(1)))
    end = builder.block
    for phi, first, later in zip([left, *values], [bits, *carried], [fewer, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, end)
    builder.cbranch(builder.icmp_unsigned("!=", fewer, nothing), head, after)
    builder.position_at_end(after)
    last = [builder.phi(value.type) for value in carried]
    for phi, first, later in zip(last, carried, new, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, end)
    return last
