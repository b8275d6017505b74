"""The kernels of fpsim.gpu compile to PTX for sm_90 without a GPU, and calculate with integers alone."""

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
from fpsim.formats import BF16, E4M3, E4M3FNUZ, E8M0, FP16, FP32
from fpsim.gpu import cast_kernels as casts, copies, float_arithmetic as floats, pair_kernels as pairs
from fpsim.gpu.cast_kernels import Way
from fpsim.kernels.layout import decode_plan, encode_plan
from fpsim.rounding import Rounding
sums, products = (sys.modules[f"fpsim.gpu.{name}"] for name in ("arithmetic_kernels", "matmul"))
u8, u16, u32, u64 = (getattr(types, f"uint{bits}") for bits in (8, 16, 32, 64))
i64 = types.int64

def arrays(*kinds):
    return tuple(kind[::1] for kind in kinds)

words = {8: u8, 16: u16, 32: u32, 64: u64}

def cast(*way, **facts):
    way = Way(*way, **facts)
    count, layout = way.groups.length, u32 if way.width == 32 else u64
    plain = [words[bits] for bits in way[:2]]
    grouped = [words[bits * count] for bits in way[:2]]
    return casts.cast_kernel(way), (*arrays(*plain, *grouped, layout, layout, layout), u64, u64)

kernels = {
    "decode 32": cast(8, 32, 32, reads=True),
    "decode 64": cast(32, 64, 64, reads=True),
    "look up": (casts.look_up_kernel(), arrays(u8, u32, u32)),
    "outside": (casts.outside_kernel(), (*arrays(u8), u8, *arrays(u8))),
    "gather": (copies._gather_kernel(), (*arrays(u8, u8), i64, *arrays(i64, i64))),
    "negative": (sums.sign_kernel("negative"), arrays(u8, u8, u64, u64)),
    "absolute": (sums.sign_kernel("absolute"), arrays(u8, u8, u64, u64)),
    "classify": (sums.sign_kernel("classify"), arrays(u8, u8, u64, u64)),
    "from int": (sums.from_integer_kernel(6), (*arrays(u64, u8, u8), u64, *arrays(u64), u64, u64, u64)),
    "to int": (sums.to_integer_kernel(6), (*arrays(u8, u64, u8, u64), u64, u64, u64, u64, u64, u64)),
    "union": (sums.union_kernel(), arrays(u8, u32)),
    "next": (sums.neighbour_kernel(0), arrays(u8, u8, u8, u64, u64)),
}
for mode in Rounding:
    for width in (32, 64):
        kernels[f"encode {width} {mode}"] = cast(width, 8, width, rounds=True, mode=int(mode), kind=2)
kernels["encode widened"] = cast(16, 8, 32, reads=True, rounds=True)
kernels["quantize"] = cast(32, 32, 32, rounds=True, gives=True, kind=1)
for fmt in (E4M3, E4M3FNUZ, E8M0, FP16, BF16):
    back = decode_plan(fmt, 32)
    if back:
        kernels[f"decode {fmt}"] = cast(8 * fmt.storage.itemsize, 32, 32, reads=True, of_source=back.frozen)
    for mode in (Rounding.NEAREST_EVEN, Rounding.DOWN, Rounding.STOCHASTIC):
        plan = encode_plan(fmt, 32, mode, "nonfinite", "keep", 32)
        to = {"rounds": True, "mode": int(mode), "kind": plan.kind, "to_code": plan.frozen}
        by_floats = "floats " if mode == Rounding.NEAREST_EVEN and fmt not in (E8M0, BF16) else ""
        kernels[f"{by_floats}encode {fmt} {mode}"] = cast(32, 8 * fmt.storage.itemsize, 32, **to)
        if by_floats:
            kernels[f"floats quantize {fmt}"] = cast(32, 32, 32, gives=True, of_result=back.frozen, **to)
for name in (*UNARY, *BINARY, "fma"):
    signature = (*arrays(u8, u8, u8), i64, i64, i64, *arrays(u8, u8, u64, u64, u64, u64), u64, u64, u64)
    kernels[name] = sums.rounding_kernel(name, 0), signature
for name in COMPARISONS:
    kernels[name] = sums.comparison_kernel(name), (*arrays(u8, u8), i64, i64, *arrays(u8, u8, u64, u64))

def groups(function, bits, target_bits, count, shared_words):
    length = pairs.elements_at_once(bits, target_bits).length
    plain = arrays(*[words[bits]] * 3, words[target_bits])
    wide = arrays(*[words[bits * length]] * 3, words[target_bits * length])
    kernel = pairs.elementwise_kernel(function, bits, target_bits, count, shared_words)
    return kernel, (*plain, *wide, u64, u64, u64, *arrays(u32, words[target_bits]))

kernels["code pairs"] = groups(pairs.looks_up((8, 8), 8), 8, 8, 2, 1 << 14)
kernels["code pairs to 16 bits"] = groups(pairs.looks_up((4, 4), 8), 8, 16, 2, 0)
for fmt, name in ((FP16, "add"), (BF16, "multiply"), (FP32, "divide"), (FP16, "sqrt"), (BF16, "fma"), (FP16, "fma")):
    function = floats.float_function(fmt, name)
    kernels[f"floats {name} {fmt.name} code"] = groups(function, fmt.bits, fmt.bits, floats.OPERANDS[name], 0)
for rule in Rule:
    matrices = tuple(kind[:, ::1] for kind in (u16, u16, u8, u8))
    layouts = (*arrays(u64, u64, u64, u64, u64), i64[::1], i64, i64, i64, *arrays(u64, u64), u64)
    signature = (*matrices[:2], u32[::1], *matrices[2:], u32[::1], *layouts)
    kernels[f"product {rule.name}"] = products._product_kernel(rule, 12, rule is Rule.GROUPED), signature
found = {}
for name, (kernel, signature) in kernels.items():
    found[name], _ = cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))
json.dump(found, sys.stdout)
"""
FLOAT_ARITHMETIC = re.compile(
    r"\b((?:add|sub|mul|fma|mad|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos)(?:\.[a-z]+)*\.f(?:16|32|64))\b"
)

IEEE = re.compile(r"(add|sub|mul)(\.rn)?\.f(32|64)|(div|sqrt)\.rn\.f32")


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
        if "code" in name:
            assert ".local" not in ptx, f"{name} keeps what a thread holds in memory"
        found = set(FLOAT_ARITHMETIC.findall(ptx))
        if name.startswith("floats "):
            # sums, products, quotients and roots of IEEE 754: none fused, approximate, or flushing subnormal numbers
            assert found, name
            assert all(IEEE.fullmatch(each) for each in found), f"{name}: {found}"
        else:
            assert not found, name


SMALL_GRID = """
import warnings
warnings.simplefilter("error")
from fpsim.gpu import encode  # noqa: F401
from fpsim.gpu.cast_kernels import outside_kernel
from fpsim.gpu.launch import _configured
from numba.cuda import dispatcher
dispatcher._LaunchConfiguration.__call__ = lambda self, *_: None
dispatcher.driver._to_core_stream = lambda stream: stream
_configured(outside_kernel(), 1, 32)()
try:
    outside_kernel()[2, 32]
except Warning as reason:
    print(type(reason).__name__)
"""


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="numba-cuda is not installed (extra [gpu])")
def test_small_arrays_bring_no_warning_about_idle_multiprocessors() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_GRID], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "NumbaPerformanceWarning\n"), done.stderr[-2000:]
