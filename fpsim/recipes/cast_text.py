"""Casts as JSON text: format, scaling and modes of one cast, which recipes check and compiled graphs store."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.cast_options import cast_options
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.arguments import refuse_cast
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling, scaling_fields, scaling_from


class Spec(NamedTuple):
    """A cast of a tensor.

    Attributes:
      element: the element format, an object.
      scaling: the scaling, an object; None for a cast without scales.
      rounding, overflow, subnormals, random_bits: as for `fpsim.encode`; overflow None is the scaling's own mode.
    """

    element: Element
    scaling: Scaling | None
    rounding: Rounding
    overflow: str | None
    subnormals: str
    random_bits: int

    def keywords(self, seed: int | None) -> dict[str, Any]:
        """Return the cast's keyword arguments for `fpsim.encode_scaled`; seed: for stochastic rounding, or None."""
        words: dict[str, Any] = {
            "rounding": self.rounding, "subnormals": self.subnormals, "seed": seed, "random_bits": self.random_bits,
        }  # fmt: skip
        return words if self.overflow is None else {**words, "overflow": self.overflow}


def spec_text(
    fmt: Any, scaling: Scaling | str | None, rounding: Any, overflow: str | None, subnormals: str, random_bits: int
) -> str:
    """Return a cast as JSON text, after all checks that need no data.

    Args:
      fmt: the element format, by name, dtype or object.
      scaling: the scaling or its name; None for a cast without scales.
      rounding, overflow, subnormals, random_bits: as for `fpsim.encode`; overflow None is the scaling's own mode.

    Raises:
      ValueError: an unknown format or option, or a combination that is not possible.
      TypeError: the scaling is not a Scaling.

    Example:
      >>> from fpsim.recipes.cast_text import spec_from, spec_text
      >>> spec_from(spec_text("e4m3", fp.scalings.MX, "SR", None, "keep", 32)).scaling == fp.scalings.MX
      True
    """
    try:
        return _text(fmt, scaling, rounding, overflow, subnormals, random_bits)
    except TypeError:  # an unhashable argument, for which the checks raise a clear error
        return _text.__wrapped__(fmt, scaling, rounding, overflow, subnormals, random_bits)


@lru_cache(maxsize=1024, typed=True)  # typed, because True equals 1 but is not a number of bits
def _text(
    fmt: Any, scaling: Scaling | str | None, rounding: Any, overflow: str | None, subnormals: str, random_bits: int
) -> str:
    """Check a cast, described by the arguments of `spec_text`, and return it as JSON text; cached."""
    element = element_format(fmt)
    scaling = None if scaling is None else scaling_of(scaling, others="or None")
    if scaling is None and not isinstance(element, Format):
        raise ValueError(f"{element} needs a scale; got scaling=None. Pass fp.scalings.TENSOR, say.")
    mode = rounding_mode(rounding)
    # the seed is passed later, with the data; options of element formats without a cast are checked as FP32's
    word = "nonfinite" if overflow is None else overflow
    cast_options(element if isinstance(element, Format) else FP32, mode, word, subnormals, 0, random_bits)
    if scaling is not None:
        keywords: Any = Spec(element, scaling, mode, overflow, subnormals, random_bits).keywords(0)
        refuse_cast(element, scaling, keywords)
    fields: dict[str, Any] = {
        "fmt": element_fields(element), "scaling": None if scaling is None else scaling_fields(scaling),
        "rounding": mode.name, "overflow": overflow, "subnormals": subnormals, "random_bits": int(random_bits),
    }  # fmt: skip
    return json.dumps(fields, default=lambda number: number.item())


@lru_cache(maxsize=1024)
def spec_from(text: str) -> Spec:
    """Return the cast that a JSON text of `spec_text` describes; cached."""
    fields = json.loads(text)
    scaling = fields["scaling"]
    if scaling is not None:
        scaling = scaling_from(scaling)
    return Spec(
        element_from(fields["fmt"]), scaling, Rounding[fields["rounding"]], fields["overflow"], fields["subnormals"],
        fields["random_bits"],
    )  # fmt: skip
