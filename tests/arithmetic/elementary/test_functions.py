"""Elementary functions of codes against mpmath: every code of short formats, a sample of FP16, BF16 and float32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arithmetic.elementary.tables import exact_table
from fpsim.arithmetic.operation import ELEMENTARY
from fpsim.core.number import BIAS, TOP
from tests.arithmetic.checks import assert_same
from tests.core.test_philox import random_word
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import casts, elementary

Array = npt.NDArray[Any]

EIGHT_BITS = [fp.E4M3, fp.E5M2, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k8p3ue"), fp.Format("nine", 4, 4)]
WIDE = [fp.FP16, fp.BF16, fp.Format("huge", 10, 5), fp.Format("fine", 2, 13)]
MODES = ("nearest_even", "toward_zero", "up")


def sample(fmt: fp.Format, count: int, seed: int = 0) -> Array:
    """Return codes of a format: its edges, and as many others."""
    one, top = fmt.bias << fmt.mantissa_bits, fmt.top_magnitude
    magnitudes = [0, 1, 2, 1 << fmt.mantissa_bits, one - 1, one, one + 1, fmt.max_code - 1, fmt.max_code, top - 1, top]
    edges = [m & fmt.top_magnitude | sign for sign in (0, fmt.sign_bit) for m in magnitudes]
    drawn = np.random.default_rng(seed).integers(0, 1 << fmt.bits, count)
    return np.unique(np.concatenate([edges, drawn])).astype(fmt.storage)


@lru_cache(maxsize=4096)
def exact_result(name: str, code: int, fmt: fp.Format, input_subnormals: str) -> ao.Exact:
    """Return the oracle's exact result for a code."""
    return elementary.exact(name, ao.read(fmt, code, input_subnormals))


def check(name: str, codes: Array, fmt: fp.Format, out: fp.Format | None = None, **words: Any) -> None:
    """Compare the codes and flags of a function with the oracle's."""
    got, flags = getattr(fp, name)(codes, fmt=fmt, out_fmt=out, flags=True, **words)
    target = out or fmt
    rounding = {key: value for key, value in words.items() if key in ao.Options._fields}
    results = []
    for i, code in enumerate(codes.tolist()):
        word = random_word(i, words["seed"]) if words.get("rounding") == "stochastic" else 0
        exact = exact_result(name, code, fmt, words.get("input_subnormals", "keep"))
        results.append(ao.deliver(exact, target, ao.Options(**rounding, word=word)))
    want, want_flags = zip(*results, strict=True)
    named = {"fmt": fmt, "out_fmt": out, **words}
    assert_same(got, np.array(want, target.storage), name, [codes], named, "codes")
    assert_same(flags, np.array(want_flags, np.uint8), name, [codes], named, "flags")


@in_turn("name", ELEMENTARY)
@sweep("choice", (EIGHT_BITS[:2], 64), (EIGHT_BITS, 512))
def test_results_of_short_formats_are_rounded_once(name: str, choice: tuple[list[fp.Format], int]) -> None:
    formats, count = choice
    for i, fmt in enumerate(formats):
        codes = np.arange(1 << fmt.bits).astype(fmt.storage)
        codes = codes if codes.size <= count else codes[i :: codes.size // count]
        check(name, codes, fmt, rounding=MODES[len(name) % 3])


@in_turn("name", ELEMENTARY)
@sweep("choice", ([fp.FP16, fp.BF16], 12), (WIDE, 800))
def test_results_of_16_bits_are_rounded_once(name: str, choice: tuple[list[fp.Format], int]) -> None:
    formats, count = choice
    for fmt in formats if count > 100 else formats[len(name) % 2 :: 2]:
        for rounding in MODES:
            check(name, sample(fmt, count), fmt, rounding=rounding)


@pytest.mark.slow
@pytest.mark.parametrize("name", ELEMENTARY)
@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_every_result_of_16_bits_is_rounded_once_in_three_modes(name: str, fmt: fp.Format) -> None:
    codes = np.arange(1 << 16).astype(np.uint16)
    exact = [elementary.exact(name, ao.read(fmt, code)) for code in codes.tolist()]
    for rounding in MODES:
        results = [ao.deliver(each, fmt, ao.Options(rounding=rounding)) for each in exact]
        want, want_flags = (np.array(column) for column in zip(*results, strict=True))
        got, flags = getattr(fp, name)(codes, fmt=fmt, rounding=rounding, flags=True)
        assert_same(got, want.astype(np.uint16), name, [codes], {"fmt": fmt, "rounding": rounding}, "codes")
        assert_same(flags, want_flags.astype(np.uint8), name, [codes], {"fmt": fmt, "rounding": rounding}, "flags")


@pytest.mark.slow
@pytest.mark.parametrize("name", ELEMENTARY)
def test_every_entry_of_a_table_has_the_first_bits_of_the_exact_result(name: str) -> None:
    for fmt in (fp.FP16, fp.BF16):
        table = exact_table(name, fmt, "keep")
        for code, (significand, field) in enumerate(
            zip(table.significands.tolist(), table.fields.tolist(), strict=True)
        ):
            want = elementary.exact(name, ao.read(fmt, code))
            if want.kind == "finite" and 0 < abs(field - BIAS) < 1000 and want.magnitude:
                whole, rest = ao.in_units(want.magnitude, field - BIAS - TOP + 1)
                assert significand == 2 * whole + (rest > 0), (name, fmt, hex(code))


@in_turn("rounding", casts.MODES)
def test_every_mode_policy_and_result_format_follows_from_one_table(rounding: str) -> None:
    words: list[dict[str, Any]] = [
        {"out": fp.E4M3, "overflow": "saturate"},
        {"out": fp.FP32, "tininess": "before"},
        {"out": fp.E5M2, "subnormals": "flush", "input_subnormals": "flush"},
        {"out": fp.E8M0, "overflow": "saturate_finite"},
    ]
    for name in ("exp", "log", "rsqrt", "gelu"):
        for each in words:
            check(name, sample(fp.FP16, 12, seed=len(name)), fp.FP16, rounding=rounding, **each)


def test_stochastic_results_follow_their_random_words() -> None:
    for name, out in (("exp", fp.FP16), ("sin", fp.E4M3), ("tanh", fp.FP32)):
        check(name, sample(fp.FP16, 60), fp.FP16, out, rounding="stochastic", seed=7, random_bits=32)


def test_a_table_gives_what_single_elements_give() -> None:
    codes = np.arange(1 << 16).astype(np.uint16)
    for name, fmt in (("exp", fp.BF16), ("log", fp.FP16)):
        whole, flags = getattr(fp, name)(codes, fmt=fmt, flags=True, rounding="down")
        some = codes[::257].copy()
        few, few_flags = getattr(fp, name)(some, fmt=fmt, flags=True, rounding="down")
        assert np.array_equal(whole[some], few)
        assert np.array_equal(flags[some], few_flags)


def test_results_have_the_type_of_the_operand() -> None:
    x = np.array([0.5, 2], np.float16)
    assert fp.exp(x).dtype == np.float16
    assert fp.exp(x, out_fmt="bf16").dtype.name == "bfloat16"
    assert fp.exp(np.array([1], np.float32)).dtype == np.float32
    assert fp.exp(np.array([[1, 2]], np.float32).view(np.uint32), fmt="fp32").dtype == np.uint32
    out = np.empty(2, np.float16)
    assert fp.exp(x, out=out) is out


# ---- float32

SPECIAL = np.array(
    [0, 1, 0x00800000, 0x3F800000, 0x40000000, 0x40400000, 0x41D80000, 0x42FE0000, 0x7F7FFFFF, INFINITY := 0x7F800000,
     0x7FC00000, 0x7F800001, 0x4B000001, 0x49800000, 0x49800001, 0x00FFFFFF, 0x7E800000, 0x01000000],
    np.uint32,
)  # fmt: skip


def float32_operands(count: int) -> Array:
    """Return bits of float32 operands: special ones of both signs, edges of flags, ordinary ones, and any."""
    from fpsim.core.elementary.corrections import CORRECTIONS, EDGES

    listed = [row[0] for table in (CORRECTIONS, EDGES) for rows in table.values() for row in rows]
    rng = np.random.default_rng(3)
    ordinary = (rng.standard_normal(count) * 2.0 ** rng.integers(-9, 8, count)).astype(np.float32).view(np.uint32)
    drawn = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return np.unique(np.concatenate([SPECIAL, SPECIAL | 0x80000000, np.array(listed, np.uint32), ordinary, drawn]))


@in_turn("name", ELEMENTARY)
@sweep("count", 12, 2000)
def test_float32_results_and_flags_are_those_of_the_exact_result(name: str, count: int) -> None:
    for tininess in ao.TININESS if count > 100 else ao.TININESS[len(name) % 2 :: 2]:
        check(name, float32_operands(count), fp.FP32, tininess=tininess)


def test_float32_results_may_replace_the_operand() -> None:
    for name in ("sin", "exp"):
        x = np.concatenate([np.linspace(-9, 9, 3000, dtype=np.float32), np.array([1e30, np.inf], np.float32)])
        want, want_flags = getattr(fp, name)(x, flags=True)
        for flags in (False, True):
            y = x.copy()
            result = getattr(fp, name)(y, out=y, flags=flags)
            assert np.array_equal(y.view(np.uint32), want.view(np.uint32))
            assert not flags or np.array_equal(result[1], want_flags)


def test_bits_do_not_depend_on_the_processor_flushing_subnormals() -> None:
    import torch

    x = np.array([1e-40, -100, 3, 2e38], np.float32)
    want = [getattr(fp, name)(x) for name in ("exp", "tanh", "reciprocal", "log")]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        got = [getattr(fp, name)(x) for name in ("exp", "tanh", "reciprocal", "log")]
    finally:
        torch.set_flush_denormal(False)
    assert [y.tobytes() for y in got] == [y.tobytes() for y in want]


# ---- bad input


def test_calls_that_float32_does_not_take_are_refused() -> None:
    x = np.array([1], np.float32)
    refused: list[dict[str, Any]] = [
        {"rounding": "up"},
        {"out_fmt": "bf16"},
        {"overflow": "saturate"},
        {"input_subnormals": "flush"},
    ]
    for words in refused:
        with pytest.raises(ValueError, match=r"^exp of FP32 rounds to nearest even into FP32 and .* Leave them out"):
            fp.exp(x, **words)


def test_wider_formats_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^log takes formats of up to 16 bits, and FP32; got FP64. Round the operand"):
        fp.log(np.zeros(1, np.uint64), fmt="fp64")
    with pytest.raises(ValueError, match=r"^log takes formats of up to 16 bits, and FP32; got FP64. Round the operand"):
        fp.log(np.array([1], np.float64))
    with pytest.raises(TypeError, match=r"a must be codes or of a float dtype; got list: pass an array"):
        fp.log([1.0, 2.0])
    with pytest.raises(TypeError, match="log"):
        fp.log(x=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="needs a seed"):
        fp.log(np.array([1], np.float16), rounding="stochastic")
