"""The loops that take every format give the bits of those that are compiled for one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.arrays import Array
from fpsim.testing.products.additions import additions
from fpsim.testing.products.inputs import inputs_for
from fpsim.testing.products.promise import Adding, KernelInputs, Promise, product, promise_of
from tests.kit.sweeps import sweep

SHAPES = [(5, 9, 256), (3, 40, 64), (1, 1, 128)]
MODULES = "products.add_product", "products.lane_product", "sums.accumulate"  # that call general loops

CHECK = """
import fpsim as fp
from fpsim.runtime.compile import KERNELS
def kernel(a, b):
    return fp.matmul(a, b, accumulate="hopper_e4m3_f32")
assert fp.testing.check_kernel(kernel, a="e4m3", accumulate="hopper_e4m3_f32").ok
print(sum(len(kernel.signatures) for kernel in KERNELS))
"""


def bits(promise: Promise, x: KernelInputs, adding: Adding) -> tuple[Array | str, str]:
    """Return the codes of a product, or why there is none."""
    try:
        found = product(promise, x, adding, None)
    except (ValueError, TypeError) as refusal:
        return "", str(refusal)
    return found.view(f"u{found.itemsize}"), ""


@pytest.mark.parametrize(
    ("a", "accumulate", "options"),
    [
        ("e4m3", "hopper_e4m3_f32", {}),
        ("fp16", "ampere_f16_f16", {}),
        ("bf16", "hopper_bf16_f32", {"promote": 64}),
        ("e5m2", fp.Sequential("fp16"), {}),
        ("e4m3", "hopper_e4m3_f32", {"scale_a": "1x128", "scale_b": "128x128"}),
    ],
)
@sweep("one_of", 14, 7)  # inputs of which each addition gets one
def test_general_loops_give_the_same_bits(
    a: Any, accumulate: Any, options: dict[str, Any], one_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"promote": None, "scale_a": None, "scale_b": None, **options}
    promise = promise_of(a, None, accumulate, None, words["promote"], None, words["scale_a"], words["scale_b"], False)
    inputs = list(inputs_for(promise, SHAPES, 1))
    replaced: set[Any] = set()

    def replaces(loop: Any, work: int) -> bool:
        replaced.add(loop)
        return True

    compared = 0
    for i, adding in enumerate(of for of in additions(promise) if isinstance(of, Adding)):
        for x in inputs[i % one_of :: one_of]:
            with monkeypatch.context() as patch:
                for module in MODULES:
                    patch.setattr(f"fpsim.{module}.replaces", replaces)
                general, refusal = bits(promise, x, adding)
            with monkeypatch.context() as patch:
                patch.setattr("fpsim.testing.products.promise.general_loops", nullcontext)
                special, same_refusal = bits(promise, x, adding)
            assert refusal == same_refusal, adding.name
            assert np.array_equal(general, special), (adding.name, str(x))
            compared += not refusal
    assert compared > 200
    assert len(replaced) > 3


def test_check_compiles_few_kernels() -> None:
    run = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= 35
