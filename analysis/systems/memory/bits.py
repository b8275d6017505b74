"""A table of the bits that a value needs in each format, with its share of scales and padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fpsim.display.optional import DataFrame, frame
from fpsim.errors import require_kind
from fpsim.formats.element import Element, ElementLike, element_format
from fpsim.formats.named import FP16
from fpsim.formats.named import NAMED as FORMATS
from fpsim.scaling.recipes import ROWS as SCALINGS
from fpsim.scaling.recipes import ScalingLike, scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.storage import StoredBits, is_swizzled, stored_bits

GROUPS = Scaling(block=(1, 128), scale_format=FP16, symmetric=False)  # GPTQ's and AWQ's: a zero point for each group
# Format that is stored with scales -> scalings, or names of scalings, that the table lists by default.
SCALED: dict[str, tuple[str | Scaling, ...]] = {
    "E4M3": ("TENSOR", "ROW", "TILE_1X128", "TILE_1X128_POW2", "BLOCK_128X128", "MX"),
    "E5M2": ("TENSOR", "TILE_1X128", "MX"),
    "E2M3": ("MX",), "E3M2": ("MX",), "E2M1": ("MX", "NVFP4"),
    "INT8": ("TENSOR", "ROW", "TILE_1X128"), "INT4": (Scaling(block=(1, 32), scale_format=FP16),), "UINT4": (GROUPS,),
    "LogFMT-8": ("TILE_1X128",),
}  # fmt: skip


@dataclass(frozen=True)
class BitsRow:
    """The size of an array in a format, with scales and padding.

    Attributes:
      format: name of the format of the elements.
      scaling: repr of the scaling; "" for none.
      shape: shape of the array.
      bits: size of the array in bits: codes, scales and padding.
    """

    format: str
    scaling: str
    shape: tuple[int, ...]
    bits: StoredBits

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value: names of format and scaling, bits per value, and bytes of the array.

        Bits per value are those of codes, scales, padding and all three.
        """
        values = self.bits.values
        return {
            "format": self.format, "scaling": self.scaling, "code_bits": self.bits.codes / values,
            "scale_bits": self.bits.scales / values, "padding_bits": self.bits.padding / values,
            "bits_per_value": self.bits.per_value, "bytes": self.bits.bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class BitsTable:
    """A table of the bits that a value needs in each format, with its share of scales and padding.

    Attributes:
      rows: a BitsRow for each format and scaling.
    """

    rows: tuple[BitsRow, ...]

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each format and scaling, with the columns of `BitsRow.to_dict`."""
        return frame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        width = max(len(f"{row.format} {row.scaling}") for row in self.rows)
        lines = []
        for row in self.rows:
            name = f"{row.format} {row.scaling}".strip()
            lines.append(f"{name:<{width}}  {row.bits.per_value:8.4f} bits per value")
        return "\n".join(lines)


def bits_per_value(
    shape: Sequence[int] = (4096, 4096), formats: ElementLike | Iterable[ElementLike] | None = None,
    scalings: ScalingLike | Iterable[ScalingLike | None] | None = None, *, padded: bool = False,
    swizzled: bool = False,
) -> BitsTable:  # fmt: skip
    """Tabulate the bits of a value in memory: its code, its share of the scales, and padding.

    Args:
      shape: the shape of the array, each axis at least 1.
      formats: element formats, by name, dtype or object; None is every named format without scales, and some with the
        scalings that are usual for them.
      scalings: a list with a scaling, or None for no scaling, for each format; or one scaling for all formats. Requires
        `formats`.
      padded: True pads the last tile of every axis to a whole tile, for kernels that read whole tiles.
      swizzled: True pads the matrix of scales of 1x16 and 1x32 blocks to multiples of 128 rows and 4 columns, as cuBLAS
        reads it.

    Returns:
      A BitsTable, a row for each format and scaling.

    Raises:
      TypeError, ValueError: unknown formats, scalings or shapes, or scalings without formats.

    Example:
      >>> table = fp.analysis.bits_per_value((4096, 4096), ["e2m1", "e2m1", "e4m3"], ["NVFP4", "MX", "TILE_1X128"])
      >>> [round(row.bits.per_value, 4) for row in table.rows]
      [4.5, 4.25, 8.25]
      >>> print(fp.analysis.bits_per_value((3, 200), "e4m3", "TILE_1X128", padded=True))  # 256 codes and 2 scales a row
      E4M3 fp.scalings.TILE_1X128   10.5600 bits per value
    """
    require_kind("padded", padded, bool, "True or False")
    require_kind("swizzled", swizzled, bool, "True or False")
    pairs = _pairs(formats, scalings)
    rows = []
    for element, scaling in pairs:
        bits = stored_bits(
            element, scaling, shape, padded=padded, swizzled=swizzled and scaling is not None and is_swizzled(scaling)
        )
        lengths = tuple(map(int, shape)) if isinstance(shape, Sequence) else (int(shape),)
        rows.append(BitsRow(element.name, "" if scaling is None else repr(scaling), lengths, bits))
    return BitsTable(tuple(rows))


def _pairs(formats: Any, scalings: Any) -> list[tuple[Element, Scaling | None]]:
    """Return the (format, scaling or None) of each row of the table, from the arguments of `bits_per_value`.

    Raises ValueError if there are no formats, or not as many scalings as formats.
    """
    if formats is None:
        if scalings is not None:
            raise ValueError(f"scalings require formats; got {scalings!r} alone. Pass one format per scaling.")
        known: list[tuple[Element, Scaling | None]] = [(fmt, None) for fmt in FORMATS.values()]
        for name, usual in SCALED.items():
            known += [(element_format(name), SCALINGS[one] if isinstance(one, str) else one) for one in usual]
        return known
    listed = list(formats) if _is_several(formats) else [formats]
    others = list(scalings) if _is_several(scalings) else [scalings] * len(listed)
    if not listed or len(listed) != len(others):
        raise ValueError(
            f"formats and scalings must be lists of one length, at least 1; got {len(listed)} and {len(others)}."
        )
    return [
        (element_format(fmt), None if one is None else scaling_of(one, "scalings"))
        for fmt, one in zip(listed, others, strict=True)
    ]  # fmt: skip


def _is_several(x: Any) -> bool:
    """Return whether x is an iterable of formats or scalings, and not one of them, such as a name."""
    return isinstance(x, Iterable) and not isinstance(x, str)
