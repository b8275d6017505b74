"""The kernels of fpsim.gpu compile to PTX for sm_90 without a GPU, and calculate with integers alone but for one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.processes import ROOT

# numba-cuda asks the device for its capability when a kernel calls a function; there is none here to ask.
PROGRAM = """
import json, sys
from numba import cuda, types
import numba.cuda.compiler, numba.cuda.dispatcher

class Hopper:
    compute_capability = (9, 0)

for module in (numba.cuda.compiler, numba.cuda.dispatcher):
    if hasattr(module, "get_current_device"):
        module.get_current_device = lambda: Hopper

from fpsim.core.operations import BINARY, COMPARISONS, UNARY
from fpsim.gpu import add, encode, matmul  # noqa: F401
from fpsim.matrix_unit import Rule
casts, sums, products = (sys.modules[f"fpsim.gpu.{name}"] for name in ("cast", "arithmetic", "matmul"))
u8, u16, u32, u64 = (getattr(types, f"uint{bits}") for bits in (8, 16, 32, 64))
i64 = types.int64

def arrays(*kinds):
    return tuple(kind[::1] for kind in kinds)

kernels = {
    "decode 32": (casts._decode_kernel(32), arrays(u8, u32, u32)),
    "decode 64": (casts._decode_kernel(64), arrays(u32, u64, u64)),
    "look up": (casts._table_kernel(), arrays(u8, u32, u32)),
    "outside": (casts._outside_kernel(), (*arrays(u8), u8, *arrays(u8))),
    "next": (sums._neighbour_kernel(0), arrays(u8, u8, u8, u64, u64)),
}
for mode in (0, 1, 2, 3, 4, 5, 6):
    for width, word in ((32, u32), (64, u64)):
        for kind in (0, 1, 2):
            signature = (*arrays(word, u8, word, u32), u64, u64)
            kernels[f"encode {width} {mode} {kind}"] = casts._encode_kernel(width, mode, kind, 0), signature
kernels["encode widened"] = casts._encode_kernel(32, 0, 0, 1), (*arrays(u16, u8, u32, u32), u64, u64)
for name in (*UNARY, *BINARY, "fma"):
    signature = (*arrays(u8, u8, u8), i64, i64, i64, *arrays(u8, u8, u64, u64, u64, u64), u64, u64, u64)
    kernels[name] = sums._rounding_kernel(name, 0), signature
for name in COMPARISONS:
    kernels[name] = sums._comparison_kernel(name), (*arrays(u8, u8), i64, i64, *arrays(u8, u8, u64, u64))
for rule in Rule:
    matrices = tuple(kind[:, ::1] for kind in (u16, u16, u8, u8))
    layouts = (*arrays(u64, u64, u64, u64, u64), i64[::1], i64, i64, i64, *arrays(u64, u64), u64)
    signature = (*matrices[:2], u32[::1], *matrices[2:], u32[::1], *layouts)
    kernels[f"product {rule.name}"] = products._product_kernel(rule, 12, rule is Rule.GROUPED), signature

from numba import typeof
import numpy as np
from fpsim.gpu import fused_kernels as tiles
from fpsim.gpu.fused_product import LONG_TILE, TILE
from fpsim.gpu.fused_step import OperandFacts, StepFacts

f32, i32 = types.float32, types.int32
operands = (typeof(OperandFacts(*map(np.int32, range(9)))),) * 2
for label, word, result, *key, tile in (
    ("fp8", u8, u32, 32, tiles.SHORT, False, False, False, tiles.NEVER, TILE),
    ("fp8 promoted", u8, u32, 32, tiles.SHORT, False, False, False, 0, TILE),
    ("fp8 with factors", u8, u32, 32, tiles.SHORT, False, False, False, 2, TILE),
    ("bf16", u16, u32, 16, tiles.LONG, False, False, False, tiles.NEVER, LONG_TILE),
    ("tf32 promoted", u32, u32, 8, tiles.MIDDLE, False, False, False, 0, TILE),
    ("fp16 to fp16", u16, u16, 16, tiles.LONG, True, True, False, tiles.NEVER, LONG_TILE),
    ("mxfp8", u8, u32, 32, tiles.LONG, False, False, True, tiles.NEVER, LONG_TILE),
):
    matrices = tuple(kind[:, ::1] for kind in (result, u8, word, word, u8, u8))
    tables = (*matrices[:2], i32[::1], *matrices[2:])
    ends = (*arrays(i32), f32[:, ::1], f32[:, ::1])
    signature = (*tables, *ends, *operands, typeof(StepFacts(*map(np.int32, range(5)))), i32, i32)
    kernels["tiles of " + label] = tiles.tile_kernel(*key, tile), signature
signature = (*matrices, *ends, *arrays(u64, u64, u64, u64, u64), i64[::1], i32, i32, i32, i32)
kernels["marked"] = tiles.specified_kernel(Rule.SCALED), signature
found = {}
for name, (kernel, signature) in kernels.items():
    found[name], _ = cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))
json.dump(found, sys.stdout)
"""
# Products of tiles are exact in float32, and fpsim.gpu.fused_step argues so: multiplications by powers of two, and of
# operands of few bits; promotions add and fuse as IEEE 754 says. No operation of another precision, none that is
# approximated, none that flushes subnormals.
EXACT_IN_FLOAT32 = re.compile(r"(add|sub|mul)\.(rn\.)?f32|fma\.rn\.f32")
FLOAT_ARITHMETIC = re.compile(r"\b(add|sub|mul|fma|mad|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos)(\.[a-z]+)*\.f(16|32|64)\b")


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="numba-cuda is not installed (extra [gpu])")
def test_kernels_compile_for_hopper_and_calculate_with_integers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout)
    assert len(kernels) > 60
    for name, ptx in kernels.items():
        assert ".target sm_90" in ptx
        assert ".ftz" not in ptx, name
        used = {found[0] for found in FLOAT_ARITHMETIC.finditer(ptx)}
        if name.startswith("tiles of "):
            assert used, name
            assert all(map(EXACT_IN_FLOAT32.fullmatch, used)), (name, used)
            assert ".local" not in ptx, name  # what a thread adds up stays in registers
        elif name == "marked":  # only its promotions
            assert all(map(EXACT_IN_FLOAT32.fullmatch, used)), (name, used)
        else:
            assert not used, name
