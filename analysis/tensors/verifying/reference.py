"""Comparison of a quantised checkpoint with the unquantised model, which shows faults that the file alone cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.parts import whole
from fpsim.analysis.tensors.layouts.unpacking import values_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.arrays import Array, is_torch

FAR = 0.5  # relative error above which a weight is not the reference's; formats of 3 bits and more have less
FAR_BITS = {
    "1": 4.0,
    "2": 1.0,
}  # the same for codes of 1 and 2 bits, whose rounding alone may have errors of 2.1 and 0.6
FEW_BITS = re.compile(r"(?:int|i?q|tq)([12])", re.IGNORECASE)  # at the start of such weights' dtypes
NEAR = 0.5  # a change of the order explains an error if it leaves less than this share of it


def reference_findings(weights: Sequence[Tensor], reference: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each weight whose relative error, compared with the unquantised model, is above a limit.

    The limit is 0.5, but 1 for codes of 2 bits and 4 for codes of 1 bit. If the error is at most half as large with the
    weight negated, or with neighbouring values swapped, the finding says so. A weight that the unquantised model lacks,
    or has in another shape, also yields a finding. weights: the decoded tensors of the checkpoint. reference: tensor
    name -> array of the unquantised model.
    """
    for one in weights:
        if not one.layout:
            continue
        if one.name not in reference:
            yield Finding.about(one.name, "not in the reference", "the reference has no tensor of that name.", False)
            continue
        expected: Any = reference[one.name]
        wanted = values_of(expected.detach().float().cpu().numpy() if is_torch(expected) else np.asarray(expected))
        got = whole(one)
        got = np.swapaxes(got, -1, -2) if one.exchanged else got
        if got.shape != wanted.shape:
            yield Finding.about(
                one.name, "shape of the reference", f"its shape is {got.shape}, and the reference's {wanted.shape}."
            )
            continue
        error = _relative(got, wanted)
        match = FEW_BITS.match(one.dtype)
        if error <= (FAR if match is None else FAR_BITS[match[1]]):
            continue
        changed = {"the sign changed": -got}
        if got.shape[-1] % 2 == 0:
            pairs = got.reshape(*got.shape[:-1], -1, 2)[..., ::-1]
            changed["neighbours exchanged (nibbles swapped)"] = pairs.reshape(got.shape)
        errors = {words: _relative(array, wanted) for words, array in changed.items()}
        best = min(errors, key=errors.__getitem__)
        why = f"; with {best} it would be {errors[best]:.2g}" if errors[best] < NEAR * error else ""
        yield Finding.about(
            one.name, "far from the reference", f"its relative error against the reference is {error:.2g}{why}."
        )


def _relative(got: Array, wanted: Array) -> float:
    """Return norm(got - wanted) / norm(wanted), and infinity if that is not finite."""
    norm = float(np.linalg.norm(wanted.astype(np.float64)))
    with np.errstate(all="ignore"):
        error = float(np.linalg.norm(got.astype(np.float64) - wanted)) / max(norm, 1e-300)
    return error if np.isfinite(error) else np.inf
