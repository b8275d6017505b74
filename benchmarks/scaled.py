"""Scaled quantisation compared with torch.compile, JAX and torchao: 4096 x 4096 float32 to codes, scales and back."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow, load

SIZE = 4096
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)
E4M3_MAX = 448.0


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file."""
    keep_memory()
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    torch, jax = load("torch"), load("jax")
    for name in ("TILE_1X128", "BLOCK_128X128"):
        scaling = getattr(fp.scalings, name)
        peers = {**torch_recipes(torch, x, scaling.block), **jax_recipe(jax, x, scaling.block)}
        yield RaceRow(
            f"E4M3 {name}, codes + scales", {"fpsim": _encode(x, fp.E4M3, scaling), **peers},
            {"torch.compile": 1.3}, rate=3e9,
        )  # fmt: skip
    mx_peers = torchao_mx(torch, x)
    yield RaceRow("E4M3 MX, codes + scales", {"fpsim": _encode(x, fp.E4M3, fp.scalings.MX), **mx_peers}, {}, rate=1.5e9)
    yield from newer_rows(x)
    yield RaceRow("E2M1 NVFP4, codes + scales", {"fpsim": _encode(x, fp.E2M1, fp.scalings.NVFP4)}, {}, rate=1.5e9)
    for name, fmt in (("TENSOR", "e4m3"), ("ROW", "e4m3"), ("TILE_128X1", "e4m3"), ("TILE_1X128", "int8")):
        yield RaceRow(
            f"{fmt.upper()} {name}, codes + scales", {"fpsim": _encode(x, fmt, getattr(fp.scalings, name))}, {}
        )
    for name in ("TILE_1X128", "BLOCK_128X128"):
        scaling = getattr(fp.scalings, name)
        out = np.empty_like(x)
        peers = torch_recipes(torch, x, scaling.block, back=True)
        work = partial(fp.quantize_scaled, x, fp.E4M3, scaling, out=out)
        yield RaceRow(f"E4M3 {name}, fake-quantised", {"fpsim": work, **peers}, {}, rate=2e9)
    q = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    yield RaceRow("E4M3 TILE_1X128, decode", {"fpsim": partial(q.decode, out=np.empty_like(x))}, {})


def keep_memory() -> None:
    """Let the C library reuse large blocks instead of returning them to the system: torch is fastest that way.

    Its results are new arrays, and the page faults of new memory would cost it half of its speed.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
        library.mallopt(option, value)


def newer_rows(x: Any) -> Iterator[RaceRow]:
    """Yield the races of scalings that choose by tile, of HiF4 and of a table."""
    qlora = fp.Scaling(block=(64,))
    for name, fmt, scaling, rate in (
        ("E2M1 NVFP4_46", "e2m1", fp.scalings.NVFP4_46, 0.07e9), ("IF4", "if4", fp.scalings.IF4, 0.035e9),
        ("HIF4", "hif4", fp.scalings.HIF4, 0.15e9), ("NF4 of 64", "nf4", qlora, 0.25e9),
    ):  # fmt: skip
        yield RaceRow(f"{name}, codes + scales", {"fpsim": _encode(x, fmt, scaling)}, {}, rate=rate)


def _encode(x: Any, fmt: Any, scaling: fp.Scaling) -> Work:
    """Return a call of `encode_scaled` into the arrays of an earlier result."""
    out = fp.encode_scaled(x, fmt, scaling)
    return partial(fp.encode_scaled, x, fmt, scaling, out=out)


def torch_recipes(torch: Any, x: Any, block: tuple[int, ...], *, back: bool = False) -> dict[str, Work]:
    """Return DeepGEMM's formulas in torch, eager and compiled."""
    if torch is None:
        return {}
    torch.set_num_threads(1)
    rows, columns = block

    def recipe(values: Any) -> Any:
        tiles = values.view(SIZE // rows, rows, SIZE // columns, columns)
        scale = tiles.abs().amax(dim=(1, 3), keepdim=True).clamp(1e-4) / E4M3_MAX
        codes = (tiles * (1.0 / scale)).to(torch.float8_e4m3fn)
        if back:
            return (codes.to(torch.float32) * scale).view(SIZE, SIZE)
        return codes.view(SIZE, SIZE), scale.view(SIZE // rows, SIZE // columns)

    tensor = torch.from_numpy(x)
    contestants: dict[str, Work] = {"torch eager": partial(recipe, tensor)}
    if any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):  # compiled at its first call
        contestants["torch.compile"] = partial(torch.compile(recipe), tensor)
    else:
        print("torch.compile is left out: no C++ compiler", file=sys.stderr)
    return contestants


def jax_recipe(jax: Any, x: Any, block: tuple[int, ...]) -> dict[str, Work]:
    """Return JAX's compiled encoding to E4M3 with a scale per block, by the formulas that torch gets too."""
    if jax is None:
        return {}
    import ml_dtypes

    rows, columns = block

    def recipe(values: Any) -> Any:
        tiles = values.reshape(SIZE // rows, rows, SIZE // columns, columns)
        scale = jax.numpy.maximum(abs(tiles).max(axis=(1, 3), keepdims=True), 1e-4) / E4M3_MAX
        return (tiles * (1 / scale)).astype(ml_dtypes.float8_e4m3fn).reshape(SIZE, SIZE), scale

    compiled, source = jax.jit(recipe), jax.device_put(x)
    return {"jax.jit": lambda: jax.block_until_ready(compiled(source))}


def torchao_mx(torch: Any, x: Any) -> dict[str, Work]:
    """Return torchao's MX cast, if installed; its import takes seconds and waits for the first call."""
    if torch is None or importlib.util.find_spec("torchao") is None:
        return {}
    tensor = torch.from_numpy(x)

    def to_mx() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
        return module.to_mx(tensor, torch.float8_e4m3fn, 32)

    return {"torchao to_mx": to_mx}
