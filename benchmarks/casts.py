"""Casts beside ml_dtypes, torch, NumPy, JAX and gfloat: `make bench`, or `python -m benchmarks.casts`.

Every row is one race on the same data with preallocated outputs where the library takes them. Ratios are what counts;
absolute figures move from machine to machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.machine import describe
from benchmarks.race import Work, one_core, race
from fpsim.threads import thread_count

SIZE = 1 << 24  # elements
FORMATS = {
    "E4M3": ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    "E5M2": ("float8_e5m2", ml_dtypes.float8_e5m2),
    "FP16": ("float16", np.float16),
    "BF16": ("bfloat16", ml_dtypes.bfloat16),
}
OTHER_MODES = ("nearest_away", "toward_zero", "up", "down", "odd")


class Row(NamedTuple):
    """One race: what it is about, who takes part, and what is wanted of the first contestant."""

    name: str
    contestants: dict[str, Work]
    targets: dict[str, float]  # peer -> how many times as fast as it
    rate: float | None = None  # elements per second


def load(name: str) -> Any:
    """A peer, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def data(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Standard normal float32 values; the peers' speed depends little on them."""
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)


def encode_rows(x: Any, torch: Any, jax: Any) -> Iterator[Row]:
    """float32 to codes, nearest even."""
    targets = {
        "E4M3": {"torch copy_": 2.5, "ml_dtypes astype": 30.0},
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
        own = "numpy astype" if name == "FP16" else "ml_dtypes astype"
        contestants[own] = partial(x.astype, dtype)
        yield Row(f"encode {name}", contestants, targets.get(name, {}))


def jax_cast(jax: Any, x: Any, dtype: Any) -> Work:
    """A compiled cast that waits for its result."""
    source = jax.device_put(x)
    compiled = jax.jit(lambda values: values.astype(dtype))
    return lambda: compiled(source).block_until_ready()


def mode_rows(x: Any, gfloat: Any) -> Iterator[Row]:
    """The other rounding modes, float32 to E4M3."""
    out = np.empty(x.size, np.uint8)
    for mode in OTHER_MODES:
        work = partial(fp.encode, x, fp.E4M3, rounding=mode, out=out)
        yield Row(f"encode E4M3, {mode}", {"fpsim": work}, {}, rate=3e9)
    contestants: dict[str, Work] = {"fpsim": partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1, out=out)}
    if gfloat:
        contestants["gfloat (sample)"] = gfloat_stochastic(gfloat, x[: 1 << 16], x.size)
    yield Row("encode E4M3, stochastic", contestants, {"gfloat (sample)": 20.0}, rate=1.7e9)


def gfloat_stochastic(gfloat: Any, x: Any, size: int) -> Work:
    """gfloat on a repeated sample: the whole array would take a second and gigabytes."""
    formats = importlib.import_module("gfloat.formats")
    info, mode = formats.format_info_ocp_e4m3, gfloat.RoundMode.StochasticFast
    random = np.random.default_rng(0).integers(0, 1 << 16, x.size)
    values = x.astype(np.float64)

    def work() -> None:
        for _ in range(size // x.size):
            gfloat.round_ndarray(info, values, mode, srbits=random, srnumbits=16)

    return work


def decode_rows(x: Any, torch: Any, jax: Any) -> Iterator[Row]:
    """Codes to float32."""
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
        own = "numpy astype" if name == "FP16" else "ml_dtypes astype"
        contestants[own] = partial(codes.view(dtype).astype, np.float32)
        yield Row(f"decode {name}", contestants, {"numpy table": 8.0} if name == "E4M3" else {})


def other_rows(x: Any, torch: Any) -> Iterator[Row]:
    """Quantize, and sources other than float32."""
    out, values = np.empty(x.size, np.uint8), np.empty(x.size, np.float32)
    contestants: dict[str, Work] = {"fpsim": partial(fp.quantize, x, fp.E4M3, out=values)}
    if torch:
        source = torch.from_numpy(x)
        contestants["torch to().float()"] = lambda: source.to(torch.float8_e4m3fn).float()
    yield Row("quantize E4M3", contestants, {})
    for dtype in (np.float64, np.float16):
        wide = x.astype(dtype)
        contestants = {"fpsim": partial(fp.encode, wide, fp.E4M3, out=out)}
        contestants["ml_dtypes astype"] = partial(wide.astype, ml_dtypes.float8_e4m3fn)
        yield Row(f"encode E4M3 from {np.dtype(dtype)}", contestants, {})


def thread_rows(x: Any, threads: int) -> Iterator[Row]:
    """All cores beside one; a copy shows how much faster the memory itself gets."""
    yield copy_on_all_cores(x, threads)
    out, values = np.empty(x.size, np.uint8), np.empty(x.size, np.float32)
    works: dict[str, Callable[[], object]] = {
        "encode E4M3": partial(fp.encode, x, fp.E4M3, out=out),
        "encode E4M3, stochastic": partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1, out=out),
        "quantize E4M3": partial(fp.quantize, x, fp.E4M3, out=values),
    }
    for name, work in works.items():
        wanted = {"one thread": 1.8} if threads == 2 else {}  # on an idle machine
        yield Row(f"{name}, all cores", {"fpsim": work, "one thread": on_one_thread(work)}, wanted)


def on_one_thread(work: Work) -> Work:
    """The same work with one thread."""

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


def copy_on_all_cores(x: Any, threads: int) -> Row:
    """What the memory can do for several cores at once."""
    target = np.empty_like(x)
    targets, sources = np.array_split(target, threads), np.array_split(x, threads)
    pool = ThreadPoolExecutor(threads)
    works: dict[str, Work] = {
        "numpy copyto": lambda: list(pool.map(np.copyto, targets, sources)),
        "one thread": partial(np.copyto, target, x),
    }
    return Row("copy float32, all cores", works, {})


def copy_row(x: Any) -> Row:
    """What the memory can do: read and write of the same bytes."""
    target = np.empty_like(x)
    return Row("copy float32 (the memory's limit)", {"numpy copyto": partial(np.copyto, target, x)}, {})


def report(row: Row, size: int) -> dict[str, Any]:
    """Run one race, print its line, return its record. The first contestant is the one whose ratios count."""
    result = race(row.contestants)
    first, *others = row.contestants
    rates = {name: size / seconds for name, seconds in result.medians.items()}
    ratios = {name: rates[first] / rates[name] for name in others}
    verdicts = {name: ratios[name] >= wanted for name, wanted in row.targets.items() if name in ratios}
    if row.rate is not None:
        verdicts["rate"] = rates[first] >= row.rate
    cells = [f"{name} {ratio:.2f}x{_mark(verdicts.get(name))}" for name, ratio in ratios.items()]
    rate = f"{rates[first] / 1e9:6.2f} Gel/s{_mark(verdicts.get('rate'))}"
    print(f"{row.name:36s} {rate}  {'  '.join(cells)}", flush=True)
    return {
        "name": row.name,
        "elements_per_second": rates,
        "best_elements_per_second": {name: size / seconds for name, seconds in result.fastest.items()},
        "first_is_faster_by": ratios,
        "targets": {**row.targets, **({"rate": row.rate} if row.rate else {})},
        "met": verdicts,
        "turns": result.turns,
    }


def _mark(met: bool | None) -> str:
    return "" if met is None else " (met)" if met else " (MISSED)"


def write(record: dict[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        json.dump(record, file, indent=2)
        file.write("\n")
    Path(file.name).replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the races; exit code 1 if a target of the README was missed with --strict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="elements per array")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"), help="where the record goes")
    parser.add_argument("--only", default="", help="run the rows whose name contains this")
    parser.add_argument("--strict", action="store_true", help="fail where a target is missed")
    options = parser.parse_args(arguments)

    machine = describe()
    torch, jax, gfloat = load("torch"), load("jax"), load("gfloat")
    threads = thread_count()
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)  # type: ignore[attr-defined]
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['date']}; {versions}")
    print(f"{options.size:,} elements; ratios say how many times as fast fpsim is. One core:")
    x = data(options.size)
    records: list[dict[str, Any]] = []
    with one_core():
        if torch:
            torch.set_num_threads(1)
        groups = (encode_rows(x, torch, jax), mode_rows(x, gfloat), decode_rows(x, torch, jax), other_rows(x, torch))
        for row in chain([copy_row(x)], *groups):  # made one by one, so that few large arrays exist at a time
            if options.only in row.name:
                records.append(report(row, options.size))
    if threads > 1:
        print(f"All {threads} cores:")
        for row in thread_rows(x, threads):
            if options.only in row.name:
                records.append(report(row, options.size))
    write({"machine": machine, "elements": options.size, "rows": records}, options.out)
    print(f"Recorded in {options.out}.")
    missed = [record["name"] for record in records if not all(record["met"].values())]
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
