"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: softmax and norms of fpsim.gpu, simulated.

Results go to the file that is named; `tests.gpu.norms.test_norms` compares them with those of the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fpsim as fp

Array = npt.NDArray[Any]

SPECIAL = [[0.0, -0.0, 2.0**-24, 3, -9], [np.inf, 1, 2, -np.inf, 0], [-np.inf] * 5, [np.nan, 1, 2, 3, 4], [-0.0] * 5]
HUGE = fp.Format("huge", 10, 5)  # beyond float32
ONE = fp.Format("one", 3, 0, bias=6, infinities=False, nan="top")  # 1 is the largest number
FP = fp.Sequential("fp32")
RANDOM: dict[str, Any] = {"rounding": "stochastic", "seed": 2**40 + 7, "random_bits": 20}
# Keywords of calls: each function takes each of them, with the operands in turn.
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"axis": 0, "accumulate": fp.LaneSum(4), **RANDOM},
    {"axis": 1, "accumulate": fp.LaneSum(1), "out_fmt": "e4m3", "rounding": "up", "overflow": "saturate"},
    {"axis": -2, "accumulate": fp.LaneSum(64), "intermediate": "bf16", "out_fmt": "bf16"},
    {"accumulate": fp.Sequential("bf16"), "intermediate": "fp16", "out_fmt": "fp32"},
    {"axis": 1, "accumulate": fp.Pairwise("fp16"), "out_fmt": "fp16", "subnormals": "flush"},
    {"axis": 0, "accumulate": fp.Exact("fp32"), "intermediate": "e4m3"},
    {"axis": 1, "accumulate": fp.Sequential("bf16", rounding="stochastic", seed=3), **RANDOM},
]


class Call(NamedTuple):
    """A call of softmax or of a norm: arrays of a float dtype or of codes, and keywords."""

    name: str
    operands: tuple[Array | None, ...]
    keywords: dict[str, Any]


def drawn(shape: tuple[int, ...], fmt: str, salt: int) -> Array:
    """Return numbers as an array of the format's dtype if numba knows it, else as codes."""
    codes = fp.encode(np.random.default_rng([salt, *shape]).standard_normal(shape) * 3, fmt, overflow="saturate")
    dtypes: dict[str, Any] = {"fp16": np.float16, "fp32": np.float32}
    return codes.view(dtypes.get(fmt, codes.dtype))


def calls() -> list[Call]:
    """Return every call that is compared."""
    made = []
    formats = ("fp16", "bf16", "e4m3", "fp32")
    for i, (name, most) in enumerate((("softmax", 0), ("log_softmax", 0), ("rms_norm", 1), ("layer_norm", 2))):
        for j, keywords in enumerate(KEYWORDS):
            fmt = formats[(i + j) % len(formats)]
            x = drawn((2, 3, 5), fmt, j)
            length = x.shape[keywords.get("axis", -1)]
            more = [drawn((length,), fmt, 20 + k) if (j >> k) % 2 == 0 else None for k in range(most)]
            of_codes = {} if x.dtype.kind == "f" else {"fmt": fmt}
            made.append(Call(name, (x, *more), {**keywords, **of_codes}))
        special = np.array(SPECIAL).astype(np.float16)
        made += [Call(name, (special,), words) for words in ({}, {"intermediate": "e2m1", "accumulate": FP})]
        made.append(Call(name, (special.astype(np.float32),), {"axis": 0, "out_fmt": "bf16"}))
        made += [Call(name, (drawn((2, 70), "fp32", 3),), words) for words in ({}, {"accumulate": fp.LaneSum(2)})]
        made.append(Call(name, (drawn((2, 6), "fp16", 4).T,), {"axis": 0}))
        made += [Call(name, (np.zeros(shape, np.float16),), {"axis": 0}) for shape in ((5, 0), (1,))]
        made += [Call(name, (np.zeros((0, 5), np.float16),), words) for words in ({}, {"accumulate": FP})]
    huge = np.array([[0x7C00, 0x3C00, 0xFC01, 0x0001]], np.uint16)
    zeros = np.array([[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]], np.float16)
    return [
        *made,
        Call("softmax", (huge,), {"fmt": HUGE, "accumulate": FP}),
        Call("log_softmax", (zeros,), {"accumulate": fp.Sequential(ONE, overflow="saturate")}),
        Call(
            "rms_norm",
            (np.array([1, 2], np.float16), np.array([0x38, 0x40], np.uint8)),
            {"fmt": (None, "e4m3"), "eps": 0.5},
        ),
        Call(
            "layer_norm",
            (drawn((2, 4), "e4m3", 6), None, np.array([1, 2, 3, 4], np.float32)),
            {"fmt": ("e4m3", None, None)},
        ),
    ]


def simulated() -> dict[str, Array]:
    """Return every result by the number of its call."""
    from numba import cuda

    results = {}
    for i, call in enumerate(calls()):
        operands = [None if operand is None else cuda.to_device(operand) for operand in call.operands]
        results[str(i)] = getattr(fp.gpu, call.name)(*operands, **call.keywords).copy_to_host()
    return results


def main(file: str) -> None:
    """Write every result to a file."""
    np.savez(file, **simulated())  # type: ignore[arg-type]
