"""fpsim.gpu's products by units of integers: the CUDA simulator gives the bits of the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import integers as simulator
from tests.kit.processes import assert_refused, simulate
from tests.kit.sweeps import case


def test_products_of_integers_have_the_bits_of_the_cpu(tmp_path: Path) -> None:
    simulated = simulate("tests.gpu.simulator.integers", tmp_path / "results.npz")
    results = {
        **simulator.steps(fp.dot_add, np.asarray),
        **simulator.products(fp.matmul, np.asarray),
        **simulator.scaled_products(fp.encode_scaled, fp.matmul, np.asarray),
    }
    assert results.keys() == simulated.keys()
    for name, want in results.items():
        with case(name):
            got = simulated[name]
            assert got.dtype.itemsize == want.dtype.itemsize
            assert_bits_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


SETUP = """
x, y = cuda.to_device(np.ones((2, 4), np.int8)), cuda.to_device(np.ones((4, 3), np.int8))
u, eights = cuda.to_device(np.ones((2, 4), np.uint8)), cuda.to_device(np.full((2, 4), 8, np.int8))
c = cuda.to_device(np.ones(2, np.int32))
"""


def test_bad_input_says_what_was_wanted() -> None:
    assert_refused(
        SETUP,
        {
            "fp.gpu.matmul(u, y, accumulate='hopper_s8_s32')": ".*takes a of s8 as int8 on the GPU; got uint8",
            "fp.gpu.dot_add(x, x, None, 'hopper_u8_s32')": ".*takes a of u8 as uint8 on the GPU; got int8",
            "fp.gpu.dot_add(x, y, None, 'hopper_s8_s32')": ".*must have one shape",
            "fp.gpu.dot_add(x, x, y, 'hopper_s8_s32')": ".*takes c of s32 as int32",
            "fp.gpu.dot_add(x[:1], x[:1], c, 'hopper_s8_s32')": r".*c must have the shape \(1,\)",
            "fp.gpu.dot_add(x, x, c, 'hopper_s8_s32', scale_a=c)": ".*takes no block scales; got scale_a",
            "fp.gpu.dot_add(eights, eights, c, 'ada_s4_s32')": r".*a must hold integers -8 .. 7 \(s4\); got others",
            "fp.gpu.matmul(np.ones((2, 4), np.int8), y, accumulate='hopper_s8_s32')": ".*must be an array on the GPU",
        },
    )
