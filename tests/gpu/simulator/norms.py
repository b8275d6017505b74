"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: softmax and norms of fpsim.gpu, simulated.

Results go to the file that is named; `tests.gpu.norms.test_norms` compares them with those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
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


FORMATS = ("e4m3", "e5m2", "fp16", "bf16", "fp32", "e2m1", "e4m3fnuz", "e8m0", "p3109_k6p3ue", "p3109_k8p3se", "tf32")
CHOICES: dict[str, tuple[Any, ...]] = {
    "out_fmt": (None, "bf16", "e4m3", "fp32", "e2m1", "fp64", "e8m0"),
    "intermediate": ("fp32", "bf16", "fp16", "e4m3", "e2m1", "e5m2", "e4m3fnuz", "p3109_k8p3se"),
    "accumulate": (
        fp.LaneSum(), fp.LaneSum(2), fp.LaneSum(16), fp.Sequential("bf16"), FP, fp.Pairwise("fp16"), fp.Exact("fp32"),
        fp.FusedMultiplyAdd("fp32"), fp.Chunked("bf16", chunk=5, outer="fp32"), fp.Sequential("e2m1", rounding="odd"),
        fp.Sequential("fp16", rounding="stochastic", seed=4, overflow="saturate"),
    ),
    "rounding": ("nearest_even", "up", "odd", "stochastic"),
    "overflow": ("nonfinite", "saturate"),
    "subnormals": ("keep", "flush"),
}  # fmt: skip
SHAPES = ((7,), (3, 5), (2, 3, 4), (1, 33), (2, 1, 9), (40, 2))


def random_calls() -> list[Call]:
    """Return calls of random functions, formats, shapes, codes and keywords; some of them are refused."""
    rng, made = np.random.default_rng(77), []

    def chosen(several: Any) -> Any:
        return several[rng.integers(len(several))]

    def codes(form: str, shape: tuple[int, ...]) -> Array:
        fmt = fp.format(form)
        if not fmt.has_zero or rng.random() < 0.5:
            return rng.integers(0, 1 << fmt.bits, shape).astype(fmt.storage)
        return fp.encode(rng.standard_normal(shape) * 2, fmt, overflow="saturate")

    for _ in range(400):
        name, most = chosen((("softmax", 0), ("log_softmax", 0), ("rms_norm", 1), ("layer_norm", 2)))
        shape, formats = chosen(SHAPES), tuple(chosen(FORMATS) for _ in range(1 + most))
        axis = int(rng.integers(-len(shape), len(shape)))
        more = [codes(form, (shape[axis],)) if rng.random() < 0.6 else None for form in formats[1:]]
        keywords = {key: chosen(values) for key, values in CHOICES.items()}
        keywords |= {"axis": axis, "fmt": formats, "seed": int(rng.integers(1 << 63)), "random_bits": chosen((3, 32))}
        keywords |= {"eps": chosen((0, 1e-6, 0.25))} if most else {}
        made.append(Call(name, (codes(formats[0], shape), *more), keywords))
    return made


def result_of(library: Any, call: Call, put: Callable[[Array], Any]) -> Any:
    """Return the result of a call, or its refusal as a text."""
    try:
        operands = [None if operand is None else put(operand) for operand in call.operands]
        return getattr(library, call.name)(*operands, **call.keywords)
    except (ValueError, TypeError) as reason:
        return np.array(f"{type(reason).__name__} {reason}")


def simulated(made: list[Call]) -> dict[str, Array]:
    """Return every result by the number of its call."""
    from numba import cuda

    results = {}
    for i, call in enumerate(made):
        result = result_of(fp.gpu, call, cuda.to_device)
        results[str(i)] = result.copy_to_host() if hasattr(result, "copy_to_host") else result
    return results


def main(file: str, how: str = "") -> None:
    """Write every result, or those of random calls, to a file."""
    np.savez(file, **simulated(random_calls() if how == "random" else calls()))  # type: ignore[arg-type]
