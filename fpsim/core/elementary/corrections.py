"""Inputs of float32 functions, as bit patterns, whose result or flags the float64 evaluation gets wrong.

Written by `python -m tests.core.elementary.prove --write`, which runs every input and checks with mpmath those whose
result is close to the middle between two float32 numbers.
"""

# Inputs whose evaluation rounds to the wrong neighbour, with the right result.
CORRECTIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "exp": (),
    "exp2": (
        (0x3B429D37, 0x3F804385),
        (0xBCF3A937, 0x3F7AC6B1),
    ),
    "expm1": (),
    "log": (),
    "log2": (),
    "log1p": (),
    "sin": (),
    "cos": (),
    "tan": (),
    "tanh": (),
    "sigmoid": (),
    "erf": (),
    "erfc": (),
    "rsqrt": (),
    "reciprocal": (),
    "cbrt": (),
    "softplus": (),
    "gelu": (),
    "silu": (),
}
# Inputs whose exact result is just below 2**-126 in magnitude, to which it rounds: whether it is tiny after
# rounding to 24 bits, and before.
EDGES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "exp": (),
    "exp2": (),
    "expm1": ((0x80800000, 0, 1),),
    "log": (),
    "log2": (),
    "log1p": ((0x00800000, 0, 1),),
    "sin": (
        (0x00800000, 0, 1),
        (0x80800000, 0, 1),
    ),
    "cos": (),
    "tan": (),
    "tanh": (
        (0x00800000, 0, 1),
        (0x80800000, 0, 1),
    ),
    "sigmoid": (),
    "erf": (
        (0x00716FE2, 1, 1),
        (0x80716FE2, 1, 1),
    ),
    "erfc": (),
    "rsqrt": (),
    "reciprocal": (),
    "cbrt": (),
    "softplus": (),
    "gelu": (
        (0x00FFFFFF, 1, 1),
        (0x81000000, 0, 1),
    ),
    "silu": (
        (0x00FFFFFF, 1, 1),
        (0x81000000, 0, 1),
    ),
}
