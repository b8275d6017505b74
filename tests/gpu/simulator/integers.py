"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: fpsim.gpu's products by units of integers.

Results go to the file that is named; `tests.gpu.test_integers` compares them with those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.catalogue import INTEGER_ROWS
from tests.kit.integers import drawn, integer_rows

Array = npt.NDArray[Any]
Send = Callable[[Any], Any]

STEPS = ("hopper_s8_s32", "x86_vnni_u8xs8_s32_sat", "x86_vnni_u8_u32_sat", "turing_s4xu4_s32_sat", "arm_u8_u32",
         "x86_avx2_u8xs8_s32")  # fmt: skip
PRODUCTS = ("ampere_s8_s32", "x86_avx2_u8xs8_s32", "ada_u8xs8_s32_sat", "x86_vnni_u8_u32")
f32 = np.float32


def steps(dot_add: Any, send: Send) -> dict[str, Any]:
    """Return a few rows of steps of units."""
    results = {}
    for name in STEPS:
        rows = integer_rows(INTEGER_ROWS[name], "ends", 5, 70)
        results[f"dot_add {name}"] = dot_add(*map(send, rows), name)
        results[f"dot_add {name} from 0"] = dot_add(send(rows.a), send(rows.b), None, name)
    return results


def products(matmul: Any, send: Send) -> dict[str, Any]:
    """Return products, plain ones and with epilogues."""
    results = {}
    rng = np.random.default_rng(1)
    for name in PRODUCTS:
        unit = INTEGER_ROWS[name]
        a, b = drawn(unit.a, (2, 40), "ends", rng), drawn(unit.b, (40, 3), "uniform", rng)
        c = np.full((2, 3), unit.d.highest - 9, unit.d.dtype)
        results[name] = matmul(send(a), send(b), send(c), accumulate=name)
        rows, columns = np.array([[0.5], [3e-5]], f32), np.array([[1.5, -2, 7e-9]], f32)
        scaled = {"accumulate": name, "scale_a": rows, "scale_b": columns, "bias": np.array([1, 2, 3], f32)}
        results[f"{name} scaled"] = matmul(send(a), send(b), **scaled)
        results[f"{name} to bf16"] = matmul(send(a), send(b), out_fmt=fp.BF16, scale_order="b_first", **scaled)
        results[f"{name} to int8"] = matmul(send(a), send(b), accumulate=name, alpha=0.01, out_fmt="int8")
        results[f"{name} added"] = matmul(
            send(a), send(b), send(c), accumulate=name, alpha=1.0, beta=1.0, out_fmt=np.int32
        )
        results[f"{name} NaN"] = matmul(send(a), send(b), accumulate=name, alpha=float("nan"), out_fmt=np.int32)
    return results


def scaled_products(encode_scaled: Any, matmul: Any, send: Send) -> dict[str, Any]:
    """Return products of Scaled operands: per row and column, per blocks of K, and with zero points."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 40)).astype(f32), rng.random((40, 3)).astype(f32)
    results = {}
    row, column = (s.replace(symmetric=False) for s in (fp.scalings.ROW, fp.scalings.COLUMN))
    pairs = {
        "rows": (fp.INT8, fp.scalings.ROW, fp.scalings.COLUMN, "hopper_s8_s32"),
        "zero points": (fp.UINT8, row, column, "hopper_u8_s32"),
        "blocks": (fp.INT8, fp.Scaling(block=(1, 16)), fp.Scaling(block=(16, 1)), "hopper_s8_s32"),
    }
    for name, (fmt, of_a, of_b, unit) in pairs.items():
        a, b = encode_scaled(send(x), fmt, of_a), encode_scaled(send(w), fmt, of_b)
        results[f"Scaled {name}"] = matmul(a, b, accumulate=unit)
    halves = send(x.astype(np.float16).view(np.uint16))
    for name, fmt, scaling in (("4 bits", fp.INT4, fp.Scaling(block=(8, 1))), ("points", fp.UINT4, column)):
        weights = encode_scaled(send(w), fmt, scaling)
        results[f"Scaled weights, {name}"] = matmul(halves, weights, accumulate="ampere_f16_f32")
    a, b = (encode_scaled(send(empty), fp.UINT8, s) for empty, s in ((x[:0], row), (w[:, :0], column)))
    full = encode_scaled(send(x), fp.UINT8, row), encode_scaled(send(w), fp.UINT8, column)
    results["Scaled without rows"] = matmul(a, full[1], accumulate="hopper_u8_s32")
    results["Scaled without columns"] = matmul(full[0], b, accumulate="hopper_u8_s32")
    return results


def main(file: str) -> None:
    """Write every result to a file."""
    from numba import cuda

    send = cuda.to_device
    results = {
        **steps(fp.gpu.dot_add, send),
        **products(fp.gpu.matmul, send),
        **scaled_products(fp.gpu.encode_scaled, fp.gpu.matmul, send),
    }
    np.savez(file, **{name: result.copy_to_host() for name, result in results.items()})
