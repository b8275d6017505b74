"""Run in its own process under NUMBA_ENABLE_CUDASIM=1: the scalar core inside CUDA kernels gives the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import fpsim as fp
from fpsim.core.decode import DecodeLayout, decode_bits_32
from fpsim.core.encode import EncodeLayout, encode_bits_32, encode_bits_64
from fpsim.kernels.layout import decode_plan, encode_plan
from fpsim.rounding import Rounding
from fpsim.testing import assert_bits_equal

FORMATS = [fp.E4M3, fp.FP16, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k6p3ue")]
RANDOM = 0x12345678


def encode_kernel(mode: int, kind: int, width: int) -> Any:
    """The smallest CUDA kernel around the scalar encoder."""
    encode_bits, word = (encode_bits_32, np.uint32) if width == 32 else (encode_bits_64, np.uint64)

    def encode(bits: Any, codes: Any, fields: Any) -> None:
        i = cuda.grid(1)
        if i < bits.size:
            f = EncodeLayout(*fields)
            codes[i] = encode_bits(bits[i], word(RANDOM), f, mode, kind)

    return cuda.jit(encode)


def check_encode(x: np.ndarray[Any, Any]) -> None:
    width = 8 * x.dtype.itemsize
    for fmt in FORMATS:
        for mode in set(Rounding) - {Rounding.STOCHASTIC}:
            plan = encode_plan(fmt, width, mode, "nonfinite", "keep", 32)
            codes = np.zeros(x.size, fmt.storage)
            encode_kernel(int(mode), plan.kind, width)[1, x.size](x.view(f"u{width // 8}"), codes, plan.layout)
            assert_bits_equal(codes, fp.encode(x, fmt, rounding=mode))


def check_decode() -> None:
    for fmt in (fp.E4M3, fp.FP16, fp.E4M3FNUZ):
        plan = decode_plan(fmt, 32)
        assert plan is not None

        def decode(codes: Any, bits: Any, fields: Any) -> None:
            i = cuda.grid(1)
            if i < codes.size:
                bits[i] = decode_bits_32(np.uint32(codes[i]), DecodeLayout(*fields))

        codes = np.arange(0, 1 << fmt.bits, (1 << fmt.bits) // 32).astype(fmt.storage)
        values = np.zeros(codes.size, np.float32)
        cuda.jit(decode)[1, codes.size](codes, values.view(np.uint32), plan.layout)
        assert_bits_equal(values, fp.decode(codes, fmt))


if __name__ == "__main__":
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 464, 465, -3 * 2.0**-11, 1e-40, -1.0625, 0.3])
    check_encode(specials.astype(np.float32))
    check_encode(specials[5:])
    check_decode()
    print("equal")
