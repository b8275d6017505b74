"""The table of chips: the operands that their matrix units multiply, and the units of a recipe's products there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fpsim.display.optional import DataFrame, frame
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.chips import CHIPS, WITHOUT_UNITS, Chip, resolve, sold_as
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.look_up import RecipeLike

PRODUCTS = ("fprop", "dgrad", "wgrad")
FALLBACKS = ("bf16", "fp16")  # operands that a product takes where its own have no unit, in this order
WITHOUT = "float32, without matrix units"
SHOWN = 3  # names of a row in the table
UNKNOWN = "its matrix units are not known here"
# Column -> the element names of matrix units that it stands for.
COLUMNS = {
    "FP64": ("f64",), "FP32": ("f32",), "TF32": ("tf32", "xf32"), "FP16": ("f16",), "BF16": ("bf16", "bf16_1k"),
    "E4M3": ("e4m3",), "E5M2": ("e5m2",), "E4M3FNUZ": ("fp8",), "E5M2FNUZ": ("bf8",), "E3M2": ("e3m2",),
    "E2M3": ("e2m3",), "E2M1": ("e2m1",),
}  # fmt: skip


@dataclass(frozen=True)
class ChipRow:
    """A chip: the operands of its matrix units, and the units of a recipe's products.

    Attributes:
      chip: name of the chip as sold, with other chips that have the same units.
      arch: prefix of its units' names; "" where no unit of it is known.
      target: target of compilers, such as "sm_90"; "" where it is not known.
      capability: NVIDIA's compute capability, or None.
      operands: the formats that a unit multiplies without block scales: columns of the table.
      block_scaled: the formats that a unit multiplies with block scales.
      products: "fprop", "dgrad" and "wgrad" -> name of the unit of the recipe's product, or of its fallback.
    """

    chip: str
    arch: str
    target: str
    capability: tuple[int, int] | None
    operands: tuple[str, ...]
    block_scaled: tuple[str, ...]
    products: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain values, a column for each format."""
        marks = {name: self.mark(name) for name in COLUMNS}
        capability = "" if self.capability is None else "{}.{}".format(*self.capability)
        return {"chip": self.chip, "target": self.target, "capability": capability, **marks, **self.products}

    def mark(self, name: str) -> str:
        """Return the table cell for a format: "yes", "with scales" if only with block scales, or ""."""
        return "yes" if name in self.operands else "with scales" if name in self.block_scaled else ""


@dataclass(frozen=True)
class ChipTable:
    """A row for each chip; with a recipe also the units of its products.

    Attributes:
      rows: a `ChipRow` for each chip.
      recipe: name of the recipe, or "".
    """

    rows: tuple[ChipRow, ...]
    recipe: str = ""

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_frame(self) -> DataFrame:
        """Return a pandas.DataFrame with a row for each chip."""
        return frame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        """Return a line for each chip: its operands, or with a recipe its products."""
        if self.recipe:
            return "\n".join(
                [f"{self.recipe} on each chip:", *(f"{_short(row.chip)}: {_said(row.products)}" for row in self.rows)]
            )
        names = [name for name in COLUMNS if any(row.mark(name) for row in self.rows)]
        width = max(len(_short(row.chip)) for row in self.rows)
        lines = [f"{'chip':{width}}  {'target':7} {'cc':5}" + "".join(f"{name:>9}" for name in names)]
        for row in self.rows:
            capability = row.to_dict()["capability"]
            marks = "".join(f"{ {'yes': 'yes', 'with scales': 'scaled'}.get(row.mark(name), '-'):>9}" for name in names)
            lines.append(
                f"{_short(row.chip):{width}}  {row.target:7} {capability:5}" + (marks if row.arch else f"  {UNKNOWN}")
            )
        return "\n".join(lines)


def chips(recipe: RecipeLike | None = None, *, chip: str | None = None) -> ChipTable:
    """Return a table of chips: the operands that each multiplies in hardware, and the fallbacks of a recipe.

    A product whose operands have no unit on a chip falls back to BF16 operands there, or to FP16 where there is no
    BF16, or to float32 without matrix units.

    Args:
      recipe: a recipe of `fp.recipes`, by name or object; None for the table without products. A recipe needs torch.
      chip: the only chip of the table, by any of its names ("H100", "hopper", "sm_90", "9.0"); None for all chips.

    Raises:
      ValueError: there is no such recipe or chip.
      ImportError: torch, which recipes need, is not installed.

    Source: the rows of `fp.units()`, docs/matrix-units.md; compute capabilities of the CUDA programming guide.

    Example:
      >>> import fpsim as fp
      >>> rows = {row.arch: row for row in fp.chips()}
      >>> rows["hopper"].mark("E4M3"), rows["ampere"].mark("E4M3"), rows["blackwell"].mark("E2M1")
      ('yes', '', 'yes')
      >>> {row.arch: row.products["fprop"] for row in fp.chips("DEEPSEEK_V3")}["ampere"]
      'BF16 operands on ampere_bf16_f32'
      >>> [row.target for row in fp.chips(chip="H100")]
      ['sm_90']
    """
    linears: dict[str, Any] = {}
    name = ""
    if recipe is not None:
        from fpsim.recipes.look_up import find as find_recipe

        chosen = find_recipe(recipe)
        name = chosen.name
        linears = {product: chosen.linear_of("", product, 0, 1) for product in PRODUCTS}
    if chip is not None:
        return ChipTable((_row(resolve(chip).chip, linears),), name)
    rows = [_row(row, linears) for row in CHIPS.values()]
    for target, sold in WITHOUT_UNITS.items():
        missing = dict.fromkeys(linears, UNKNOWN)
        capability = (int(target[3:-1]), int(target[-1])) if target.startswith("sm_") else None
        rows.append(ChipRow(", ".join(sold), "", target, capability, (), (), missing))
    return ChipTable(tuple(rows), name)


def _row(chip: Chip, linears: dict[str, Any]) -> ChipRow:
    """Return the table row of a chip whose matrix units are known."""
    mine = units(chip.arch)
    plain = {element for unit in mine if unit.scale is None for element in (unit.a.name, unit.b.name)}
    scaled = {element for unit in mine if unit.scale is not None for element in (unit.a.name, unit.b.name)}
    return ChipRow(
        ", ".join(sold_as(chip)), chip.arch, chip.sm, chip.capability,
        tuple(name for name, elements in COLUMNS.items() if plain & set(elements)),
        tuple(name for name, elements in COLUMNS.items() if scaled & set(elements)),
        {product: _unit_of(linear, product, chip) for product, linear in linears.items()},
    )  # fmt: skip


def _unit_of(linear: Any, product: str, chip: Chip) -> str:
    """Return the name of the unit that computes a layer's product on a chip, or of the fallback."""
    from fpsim.recipes.chips import moved

    accumulator = linear.accumulator(product)
    if accumulator is None:
        return "torch's own product"
    if not isinstance(accumulator, MatrixUnit):
        return f"{accumulator!r}, by software"
    try:
        alone = linear.replace(**{other: type(linear.fprop)() for other in PRODUCTS if other != product})
        return moved(alone, chip.sm or chip.name).units[product].name
    except ValueError:
        pass
    for fallback in FALLBACKS:
        element = {"fp16": "f16"}.get(fallback, fallback)
        for unit in units(chip.arch):
            if (unit.a.name, unit.b.name, unit.d.name) == (element, element, "f32") and unit.scale is None:
                return f"{fallback.upper()} operands on {unit.name}"
    return WITHOUT


def _said(products: dict[str, str]) -> str:
    """Return a row's products and their units as text; a unit that all products share is named once."""
    if len(set(products.values())) == 1:
        return next(iter(products.values()))
    return "; ".join(f"{product}: {unit}" for product, unit in products.items())


def _short(names: str) -> str:
    """Return the first names of chips as text, and how many others there are."""
    listed = names.split(", ")
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
