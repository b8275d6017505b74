"""Casts compared with those of ml_dtypes, torch, NumPy, JAX and gfloat."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow
from fpsim.casts.loops import random_kernel
from fpsim.casts.pipelines import MANY

FORMATS = {
    "E4M3": ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    "E5M2": ("float8_e5m2", ml_dtypes.float8_e5m2),
    "FP16": ("float16", np.float16),
    "BF16": ("bfloat16", ml_dtypes.bfloat16),
}
GFLOAT_SIZE = 1 << 16
REPEATED = 1 << 20  # elements of a cast that is repeated
WORDS = 1 << 12  # 16 KiB
OTHER_MODES = ("nearest_away", "toward_zero", "up", "down", "odd")


def data(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return standard normal float32 values; the rates of the peers depend little on the values."""
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)


def encode_rows(x: Any, torch: Any, jax: Any) -> Iterator[RaceRow]:
    """Yield the races of casts from float32 to codes, to nearest even."""
    targets = {
        "E4M3": {"torch copy_": 2.2, "ml_dtypes astype": 30.0},
        "FP16": {"torch copy_": 1.0},
        "BF16": {"torch copy_": 1.0},
    }
    for name, (word, dtype) in FORMATS.items():
        fmt = fp.format(name)
        out = np.empty(x.size, fmt.storage)
        contestants: dict[str, Work] = {"fpsim": partial(fp.encode, x, fmt, out=out)}
        if torch:
            target = torch.empty(x.size, dtype=getattr(torch, word))
            contestants["torch copy_"] = partial(target.copy_, torch.from_numpy(x))
        if jax:
            contestants["jax astype"] = jax_cast(jax, x, dtype)
        peer = "numpy astype" if name == "FP16" else "ml_dtypes astype"
        contestants[peer] = partial(x.astype, dtype)
        yield RaceRow(f"encode {name}", contestants, targets.get(name, {}))


def repeated_rows(torch: Any) -> Iterator[RaceRow]:
    """Yield the races of casts of 2^20 elements that a process has made so often that constants are compiled in."""
    part = data(REPEATED)
    codes, values = np.empty(part.size, np.uint8), np.empty(part.size, np.float32)
    works: dict[str, Work] = {
        "encode": partial(fp.encode, part, fp.E4M3, out=codes),
        "quantize": partial(fp.quantize, part, fp.E4M3, out=values),
        "decode": partial(fp.decode, codes, fp.E4M3, out=values),
    }
    for name, work in works.items():
        for _ in range(MANY // part.size + 1):
            work()
        contestants = {"fpsim": work}
        if torch and name == "encode":
            target = torch.empty(part.size, dtype=torch.float8_e4m3fn)
            contestants["torch copy_"] = partial(target.copy_, torch.from_numpy(part))
        yield RaceRow(f"{name} E4M3, 2^20 elements again and again", contestants, {}, size=part.size)


def jax_cast(jax: Any, x: Any, dtype: Any) -> Work:
    """Return a cast of x compiled by JAX, which waits until its result is computed."""
    source = jax.device_put(x)
    compiled = jax.jit(lambda values: values.astype(dtype))
    return lambda: compiled(source).block_until_ready()


def mode_rows(x: Any, gfloat: Any) -> Iterator[RaceRow]:
    """Yield the races of the other rounding modes, float32 to E4M3."""
    out = np.empty(x.size, np.uint8)
    for mode in OTHER_MODES:
        work = partial(fp.encode, x, fp.E4M3, rounding=mode, out=out)
        yield RaceRow(f"encode E4M3, {mode}", {"fpsim": work}, {}, rate=3e9)
    contestants: dict[str, Work] = {"fpsim": partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1, out=out)}
    contestants["Philox words"] = words(x.size)
    yield RaceRow("encode E4M3, stochastic", contestants, {"Philox words": 0.5}, rate=1.7e9)
    if gfloat:
        part = x[:GFLOAT_SIZE]
        short = partial(fp.encode, part, fp.E4M3, rounding="stochastic", seed=1, out=out[:GFLOAT_SIZE])
        contestants = {"fpsim": short, "gfloat": gfloat_stochastic(gfloat, part)}
        yield RaceRow("encode E4M3, stochastic, beside gfloat", contestants, {"gfloat": 20.0}, size=part.size)


def words(size: int) -> Work:
    """Return work that draws `size` random 32-bit numbers in the L1 cache: the limit of stochastic rounding."""
    part = np.empty(WORDS, np.uint32)
    fill = random_kernel()

    def work() -> None:
        for start in range(0, size, part.size):
            fill(part, np.uint64(start // 4), np.uint64(1), np.uint64(0))

    return work


def gfloat_stochastic(gfloat: Any, x: Any) -> Work:
    """Return a stochastic cast of few values by gfloat, which is slow: it rounds in float64, in several arrays."""
    formats = importlib.import_module("gfloat.formats")
    info, mode = formats.format_info_ocp_e4m3, gfloat.RoundMode.StochasticFast
    random = np.random.default_rng(0).integers(0, 1 << 16, x.size)
    values = x.astype(np.float64)
    return partial(gfloat.round_ndarray, info, values, mode, srbits=random, srnumbits=16)


def decode_rows(x: Any, torch: Any, jax: Any) -> Iterator[RaceRow]:
    """Yield the races of decoding codes to float32."""
    out = np.empty(x.size, np.float32)
    for name, (word, dtype) in FORMATS.items():
        fmt = fp.format(name)
        codes = fp.encode(x, fmt)
        contestants: dict[str, Work] = {"fpsim": partial(fp.decode, codes, fmt, out=out)}
        if fmt.bits == 8:
            table = fmt.table().astype(np.float32)
            contestants["numpy table"] = partial(table.take, codes, out=out)
        if torch:
            source = torch.from_numpy(codes).view(getattr(torch, word))
            contestants["torch copy_"] = partial(torch.empty(x.size).copy_, source)
        if jax:
            contestants["jax astype"] = jax_cast(jax, codes.view(dtype), np.float32)
        peer = "numpy astype" if name == "FP16" else "ml_dtypes astype"
        contestants[peer] = partial(codes.view(dtype).astype, np.float32)
        wanted = {"E4M3": {"numpy table": 8.0}, "FP16": {"torch copy_": 1.0}}
        yield RaceRow(f"decode {name}", contestants, wanted.get(name, {}))


def other_rows(x: Any, torch: Any) -> Iterator[RaceRow]:
    """Yield the races of quantize, and of encode from other sources than float32."""
    out, values = np.empty(x.size, np.uint8), np.empty(x.size, np.float32)
    contestants: dict[str, Work] = {"fpsim": partial(fp.quantize, x, fp.E4M3, out=values)}
    if torch:
        source = torch.from_numpy(x)
        contestants["torch to().float()"] = lambda: source.to(torch.float8_e4m3fn).float()
    yield RaceRow("quantize E4M3", contestants, {})
    yield from repeated_rows(torch)
    for dtype in (np.float64, np.float16):
        wide = x.astype(dtype)
        contestants = {"fpsim": partial(fp.encode, wide, fp.E4M3, out=out)}
        contestants["ml_dtypes astype"] = partial(wide.astype, ml_dtypes.float8_e4m3fn)
        yield RaceRow(f"encode E4M3 from {np.dtype(dtype)}", contestants, {})


def table_rows(x: Any) -> Iterator[RaceRow]:
    """Yield the races of encoding to formats given by a table, compared with NumPy's binary search.

    The binary search takes the lower value at ties.
    """
    out = np.empty(x.size, np.uint8)
    for fmt in (fp.NF4, fp.HIF8):
        values = np.array([value for value, _ in fmt.finite], np.float32)
        middles = (values[:-1] + values[1:]) / 2
        contestants: dict[str, Work] = {"fpsim": partial(fp.encode, x, fmt, out=out)}
        contestants["numpy searchsorted"] = partial(np.searchsorted, middles, x)
        yield RaceRow(f"encode {fmt}", contestants, {"numpy searchsorted": 4.0}, rate=0.3e9)


def thread_rows(x: Any, threads: int) -> Iterator[RaceRow]:
    """Yield races of all cores against one, and that of a copy, which shows how the memory's bandwidth grows."""
    yield copy_on_all_cores(x, threads)
    out, values = np.empty(x.size, np.uint8), np.empty(x.size, np.float32)
    works: dict[str, Callable[[], object]] = {
        "encode E4M3": partial(fp.encode, x, fp.E4M3, out=out),
        "encode E4M3, stochastic": partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1, out=out),
        "quantize E4M3": partial(fp.quantize, x, fp.E4M3, out=values),
        "encode BF16": partial(fp.encode, x, fp.BF16, out=np.empty(x.size, np.uint16)),
        "fma E4M3": partial(fp.fma, out, out, out, fmt=fp.E4M3, out=np.empty_like(out)),
    }
    for name, work in works.items():
        computes = threads == 2 and name not in ("quantize E4M3", "encode BF16")  # the others wait for memory
        wanted = {"one thread": 1.9} if computes else {}  # on an idle machine
        yield RaceRow(f"{name}, all cores", {"fpsim": work, "one thread": on_one_thread(work)}, wanted)


def on_one_thread(work: Work) -> Work:
    """Return a function that does the given work with one thread."""

    def alone() -> None:
        before = os.environ.get("FPSIM_NUM_THREADS")
        os.environ["FPSIM_NUM_THREADS"] = "1"
        try:
            work()
        finally:
            if before is None:
                del os.environ["FPSIM_NUM_THREADS"]
            else:
                os.environ["FPSIM_NUM_THREADS"] = before

    return alone


def copy_on_all_cores(x: Any, threads: int) -> RaceRow:
    """Return the race of a copy by all cores: the limit of the memory."""
    target = np.empty_like(x)
    targets, sources = np.array_split(target, threads), np.array_split(x, threads)
    pool = ThreadPoolExecutor(threads)
    works: dict[str, Work] = {
        "numpy copyto": lambda: list(pool.map(np.copyto, targets, sources)),
        "one thread": partial(np.copyto, target, x),
    }
    return RaceRow("copy float32, all cores", works, {})


def copy_row(x: Any) -> RaceRow:
    """Return the race of a copy by one core: the limit of the memory."""
    target = np.empty_like(x)
    return RaceRow("copy float32 (the memory's limit)", {"numpy copyto": partial(np.copyto, target, x)}, {})


def rows(size: int, torch: Any, jax: Any, gfloat: Any) -> Iterator[RaceRow]:
    """Yield every row for one core, one by one, so that few large arrays exist at a time."""
    x = data(size)
    groups = (
        encode_rows(x, torch, jax),
        mode_rows(x, gfloat),
        decode_rows(x, torch, jax),
        other_rows(x, torch),
        table_rows(x),
    )
    return chain([copy_row(x)], *groups)
