"""Chips as data: a row per compute target, with the names that units, compilers and CUDA have for it.

What a row leaves out is not known here with a source.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    name: str
    vendor: str
    arch: str
    sm: str = ""
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    features: str = ""
    source: str = ""


UNITS = "docs/matrix-units.md"  # chips whose output was compared, or whose manuals were read
GUIDE = "CUDA C++ Programming Guide, 5.4 and appendix on compute capabilities"
EQUIV = "facebookexperimental/triton, bitequiv/cublas_match"  # measured there

# fmt: off
ROWS = (
    Chip("V100", "NVIDIA", "volta", "sm_70", (7, 0), source=f"{UNITS}; {GUIDE}"),
    Chip("Turing", "NVIDIA", "turing", "sm_75", (7, 5), source=GUIDE),
    Chip("A100", "NVIDIA", "ampere", "sm_80", (8, 0), source=GUIDE),
    Chip("RTX 4060, RTX 1000 Ada, L40S", "NVIDIA", "ada", "sm_89", (8, 9), source=GUIDE),
    Chip("H100 SXM", "NVIDIA", "hopper", "sm_90", (9, 0), 132, "a", source=f"{GUIDE}; {EQUIV}"),
    Chip("GB200", "NVIDIA", "blackwell", "sm_100", (10, 0), 152, "a", source=f"{GUIDE}; {EQUIV}"),
    Chip("GB300", "NVIDIA", "blackwell", "sm_103", (10, 3), 152, source=f"{GUIDE}; {EQUIV}"),
    Chip("MI100", "AMD", "cdna1", source=UNITS),
    Chip("MI200", "AMD", "cdna2", source=UNITS),
    Chip("MI300", "AMD", "cdna3", source=UNITS),
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
