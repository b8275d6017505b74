"""A small sample of every operation through the public functions, for processes that run it in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.formats.policies import OVERFLOWS
from fpsim.formats.rounding import NAMES
from tests.kit.operands import tuples

Array = npt.NDArray[Any]

SIZE = 24
ROUNDED = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "remainder": 2, "fma": 3, "sqrt": 1, "round_to_integral": 1,
    "minimum": 2, "maximum": 2, "minimum_number": 2, "maximum_number": 2,
}  # fmt: skip
COMPARED = ("equal", "less", "less_equal")
NEIGHBOURS = ("next_up", "next_down")
FORMATS = [
    fp.E4M3, fp.E5M2, fp.E4M3FNUZ, fp.E8M0, fp.FP16, fp.BF16, fp.FP32,
    fp.format("p3109_k8p1se"), fp.format("p3109_k8p3ue"), fp.format("p3109_k12p5sf"),
]  # fmt: skip
MIXED = [((fp.E4M3, fp.E5M2, fp.FP16), fp.BF16), ((fp.FP32, fp.BF16, fp.E4M3), fp.FP64)]


def columns(fmts: tuple[fp.Format, ...]) -> list[Array]:
    """A few edges of each format."""
    return [column[:SIZE] for column in tuples(fmts, 4 * SIZE, seed=0)]


def lines() -> Iterator[str]:
    """What every operation gives, a line for each call."""

    def line(name: str, *values: Any, **words: Any) -> str:
        got = getattr(fp, name)(*values, **words)
        arrays = got if isinstance(got, tuple) else (got,)
        return f"{name} {words} {[array.tolist() for array in arrays]}"

    for fmt in FORMATS:
        for name, count in ROUNDED.items():
            for rounding in NAMES if name in ("fma", "sqrt") else ("nearest_even", "down"):
                words = {"fmt": fmt.name, "rounding": rounding, "seed": 5}
                yield line(name, *columns((fmt,) * count), flags=True, **words)
        for overflow in OVERFLOWS:
            yield line("multiply", *columns((fmt, fmt)), fmt=fmt.name, overflow=overflow, rounding="up", flags=True)
        for name in COMPARED:
            yield line(name, *columns((fmt, fmt)), fmt=fmt.name, flags=True)
        for name in NEIGHBOURS:
            yield line(name, *columns((fmt,)), fmt=fmt.name, flags=True)
        for name in ("negative", "absolute", "classify"):
            yield line(name, *columns((fmt,)), fmt=fmt.name)
        for to in ("e4m3", "fp32", "fp64"):
            yield line("convert", *columns((fmt,)), to, fmt=fmt.name, rounding="odd", flags=True)
        yield line("to_int", *columns((fmt,)), np.int16, fmt=fmt.name, rounding="up", flags=True)
        yield line("from_int", [0, 1, -3, 300, 2**40 + 1, -(2**63)], fmt.name, rounding="up", flags=True)
        flushed = {"input_subnormals": "flush", "subnormals": "flush", "tininess": "before"}
        yield line("add", *columns((fmt, fmt)), fmt=fmt.name, flags=True, **flushed)
    for fmts, out in MIXED:
        for name in ("add", "fma"):
            count = ROUNDED[name]
            names = tuple(fmt.name for fmt in fmts[:count])
            yield line(name, *columns(fmts[:count]), fmt=names, out_fmt=out.name, flags=True, tininess="before")
    whole = np.arange(256).astype(np.uint8)  # enough of them for a table
    for name in ("sqrt", "round_to_integral"):
        yield line(name, whole, fmt="e5m2", flags=True)
