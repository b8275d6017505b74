"""Models of quantizers give what `fp.encode` gives where they have no fault."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.cast_options import cast_options
from fpsim.formats.named import NAMED
from fpsim.formats.policies import OVERFLOWS
from fpsim.formats.rounding import Rounding
from fpsim.testing.boundary_points import further_points, points
from fpsim.testing.quantizers.model import model_of
from fpsim.testing.quantizers.rounder import RULES, _rule_of, taken_apart, words_of
from fpsim.testing.quantizers.search import KnownModels
from tests.kit.sweeps import sweep
from tests.oracles import casts

FORMATS = [fmt for fmt in NAMED.values() if fmt.bits <= 8] + [
    fp.format(f"p3109_{name}") for name in ("k3p1se", "k4p2sf", "k6p2uf", "k8p1se", "k8p1ue", "k8p4sf", "k8p8ue")
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@sweep("whole", False, True)
def test_a_model_without_faults_is_the_oracles_cast(dtype: type, whole: bool) -> None:
    for fmt in FORMATS if whole else FORMATS[dtype is np.float64 :: 2]:
        x = np.concatenate([points(fmt, dtype), further_points(fmt, dtype)])
        apart = taken_apart(x)
        wide = x.astype(np.float64)
        for rounding, overflow, subnormals in itertools.product(casts.MODES, OVERFLOWS, ("keep", "flush")):
            codes = casts.encode_all(wide, fmt, rounding, overflow, subnormals)
            want = words_of(casts.values(fmt)[codes])
            model = model_of(cast_options(fmt, rounding, overflow, subnormals), float(np.finfo(dtype).tiny))
            np.testing.assert_array_equal(model.run(apart), want, err_msg=f"{fmt} {rounding} {overflow} {subnormals}")


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32"])
def test_a_model_of_a_wide_format_is_its_cast(fmt: str) -> None:
    x = np.random.default_rng(0).permutation(points(fmt))[:20000]
    for rounding in casts.MODES:
        want = words_of(fp.decode(fp.encode(x, fmt, rounding=rounding), fmt, np.float64))
        np.testing.assert_array_equal(model_of(cast_options(fmt, rounding)).run(taken_apart(x)), want)


@pytest.mark.parametrize("mode", [mode for mode in Rounding if mode is not Rounding.STOCHASTIC])
def test_the_rule_that_is_written_out_for_a_mode_is_that_of_its_row(mode: Rounding) -> None:
    rest, odd, negative = (
        part.reshape(-1) for part in np.meshgrid(np.arange(0, 1, 1 / 16), [False, True], [False, True], indexing="ij")
    )
    want = _rule_of(mode)(odd, rest, negative)
    assert RULES[mode.name.lower()](odd, rest, negative).tolist() == want.tolist()
    assert want.any() == (mode is not Rounding.TOWARD_ZERO)


def test_steps_and_results_are_right_where_another_thread_empties_their_cache() -> None:
    class Emptied(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            super().__setitem__(key, value)
            self.clear()

    inputs = taken_apart(np.array([1.0, 3.0], np.float32))._replace(steps=Emptied())
    assert inputs.once(("sum",), lambda x: float(x.magnitude.sum())) == 4
    known = KnownModels(inputs)
    known._words = Emptied()  # type: ignore[assignment]
    assert known.first_of(model_of(cast_options("e4m3"))).tolist() == np.array([1.0]).view(np.uint64).tolist()
