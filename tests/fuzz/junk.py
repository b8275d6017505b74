"""Public calls with one argument replaced by junk: they work, or raise a TypeError or ValueError of one sentence."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import fpsim as fp

LONGEST = 600  # characters of a sentence
SECONDS = 20  # that a call may take
UNIT = "hopper_e4m3_f32"


class Call(NamedTuple):
    """A public function with arguments that it takes."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@cache
def calls() -> list[Call]:
    """Return the calls, with valid arguments, in which junk replaces one argument."""
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)
    codes, array, q = fp.encode(x, "e4m3"), fp.cast(x, "e4m3"), fp.encode_scaled(x, "e4m3", fp.scalings.MX)
    columns = fp.cast(np.ones((32, 2), np.float32), "e4m3")
    cast: dict[str, Any] = {
        "rounding": "up", "overflow": "saturate", "subnormals": "keep", "seed": 1, "random_bits": 8, "out": None,
    }  # fmt: skip
    operation = {**cast, "fmt": None, "out_fmt": None, "input_subnormals": "keep", "flags": False, "tininess": "after"}
    product: dict[str, Any] = {
        "accumulate": UNIT, "schedule": None, "promote": None, "scale_a": None, "scale_b": None, "scale_order": None,
        "bias": None, "alpha": None, "beta": None, "out_fmt": None, "strict": True, "fmt": None, "out": None,
    }  # fmt: skip
    recipe: dict[str, Any] = {
        "block": (1, 32), "scale_format": "e8m0", "scale_rule": "amax", "scale_rounding": None, "amax_floor": 0.0,
        "quotient": "amax/max", "division": "divide", "tensor_scale": False, "symmetric": True, "overflow": "saturate",
        "nan": "tile", "infinity": "skip", "zero_scale": "one", "smallest_scale": None,
    }  # fmt: skip
    found: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        *[(name, getattr(fp, name), (x, "e4m3"), cast) for name in ("encode", "quantize", "cast")],
        ("decode", fp.decode, (codes, "e4m3"), {"dtype": np.float32, "out": None}),
        *[(name, getattr(fp, name), (array, array), operation) for name in ("add", "multiply", "divide")],
        ("fma", fp.fma, (array, array, array), {"fmt": None, "flags": False, "out": None}),
        *[(name, getattr(fp, name), (array,), {"fmt": None}) for name in ("sqrt", "negative", "next_up", "classify")],
        ("less", fp.less, (array, array), {"fmt": None, "input_subnormals": "keep", "flags": False}),
        ("convert", fp.convert, (array, "e5m2"), {"fmt": None, "out": None}),
        ("to_int", fp.to_int, (array, np.int8), {"fmt": None, "out": None}),
        ("encode_scaled", fp.encode_scaled, (x, "e4m3", fp.scalings.MX), {**cast, "scales": None}),
        ("quantize_scaled", fp.quantize_scaled, (x, "e4m3", fp.scalings.MX), {**cast, "scales": None}),
        ("Scaled.decode", q.decode, (), {"dtype": np.float32, "out": None}),
        ("Scaling", fp.Scaling, (), recipe),
        ("matmul", fp.matmul, (array, columns, None), product),
        ("matmul", fp.matmul, (array, columns, None), {"accumulate": fp.Sequential("bf16"), "fmt": None, "out": None}),
        ("dot_add", fp.dot_add, (array, array, None, UNIT), {"scale_a": None, "scale_b": None}),
        ("sum", fp.sum, (array,), {"accumulate": fp.Sequential("bf16"), "fmt": None, "axis": None}),
        ("dot", fp.dot, (array, array), {"accumulate": fp.Pairwise("bf16"), "fmt": None}),
        ("Sequential", fp.Sequential, ("bf16",), {"rounding": "up", "seed": 1, "overflow": "saturate"}),
        ("Chunked", fp.Chunked, ("bf16",), {"chunk": 64, "outer": "fp32"}),
        ("Format", fp.Format, ("mine", 3, 2), {"bias": None, "signed": True, "infinities": True, "nan": "ieee"}),
        ("IntegerFormat", fp.IntegerFormat, ("x", 4, True), {}),
        ("LogFMT", fp.LogFMT, (8,), {}),
        ("unit", fp.unit, (UNIT,), {}),
        ("format", fp.format, ("e4m3",), {}),
        ("policy_diff", fp.policy_diff, ("torch", "ieee", "e4m3"), {}),
        ("p3109", fp.formats.p3109, (8, 4), {"signed": True, "extended": True}),
        ("value_of", fp.E4M3.value_of, (3,), {}),
        ("tree", fp.schedules.tree, (fp.schedules.FLAT, 64), {"n": None, "accumulate": None, "out_fmt": None}),
        ("cublas", fp.schedules.cublas, ("sm_90",), {"split_k": 1, "merge": None, "fast_accum": False}),
        ("error", fp.analysis.error, (x, "e4m3"), {"scaling": None}),
        ("DelayedScaling", fp.DelayedScaling, ("e4m3",), {"history": 16, "margin": 0}),
    ]
    return [Call(*each) for each in found]


@cache
def junk() -> list[Any]:
    """Return values that no argument accepts, or only few."""
    share = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2, 32), (0, 0))
    return [
        None, "junk", "", b"e4m3", 3, -1, 0, 1.5, float("nan"), float("inf"), 1j, True, [], [1], [[1], [2, 3]], ["a"],
        {}, {"a": 1}, {1}, object(), len, int, np.float32, np.array([]), np.zeros((2, 3, 4)), np.ones((3, 3), complex),
        np.array(["a"]), np.array([None]), np.ma.masked_less([1.0, 2.0], 1.5), fp.BF16, fp.INT8, fp.LogFMT(8),
        fp.unit(UNIT), fp.schedules.FLAT, fp.Sequential("bf16"), fp.scalings.MX, 2**64, -(2**63), 2**40, share,
        np.datetime64("2020"), np.zeros(2, [("a", "f4")]), range(3), slice(3), Ellipsis, np.longdouble(1),
        np.array(1.5), np.bool_(True), "e4m3\nfoo", "x" * 300, np.arange(2000.0).reshape(40, 50), np.zeros((1,) * 33),
    ]  # fmt: skip


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Inside the block, raise TimeoutError after a number of seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call_with_junk(rng: np.random.Generator) -> int:
    """Make one call with junk in the place of an argument; return 1."""
    call = calls()[int(rng.integers(len(calls())))]
    places = [*range(len(call.arguments)), *call.keywords]
    place, bad = places[int(rng.integers(len(places)))], junk()[int(rng.integers(len(junk())))]
    arguments, keywords = list(call.arguments), dict(call.keywords)
    if isinstance(place, int):
        arguments[place] = bad
    else:
        keywords[place] = bad
    judge(call.function, arguments, keywords, f"{call.name} with {place} = {_shown(bad)}")
    return 1


def judge(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any], call: str) -> None:
    """Raise AssertionError unless a call returns a result with a repr, or is refused in one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with at_most(SECONDS):
                repr(function(*arguments, **keywords))
        except (TypeError, ValueError) as refused:
            said = str(refused)
            wrong = _what_is_wrong(said)
            if wrong:
                raise AssertionError(f"{call}: {type(refused).__name__} with {wrong}: {said!r}") from refused
        except Exception as error:
            raise AssertionError(f"{call}: {type(error).__name__}: {error}") from error


def _what_is_wrong(said: str) -> str:
    """Why a message is not one sentence of ours, or ""."""
    if "\n" in said:
        return "a message of several lines"
    if len(said) > LONGEST:
        return f"a message of {len(said)} characters"
    ours = "must " in said or "got " in said or said.endswith((".", "?"))
    return "" if ours else "the words of a library"


def _shown(bad: Any) -> str:
    return " ".join(repr(bad).split())[:60]
