"""Tensors as operands: rows are what products sum along, whichever way a file has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors import operand
from fpsim.analysis.tensors.opening import tensor
from fpsim.analysis.tensors.operand import as_operand, matrix_shape, pieces_of
from fpsim.analysis.tensors.roles import with_roles
from tests.analysis.tensors.test_tensors import values
from tests.kit.sweeps import in_turn

RNG = np.random.default_rng(5)


@in_turn(
    "name, shape, role, want",
    [
        ("", (), "scalar", (1, 1)),
        ("", (7,), "matrix", (1, 7)),
        ("", (4, 8), "matrix", (4, 8)),
        ("", (2, 3, 64), "activation", (6, 64)),
        ("", (2, 3, 4, 64), "activation", (24, 64)),
        ("", (64, 32, 3, 3), "matrix", (64, 288)),
        ("patch_embed.proj.weight", (768, 3, 16, 16), "matrix", (768, 768)),
        ("video.weight", (768, 3, 2, 16, 16), "matrix", (768, 1536)),
        ("", (64, 32, 3), "matrix", (64, 96)),
        ("encoder.pos_conv_embed.conv.weight_v", (768, 48, 128), "matrix", (768, 6144)),
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 256, 512), "matrix", (2048, 512)),
    ],
)
def test_operands_are_matrices_whose_rows_are_summed_along(
    name: str, shape: tuple[int, ...], role: str, want: tuple[int, int]
) -> None:
    assert matrix_shape(shape, role, name) == want


def lasts(**shapes: tuple[int, ...]) -> dict[str, bool | None]:
    """Which of some tensors have their outputs last; "__" in names is a dot."""
    tensors = with_roles(
        [tensor(name.replace("__", "."), np.zeros(shape, np.float32)) for name, shape in shapes.items()]
    )
    return {one.name: one.outputs_last for one in tensors if one.role == "matrix"}


def test_a_bias_tells_which_axis_has_the_outputs() -> None:
    gpt2 = lasts(
        h__attn__c_attn__weight=(48, 144), h__attn__c_attn__bias=(144,), h__attn__c_proj__weight=(48, 48),
        h__attn__c_proj__bias=(48,), h__mlp__c_fc__weight=(48, 192), h__mlp__c_fc__bias=(192,),
        h__mlp__c_proj__weight=(192, 48), h__mlp__c_proj__bias=(48,), lm_head__weight=(500, 48),
    )  # fmt: skip
    assert [name for name, last in gpt2.items() if not last] == ["lm_head.weight"]
    usual = lasts(a__weight=(64, 32), a__bias=(64,), b__weight=(32, 32), b__bias=(32,), c__weight=(32, 64))
    assert usual == {"a.weight": False, "b.weight": False, "c.weight": False}
    assert lasts(b__weight=(32, 32), b__bias=(32,)) == {"b.weight": False}
    mixed = lasts(a__weight=(64, 32), a__bias=(32,), b__weight=(8, 9), b__bias=(8,), c__weight=(9, 9), c__bias=(9,))
    assert mixed == {"a.weight": True, "b.weight": False, "c.weight": False}


def test_kernels_of_flax_and_keras_have_their_outputs_last() -> None:
    tensors = with_roles([
        tensor("params/Dense_0/kernel", np.zeros((64, 64), np.float32)),
        tensor("conv/kernel:0", np.zeros((3, 3, 16, 32), np.float32)),
        tensor("conv/depthwise_kernel", np.zeros((3, 3, 16, 2), np.float32)),
    ])  # fmt: skip
    assert [one.outputs_last for one in tensors] == [True, True, False]
    assert as_operand(tensors[1]).shape == (32, 144)


@pytest.mark.parametrize("shape", [(5, 7), (1, 9), (9, 1), (300, 17), (3, 2, 4, 6), (0, 5), (5, 0)])
@pytest.mark.parametrize("band", [1, 40, 1 << 24])
def test_turned_tensors_are_their_transposes(
    shape: tuple[int, ...], band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operand, "BAND", band)
    monkeypatch.setattr(operand, "CHUNK", 32)
    x = RNG.standard_normal(shape).astype(np.float32)
    one = with_roles([tensor("a/kernel", x)])[0]
    if one.role != "matrix":  # a single row or none
        one = fp.analysis.Tensor("a", one.shape, one.dtype, one.read, role="matrix", outputs_last=True)
    turned = as_operand(one)
    assert turned.shape == (shape[-1], int(np.prod(shape[:-1])))
    for size in (1, 3, 64, 5000):
        got = values(turned, size) if x.size else np.empty(0)
        assert got.tobytes() == (x.reshape(-1, shape[-1]).T.tobytes() if x.size else b"")


def test_pieces_have_the_wanted_size() -> None:
    x = np.arange(100)
    for cuts in ([], [3], [10, 10, 50], [99]):
        pieces = list(pieces_of(np.split(x, cuts), 7))
        assert [piece.size for piece in pieces] == [7] * 14 + [2]
        assert np.concatenate(pieces).tolist() == x.tolist()
    assert list(pieces_of([], 7)) == []


def same_rows(one: Any, other: Any) -> None:
    """Two reports have the same figures."""
    assert len(one.errors) == len(other.errors)
    for a, b in zip(one.errors, other.errors, strict=True):
        assert (a.report.format, a.scaling) == (b.report.format, b.scaling)
        assert (a.report.sqnr_db, a.report.bits_per_value) == (b.report.sqnr_db, b.report.bits_per_value)


def test_a_study_scales_along_what_is_summed() -> None:
    weight = RNG.standard_normal((256, 96)).astype(np.float32) * np.exp2(RNG.integers(-12, 1, (256, 1)))
    turned = fp.analysis.study({"a.kernel": weight.T.astype(np.float32)})
    usual = fp.analysis.study({"a.weight": weight.astype(np.float32)})
    same_rows(turned, usual)
    assert turned.recommendations[0].choice == usual.recommendations[0].choice
    assert turned.ranges[0].shape == (96, 256)  # as it is stored
