"""The first difference of two sequences of products is found: where, in which bits, and by which mechanism."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.divergence.divergence import Divergence, _largest, equal, first_divergence, weight_divergence
from fpsim.divergence.mechanism import first_term, result_of
from fpsim.divergence.product import Product

Array = npt.NDArray[Any]
S = fp.scalings
NAMES = ("left", "right")


class Operand(NamedTuple):
    """An operand as the localiser reads it."""

    source: Array
    encoded: Any
    fmt: Any

    @property
    def values(self) -> Array:
        """float32."""
        if isinstance(self.encoded, fp.Scaled):
            return self.encoded.decode()
        return self.source if self.fmt is None else fp.decode(self.encoded, self.fmt)


class Adds(NamedTuple):
    """How a product is added."""

    unit: Any = None
    accumulator: Any = None
    schedule: Any = None
    promote: Any = None
    out_fmt: Any = None


def adds(how: Any = None, **options: Any) -> Adds:
    if isinstance(how, str):
        return Adds(fp.unit(how), **options)
    return Adds(None, how, **options)


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def operand(x: Array, fmt: Any = fp.E4M3, scaling: Any = None) -> Operand:
    if fmt is None:
        return Operand(x, x, None)
    if scaling is None:
        return Operand(x, fp.encode(x, fmt), fmt)
    return Operand(x, fp.encode_scaled(x, fmt, scaling), None)


def multiplied(a: Operand, b: Operand, how: Adds, bias: Any = None) -> Array:
    """The result as a layer has it, float32."""
    if how.unit is not None:
        got = fp.matmul(a.encoded, b.encoded, accumulate=how.unit, schedule=how.schedule, promote=how.promote,
                          bias=bias, out_fmt=how.out_fmt, strict=False)  # fmt: skip
        return got.astype(np.float32)
    if how.accumulator is None:
        got = (a.values @ b.values).astype(np.float32)
    else:
        got = fp.matmul(a.values, b.values, accumulate=how.accumulator).astype(np.float32)
    got = got if bias is None else got + bias
    return got if how.out_fmt is None else fp.quantize(got, how.out_fmt)


def product(a: Operand, b: Operand, how: Adds, bias: Any = None, layer: str = "up", name: str = "fprop") -> Product:
    return Product(layer, name, a, b, how, multiplied(a, b, how, bias), bias, ("input", "weight"))


def pair(first: Adds, second: Adds, k: int = 256, fmt: Any = fp.E4M3, scalings: Any = (None, None)) -> list[Product]:
    """The same operands, multiplied twice."""
    a, b = operand(draw(5, k), fmt, scalings[0]), operand(draw(k, 8, seed=1), fmt, scalings[1])
    return [product(a, b, how) for how in (first, second)]


def found_in(first: Product, second: Product) -> Divergence:
    divergence = first_divergence([first], [second], NAMES, step=3)
    assert divergence is not None
    assert (divergence.step, divergence.names, str(divergence)[:6]) == (3, NAMES, "step 3")
    return divergence


HOPPER, BLACKWELL = adds("hopper_e4m3_f32"), adds("blackwell_e4m3_f32")


def test_equal_sequences_have_no_divergence() -> None:
    products = [*pair(HOPPER, HOPPER), *pair(BLACKWELL, BLACKWELL, scalings=(S.TILE_1X128, S.TILE_128X1))]
    assert first_divergence(products, products) is None
    assert first_divergence(products[:1], products[1:2]) is None  # the same numbers in other memory
    assert equal(*products[:2])


def first_k(a: Array, b: Array, first: dict[str, Any], second: dict[str, Any]) -> int:
    """The first term with which two chains of a row and a column differ, by products of the first terms alone."""
    for k in range(1, a.size + 1):
        x, y = (fp.matmul(a[None, :k], b[:k, None], **how) for how in (first, second))
        if x.view(np.uint32) != y.view(np.uint32):
            return k - 1
    raise AssertionError("the sums are equal")


def test_units_that_keep_other_bits_are_told_apart_with_the_term() -> None:
    first, second = pair(HOPPER, BLACKWELL)
    findings = found_in(first, second)
    where = np.argwhere(first.result.view(np.uint32) != second.result.view(np.uint32))
    row, column = (int(i) for i in where[0])
    assert (findings.cause, findings.layer, findings.product, findings.operand) == ("arithmetic", "up", "fprop", "")
    assert (findings.element, findings.count, findings.size) == ((row, column), len(where), 40)
    assert findings.bits == tuple(int(each.result[row, column].view(np.uint32)) for each in (first, second))
    assert findings.fmt == fp.FP32
    x, y = (each.result.astype(np.float64) for each in (first, second))
    assert findings.largest == np.max(np.abs(x - y) / np.maximum(np.abs(x), np.abs(y)))
    assert "Their trees differ: terms 0..31: left keeps 13 fraction bits, right keeps 25 fraction bits." in str(
        findings
    )
    k = first_k(first.a.encoded[row], first.b.encoded[:, column], {"accumulate": HOPPER.unit},
                {"accumulate": BLACKWELL.unit})  # fmt: skip
    term = first_term(first, second, row, column)
    assert term is not None
    assert term.k == k
    assert f"with term {k} left has {term.first!r} and right {term.second!r}." in str(findings)


def test_the_term_of_accumulators_in_another_order_is_the_first() -> None:
    first, second = pair(adds(fp.Sequential(fp.BF16)), adds(fp.Pairwise(fp.BF16)), k=64, fmt=None)
    findings = found_in(first, second)
    assert findings.cause == "arithmetic"
    assert findings.element is not None
    row, column = findings.element
    a, b = first.a.source[row], first.b.source[:, column]

    def total(how: Any, stop: int) -> Any:
        kept = np.where(np.arange(64) < stop, a, np.float32(0))
        return fp.matmul(kept[None], np.where(np.arange(64) < stop, b, np.float32(0))[:, None], accumulate=how)

    parted = [k for k in range(64) if total(fp.Sequential(fp.BF16), k + 1) != total(fp.Pairwise(fp.BF16), k + 1)]
    term = first_term(first, second, row, column)
    assert term is not None
    assert term.k == parted[0]
    assert "left adds by Sequential(BF16); right adds by Pairwise(BF16)" in str(findings)


def test_a_schedule_that_splits_k_is_named_with_its_slices() -> None:
    split = adds("hopper_bf16_f32", schedule=fp.schedules.cublas("sm_90", split_k=4))
    first, second = pair(adds("hopper_bf16_f32"), split, k=512, fmt=fp.BF16)
    findings = found_in(first, second)
    assert "left adds on hopper_bf16_f32 in one chain; right adds on hopper_bf16_f32 by cublas('sm_90', split_k=4)" in (
        str(findings)
    )
    assert "terms 128..255: left adds them to the running sum" in str(findings)
    term = first_term(first, second, *findings.element)  # type: ignore[misc]
    assert term is not None
    assert term.k >= 128


def test_later_terms_that_are_infinite_hide_no_earlier_difference() -> None:
    first, second = pair(HOPPER, BLACKWELL)
    row, column = found_in(first, second).element  # type: ignore[misc]
    want = first_term(first, second, row, column)
    b = first.b.source.copy()
    b[255, column] = np.nan
    there = [each._replace(b=operand(b)) for each in (first, second)]
    assert first_term(there[0], there[1], row, column) == want


def test_terms_that_become_infinite_by_their_cast_hide_no_earlier_difference() -> None:
    a, b = draw(1, 256), draw(256, 1, seed=1)
    a[0, 100], b[100] = 0.0, 0.0
    first, second = (product(operand(a, fp.E5M2), operand(b, fp.E5M2), adds(f"{arch}_e5m2_f32"))
                     for arch in ("hopper", "blackwell"))  # fmt: skip
    want = first_term(first, second, 0, 0)
    assert getattr(want, "k", 256) < 100
    b[100] = 1e9  # Inf in E5M2
    there = [each._replace(b=operand(b, fp.E5M2)) for each in (first, second)]
    assert first_term(there[0], there[1], 0, 0) == want


def test_a_sum_of_both_infinities_is_explained() -> None:
    a = operand(np.array([[np.inf, 1.0]], np.float32), fp.FP16)
    b = operand(np.array([[1.0], [-np.inf]], np.float32), fp.FP16)
    first = product(a, b, adds("hopper_f16_f32"))._replace(result=np.array([[1.0]], np.float32))
    second = first._replace(adds=adds(), result=np.array([[2.0]], np.float32))
    text = str(found_in(first, second))
    assert "left's result, 1.0, is not what the emulator gives for it, nan." in text
    assert "in float64 it is nan" in text


@pytest.mark.parametrize("nan", [False, True])
def test_the_term_of_a_long_sum_is_the_first_in_its_run(nan: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair(HOPPER, adds("hopper_e4m3_f32", promote=128), k=512)
    findings = found_in(first, second)
    assert findings.element is not None
    if nan:
        first, second = (each._replace(b=operand(np.where(np.arange(512)[:, None] < 500, each.b.source, np.nan)))
                         for each in (first, second))  # fmt: skip
    want = first_term(first, second, *findings.element)
    monkeypatch.setattr("fpsim.divergence.mechanism.LONGEST", 256)
    assert want is not None
    assert first_term(first, second, *findings.element) == want
    assert first_term(first, first, *findings.element) is None


SCALED: dict[str, Any] = {
    "tensors": (S.TENSOR, S.TENSOR, adds("hopper_e4m3_f32", promote=128), adds("blackwell_e4m3_f32", promote=128)),
    "rows": (S.ROW, S.COLUMN, HOPPER, BLACKWELL),
    "blocks": (S.TILE_1X128, S.BLOCK_128X128, adds("hopper_e4m3_f32", schedule=fp.schedules.deepgemm()), BLACKWELL),
    "tiles": (S.TILE_1X128, S.TILE_128X1, HOPPER, BLACKWELL),
    "MX": (S.TE_MX, S.TE_MX.transposed(), HOPPER, adds("blackwell_mxfp8_e4m3_f32")),
}


@pytest.mark.parametrize("name", SCALED)
def test_elements_of_scaled_operands_are_computed_alone(name: str) -> None:
    of_a, of_b, first, second = SCALED[name]
    products = pair(first, second, k=512, scalings=(of_a, of_b))
    for each in products:
        for place in ((0, 0), (4, 6), (2, 3)):
            fp.testing.assert_bits_equal(result_of(each, *place), each.result[place].reshape(1))
    findings = found_in(*products)
    assert findings.cause == "arithmetic"
    assert "with term" in str(findings)
    assert "not what the emulator" not in str(findings)


def test_an_element_of_a_block_of_rows_is_computed_with_its_own_scale() -> None:
    a, b = operand(draw(256, 128) * 2.0 ** np.arange(256)[:, None] / 2.0**128, scaling=S.BLOCK_128X128), draw(128, 256)
    one = product(a, operand(b, scaling=S.TILE_128X1), HOPPER)
    for place in ((5, 200), (130, 7), (255, 255)):
        fp.testing.assert_bits_equal(result_of(one, *place), one.result[place].reshape(1))


def test_the_same_sum_rounded_otherwise_is_a_matter_of_the_output() -> None:
    first, second = pair(adds("hopper_e4m3_f32", out_fmt=fp.BF16), adds("hopper_e4m3_f32", out_fmt=fp.FP16))
    findings = found_in(first, second)
    assert (findings.cause, findings.fmt) == ("output", fp.FP32)
    assert "left rounds it to BF16, right rounds it to FP16." in str(findings)
    findings = found_in(*pair(adds(), adds(out_fmt=fp.BF16)))
    assert findings.cause == "output"
    assert "left keeps it, right rounds it to BF16." in str(findings)
    both = [each._replace(adds=how._replace(out_fmt=fp.BF16), result=fp.quantize(each.result, fp.BF16))
            for how, each in zip((HOPPER, BLACKWELL), pair(HOPPER, BLACKWELL, k=4096), strict=True)]  # fmt: skip
    findings = found_in(*both)
    assert (findings.cause, findings.fmt) == ("arithmetic", fp.BF16)
    assert findings.element is not None
    assert findings.bits[0] == int(fp.encode(findings.values[0], fp.BF16)) < 1 << 16


def test_a_result_that_its_unit_does_not_give_is_called_out() -> None:
    first, second = pair(HOPPER, HOPPER)
    wrong = second.result.copy()
    wrong[2, 3] = np.nextafter(wrong[2, 3], np.float32(np.inf))
    findings = found_in(first, second._replace(result=wrong, place="by the tensor cores"))
    assert (findings.element, findings.cause, findings.count) == ((2, 3), "arithmetic", 1)
    got, want = float(wrong[2, 3]), float(first.result[2, 3])
    said = f"right's result, {got!r}, is not what the emulator gives for it, {want!r}."
    assert said in str(findings)
    assert "in one chain by the tensor cores." in str(findings)
    assert "Both name the same sum, so one of the machines adds otherwise." in str(findings)


@pytest.mark.filterwarnings("ignore:.*These are the bits of cublas:UserWarning")
def test_another_kernel_for_the_shape_is_named_where_a_machine_adds_otherwise() -> None:
    a, b = operand(draw(5, 51), fp.BF16), operand(draw(51, 8, seed=1), fp.BF16)
    x = product(a, b, adds("hopper_bf16_f32", schedule=fp.schedules.cublas("sm_90")))
    y = x._replace(result=x.result.copy())
    y.result[2, 3] *= 2
    said = str(found_in(x, y))
    assert "Both name the same sum, so one of the machines adds otherwise." in said
    assert (
        "cuBLAS takes nvjet for row-major operands where K and N are multiples of 8; for K = 51, N = 8 it takes a "
        "CUTLASS kernel." in said
    )


def test_torch_is_said_to_add_in_an_order_of_its_own() -> None:
    findings = found_in(*pair(adds("hopper_e4m3_f32"), adds()))
    assert findings.cause == "arithmetic"
    assert "right multiplies by torch in float32, in an order of its own" in str(findings)
    assert "left's sum is" in str(findings)
    assert "cut at 13 fraction bits" in str(findings)
    assert "in float64 it is" in str(findings)


def test_an_operand_that_came_differently_is_found_before_what_follows_from_it() -> None:
    a, b = draw(5, 64), operand(draw(64, 7))
    other = a.copy()
    other[3, 9] = -other[3, 9]
    before = product(operand(a), b, HOPPER, layer="norm")
    first, second = (product(operand(x), b, HOPPER) for x in (a, other))
    divergence = first_divergence([before, first], [before, second], NAMES, step=3)
    assert divergence is not None
    assert (divergence.cause, divergence.operand, divergence.element, divergence.count) == (
        "operands",
        "input",
        (3, 9),
        1,
    )
    assert divergence.bits[0] ^ divergence.bits[1] == 0x80000000
    assert "Everything up to norm, fprop was equal: what makes this operand differs" in str(divergence)


def test_zeros_have_signs_and_nan_is_nan() -> None:
    a = draw(2, 64)
    b = operand(draw(64, 3))
    a[1, 5] = 0.0
    negative = a.copy()
    negative[1, 5] = -0.0
    findings = found_in(product(operand(a), b, HOPPER), product(operand(negative), b, HOPPER))
    assert (findings.element, findings.bits) == ((1, 5), (0, 0x80000000))
    a[1, 5] = np.nan
    other = a.copy()
    other.view(np.uint32)[1, 5] = 0xFFC00001
    assert first_divergence([product(operand(a), b, HOPPER)], [product(operand(other), b, HOPPER)]) is None


def test_other_codes_of_the_same_numbers_are_a_cast() -> None:
    a, b = draw(4, 128), operand(draw(128, 3))
    nearest = operand(a)
    up = Operand(a, fp.encode(a, fp.E4M3, rounding="up"), fp.E4M3)
    findings = found_in(*(product(each, b, HOPPER) for each in (nearest, up)))
    assert (findings.cause, findings.operand, findings.element) == ("cast", "input", tuple(
        int(i) for i in np.argwhere(nearest.encoded != up.encoded)[0]))  # fmt: skip
    assert "as nearest even does" in str(findings)
    assert "which is not what nearest even gives" in str(findings)


def test_other_scales_and_other_formats_are_casts() -> None:
    a, b = draw(4, 256), operand(draw(256, 3))
    plain = operand(a, scaling=S.TENSOR)
    doubled = Operand(a, dataclasses.replace(plain.encoded, scales=plain.encoded.scales * 2), None)
    findings = found_in(*(product(each, b, HOPPER) for each in (plain, doubled)))
    assert (findings.cause, findings.operand, findings.element, findings.size) == ("cast", "input's scales", (0, 0), 1)
    for other in (operand(a), operand(a, scaling=S.TILE_1X128), operand(a, fp.E5M2), operand(a, None)):
        how = HOPPER if other.fmt in (fp.E4M3, None) and other.encoded is not a else adds()
        findings = found_in(product(plain, b, HOPPER), product(other, b, how))
        assert (findings.cause, findings.operand, findings.fmt) == ("cast", "input", fp.FP32)
        assert "is cast otherwise" in str(findings)


def test_formats_that_hold_the_same_numbers_are_no_difference() -> None:
    a, b = np.random.default_rng(0).integers(-4, 5, (3, 64)).astype(np.float32), draw(64, 2)
    b = np.sign(b).astype(np.float32)
    first, second = product(operand(a), operand(b), HOPPER), product(operand(a, None), operand(b, None), adds())
    assert first_divergence([first], [second]) is None


def test_a_bias_that_differs_is_found() -> None:
    a, b, bias = operand(draw(4, 64)), operand(draw(64, 3)), draw(3)
    other = bias.copy()
    other[2] += 1
    findings = found_in(product(a, b, HOPPER, bias), product(a, b, HOPPER, other))
    assert (findings.cause, findings.operand, findings.element) == ("operands", "bias", (0, 2))
    first, second = (product(a, b, adds("hopper_e4m3_f32", out_fmt=fmt), bias) for fmt in (fp.BF16, fp.FP16))
    assert "left adds the bias and rounds it to BF16" in str(found_in(first, second))


@pytest.mark.parametrize("change", ["layer", "product", "fewer", "shape"])
def test_other_products_are_a_matter_of_the_order(change: str) -> None:
    first, second = pair(HOPPER, HOPPER)
    others = {
        "layer": [second._replace(layer="down")], "product": [second._replace(product="dgrad")], "fewer": [],
        "shape": [product(operand(draw(5, 32)), operand(draw(32, 8)), HOPPER)],
    }[change]  # fmt: skip
    divergence = first_divergence([first], others, NAMES, step=2)
    assert divergence is not None
    assert (divergence.cause, divergence.element, divergence.fmt) == ("order", None, None)
    assert str(divergence).startswith("step 2: left computes up, fprop of 5 x 8 x 256 where right computes ")
    assert first_divergence(others, [first]) is not None


def test_a_divergence_is_a_row_and_a_page() -> None:
    pytest.importorskip("pandas")
    findings = found_in(*pair(HOPPER, BLACKWELL))
    row = findings.to_frame().iloc[0]
    assert (row["layer"], row["row"], row["column"], row["cause"]) == ("up", *findings.element, "arithmetic")  # type: ignore[misc]
    assert findings._repr_html_().count("<br>") == str(findings).count("\n") > 2
    assert "<b>" not in weight_divergence("<b>", draw(1, 1), draw(1, 1) + 1)._repr_html_()  # type: ignore[union-attr]
    order = first_divergence(pair(HOPPER, HOPPER)[:1], [])
    assert order is not None
    assert len(order.to_frame()) == 1


def test_the_largest_difference_of_specials_is_infinite_unless_they_are_the_same() -> None:
    assert _largest(np.array([[1e308, 1.0]]), np.array([[-1e308, 1.0]])) == 2.0
    inf, nan = np.inf, np.nan
    for x, y, want in ((inf, -inf, inf), (nan, inf, inf), (inf, 1, inf), (inf, inf, 0), (nan, nan, 0), (0.0, -0.0, 0)):
        assert _largest(np.array([1, x]), np.array([1, y])) == want
