"""CPU loops of elementary functions: for codes by tables of exact results, for float32 by float64 arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.elementary.flags import flags_function
from fpsim.core.elementary.float32 import FUNCTIONS, NEAR_FUNCTIONS
from fpsim.core.elementary.steps import MAGNITUDE_32, bits_of, float_of
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.number import Number
from fpsim.core.pack import pack
from fpsim.runtime.compile import kernel

u8, u32, u64 = np.uint8, np.uint32, np.uint64
NO_WORD, ONE, KIND_MASK = u64(0), u64(1), u64(3)
KIND_SHIFT, RAISED_SHIFT = u64(1), u64(3)
FAR_FROM = u32(0x49800000)  # 2**20, up to which the reduction of angles is a vector loop
BLOCK = 1024
RULES = len(EncodeLayout._fields)  # where the rules of `pack` are in a target


@cache
def tabulated_kernel() -> Any:
    """Return the kernel (a, random, codes, flags, significands, fields, states, target, mode) -> None for tables.

    It looks up exact results of an elementary function in a table, rounds them, and writes codes (uint64) and flags
    (uint8). a: 1-D uint64 codes that index the table. random: uint32 per element, empty unless stochastic.
    significands, fields, states: the arrays of an ExactTable. target: uint64 array of the result's EncodeLayout and, as
    its last element, the bits `rules` that `fpsim.core.pack.pack` reads for flags. mode: a Rounding.
    """

    def look_up(
        a: Any, random: Any, codes: Any, flags: Any, significands: Any, fields: Any, states: Any, target: Any, mode: int
    ) -> None:  # fmt: skip
        f, rules = encode_fields(target), target[RULES]
        for i in range(codes.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            index = a[i]
            state = u64(states[index])
            kind = u64(u64(state >> KIND_SHIFT) & KIND_MASK)
            exact = Number(u64(state & ONE), u64(fields[index]), significands[index], kind)
            codes[i], flags[i] = pack(exact, u64(state >> RAISED_SHIFT), word, f, mode, rules)

    return kernel(look_up)


@cache
def float32_kernel(name: str) -> Any:
    """Return the kernel (x, results) -> None that computes an elementary function of float32.

    name: the function, such as "exp". x, results: 1-D uint32 bits of float32; results may be x.
    """
    function = FUNCTIONS[name]
    if name in NEAR_FUNCTIONS:
        return _angle_kernel(name)

    def evaluate(x: Any, results: Any) -> None:
        for i in range(results.size):
            results[i] = bits_of(function(float_of(x[i])))

    return kernel(evaluate)


def _angle_kernel(name: str) -> Any:
    """Return the kernel (x, results) -> None that computes sin, cos or tan of float32.

    Angles up to 2**20 are computed in vector registers, larger ones one by one. x, results: 1-D uint32 bits of float32;
    results may be x. name: "sin", "cos" or "tan".
    """
    function, near = FUNCTIONS[name], NEAR_FUNCTIONS[name]

    def evaluate(x: Any, results: Any) -> None:
        angles = np.empty(BLOCK, np.uint32)
        for start in range(0, results.size, BLOCK):
            count = min(BLOCK, results.size - start)
            largest = u32(0)
            for i in range(count):
                angles[i] = x[start + i]  # the results may be in the same memory
                largest = max(largest, u32(angles[i] & MAGNITUDE_32))
            for i in range(count):
                results[start + i] = bits_of(near(float_of(angles[i])))
            if largest > FAR_FROM:
                for i in range(count):
                    if u32(angles[i] & MAGNITUDE_32) > FAR_FROM:
                        results[start + i] = bits_of(function(float_of(angles[i])))

    return kernel(evaluate)


@cache
def float32_flags_kernel(name: str) -> Any:
    """Return the kernel (x, results, flags, before) -> None that writes the flags of the results of function `name`.

    x, results: 1-D uint32 bits of float32. flags: uint8, bits of `fp.Flags`. before: 1 if tininess is detected before
    rounding, else 0.
    """
    flags_of = flags_function(name)

    def raise_flags(x: Any, results: Any, flags: Any, before: Any) -> None:
        for i in range(results.size):
            flags[i] = flags_of(x[i], results[i], before)

    return kernel(raise_flags)
