"""GPU kernels of elementary functions: look-ups in tables of exact results, and float32 arithmetic for FP32."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.arithmetic.elementary.tables import KIND_SHIFT, RAISED_SHIFT
from fpsim.core.elementary.flags import flags_function
from fpsim.core.elementary.float32 import FUNCTIONS
from fpsim.core.elementary.steps import bits_of, float_of
from fpsim.core.encode import encode_fields
from fpsim.core.number import Number
from fpsim.core.pack import pack
from fpsim.core.philox import random_word
from fpsim.formats.rounding import Rounding
from fpsim.gpu.device.launch import gpu_kernel

u32, u64 = np.uint32, np.uint64

STOCHASTIC = int(Rounding.STOCHASTIC)
KIND, RAISED, KIND_MASK, ONE = u64(KIND_SHIFT), u64(RAISED_SHIFT), u64(3), u64(1)


@cache
def tabulated_kernel(mode: int) -> Any:
    """Return the GPU kernel (a, codes, flags, significands, fields, states, out, rules, seed) -> None of look-ups.

    It reads the exact result of each code in a table, rounds it to the result's format, and writes the code.

    Args:
      mode: number of the rounding mode.

    Arguments of the kernel:
      a: 1-D codes, which are indices of the table.
      codes, flags: receive the codes and the flags of the results; an empty `flags` is not written.
      significands, fields: significand and exponent field of each exact result.
      states: bits of each exact result: bit 0 is the sign; bits 1 and 2 are the kind (0 finite, 1 Inf, 2 NaN); bits
      from 3 on are the flags that it raises before rounding.
      out: an EncodeLayout, the constants by which the result is encoded, as integers.
      rules: sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of fpsim/core/pack.py, which decide flags.
      seed: low and high 32 bits of the seed of stochastic rounding.
    """

    def look_up(
        a: Any, codes: Any, flags: Any, significands: Any, fields: Any, states: Any, out: Any, rules: Any, seed: Any
    ) -> None:
        f, (k0, k1) = encode_fields(out), seed
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            word = u64(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else u64(0)
            index = a[i]
            state = u64(states[index])
            kind = u64(u64(state >> KIND) & KIND_MASK)
            exact = Number(u64(state & ONE), u64(fields[index]), u64(significands[index]), kind)
            code, raised = pack(exact, u64(state >> RAISED), word, f, mode, rules)
            codes[i] = code
            if flags.size > 0:
                flags[i] = raised

    return gpu_kernel(look_up)


@cache
def float32_kernel(name: str) -> Any:
    """Return the GPU kernel (x, results, flags, before) -> None of the float32 function `name`, such as "exp".

    x, results: 1-D uint32 bits of float32; results are written. flags: uint8, written unless empty. before: 1 if
    tininess is detected before rounding, 0 if after.
    """
    function, flags_of = FUNCTIONS[name], flags_function(name)

    def evaluate(x: Any, results: Any, flags: Any, before: Any) -> None:
        for i in range(cuda.grid(1), results.size, cuda.gridsize(1)):
            bits = u32(x[i])
            result = bits_of(function(float_of(bits)))
            results[i] = result
            if flags.size > 0:
                flags[i] = flags_of(bits, result, before)

    return gpu_kernel(evaluate)
