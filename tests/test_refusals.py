"""Arguments of a wrong kind, shape or place are refused in a sentence."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.exact_json import FLOAT, from_json
from tests.kit.refusal import refusal
from tests.kit.sweeps import in_turn

loose: Any = fp  # for calls that type checkers would refuse too


X = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)


E4M3 = fp.cast(X, "e4m3")


SCALED: Any = fp.encode_scaled(X, "e4m3", fp.scalings.MX)


UNIT: Any = fp.unit("hopper_e4m3_f32")


MASKED: Any = np.ma.masked_less([1.0, 2.0], 1.5)


HALVES = np.ones(2, np.float16)


TREE: Any = fp.schedules.tree(fp.schedules.FLAT, 64)


choice: Any = partial(loose.schedules.cublas_choice, "H100", 64, 64, 64)


export: Any = partial(loose.torch.export, {"w.weight": torch.ones(8, 8)}, layout="torchao:mxfp8", out="none")


kernel: Any = partial(loose.testing.check_kernel, np.matmul, a="e4m3", accumulate=UNIT)


SEVERAL = torch.arange(12).reshape(3, 4)


@in_turn(
    "call, words",
    [
        (lambda: loose.E4M3.holds("e4m3"), "holds takes an fp.Format; got 'e4m3'. Pass fp.format(...) of a name"),
        (lambda: loose.array(MASKED, "e4m3"), "values must not be masked; got a masked array. Fill the gaps first"),
        (lambda: loose.array([1.0, 2.0], "e4m3") + MASKED, "values must not be masked; got a masked array."),
        (lambda: loose.from_int(MASKED.astype(int), "e4m3"), "n must not be masked; got a masked array."),
        (lambda: loose.encode_with_bias(HALVES, "e4m3", MASKED.astype(int)), "bias must not be masked; got a masked"),
        (lambda: loose.E4M3.ulp("one"), "x must be a number or an array of real numbers; got 'one'."),
        (lambda: UNIT.operand_format(fp.BF16), "element must be an element of a unit, such as fp.unit("),
        (lambda: loose.torch.view_as_dtype("x", "fp64"), "codes must be a torch tensor; got str."),
        (lambda: loose.formats.p3109("8", 4), "bits must be an integer, such as 8; got '8'."),
        (lambda: loose.formats.p3109(8, 4, signed="s"), "signed must be True or False; got 's'."),
        (lambda: loose.formats.p3109([8], 4), "bits must be an integer, such as 8; got [8]."),
        (lambda: SCALED.decode({"a": 1}), "dtype must be np.float32 or np.float64; got {'a': 1}."),
        (lambda: loose.decode(E4M3, "e4m3", {"a": 1}), "dtype must be a float dtype such as np.float32 or "),
        (lambda: loose.to_int(E4M3, {"a": 1}), "dtype must be an integer dtype such as np.int32 or np.uint8; got {'a'"),
        (lambda: loose.IntegerFormat("x", 3, 4), "x: signed must be True or False; got 4."),
        (lambda: loose.IntegerFormat("x", 9, True), "x: bits must be an integer in 2 .. 8, the sign included; got 9."),
        (lambda: loose.IntegerFormat("x\ny", 4, True), "name must be a text that is not empty, of one line; got 'x"),
        (lambda: loose.Format("x\ny", 3, 2), "name must be a text that is not empty, of one line; got 'x"),
        (lambda: loose.Format("huge", 2**64, 2), "huge: exponent_bits must be at most 16; got 18446744073709551616"),
        (lambda: loose.Format("x", 3, 2, negative_zero=SEVERAL), "x: negative_zero must be True or False; got"),
        (lambda: loose.Scaling(name=X), "name must be a text; got an array of float32, shape (2, 32)."),
        (lambda: loose.Scaling(amax_floor=2**1100), "amax_floor must be a finite number >= 0; got 13582"),
        (lambda: SCALED.save(None), "path must be a text or a pathlib.Path; got None."),
        (lambda: SCALED.save(b"a.npz"), "path must be a text or a pathlib.Path; got b'a.npz'."),
        (lambda: loose.Scaled.load(None), "path must be a text or a pathlib.Path; got None."),
        (lambda: loose.OnlineScaling("e4m3").save(None), "path must be a text or a pathlib.Path; got None."),
        (lambda: loose.policy_diff(None, "ieee", "e4m3"), "a policy is a name or a dict of keywords of fp.encode"),
        (lambda: loose.encode([[1.0], [2.0, 3.0]], "e4m3"), "x must be an array, a number or nested lists of one"),
        (lambda: loose.units(X), "chip must be the name of a chip, such as 'H100'; got an array of float32"),
        (lambda: loose.schedules.tree(fp.schedules.FLAT, SEVERAL), "k must be a number of terms, 0 or more; got"),
        (lambda: TREE.compare("x"), "other must be a tree of fp.schedules.tree; got 'x'."),
        (lambda: loose.schedules.deepgemm(X), "kernel must be one of 1d2d, 1d1d; got an array of float32"),
        (lambda: loose.schedules.cublas("sm_90", fast_accum="no"), "fast_accum must be True or False; got 'no'."),
        (lambda: loose.torch.quantize_scaled(torch.ones(2), "e4m3", scales="x"), "scales must be a number, or"),
        (lambda: loose.torch.quantize_scaled(torch.ones(2), "e4m3", scales=True), "scales must be a number, or"),
        (lambda: loose.torch.quantize_scaled(torch.ones(2), "e4m3", scales=np.array(1j)), "scales must be a number"),
        (lambda: loose.schedules.numpy_sum(8, SEVERAL), "block must be an integer; got an array of torch.int64"),
        (lambda: loose.schedules.SumOrder("x", [], 8, 128), "rule must be one of pairwise, cascade, windows; got []."),
        (lambda: loose.schedules.segments(4, step=SEVERAL), "step must be an integer; got an array of torch.int64"),
        (lambda: loose.schedules.segments(4, odd_first=X), "odd_first must be True or False; got an array of float32"),
        (lambda: loose.schedules.torch_rowwise(X), "fast_accum must be True or False; got an array of float32"),
        (lambda: loose.schedules.torch_mm(mkl_isa=X), "mkl_isa must be one of avx512, avx2; got an array of float32"),
        (lambda: loose.schedules.Regions(2, 2, 8, None), "regions must be a tuple of fp.schedules.ResultRegion; got N"),
        (lambda: loose.schedules.Regions(2, 2, 8, ("x",)), "a region must be an fp.schedules.ResultRegion; got 'x'."),
        (lambda: loose.LaneSum().sum(None), "values must be a float32 array of two axes; got None."),
        (lambda: loose.LaneSum().sum_of_squares(X[0]), "values must be a float32 array of two axes; got an array of"),
        (lambda: loose.DelayedScaling("e4m3").load_state_dict(X), "that DelayedScaling.state_dict returned; got an ar"),
        (lambda: loose.torch.QuantLinear(4, 4, recipe=fp.torch.MXFP8)(X), "input must be a torch tensor; got ndarray."),
        (lambda: export(config="junk"), "config must be a dict, the content of config.json, or None; got 'junk'."),
        (lambda: export(bits=SEVERAL), "bits must be 4, or 8 for GPTQ; got an array of torch.int64, shape (3, 4)"),
        (lambda: export(symmetric=X), "symmetric must be True or False; got an array of float32, shape (2, 32)."),
        (lambda: loose.analysis.plan(None, bits=8), "plan needs an fp.analysis.Sensitivity, or a list of budgets"),
        (lambda: loose.analysis.kv_caches(X, X, X, None), "caches must be an fp.analysis.KVCache or several; got"),
        (lambda: loose.analysis.attention_underflow(spreads=None), "spreads must be positive numbers of nats; got"),
        (lambda: loose.analysis.attention_underflow(normalised=X), "normalised must be True or False; got an array of"),
        (lambda: loose.analysis.bits_per_value(padded=X), "padded must be True or False; got an array of float32"),
        (lambda: loose.analysis.exponents(X, axis=0, block=X), "got axis=0 and block=an array of float32"),
        (lambda: kernel(seed=None), "seed must be an integer; got None."),
        (lambda: kernel(bias=X), "bias must be True or False; got an array of float32, shape (2, 32)."),
        (lambda: kernel(envelope=X), "envelope must be True or False; got an array of float32, shape (2, 32)."),
        (lambda: loose.testing.discriminating_inputs(a="e4m3", accumulate=UNIT, seed=-1), "seed must be an integer >"),
        (lambda: loose.probe.thresholds(np.matmul, None), "lengths must be sizes K, such as [8, 128]; got None."),
        (lambda: loose.probe.thresholds(np.matmul, "8"), "a length must be an integer; got '8'."),
        (lambda: loose.probe.sum(np.sum, 8).save(None), "path must be a text or a pathlib.Path; got None."),
        (lambda: from_json([{FLOAT: "7ff"}]), "the file is damaged: a float must have 16 hexadecimal digits; got"),
        (lambda: from_json({FLOAT: "7ff00000"}), "a float must have 16 hexadecimal digits; got '7ff00000'."),
        (lambda: choice(fast_accum=None), "fast_accum must be True or False; got None."),
        (lambda: choice(fields="junk"), "fields must be Fields, as fp.gpu.hardware.lt_fields returns them;"),
        (lambda: choice(fmt=("e4m3",)), "fmt must name one format, or 2 for a product; got 1"),
    ],
)  # fmt: skip
def test_junk_is_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    assert words in refusal(call)


def npz_of(**arrays: Any) -> io.BytesIO:
    """Return a file of arrays in memory."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return file


def generator_of(x: Any) -> Any:
    """Yield the elements; NumPy reads such a generator as one object."""
    return (value for value in x)


@in_turn(
    "call, came",
    [
        (lambda: loose.encode(None, "e4m3"), "got None."),
        (lambda: loose.decode(None, "e4m3"), "got None. fpsim.encode turns values into codes."),
        (lambda: loose.explain(None, "e4m3"), "got None."),
        (lambda: loose.encode_scaled(None, "e4m3"), "got None."),
        (lambda: loose.add(None, E4M3), "got None."),
        (lambda: loose.from_int(None, "e4m3"), "got None."),
        (lambda: loose.matmul(None, E4M3, accumulate=UNIT), "got None."),
        (lambda: loose.format(None), "or an fp.Format; got None."),
        (lambda: loose.analysis.error(None, "e4m3"), "got None."),
        (lambda: loose.encode([1.0, None], "e4m3"), "got objects, such as None. Replace those that are no numbers."),
        (lambda: loose.encode(np.array([1.5, 2], object), "e4m3"), "got objects. Convert with np.asarray(x, dtype="),
        (lambda: loose.encode({"a": 1}, "e4m3"), "got dict of several. Pass one of its arrays, such as x['a']."),
        (lambda: loose.encode(np.load(npz_of(a=X)), "e4m3"), "got NpzFile of several. Pass one of its arrays"),
        (lambda: loose.encode(np.zeros(2, "V2"), "e4m3"), "such as x.view(ml_dtypes.bfloat16)."),
        (lambda: loose.encode(generator_of([1.0]), "e4m3"), "Pass an array, a number or a list of numbers."),
        (lambda: loose.encode(["1.0", "2"], "e4m3"), "got texts. If that is a number, convert it with np.asarray(x, "),
        (lambda: loose.encode(np.zeros(2, "V1"), "e4m3"), "as np.load returns arrays of ml_dtypes' floats. View them"),
        (lambda: loose.decode(np.zeros(2, "V1"), "e4m3"), "such as codes.view(ml_dtypes.float8_e4m3fn). fpsim.encode"),
        (lambda: loose.add(np.zeros(2, "V1"), E4M3), "such as a.view(ml_dtypes.float8_e4m3fn)."),
        (lambda: loose.encode(np.zeros(2, "M8[D]"), "e4m3"), "got datetime64[D]."),
        (lambda: loose.decode(SCALED, "e4m3"), "got Scaled, which knows its format. Its .decode() returns the"),
        (lambda: loose.add(SCALED, E4M3), "got Scaled: its .decode() returns the values, with which to compute."),
    ],
)
def test_what_came_is_said_where_it_holds_no_numbers(call: Callable[[], Any], came: str) -> None:
    assert came in refusal(call)


COMPLEX = X + 1j


@in_turn(
    "call",
    [
        lambda: loose.encode(COMPLEX, "e4m3"),
        lambda: loose.encode(1j, "e4m3"),
        lambda: loose.encode([1.0, 2j], "e4m3"),
        lambda: loose.quantize(torch.from_numpy(COMPLEX), "e4m3"),
        lambda: loose.decode(COMPLEX, "e4m3"),
        lambda: loose.explain(1j, "e4m3"),
        lambda: loose.encode_scaled(COMPLEX, "e4m3"),
        lambda: loose.array(COMPLEX, "e4m3"),
        lambda: loose.add(E4M3, COMPLEX),
        lambda: loose.from_int(COMPLEX, "e4m3"),
        lambda: loose.matmul(COMPLEX, COMPLEX.T, accumulate=UNIT),
        lambda: loose.dot_add(COMPLEX, COMPLEX, None, UNIT),
        lambda: loose.sum(COMPLEX, accumulate=fp.Exact("fp32")),
        lambda: loose.analysis.error(COMPLEX, "e4m3"),
        lambda: loose.torch.quantize(torch.from_numpy(COMPLEX), "e4m3"),
        lambda: loose.torch.fake_quantize(torch.from_numpy(COMPLEX), "e4m3"),
        lambda: loose.torch.encode(torch.from_numpy(COMPLEX), "e4m3"),
        lambda: loose.torch.encode_scaled(torch.from_numpy(COMPLEX), "e4m3", fp.scalings.MX),
    ],
)
def test_complex_numbers_are_refused_without_losing_their_imaginary_part(call: Callable[[], Any]) -> None:
    text = refusal(call)
    assert re.search(r"got (torch\.)?complex\d+. Pass (\w+)\.real and \2\.imag, one after the other", text), text
    assert "astype" not in text
    assert ".float()" not in text


@in_turn(
    "call, said",
    [
        (
            lambda: loose.encode("e4m3", X),
            "got an array of float32, shape (2, 32). Values come before their format, as in",
        ),
        (lambda: loose.encode(fp.E4M3, X), "Values come before their format"),
        (lambda: loose.quantize("e4m3", X), "Values come before their format"),
        (lambda: loose.quantize(X, np.float32(1)), "Values come before their format"),
        (lambda: loose.decode([1], "e4m3", np.float32(1)), "dtype must be a float dtype"),
        (lambda: loose.cast("e4m3", [1.0]), "got [1.0]. Values come before their format"),
        (lambda: loose.decode("e4m3", fp.encode(X, "e4m3")), "Values come before their format"),
        (lambda: loose.explain("e4m3", 0.3), "got 0.3. Values come before their format"),
        (lambda: loose.array("e4m3", X), "Values come before their format"),
        (lambda: loose.encode_scaled("e4m3", X), "Values come before their format"),
        (
            lambda: loose.encode_scaled(X, fp.scalings.MX, "e4m3"),
            "got 'e4m3'. That is a format, which comes before the",
        ),
        (lambda: loose.analysis.error("e4m3", X), "got 'e4m3', a format. Values come before the format"),
        (lambda: loose.testing.check_quantizer("e4m3", abs), "A function comes before the format."),
        (lambda: loose.matmul("hopper_e4m3_f32", E4M3, E4M3.T), "got 'hopper_e4m3_f32' as a. Pass accumulate='hopper"),
        (lambda: loose.matmul(E4M3, E4M3.T, UNIT), "accumulate must be passed by its name; got MatrixUnit("),
        (lambda: loose.matmul(E4M3, E4M3.T, fp.Exact("fp32")), "got Exact(FP32) as c. Pass accumulate=Exact(FP32)."),
        (lambda: loose.dot(fp.Exact("fp32"), E4M3), "got Exact(FP32) as a."),
    ],
)
def test_swapped_arguments_are_said_to_be_swapped(call: Callable[[], Any], said: str) -> None:
    assert said in refusal(call)


def test_a_product_without_an_accumulator_names_three() -> None:
    for x, units in (
        (E4M3, "'hopper_e4m3_f32', 'blackwell_e4m3_f32'"),
        (X.astype(np.float16), "'hopper_f16_f32', 'ampere_f16_f32'"),
        (fp.array(X, "bf16"), "'hopper_bf16_f32', 'ampere_bf16_f32'"),
        (X, "'hopper_e4m3_f32', 'hopper_f16_f32'"),
    ):
        said = f"got None. Pass accumulate={units} or fp.Sequential(fp.FP32), for instance."
        assert said in refusal(lambda x=x: loose.matmul(x, x.T))  # type: ignore[misc]
        assert said in refusal(lambda x=x: loose.dot(x, x))  # type: ignore[misc]
        for name in re.findall(r"'(\w+)'", units):
            fp.unit(name)
    said = "got None. Pass fp.Sequential(fp.FP32), fp.Pairwise(fp.FP32) or fp.Exact(fp.FP32), for instance."
    assert said in refusal(lambda: loose.sum(E4M3))


@in_turn(
    "call",
    [
        lambda: SCALED + 1, lambda: 1 + SCALED, lambda: SCALED - SCALED, lambda: 2 * SCALED, lambda: SCALED / 2,
        lambda: 1 / SCALED, lambda: SCALED @ SCALED.T, lambda: SCALED**2, lambda: -SCALED, lambda: abs(SCALED),
        lambda: SCALED < 1, lambda: SCALED // 2, lambda: SCALED % 2, lambda: float(SCALED),
        lambda: torch.ones(2, 32) + SCALED, lambda: SCALED + None, lambda: SCALED + torch.ones(2, 32),
    ],
)  # fmt: skip
def test_operators_of_scaled_arrays_name_decode(call: Callable[[], Any]) -> None:
    assert "Scaled holds codes and scales, and has no arithmetic. Its .decode() returns the values" in refusal(call)


def test_arrays_of_numpy_decode_scaled_ones() -> None:
    values = SCALED.decode()
    for got, want in ((SCALED + X, values + X), (X - SCALED, X - values), (np.add(SCALED, 1), values + 1)):
        fp.testing.assert_bits_equal(got, want)


@in_turn("scales", [1j, "one", {"a": 1}, [1, "a"], 10**400, float("nan"), np.inf, 0, -1.0, SEVERAL])
@in_turn("function", [fp.encode_scaled, fp.quantize_scaled, fp.torch.encode_scaled])
def test_scales_that_are_none_are_refused_in_a_sentence(function: Any, scales: Any) -> None:
    x = torch.from_numpy(X) if function is fp.torch.encode_scaled else X
    assert refusal(lambda: function(x, "e4m3", fp.scalings.MX, scales=scales)).startswith("scales must ")


def test_an_array_is_no_index_of_blocks() -> None:
    with pytest.raises(IndexError, match=r"blocks take integers and slices of step 1; got an array of int64, shape"):
        SCALED.blocks[SEVERAL.numpy()]


def test_scales_of_one_per_tile_may_be_nan() -> None:
    q = fp.encode_scaled(X, "e4m3", fp.scalings.MX, scales=np.array([[np.nan], [1]], np.float32))
    assert np.isnan(q.decode()).all(axis=1).tolist() == [True, False]


def product(**keywords: Any) -> Any:
    """Return a product by a unit."""
    return fp.matmul(E4M3, E4M3.T, np.zeros((2, 2), np.float32), accumulate=UNIT, **keywords)


@in_turn("strict", ["no", 1, None, SEVERAL])
def test_strict_is_true_or_false(strict: Any) -> None:
    assert refusal(lambda: product(strict=strict)).startswith("strict must be True or False; got ")


@in_turn("argument", ["alpha", "beta", "promote", "scale_order"])
@in_turn("value", [SEVERAL, X, 1j, "much"])
def test_several_numbers_are_refused_where_one_belongs(argument: str, value: Any) -> None:
    assert refusal(lambda: product(**{argument: value})).startswith(f"{argument} must be ")


@in_turn("value", [SEVERAL, X])
@in_turn(
    "argument, call",
    [
        ("seed", lambda x: fp.encode(X, "e4m3", rounding="SR", seed=x)),
        ("random_bits", lambda x: fp.encode(X, "e4m3", random_bits=x)),
        ("rounding", lambda x: fp.encode(X, "e4m3", rounding=x)),
        ("overflow", lambda x: fp.encode(X, "e4m3", overflow=x)),
        ("flags", lambda x: fp.add(E4M3, E4M3, flags=x)),
        ("unit", lambda x: fp.unit(x)),
        ("axis", lambda x: fp.sum(E4M3, accumulate=fp.Sequential("bf16"), axis=x)),
        ("chunk", lambda x: fp.Chunked("bf16", x)),
        ("scale_rule", lambda x: fp.Scaling(scale_rule=x)),
        ("scaling", lambda x: fp.encode_scaled(X, "e4m3", x)),
        ("fmt", lambda x: fp.Chunked(x)),
        ("bits", lambda x: fp.LogFMT(x)),
        ("dtype", lambda x: fp.torch.decode(torch.zeros(1, dtype=torch.uint8), "e4m3", x)),
    ],
)
def test_arrays_are_not_pasted_where_a_word_or_number_belongs(argument: str, call: Any, value: Any) -> None:
    text = refusal(lambda: call(value))
    assert len(text) < 300
    assert "an array of " in text or "Tensor" in text


LONG = 10**5000  # of more digits than Python writes


@in_turn(
    "call, name",
    [
        (lambda: fp.LaneSum(LONG), "lanes"),
        (lambda: fp.Chunked("fp16", chunk=LONG), "chunk"),
        (lambda: fp.schedules.Chain(LONG), "interval"),
        (lambda: fp.schedules.Slicing(2, LONG), "grain"),
        (lambda: fp.schedules.Lanes(4, -LONG), "run"),
        (lambda: fp.schedules.Regions(LONG, 1, 8, ()), "m"),
        (lambda: fp.schedules.rounds(LONG), "lanes"),
        (lambda: fp.schedules.segments(4, LONG), "length"),
        (lambda: fp.schedules.torch_sum(LONG), "lanes"),
        (lambda: fp.schedules.eigen(l3=LONG), "l3"),
        (lambda: fp.schedules.cublas_choice("H100", 1, 8, LONG), "k"),
        (lambda: fp.schedules.explain(fp.schedules.FLAT, LONG, 8, 64), "m"),
        (lambda: fp.schedules.tree((0, LONG)), "a term"),
        (lambda: fp.ozaki_matmul(np.eye(2), np.eye(2), slices=LONG), "slices"),
        (lambda: fp.splits.CUTLASS_BF16X9.replace(parts=LONG), "parts"),
        (lambda: fp.testing.product_operands("normal", (1, 1, LONG), ("bf16", "bf16")), "shape"),
    ],
)
def test_integers_that_python_does_not_write_are_refused_by_name(call: Callable[[], Any], name: str) -> None:
    assert refusal(call) == f"{name} must be an integer of at most 8192 bits; got an integer of 16610 bits."


@in_turn(
    "call, words",
    [
        (lambda: loose.schedules.cublas("sm_90", family=LONG), "family must be one of"),
        (lambda: loose.schedules.cublas("sm_90", family="gemv", option=LONG), "option of gemv must be one of"),
        (lambda: loose.encode_scaled(X, LONG), "format must be one of"),
        (lambda: loose.DelayedScaling(LONG), "format must be one of"),
        (lambda: fp.testing.points("e4m3", around=2**63), "around must be at most 65,536; got 92233720368547"),
        (lambda: fp.testing.strategies.ties("e4m3", around=2**63), "around must be at most 65,536; got 9223372"),
    ],
)
def test_large_integers_are_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    assert refusal(call).startswith(words)
