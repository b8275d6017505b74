"""The candidates that a study compares: each is a format with a scaling, and has a name."""

from __future__ import annotations

from typing import Any, NamedTuple

from fpsim.analysis.measures.comparison import scaling_name, several
from fpsim.display.wording import short
from fpsim.formats.element import Element, element_format
from fpsim.formats.integer_format import INT4, INT8
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, FP16, Format
from fpsim.scaling.recipes import BLOCK_128X128, MX, NVFP4, ROW, TILE_1X128, scaling_of
from fpsim.scaling.scaling import Scaling

ScalingLike = Scaling | str | None


class CastCandidate(NamedTuple):
    """A candidate of a study: a format together with a scaling.

    Attributes:
      element: the format of the elements.
      scaling: None (no scale), "amax" (one scale for the whole tensor), or an fp.Scaling (a scale for each tile).
    """

    element: Element
    scaling: ScalingLike

    @property
    def scaling_name(self) -> str:
        """Name of the scaling in tables: "none", "amax", or the repr of the fp.Scaling."""
        return scaling_name(self.scaling)

    @property
    def has_tiles(self) -> bool:
        """True if the scaling is an fp.Scaling, which has a scale for each tile."""
        return isinstance(self.scaling, Scaling)

    @property
    def name(self) -> str:
        """Name of the candidate: its format and scaling, such as "E4M3 with 1x128 scales"."""
        return f"{self.element.name} {scaling_words(self.scaling_name)}"


GROUPS_OF_32 = Scaling(block=(1, 32), scale_format=FP16)  # usual groups of weight-only INT4
DEFAULT: tuple[CastCandidate, ...] = (
    CastCandidate(E4M3, None),
    CastCandidate(E4M3, "amax"),
    CastCandidate(E4M3, BLOCK_128X128),
    CastCandidate(E4M3, ROW),
    CastCandidate(E4M3, TILE_1X128),
    CastCandidate(E4M3, MX),
    CastCandidate(E5M2, "amax"),
    CastCandidate(INT8, ROW),
    CastCandidate(INT8, TILE_1X128),
    CastCandidate(E2M1, MX),
    CastCandidate(E2M1, NVFP4),
    CastCandidate(INT4, GROUPS_OF_32),
    CastCandidate(BF16, None),
    CastCandidate(FP16, None),
)

WORDS = {
    "none": "without a scale",
    "amax": "with one scale",
    "fp.scalings.ROW": "with a scale per row",
    "fp.scalings.TILE_1X128": "with 1x128 scales",
    "fp.scalings.BLOCK_128X128": "with 128x128 scales",
    "fp.scalings.MX": "with MX scales",
    "fp.scalings.NVFP4": "with NVFP4 scales",
    repr(GROUPS_OF_32): "with 1x32 scales",
}


def scaling_words(name: str) -> str:
    """Return the name of a scaling as a phrase for sentences.

    name: "none", "amax" or the repr of an fp.Scaling, as `CastCandidate.scaling_name` returns it.

    Example:
      >>> from fpsim.analysis.studies.candidates import scaling_words
      >>> scaling_words("none"), scaling_words("fp.scalings.TILE_1X128")
      ('without a scale', 'with 1x128 scales')
    """
    return WORDS.get(name, f"with {name.removeprefix('fp.scalings.')} scales")


SHORT = 14  # most characters of a scaling in a short name


def short_name(fmt: str, scaling: str) -> str:
    """Return a short label of a candidate (a format with a scaling).

    fmt: name of the format. scaling: "none", "amax" or the repr of an fp.Scaling; in the label it has at most 14
    characters.

    Example:
      >>> from fpsim.analysis.studies.candidates import short_name
      >>> short_name("E4M3", "none"), short_name("E4M3", "amax"), short_name("INT8", "fp.scalings.ROW")
      ('E4M3 no scale', 'E4M3 one scale', 'INT8 row scales')
    """
    known = {"none": "no scale", "fp.scalings.ROW": "row scales"}
    text = scaling_words(scaling).removeprefix("with ").removesuffix(" scales")
    return f"{fmt} {short(known.get(scaling, text), SHORT)}"


def candidates_of(formats: Any, scalings: Any) -> tuple[CastCandidate, ...]:
    """Return a candidate for every combination of the given formats and scalings.

    If both arguments are None, the default candidates of `fp.analysis.study` are returned: 14 pairs of seven formats
    with scalings that suit them. Formats other than floats, such as integers, are only combined with an fp.Scaling.

    Args:
      formats: one format or several; None for the seven formats of the default candidates (E4M3, E5M2, INT8, E2M1,
        INT4, BF16, FP16).
      scalings: one scaling or several, each None (no scale), "amax" (one scale for the tensor) or an fp.Scaling; None
        for no scale, "amax" and 1x128 scales.
    Raises:
      ValueError: a name is unknown, two formats have the same name, an item is not a scaling, or no combination is
        possible.
    """
    if formats is None and scalings is None:
        return DEFAULT
    elements = dict.fromkeys(element_format(fmt) for fmt in several(FORMATS if formats is None else formats, "formats"))
    names = [element.name for element in elements]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"formats must have different names; got {names.count(name)} formats called {name!r}.")
    recipes = [
        recipe if recipe is None or (isinstance(recipe, str) and recipe == "amax")
        else scaling_of(recipe, "scalings", "None or 'amax'")
        for recipe in (SCALINGS if scalings is None else several(scalings, "scalings"))
    ]  # fmt: skip
    candidates = [
        CastCandidate(element, recipe)
        for element in elements
        for recipe in recipes
        if isinstance(element, Format) or isinstance(recipe, Scaling)
    ]
    if not candidates:
        raise ValueError(f"{names[0]} needs a scale per tile; got scalings without one. Add fp.scalings.TILE_1X128.")
    return tuple(candidates)


FORMATS = tuple(dict.fromkeys(candidate.element for candidate in DEFAULT))
SCALINGS: tuple[ScalingLike, ...] = (None, "amax", TILE_1X128)
