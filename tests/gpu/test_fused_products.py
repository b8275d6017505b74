"""The GPU's products of FUSED and SCALED units, in the CUDA simulator: the CPU's bits, and who calculates which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.products.add_product import add_product
from fpsim.products.unit_product import Factors, UnitProduct
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import fused_products as simulator
from tests.kit.processes import simulate
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
CASES = [(name, kind) for name in simulator.UNITS for kind in simulator.KINDS]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """Totals and marks of every case, by name."""
    return simulate("tests.gpu.simulator.fused_products", tmp_path_factory.mktemp("gpu") / "fused.npz")


def taken(x: Array, terms: Array, axis: int) -> Array:
    """Return the codes of terms along an axis, +0 for none."""
    shape = [-1 if i == axis else 1 for i in range(2)]
    return np.where(terms.reshape(shape) >= 0, np.take(x, np.maximum(terms, 0), axis), 0).astype(x.dtype)


def expected(x: simulator.Case) -> Array:
    """Return the total of a case by the kernels of the CPU."""
    scales = x.scale_a, x.scale_b
    if x.unit.scale:  # those of the first term of every step
        steps = np.full(-(-x.terms.size // x.unit.terms) * x.unit.terms, -1)
        steps[: x.terms.size] = x.terms
        blocks = [max(step[step >= 0][:1].tolist(), default=0) // x.unit.block for step in steps.reshape(-1, 32)]
        scales = x.scale_a[:, blocks], x.scale_b[blocks]
    half = x.total.dtype == np.uint16
    total = np.array(x.total.view(np.float16 if half else np.float32), np.float32)
    factors = Factors(x.rows, x.columns, x.mode) if x.promote else Factors()
    add_product(total, UnitProduct(x.unit, taken(x.a, x.terms, 1), taken(x.b, x.terms, 0), *scales, x.promote, factors))
    return total.astype(np.float16) if half else total


@in_turn("name, kind", CASES)
def test_totals_have_the_bits_of_the_cpu(name: str, kind: str, simulated: dict[str, Array]) -> None:
    want = expected(simulator.case(name, kind))
    assert_bits_equal(simulated[f"total {name} {kind}"].view(want.dtype), want)


@in_turn("name, kind", CASES)
def test_tiles_write_what_they_do_not_mark(name: str, kind: str, simulated: dict[str, Array]) -> None:
    total, want = simulator.case(name, kind).total, expected(simulator.case(name, kind))
    marks, tiles = simulated[f"marks {name} {kind}"], simulated[f"tiles {name} {kind}"]
    assert set(np.unique(marks)) <= {0, 1}
    assert simulated[f"any {name} {kind}"][0] == marks.any()
    assert_bits_equal(tiles[marks == 1], total[marks == 1])
    assert_bits_equal(tiles[marks == 0].view(want.dtype), want[marks == 0])


@pytest.mark.parametrize("name", simulator.UNITS)
def test_ordinary_data_need_no_specification(name: str, simulated: dict[str, Array]) -> None:
    assert not simulated[f"marks {name} ordinary"].any()
    assert not simulated[f"marks {name} cancelling"].any()


def test_special_data_need_the_specification_where_they_are(simulated: dict[str, Array]) -> None:
    for name in ("hopper_e5m2_f32", "hopper_bf16_f32", "hopper_f16_f16", "ampere_tf32_f32"):
        x, marks = simulator.case(name, "codes"), simulated[f"marks {name} codes"]
        want = expected(x).astype(np.float64)
        assert marks[np.isnan(want)].all()
        assert marks.any(), name
    assert not all(simulated[f"marks {name} codes"].all() for name in simulator.UNITS)
    assert simulated["marks hopper_bf16_f32 tiny"].any()
    # of FP8 and FP16 even the smallest products are well inside, so only the accumulator can be out of range
    x = simulator.case("hopper_f16_f32", "tiny")
    ordinary = np.isin(x.total & 0x7FFFFFFF, [0]) | (np.abs(np.nan_to_num(x.total.view(np.float32))) > 2.0**-80)
    finite = np.isfinite(x.total.view(np.float32))
    assert not simulated["marks hopper_f16_f32 tiny"][ordinary & finite].any()


@pytest.mark.parametrize("width", ["narrow", pytest.param("whole", marks=pytest.mark.slow)])
def test_the_tiles_of_a_gpu_have_the_bits_of_the_cpu(width: str, tmp_path: Path) -> None:
    found = simulate("tests.gpu.simulator.fused_products", tmp_path / "high.npz", width)
    x = simulator.in_high_tiles(simulator.HIGH[width])
    want = fp.matmul(x.a, x.b, x.total.view(np.float32), accumulate=x.unit, promote=x.promote)
    assert_bits_equal(found["high tiles"].view(want.dtype), want)


@pytest.mark.parametrize("kind", ["ordinary", "codes"])
def test_one_call_does_both(kind: str, simulated: dict[str, Array]) -> None:
    x = simulator.case(simulator.WHOLE, kind)
    assert x.mode == 0  # add_fused is called without factors
    assert simulated[f"marks {simulator.WHOLE} {kind}"].any() == (kind == "codes")
    want = expected(x)
    assert_bits_equal(simulated[f"whole {kind}"].view(want.dtype), want)
    assert_bits_equal(simulated[f"nothing {kind}"], x.total)


def test_every_fused_and_scaled_unit_has_a_kernel() -> None:
    from fpsim.gpu.products.fused_product import has_kernel

    rules = Rule.FUSED, Rule.SCALED
    assert {unit.name for unit in map(fp.unit, float_units()) if has_kernel(unit)} == {
        unit.name for unit in map(fp.unit, float_units()) if unit.rule in rules
    }
