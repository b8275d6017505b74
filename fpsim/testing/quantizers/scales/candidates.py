"""Scaling recipes that a quantizer may follow: combinations of tile, scale format and rule; changes of one field."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fpsim.formats.element import Element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E2M1, E4M3, E8M0, FP32
from fpsim.scaling.recipes import ANY_ELEMENT, NVFP4_46
from fpsim.scaling.scaling import Scaling

BLOCKS = (
    (-1, -1), (1, -1), (-1, 1), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (16, 1), (32, 1), (64, 1), (128, 1),
    (16, 16), (32, 32), (64, 64), (128, 128),
)  # fmt: skip
SCALE_FORMATS = (FP32, E8M0, BF16, E4M3)
RULES: tuple[dict[str, Any], ...] = (
    {}, {"quotient": "amax*(1/max)"}, {"quotient": "1/(max/amax)"}, {"scale_rule": "floor"}, {"scale_rule": "ceil"},
    {"scale_rule": "even"}, {"scale_rule": "rceil"}, {"scale_rule": "rceil", "quotient": "amax*(1/max)"},
    {"scale_rule": "nearest"}, {"scale_rounding": "down"}, {"scale_rounding": "up"},
)  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "division": ("divide", "multiply"), "amax_floor": (0.0, 1e-12, 1e-10, 1e-8, 1e-5, 1e-4), "nan": ("tile", "element"),
    "infinity": ("skip", "propagate", "one"), "zero_scale": ("one", "smallest"),
    "overflow": ("saturate_finite", "saturate", "nonfinite"),
    "tensor_scale": (False, True), "smallest_scale": (None, 2.0**-6),
    "scale_rounding": ("nearest_even", "nearest_away", "down", "up"),
}  # fmt: skip


@functools.cache
def candidates_for(fmt: Element, affine: bool) -> tuple[Scaling, ...]:
    """Return the scalings to try for an element format; if `affine`, those with zero points first, then all others."""
    plain: tuple[Scaling, ...] = ()
    if not isinstance(fmt, IntegerFormat) or fmt.signed:
        plain = (*ANY_ELEMENT.values(), *_combinations(RULES))
    if fmt == E2M1:
        plain = (*plain, NVFP4_46)
    return (*_combinations(({"symmetric": False},)), *plain) if affine else plain


def _combinations(rules: tuple[dict[str, Any], ...]) -> Iterator[Scaling]:
    """Yield a `Scaling` for each valid combination of a tile of BLOCKS, a format of SCALE_FORMATS and one of `rules`.

    A rule is a dict of further fields of the scaling, such as {"scale_rule": "floor"}.
    """
    for block, fmt, rule in itertools.product(BLOCKS, SCALE_FORMATS, rules):
        with suppress(ValueError):  # no such combination
            yield Scaling(block=block, scale_format=fmt, **rule)


@functools.lru_cache(maxsize=1024)
def choices_of(scaling: Scaling) -> tuple[Scaling, ...]:
    """Return the scalings that differ from `scaling` in one field that CHOICES lists, such as overflow."""
    choices = []
    for name, values in CHOICES.items():
        for value in values:
            with suppress(ValueError):  # no such combination
                choices.append(scaling.replace(**{name: value}))
    return tuple(choices)
