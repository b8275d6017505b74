"""Differences between results and those of recipes: what has no effect on a matrix, and what is kept."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import fpsim as fp
from fpsim.testing.quantizers.scales import differences
from fpsim.testing.quantizers.scales.candidates import candidates_for, choices_of
from fpsim.testing.quantizers.scales.cases import cases_for, partial_cases, special_cases
from fpsim.testing.quantizers.scales.differences import RecipeDifferences, elements_of, relevant
from fpsim.testing.quantizers.scales.encoding import Case, KeptEncodings, RightEncoding
from fpsim.testing.quantizers.scales.explaining import explaining_faults
from fpsim.testing.quantizers.scales.results import ReturnedParts
from tests.kit.sweeps import in_turn

PROMISES = [
    (fp.E4M3, fp.scalings.MX), (fp.INT8, fp.Scaling(block=(1, -1), symmetric=False)), (fp.E2M1, fp.scalings.NVFP4),
    (fp.UINT4, fp.Scaling(block=(1, 16), symmetric=False)), (fp.E5M2, fp.scalings.TENSOR),
]  # fmt: skip


@in_turn("fmt, scaling", PROMISES, some=PROMISES[:2])
def test_what_is_left_out_for_a_matrix_changes_no_result(fmt: Any, scaling: fp.Scaling) -> None:
    plain = cases_for(scaling, fmt)
    matrices = {**plain, **partial_cases(plain, scaling), **special_cases(plain["ordinary tiles"], scaling)}
    draw, left_out = random.Random(0), 0
    candidates = candidates_for(fmt, not scaling.symmetric)
    for name, x in matrices.items():
        special, smallest = not np.isfinite(x).all(), float(np.abs(x).min())
        for candidate in draw.sample(candidates, 8):
            for whole in draw.sample(choices_of(candidate), 3):
                part = relevant(whole, x.shape, special, smallest)
                left_out += part != whole
                want, got = (fp.encode_scaled(x, fmt, each) for each in (whole, part))
                assert got.codes.tobytes() == want.codes.tobytes(), (name, whole, part)
                assert got.scales.tobytes() == want.scales.tobytes(), (name, whole, part)
                assert got.scales.shape == want.scales.shape, (name, whole, part)
    assert left_out > 150


def test_what_has_an_effect_is_kept() -> None:
    scaling = fp.scalings.MX.replace(infinity="propagate", nan="element", zero_scale="smallest", amax_floor=1e-4)
    assert relevant(scaling, (64, 64), special=True, smallest=float("nan")) == scaling
    assert relevant(scaling, (64, 64), special=False, smallest=0.0) == scaling.replace(infinity="skip", nan="tile")
    assert relevant(scaling, (64, 64), special=False, smallest=1e-5) == fp.scalings.MX.replace(amax_floor=1e-4)
    assert relevant(scaling, (64, 64), special=False, smallest=1e-3) == fp.scalings.MX
    assert relevant(scaling, (64, 32), special=False, smallest=1e-3).block == (1, -1)


def test_a_recipe_is_compared_once_with_a_matrix(monkeypatch: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    results = [(x, ReturnedParts(fp.encode_scaled(x, "e4m3", fp.scalings.MX), x, fp.E4M3))]
    calls: list[fp.Scaling] = []

    def encode(x: Any, fmt: Any, scaling: fp.Scaling, **cast: Any) -> fp.Scaled:
        calls.append(scaling)
        return fp.encode_scaled(x, fmt, scaling, **cast)

    monkeypatch.setattr(differences, "encode_scaled", encode)
    counted = RecipeDifferences(fp.E4M3, {})
    assert counted.of(results, fp.scalings.MX) == (0, x.size + 8, "tiles")
    assert counted.of(results, fp.scalings.MX.replace(infinity="propagate")).wrong == 0
    assert len(calls) == 1
    assert counted.of(results, fp.scalings.ROW).wrong > 0
    assert len(calls) == 2


def test_faults_are_the_same_ones_with_what_earlier_searches_kept() -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((4, 64)).astype(np.float32) for _ in range(3)]
    matrices[2][1, 3] = np.nan
    encoded = [fp.encode_scaled(x, "e4m3", fp.scalings.MX, rounding="toward_zero") for x in matrices]
    cases = [
        Case(x, elements_of(q, fp.E4M3), np.asarray(q.scales), matrices[i - 1] if i else None)
        for i, (x, q) in enumerate(zip(matrices, encoded, strict=True))
    ]
    kept = KeptEncodings(matrices)
    faults = [
        explaining_faults(cases, RightEncoding(fp.E4M3, fp.scalings.MX, {}, memory)) for memory in (None, kept, kept)
    ]
    assert faults[0][0] == ("rounds elements toward zero", fp.scalings.MX)
    assert faults[0] == faults[1] == faults[2]
