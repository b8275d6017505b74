"""Arithmetic compared with ml_dtypes, NumPy, JAX and torch, to nearest even, and with flags compared with none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow

BINARY = ("add", "multiply", "divide")


class Contest(NamedTuple):
    """A format, the library compared with fpsim that has it as a dtype, and the targets of fpsim's binary operations.

    targets: library -> multiple of its rate that fpsim must reach. rate: elements a second that it must reach,
    or None.
    """

    fmt: fp.Format
    dtype: Any
    peer: str
    torch: str | None  # its dtype there, if it calculates with it
    targets: dict[str, float]
    rate: float | None


CONTESTS = (
    Contest(fp.E4M3, ml_dtypes.float8_e4m3fn, "ml_dtypes", None, {"ml_dtypes": 25.0, "jax": 1.7}, 1.8e9),
    Contest(fp.FP16, np.float16, "numpy", "float16", {"numpy": 10.0, "torch": 1.0}, None),
    Contest(fp.BF16, ml_dtypes.bfloat16, "ml_dtypes", "bfloat16", {"ml_dtypes": 8.0, "torch": 1.0}, None),
)
FMA_RATE = 0.6e9
ADDCMUL = 0.8  # of torch's rate, which rounds twice

SHORT = {"exp": 2e9, "gelu": 2e9}  # elements a second
FLOAT32 = {"exp": 0.15e9, "log": 0.15e9, "tanh": 0.15e9, "sin": 0.05e9, "erf": 0.05e9}
SOFTMAX_ROWS, SOFTMAX_RATE = 256, 4096 * 4096 / 0.5


def rows(size: int, torch: Any, jax: Any) -> Iterator[RaceRow]:
    """Yield every race of this file, on standard normal operands (on their magnitudes for the square root)."""
    random = np.random.default_rng(0)
    for contest in CONTESTS:
        operands = [fp.encode(random.standard_normal(size, dtype=np.float32), contest.fmt) for _ in range(3)]
        yield from binary_rows(contest, operands, torch, jax)
        yield sqrt_row(contest, fp.absolute(operands[0], fmt=contest.fmt), torch, jax)
        yield from fma_rows(contest, operands, torch, jax)


def binary_rows(contest: Contest, operands: list[Any], torch: Any, jax: Any) -> Iterator[RaceRow]:
    """Yield the races of add, multiply and divide, without and with flags."""
    a, b, _ = operands
    out = np.empty_like(a)
    x, y, typed = (array.view(contest.dtype) for array in (a, b, out))
    for name in BINARY:
        ours = partial(getattr(fp, name), a, b, fmt=contest.fmt, out=out)
        works: dict[str, Work] = {"fpsim": ours, contest.peer: partial(getattr(np, name), x, y, out=typed)}
        if jax:
            works["jax"] = in_jax(jax, getattr(jax.numpy, name), x, y)
        if torch and contest.torch:
            works["torch"] = in_torch(torch, getattr(torch, name), contest.torch, a, b)
        yield RaceRow(f"{name} {contest.fmt}", works, contest.targets, contest.rate)
        yield RaceRow(f"{name} {contest.fmt}, flags", with_flags(ours), {"without flags": 0.5})


def sqrt_row(contest: Contest, a: Any, torch: Any, jax: Any) -> RaceRow:
    """Return the race of square roots of magnitudes."""
    out = np.empty_like(a)
    works: dict[str, Work] = {"fpsim": partial(fp.sqrt, a, fmt=contest.fmt, out=out)}
    works[contest.peer] = partial(np.sqrt, a.view(contest.dtype), out=out.view(contest.dtype))
    if jax:
        works["jax"] = in_jax(jax, jax.numpy.sqrt, a.view(contest.dtype))
    if torch and contest.torch:
        works["torch"] = in_torch(torch, torch.sqrt, contest.torch, a)
    return RaceRow(f"sqrt {contest.fmt}", works, {"torch": contest.targets["torch"]} if contest.torch else {})


def fma_rows(contest: Contest, operands: list[Any], torch: Any, jax: Any) -> Iterator[RaceRow]:
    """Yield the races of a * b + c, which fpsim rounds once and its peers twice."""
    out = np.empty_like(operands[0])
    ours = partial(fp.fma, *operands, fmt=contest.fmt, out=out)
    works: dict[str, Work] = {"fpsim": ours}
    if jax:
        values = (operand.view(contest.dtype) for operand in operands)
        works["jax x*y+z"] = in_jax(jax, lambda x, y, z: x * y + z, *values)
    if torch and contest.torch:
        a, b, c = operands
        works["torch addcmul"] = in_torch(torch, torch.addcmul, contest.torch, c, a, b)
    yield RaceRow(f"fma {contest.fmt}", works, {"torch addcmul": ADDCMUL}, FMA_RATE)
    yield RaceRow(f"fma {contest.fmt}, flags", with_flags(ours), {"without flags": 0.5})


def elementary_rows(size: int, torch: Any) -> Iterator[RaceRow]:
    """Yield the races of elementary functions and softmax, for normal operands; torch rounds none correctly."""
    x = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    for fmt, dtype in ((fp.FP16, "float16"), (fp.BF16, "bfloat16")):
        codes = fp.encode(x, fmt)
        for name, rate in SHORT.items():
            works: dict[str, Work] = {"fpsim": partial(getattr(fp, name), codes, fmt=fmt, out=np.empty_like(codes))}
            if torch and name == "exp":
                works["torch"] = in_torch(torch, torch.exp, dtype, codes)
            yield RaceRow(f"{name} {fmt}", works, {}, rate)
    for name, rate in FLOAT32.items():
        operand = abs(x) if name == "log" else x
        works = {"fpsim": partial(getattr(fp, name), operand, out=np.empty_like(x))}
        if torch:
            tensor = torch.from_numpy(operand)
            works["torch"] = partial(getattr(torch, name), tensor, out=torch.empty_like(tensor))
        yield RaceRow(f"{name} FP32", works, {}, rate)
    logits = fp.cast(x.reshape(SOFTMAX_ROWS, -1), fp.BF16)
    works = {"fpsim": partial(fp.softmax, logits)}
    if torch:
        tensor = torch.from_numpy(logits.view(np.int16)).view(torch.bfloat16)
        works["torch"] = partial(torch.softmax, tensor, -1)
    yield RaceRow("softmax BF16", works, {}, SOFTMAX_RATE)


def with_flags(work: partial[Any]) -> dict[str, Work]:
    """Return two contestants: `work` with flags=True as "fpsim", and `work` itself as "without flags"."""
    return {"fpsim": partial(work, flags=True), "without flags": work}


def in_jax(jax: Any, function: Any, *operands: Any) -> Work:
    """Return a call of a function compiled by JAX, which waits until its result is computed."""
    compiled, arguments = jax.jit(function), [jax.device_put(operand) for operand in operands]
    return lambda: compiled(*arguments).block_until_ready()


def in_torch(torch: Any, function: Any, dtype: str, *codes: Any) -> Work:
    """Return a call of a torch function with a preallocated result."""
    tensors = [torch.from_numpy(array.view(np.int16)).view(getattr(torch, dtype)) for array in codes]
    return partial(function, *tensors, out=torch.empty_like(tensors[0]))
