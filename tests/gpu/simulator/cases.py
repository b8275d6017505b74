"""Calls that give the same on the GPU and the CPU: each takes a library, fp.gpu or fp, and what brings it arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from tests.gpu.simulator import functions as simulator

Array = npt.NDArray[Any]
Put = Callable[[Callable[[Array], Any]], Any]
Call = Callable[[Any, Callable[[Array], Any]], Any]

RNG = np.random.default_rng(1)
CODES = np.arange(256).astype(np.uint8)
NIBBLES = RNG.integers(0, 16, (3, 77)).astype(np.uint8)
FLAT = NIBBLES.reshape(-1)
MANY = np.resize(CODES, 2100)  # so many that a table of 13 bits pays
NINE = fp.Format("nine", 4, 4)
BLOCK, COLUMN = RNG.integers(0, 256, (4, 1, 6)).astype(np.uint8), RNG.integers(0, 256, (5, 1)).astype(np.uint8)
HALVES = BLOCK.astype(np.float16)
SINGLES = RNG.standard_normal((2, 3, 7)).astype(np.float32)
FLOATS = np.array([2.5, -1.75, 300, np.nan, -np.inf, 6e4, 0.2], np.float16)
RANDOM: dict[str, Any] = {"rounding": "stochastic", "seed": 4}


def integers(dtype: str) -> Array:
    """Return the bounds of an integer dtype, and a few between."""
    limits = np.iinfo(dtype)
    return np.array([0, 1, limits.max, limits.min, limits.max // 3, 5], dtype)


def at(array: Array, index: Any = ...) -> Put:
    """Return an array that is brought to the library, and there a part of it."""
    return lambda put: put(array)[index] if index is not ... else put(array)


def turned(array: Array, index: Any = ...) -> Put:
    """Return the same, transposed."""
    return lambda put: at(array, index)(put).T


def call(name: str, *values: Any, **options: Any) -> Call:
    """Return a call of a function; what `at` gave is brought to its library."""

    def made(library: Any, put: Callable[[Array], Any]) -> Any:
        return getattr(library, name)(*(value(put) if callable(value) else value for value in values), **options)

    return made


def routed(name: str, fmt: fp.Format) -> Call:
    """Return an operation without flags, by a table or by float32."""
    count = simulator.ARITHMETIC[name]
    columns = list(NIBBLES[:count]) if fmt == fp.E2M1 else simulator.operands(fmt, count)
    return call(name, *map(at, columns), fmt=fmt)


def into(library: Any, put: Any, a: slice, b: slice, out: slice) -> Any:
    """Return a sum of parts of one array into another part of it; the CPU, which refuses some, takes copies."""
    memory = put(FLAT.copy())
    x, y = (memory[a], memory[b]) if library is not fp else (memory[a].copy(), memory[b].copy())
    library.add(x, y, fmt="e2m1", out=memory[out])
    return memory


def sum_into(a: slice, b: slice, out: slice) -> Call:
    """Return a sum of parts of one array into a part of it, by `into`."""
    return lambda library, put: into(library, put, a, b, out)


def filled(name: str, fmt: str, dtype: Any, *values: Array, **options: Any) -> Call:
    """Return a call that fills codes, or an array of the format's dtype; the CPU gives what it gives anew."""

    def made(library: Any, put: Callable[[Array], Any]) -> Any:
        if library is fp:
            return getattr(fp, name)(*values, fmt=fmt, **options).view(dtype)
        out = put(np.zeros(values[0].shape, dtype))
        assert getattr(library, name)(*map(put, values), fmt=fmt, out=out, **options) is out
        return out

    return made


def started(accumulate: Any, shift: int, **options: Any) -> Call:
    """Return a product that starts at a part of an array, and fills another part of it."""

    def made(library: Any, put: Callable[[Array], Any]) -> Any:
        memory = put(SINGLES.reshape(-1).copy())
        c, out = (memory[start : start + 16].reshape(4, 4) for start in (4, 4 + shift))
        a, b = put(CODES[:128].reshape(4, 32)), put(CODES[:128].reshape(32, 4))
        return library.matmul(a, b, c.copy() if library is fp else c, accumulate=accumulate, out=out, **options)

    return made


def native(library: Any, put: Callable[[Array], Any]) -> Any:
    """Integers of the other byte order, which the GPU does not have."""
    return library.to_int(put(FLOATS), "i4" if library is fp else np.dtype("i4").newbyteorder())


def exact_nan(library: Any, put: Callable[[Array], Any]) -> Any:
    """Return the float64 values of a row with a NaN, in a format whose NaN lies in the place of -0."""
    row = np.array([[1, np.nan, -3, 4]], np.float32)
    scaled = library.encode_scaled(put(row), "e4m3fnuz", fp.scalings.ROW.replace(nan="element"))
    return scaled.decode(np.float64).view(np.uint64)


def cases() -> dict[str, Call]:
    """Every call by its name."""
    found: dict[str, Call] = {}
    for name in simulator.ARITHMETIC:
        for fmt in (fp.E2M1, fp.FP16, fp.BF16, fp.FP32):
            found[f"{name} of {fmt.name}"] = routed(name, fmt)
    for name in ("negative", "absolute", "classify"):
        for form in ("e4m3", "e5m2", "e8m0", "e4m3fnuz"):
            found[f"{name} of {form}"] = call(name, at(CODES), fmt=form)
    rounded: tuple[tuple[str, dict[str, Any]], ...] = (("e4m3", {}), ("fp32", {"rounding": "down"}), ("fp16", RANDOM))
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        for form, options in rounded:
            found[f"from {dtype} to {form}"] = call("from_int", at(integers(dtype)), form, flags=True, **options)
        found[f"to {dtype}"] = call("to_int", at(FLOATS), np.dtype(dtype), flags=True)
    found["to int at random"] = call("to_int", at(FLOATS), np.dtype(np.int16), **RANDOM)
    flat = SINGLES.reshape(-1)
    for cut in (1, 2, 3):  # no longer where a group begins, or not where it ends
        after, before = slice(cut, None), slice(None, -cut)
        found[f"encode from {cut} on"] = call("encode", at(flat, after), "e4m3")
        found[f"encode all but {cut}"] = call("encode", at(flat, before), "fp16", **RANDOM)
        found[f"decode from {cut} on"] = call("decode", at(CODES, after), "e4m3")
        found[f"sum from {cut} on"] = call("add", at(FLAT, after), at(FLAT, before), fmt="e2m1")
    grid, start = HALVES.reshape(4, 6), slice(0, 80)
    return found | {
        "broadcast": call("add", at(BLOCK), at(COLUMN), fmt="e4m3"),
        "broadcast halves": call("fma", at(HALVES), at(HALVES[:, :, :1].copy()), np.float16(2.5)),
        "nothing": call("add", at(BLOCK[:0]), at(COLUMN), fmt="e4m3"),
        "a code": call("add", at(BLOCK), 0x38, fmt="e4m3"),
        "a number first": call("multiply", np.float16(2.5), at(HALVES)),
        "one element": call("add", at(NIBBLES), at(NIBBLES[:1, :1].copy()), fmt="e2m1"),
        "wider result": call("multiply", at(NIBBLES), at(NIBBLES), fmt="e2m1", out_fmt="bf16"),
        "four and nine bits": call(
            "add", at(MANY & 15), at(MANY.astype(np.uint16) * 2), fmt=("e2m1", NINE), out_fmt="bf16"
        ),
        "nine and four bits": call("less", at(MANY.astype(np.uint16) * 2), at(MANY & 15), fmt=(NINE, "e2m1")),
        "three times four bits": call("fma", at(MANY & 15), at(MANY >> 4), at(MANY % 13), fmt="e2m1"),
        "dot products of integers": call(
            "dot",
            at(CODES[:60].view(np.int8).reshape(3, 4, 5)),
            at(CODES[125:145].view(np.int8).reshape(4, 5)),
            accumulate="hopper_s8_s32",
        ),
        "a dot product of integers": call("dot", at(CODES), at(CODES), accumulate="x86_vnni_u8_u32"),
        "flags of any": call("add", at(HALVES), at(HALVES), flags="any"),
        "no axes": call("sqrt", at(HALVES[0, 0, 0].reshape(()))),
        "more axes than NumPy broadcasts": call("sqrt", at(HALVES[0, 0, :2].reshape((1,) * 33 + (2,)))),
        "transposed": call("encode", turned(SINGLES), "e4m3"),
        "every other": call("quantize", at(SINGLES, np.s_[:, :, ::2]), "e5m2"),
        "backwards": call("encode", at(SINGLES, np.s_[:, ::-1]), "fp16", **RANDOM),
        "rows": call("add", turned(grid), turned(grid, np.s_[:, ::-1])),
        "in place": sum_into(start, start, start),
        "codes of a cast": filled("cast", "e4m3", np.uint8, SINGLES),
        "codes of a cast to bfloat16": filled("cast", "bf16", np.uint16, SINGLES),
        "floats of a sum of codes": filled(
            "add", "fp16", np.float16, NIBBLES.astype(np.uint16), NIBBLES[::-1].astype("u2")
        ),
        "swapped bytes": native,
        "the NaN of float64": exact_nan,
        "a unit starts where it ends": started("hopper_e4m3_f32", 0),
        "a unit starts an element before": started("hopper_e4m3_f32", 1),
        "an accumulator starts an element before": started(fp.Sequential("fp32"), 1, fmt="e4m3"),
        "shifted down": sum_into(slice(1, 81), start, start),
        "shifted up": sum_into(slice(1, 81), start, slice(1, 81)),
        "an element of itself": sum_into(start, slice(5, 6), start),
    }


def on_gpu() -> dict[str, Any]:
    """Return the results of fpsim.gpu: codes, flags, and the bits of Flags."""
    from numba import cuda

    found: dict[str, Any] = {}
    for name, call in cases().items():
        results = call(fp.gpu, cuda.to_device)
        for i, part in enumerate(results if isinstance(results, tuple) else (results,)):
            found[f"{name} {i}"] = np.array(int(part)) if isinstance(part, fp.Flags) else part.copy_to_host()
    return found


def on_cpu(call: Call) -> list[Any]:
    """Return the results of fpsim, comparisons as uint8."""
    results = call(fp, lambda array: array)
    parts = results if isinstance(results, tuple) else (results,)
    arrays = [np.array(int(part)) if isinstance(part, fp.Flags) else np.asarray(part) for part in parts]
    return [array.astype(np.uint8) if array.dtype == np.bool_ else array for array in arrays]
