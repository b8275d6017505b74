"""The table of chips: the formats that their matrix units multiply, and the unit of each product of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fpsim.display.optional import DataFrame, frame
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.chips import CHIPS, WITHOUT_UNITS, Chip, resolve, sold_as
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.look_up import RecipeLike

PRODUCTS = ("fprop", "dgrad", "wgrad")
FALLBACKS = {"BF16": "bf16", "FP16": "f16"}  # formats to which operands fall back -> their names in units
WITHOUT = "float32, without matrix units"
SHOWN = 3  # names of chips that a line of text shows before "and n more"
UNKNOWN = "its matrix units are not known here"
# Column of the table -> names of the matrix units' elements that have this format.
COLUMNS = {
    "FP64": ("f64",), "FP32": ("f32",), "TF32": ("tf32", "xf32"), "FP16": ("f16",), "BF16": ("bf16", "bf16_1k"),
    "E4M3": ("e4m3",), "E5M2": ("e5m2",), "E4M3FNUZ": ("fp8",), "E5M2FNUZ": ("bf8",), "E3M2": ("e3m2",),
    "E2M3": ("e2m3",), "E2M1": ("e2m1",),
}  # fmt: skip


@dataclass(frozen=True)
class ChipRow:
    """A row of the table of chips: the formats that a chip's matrix units multiply, and units of a recipe's products.

    Attributes:
      chip: name of the chip as sold, with the names of other chips that have the same units, separated by ", ".
      arch: prefix of its units' names, such as "hopper"; "" if none of its units is known.
      target: target of compilers, such as "sm_90"; "" if it is not known.
      capability: NVIDIA's compute capability (major, minor), or None for other chips.
      operands: the formats, names of the table's columns, that a unit multiplies without block scales.
      block_scaled: the formats that a unit multiplies with block scales.
      products: "fprop", "dgrad" and "wgrad" -> name of the unit that computes the recipe's product, or a text on
        what computes it instead; empty without a recipe.
    """

    chip: str
    arch: str
    target: str
    capability: tuple[int, int] | None
    operands: tuple[str, ...]
    block_scaled: tuple[str, ...]
    products: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value of the table for this chip: names, a mark for each format, units of products."""
        marks = {name: self.mark(name) for name in COLUMNS}
        capability = "" if self.capability is None else "{}.{}".format(*self.capability)
        return {"chip": self.chip, "target": self.target, "capability": capability, **marks, **self.products}

    def mark(self, name: str) -> str:
        """Return the table's cell for the format `name`: "yes", "with scales" or "".

        "with scales" means that units multiply the format only with block scales, "" that no unit multiplies it.
        """
        return "yes" if name in self.operands else "with scales" if name in self.block_scaled else ""


@dataclass(frozen=True)
class ChipTable:
    """A table of chips: the formats that they multiply in hardware, and the units of a recipe's products.

    Attributes:
      rows: a `ChipRow` for each chip.
      recipe: name of the recipe; "" if the table was made without one.
    """

    rows: tuple[ChipRow, ...]
    recipe: str = ""

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each chip, with the columns of `ChipRow.to_dict`."""
        return frame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        """Return a text with a line for each chip: the formats that it multiplies, or units of a recipe's products."""
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
    """Return a table of chips: the formats that each multiplies in hardware, and the fallbacks of a recipe.

    If a chip has no unit for the operands of a product, the table shows the fallback: BF16 operands, else FP16
    operands, else float32 without matrix units.

    Args:
      recipe: a recipe of `fp.recipes`, by name or object, whose products are added to the table; None for no products.
        A recipe needs torch.
      chip: the only chip of the table, by any of its names ("H100", "hopper", "sm_90", "9.0"); None for all chips.

    Returns:
      A ChipTable, a row for each chip.

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
    """Return the table row of a chip whose matrix units are known.

    linears: product, such as "fprop" -> the recipe of a linear layer for it; empty without a recipe.
    """
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
    """Return the name of the unit that computes a product on a chip, or a text on what computes it instead.

    Without a unit for the operands' formats the text names a unit for BF16 operands, else one for FP16 operands, else
    float32. It names torch if the recipe leaves the product to torch, and software if the recipe adds by an accumulator
    that is no matrix unit. linear: recipe of a linear layer. product: "fprop", "dgrad" or "wgrad".
    """
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
    for fallback, element in FALLBACKS.items():
        for unit in units(chip.arch):
            if (unit.a.name, unit.b.name, unit.d.name) == (element, element, "f32") and unit.scale is None:
                return f"{fallback} operands on {unit.name}"
    return WITHOUT


def _said(products: dict[str, str]) -> str:
    """Return text that names the unit of each product, such as "fprop: ...; dgrad: ...".

    If all products have the same unit, the text is its name alone.
    """
    if len(set(products.values())) == 1:
        return next(iter(products.values()))
    return "; ".join(f"{product}: {unit}" for product, unit in products.items())


def _short(names: str) -> str:
    """Return the first three of comma-separated names of chips, and the number of the others: "A, B, C and 2 more"."""
    listed = names.split(", ")
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
