"""Chips as data: a row per compute target, with the names that units, compilers and CUDA have for it.

What a row leaves out is not known here with a source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpsim.errors import require_kind, unknown
from fpsim.reload import reloadable


@reloadable
@dataclass(frozen=True)
class Chip:
    """A chip, or the family of chips that share a compute target.

    Args:
      name: as sold.
      vendor: "NVIDIA" or "AMD".
      arch: its word in the names of matrix units.
      sm: what NVIDIA's compilers call it, "sm_90"; "" where that is not known.
      capability: the compute capability.
      multiprocessors: how many it has.
      features: letters that may follow `sm` in a compiler's target.
      source: where the facts come from.
      others: what else is sold with this compute target.
    """

    name: str
    vendor: str
    arch: str
    sm: str = ""
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    features: str = ""
    source: str = ""
    others: tuple[str, ...] = ()


UNITS = "docs/matrix-units.md"  # chips whose output was compared, or whose manuals were read
GUIDE = "CUDA C++ Programming Guide, 5.4 and appendix on compute capabilities"
EQUIV = "facebookexperimental/triton, bitequiv/cublas_match"  # measured there

# fmt: off
ROWS = (
    Chip("V100", "NVIDIA", "volta", "sm_70", (7, 0), source=f"{UNITS}; {GUIDE}"),
    Chip("Turing", "NVIDIA", "turing", "sm_75", (7, 5), source=GUIDE, others=("T4",)),
    Chip("A100", "NVIDIA", "ampere", "sm_80", (8, 0), source=GUIDE),
    Chip("RTX 4060, RTX 1000 Ada, L40S", "NVIDIA", "ada", "sm_89", (8, 9), source=GUIDE),
    Chip("H100 SXM", "NVIDIA", "hopper", "sm_90", (9, 0), 132, "a", f"{GUIDE}; {EQUIV}", ("H200", "GH200")),
    Chip("GB200", "NVIDIA", "blackwell", "sm_100", (10, 0), 152, "a", f"{GUIDE}; {EQUIV}", ("B200",)),
    Chip("GB300", "NVIDIA", "blackwell", "sm_103", (10, 3), 152, source=f"{GUIDE}; {EQUIV}", others=("B300",)),
    Chip("MI100", "AMD", "cdna1", source=UNITS),
    Chip("MI200", "AMD", "cdna2", source=UNITS, others=("MI210", "MI250", "MI250X")),
    Chip("MI300", "AMD", "cdna3", source=UNITS, others=("MI300A", "MI300X", "MI325X")),
)
# fmt: on
CHIPS: dict[str, Chip] = {chip.name: chip for chip in ROWS}


def of_arch(arch: str) -> tuple[Chip, ...]:
    """The chips of an architecture, as units name it.

    Example:
      >>> from fpsim.matrix_units.chips import of_arch
      >>> [chip.sm for chip in of_arch("blackwell")]
      ['sm_100', 'sm_103']
    """
    return tuple(chip for chip in CHIPS.values() if chip.arch == arch)


def capability_of(arch: str) -> tuple[int, int]:
    """The lowest compute capability of an architecture.

    Example:
      >>> from fpsim.matrix_units.chips import capability_of
      >>> capability_of("hopper")
      (9, 0)
    """
    return min(chip.capability for chip in of_arch(arch) if chip.capability is not None)


def of_capability(capability: tuple[int, int]) -> Chip | None:
    """The chip of a compute capability, None where none is known.

    Example:
      >>> from fpsim.matrix_units.chips import of_capability
      >>> of_capability((9, 0)).arch, of_capability((12, 0))
      ('hopper', None)
    """
    return next((chip for chip in CHIPS.values() if chip.capability == capability), None)


def named(word: str, argument: str = "chip", others: Sequence[str] = ()) -> Chip:
    """The chip that a word names: as it is sold, its architecture, or what compilers call it.

    Of several chips of an architecture it is the first.

    Args:
      word: in capitals or not.
      argument: its name, and others: words that it may be besides, for the message.

    Raises:
      ValueError: there is no such chip.
      TypeError: the word is no text.

    Example:
      >>> from fpsim.matrix_units.chips import named
      >>> [named(word).name for word in ("h100", "B200", "sm_90a", "hopper", "MI300X")]
      ['H100 SXM', 'GB200', 'H100 SXM', 'H100 SXM', 'MI300']
    """
    require_kind(argument, word, str, "the name of a chip, such as 'H100'")
    key = word.lower().strip().replace("-", "_")
    for chip in CHIPS.values():
        if key in names_of(chip):
            return chip
    sold = [name for chip in CHIPS.values() for name in sold_as(chip)]
    spellings = {name.lower(): name for name in (*others, *sold)}
    besides = ", ".join((*others, "an architecture such as hopper", "a target such as sm_90"))
    raise unknown(argument, word, sold, spellings, listing="docs/matrix-units.md", others=besides)


def names_of(chip: Chip) -> tuple[str, ...]:
    """What a chip is called, in lower case.

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, names_of
      >>> names_of(CHIPS["H100 SXM"])
      ('h100 sxm', 'h100', 'h200', 'gh200', 'hopper', 'sm_90', 'sm_90a')
    """
    targets = [chip.sm, *(f"{chip.sm}{letter}" for letter in chip.features)] if chip.sm else []
    names = (chip.name, *sold_as(chip), chip.arch, *targets)
    return tuple(dict.fromkeys(name.lower() for name in names))


def sold_as(chip: Chip) -> list[str]:
    """What is sold with a row's facts, without what follows on the form of the card.

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, sold_as
      >>> sold_as(CHIPS["H100 SXM"])
      ['H100', 'H200', 'GH200']
    """
    return [*(name.strip().removesuffix(" SXM") for name in chip.name.split(",")), *chip.others]
