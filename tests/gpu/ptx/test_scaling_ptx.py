"""The kernels of scaled quantisation compile to PTX for sm_90; their float instructions round correctly, one by one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.gpu.ptx.test_ptx import MISSING
from tests.kit.processes import ROOT

SCALED = """
import json, sys
from numba import cuda, types
from tests.gpu.ptx.ptx_kernels import arrays, pretend_hopper
pretend_hopper()
from fpsim.core.rounding import DOWN, NEAREST_EVEN, STOCHASTIC, UP
from fpsim.core.tile_scale import (
    AMAX_BY_MAX, AMAX_TIMES_INVERSE, BY_INVERSE, BY_SCALE, CEIL, EVEN, FLOOR, INVERSE_OF_ENCODE, ScaleChoices,
)
from fpsim.core.layouts import encode_plan
from fpsim.formats.named import E4M3
from fpsim.formats.rounding import Rounding
from fpsim.gpu.scaling import scale_kernels, short_tiles, tile_kernels, value_kernels

names = ("uint8", "uint16", "uint32", "uint64", "int64", "float32", "float64")
u8, u16, u32, u64, i64, f32, f64 = (getattr(types, name) for name in names)
seed, limits = types.UniTuple(u64, 2), types.UniTuple(i64, 2)

kernels = {}
for width, word, real in ((32, u32, f32), (64, u64, f64)):
    settling = (real[::1], u64[:, ::1], real[::1])
    choices = {
        "single": ScaleChoices(width, AMAX_BY_MAX, BY_SCALE, 1, NEAREST_EVEN, 0, True, False),
        "two levels": ScaleChoices(width, AMAX_BY_MAX, BY_INVERSE, 2, NEAREST_EVEN, 0, False, False),
        "encode": ScaleChoices(width, AMAX_BY_MAX, BY_SCALE, 1, DOWN, 2, False, True),
    }
    if width == 32:
        for rule in (AMAX_TIMES_INVERSE, FLOOR, CEIL, EVEN):
            choices[f"rule {rule}"] = ScaleChoices(width, rule, BY_SCALE, 1, UP, 2, False, False)
        choices["inverse"] = ScaleChoices(width, INVERSE_OF_ENCODE, BY_SCALE, 2, NEAREST_EVEN, 0, False, False)
    for name, choice in choices.items():
        signature = arrays(word, u32, u32, u8, word, u64) + settling
        kernels[f"settle {width} {name}"] = scale_kernels.settle_kernel(choice), signature
    for mode, back, applied in ((NEAREST_EVEN, False, BY_SCALE), (STOCHASTIC, True, BY_INVERSE)):
        e = tile_kernels.ElementKernels(width, False, mode, 0, applied, False, back, False)
        to = u32 if back else u8
        signature = arrays(word, to, u32, u8, u64) + (seed,) + settling
        kernels[f"tiles {width} {mode}"] = tile_kernels.tiles_kernel(e, choices["two levels"]), signature
        signature = arrays(word, to, u32, word, u8) + (u64[:, ::1], seed, limits)
        kernels[f"elements {width} {mode}"] = tile_kernels.elements_kernel(e), signature
        signature = arrays(word, u8, u32, word, u8) + (u64[:, ::1], seed, limits)
        affine = e._replace(back=False, affine=True)
        kernels[f"zero point {width} {mode}"] = tile_kernels.elements_kernel(affine), signature
    for affine in (False, True):
        signature = arrays(word, word, i64, word, word, u32)
        kernels[f"tops {width} {affine}"] = tile_kernels.tops_kernel(width, False, affine), signature
    kernels[f"spread {width}"] = scale_kernels.spread_kernel(width), arrays(word, word)
    kernels[f"given {width}"] = (
        scale_kernels.given_kernel(width, BY_INVERSE), arrays(word, u32, u32, word, u64) + (i64,),
    )
    signature = arrays(word, word, u8) + (i64, i64) + arrays(word)
    kernels[f"zero points {width}"] = scale_kernels.zero_points_kernel(width, 0, BY_SCALE), signature
    signature = arrays(word, u32, real, real) + (i64, i64) + arrays(real, u32, u64)
    kernels[f"tensor {width}"] = scale_kernels.tensor_kernel(width), signature
    signature = arrays(u8, word, i64, u32, word) + (word,)
    kernels[f"values {width}"] = value_kernels.values_kernel(width, width), signature
    signature = arrays(u8, word, i64, u32, u8) + (i64, i64)
    kernels[f"integers {width}"] = value_kernels.integers_kernel(width, True), signature
e = tile_kernels.ElementKernels(32, True, NEAREST_EVEN, 0, BY_SCALE, False, False, False)
in_one_pass = (seed, f32[::1], u64[:, ::1], f32[::1])
signature = arrays(u16, u8, u32, u8, u64) + in_one_pass
single = ScaleChoices(32, AMAX_BY_MAX, BY_SCALE, 1, NEAREST_EVEN, 0, True, False)
kernels["tiles of a narrow source"] = tile_kernels.tiles_kernel(e, single), signature
plan = encode_plan(E4M3, 32, Rounding.NEAREST_EVEN, "saturate", "keep", 32)
for name, applied, to, target in (("divided", BY_SCALE, 8, u64), ("multiplied", BY_INVERSE, 32, u64)):
    e = tile_kernels.ElementKernels(32, False, NEAREST_EVEN, plan.kind, applied, False, to == 32, False)
    how = short_tiles.ShortTiles(e, single, 4, 32, to, plan.frozen)
    signature = arrays(u64, u64, u32, u8, u64) + in_one_pass
    kernels[f"short tiles {name}"] = short_tiles.short_tiles_kernel(how), signature
kernels["transpose"] = value_kernels.transpose_kernel(), arrays(u8, u8) + (i64, i64)
found = {}
for name, (kernel, signature) in kernels.items():
    found[name], _ = cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))
json.dump(found, sys.stdout)
"""
FLOAT = re.compile(
    r"^\s+(?:@!?%p\d+ )?((?!mov|ld|st|setp|selp)[a-z0-9]+(?:\.[a-z0-9]+)*\.f(?:16|32|64)\S*)", re.MULTILINE
)
# Correctly rounded to nearest even by the PTX ISA, subnormals kept; a product without `.rn` may be contracted, but only
# with a sum, and there is none. Conversions from integers are of small ones, which are exact.
ROUNDED = re.compile(r"(div|rcp)\.rn\.f(32|64)|mul(\.rn)?\.f(32|64)|cvt\.rn\.f(32|64)\.[us](32|64)|"
                     r"cvt\.rn\.f32\.f64|cvt\.f64\.f32")  # fmt: skip
SPREAD = re.compile(r"(add|sub)(\.rn)?\.f(32|64)|min\.f(32|64)")  # highest - lowest, of numbers from memory


@pytest.mark.ptx
@pytest.mark.skipif(not find_spec("numba_cuda"), reason=MISSING)
def test_kernels_of_scales_compile_for_hopper_and_round_every_step_correctly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCALED], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout)
    assert len(kernels) > 40
    seen = set()
    for name, ptx in kernels.items():
        assert ".target sm_90" in ptx
        floats = set(FLOAT.findall(ptx))
        seen |= floats
        allowed = SPREAD if name.startswith("spread") else ROUNDED
        if name == "short tiles divided":  # whose encoder adds, where no product is
            assert floats == {"div.rn.f32", "add.f32"}
            continue
        assert not [found for found in floats if not allowed.fullmatch(found)], name
        if name.startswith(("tops", "transpose")):
            assert not floats, name
    assert {"div.rn.f32", "div.rn.f64", "cvt.rn.f32.f64"} <= seen
