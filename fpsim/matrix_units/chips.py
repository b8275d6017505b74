"""Chips as data, one table row per compute target, and the one function that reads a chip's name in any spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fpsim.errors import require_kind, shown, unknown
from fpsim.reload import reloadable


@reloadable
@dataclass(frozen=True)
class Chip:
    """A chip, or the chips that share a compute target.

    Args:
      name: the name under which it is sold.
      vendor: "NVIDIA", "AMD", "Intel" or "Arm".
      arch: the architecture, as in the names of matrix units.
      sm: the compute target of NVIDIA's compilers, such as "sm_90"; "" if there is none.
      capability: the compute capability (major, minor); None if there is none.
      multiprocessors: the number of streaming multiprocessors; None if not known.
      features: letters that may follow `sm` in a compiler's target, such as "a" in "sm_90a"; "" for none.
      source: the source of these facts.
      others: other products with this compute target.
      gfx: the compute target of AMD's compilers, such as "gfx942"; "" if there is none.
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
    gfx: str = ""


UNITS = "docs/matrix-units.md"  # chips whose output was compared, or whose manuals were read
GUIDE = "CUDA C++ Programming Guide, 5.4 and appendix on compute capabilities"
EQUIV = "facebookexperimental/triton, bitequiv/cublas_match"  # measured there
SOLD = "developer.nvidia.com/cuda-gpus, and its page on legacy GPUs"  # which GPUs have which compute capability
MIG = "NVIDIA, Multi-Instance GPU User Guide, supported GPUs"  # H20: GH100, compute capability 9.0
LLM = "NVIDIA, TensorRT-LLM, supported hardware"  # L20: Ada Lovelace
BRIEF = "NVIDIA, Blackwell Architecture Technical Brief"  # HGX B100 and HGX B200 have one GPU
NVCC = "NVIDIA, nvcc, 5.2: GPU feature list"  # sm_100a, sm_103a
ROCM = "rocm.docs.amd.com, AMD GPU specifications"  # architectures and LLVM targets
NEOVERSE = "Arm, technical reference manuals of Neoverse V1 and V2: BFloat16 extension"
XEON = "Intel SDM, AMX-BF16 and AVX512_BF16"  # processors that have both
H800 = "DeepSeek-V3, arXiv:2412.19437, 3.1"

# fmt: off
ROWS = (
    Chip("V100", "NVIDIA", "volta", "sm_70", (7, 0), source=f"{UNITS}; {GUIDE}; {SOLD}",
         others=("TITAN V", "Quadro GV100")),
    Chip("Turing", "NVIDIA", "turing", "sm_75", (7, 5), source=f"{GUIDE}; {SOLD}",
         others=("T4", "RTX 2060", "RTX 2070", "RTX 2080", "TITAN RTX", "Quadro RTX 4000", "Quadro RTX 5000",
                 "Quadro RTX 6000", "Quadro RTX 8000")),
    Chip("A100", "NVIDIA", "ampere", "sm_80", (8, 0), source=f"{GUIDE}; {SOLD}", others=("A30",)),
    Chip("RTX 4060, RTX 1000 Ada, L40S", "NVIDIA", "ada", "sm_89", (8, 9), source=f"{GUIDE}; {SOLD}; {LLM}",
         others=("RTX 4050", "RTX 4070", "RTX 4080", "RTX 4090", "RTX 2000 Ada", "RTX 4000 Ada", "RTX 4500 Ada",
                 "RTX 5000 Ada", "RTX 6000 Ada", "L4", "L40", "L20")),
    Chip("H100 SXM", "NVIDIA", "hopper", "sm_90", (9, 0), 132, "a", f"{GUIDE}; {EQUIV}; {H800}; {MIG}",
         ("H200", "GH200", "H800", "H20")),
    Chip("GB200", "NVIDIA", "blackwell", "sm_100", (10, 0), 152, "a", f"{GUIDE}; {EQUIV}; {BRIEF}", ("B200", "B100")),
    Chip("GB300", "NVIDIA", "blackwell", "sm_103", (10, 3), 152, "a", f"{GUIDE}; {EQUIV}; {NVCC}", ("B300",)),
    Chip("MI100", "AMD", "cdna1", source=f"{UNITS}; {ROCM}", gfx="gfx908"),
    Chip("MI200", "AMD", "cdna2", source=f"{UNITS}; {ROCM}", others=("MI210", "MI250", "MI250X"), gfx="gfx90a"),
    Chip("MI300", "AMD", "cdna3", source=f"{UNITS}; {ROCM}", others=("MI300A", "MI300X", "MI325X"), gfx="gfx942"),
    Chip("Sapphire Rapids", "Intel", "x86", source=f"{UNITS}; {XEON}", others=("Emerald Rapids",)),
    Chip("Neoverse V1", "Arm", "arm", source=f"{UNITS}; {NEOVERSE}", others=("Neoverse V2",)),
)
# Chips whose matrix units are not known here: what they are called, and what they are sold as (SOLD; ROCM).
WITHOUT_UNITS = {
    "sm_86": ("RTX 3050", "RTX 3060", "RTX 3070", "RTX 3080", "RTX 3090", "RTX A2000",
              "RTX A3000", "RTX A4000", "RTX A5000", "RTX A6000", "A2", "A10", "A16", "A40"),
    "sm_87": ("Jetson AGX Orin", "Jetson Orin NX", "Jetson Orin Nano"),
    "sm_110": ("Jetson T5000", "Jetson T4000"),
    "sm_120": ("RTX 5050", "RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090", "RTX PRO 2000 Blackwell",
               "RTX PRO 4000 Blackwell", "RTX PRO 4500 Blackwell", "RTX PRO 5000 Blackwell", "RTX PRO 6000 Blackwell",
               "RTX PRO 6000 Blackwell Max-Q"),
    "sm_121": ("GB10", "DGX Spark", "GB10 (DGX Spark)"),
    "cdna4": ("MI350", "MI350X", "MI355X", "gfx950"),
}
# fmt: on
# Words of names of products that have fewer multiprocessors than the rest of their row -> their number. H20:
# inclusionAI/humming, pull request 76. H100 PCIe: NVIDIA, Hopper whitepaper. NVIDIA publishes no number for the H800
# PCIe; that of the H100 PCIe is taken.
FEWER = {("h20",): 78, ("h100", "pcie"): 114, ("h800", "pcie"): 114}
CHIPS: dict[str, Chip] = {chip.name: chip for chip in ROWS}
# Libraries that may follow the name of a chip; `fpsim.schedules.hardware` has their schedules.
LIBRARIES = ("cuBLAS", "cuBLAS fast", "CUTLASS", "DeepGEMM", "PyTorch")
OTHERS = "an architecture (hopper), target (sm_90) or capability (9.0), each also with a library (H100 cuBLAS)"
BETWEEN = r"[\s_-]+"  # between the words of a name
WITH_LIBRARY = re.compile(f"(.+?){BETWEEN}({'|'.join(LIBRARIES).replace(' ', BETWEEN)})", re.IGNORECASE)
# Words of full names, such as "NVIDIA H100 80GB HBM3", that state the maker and the form of a card.
FORM = re.compile(
    r"nvidia|amd|geforce|tesla|instinct|laptop|gpu|generation|edition|server|workstation|sff|super|ti|oam|pcie|nvl\d*|sxm\d?|ac|"
    r"hbm\d?e?|3e|\d+gb?|dgx|hgx|mig|\d+g\.\d+gb(\+me)?"
)


class NamedChip(NamedTuple):
    """A chip as a caller names it, and the library in the same name.

    Attributes:
      chip: the chip.
      library: the library that multiplies on it, one of LIBRARIES; "" for none.
      name: the chip's part of the name, as it was written.
    """

    chip: Chip
    library: str
    name: str

    @property
    def multiprocessors(self) -> int | None:
        """Number of streaming multiprocessors of the product that `name` means; None if not known, as of a part (MIG).

        Example:
          >>> from fpsim.matrix_units.chips import resolve
          >>> [resolve(name).multiprocessors for name in ("H100", "NVIDIA H100 PCIe", "H20", "hopper", "MI300")]
          [132, 114, 78, 132, None]
        """
        words = set(re.split(BETWEEN, self.name.lower()))
        if "mig" in words:
            return None
        return next((count for some, count in FEWER.items() if words.issuperset(some)), self.chip.multiprocessors)


def resolve(name: str, argument: str = "chip", others: Sequence[str] = ()) -> NamedChip:
    """Return the chip of a name in any of its spellings; every function with an argument `chip` calls this.

    If several chips share the name, for example an architecture, the first of them in the table is returned.

    Args:
      name: in any case: a chip as it is sold ("H100", "NVIDIA H100 80GB HBM3"), its architecture ("hopper"), a
        compiler's target ("sm_90", "gfx942") or a compute capability ("9.0"), alone or before a library
        ("H100 cuBLAS").
      argument: the argument's name, for errors.
      others: further strings that the argument may be, for errors.

    Raises:
      ValueError: no chip has that name, or fpsim does not know its matrix units.
      TypeError: the name is not a string.

    Example:
      >>> from fpsim.matrix_units.chips import resolve
      >>> [resolve(name).chip.name for name in ("h100", "B200", "sm_90a", "hopper", "9.0", "H100 cuBLAS")]
      ['H100 SXM', 'GB200', 'H100 SXM', 'H100 SXM', 'H100 SXM', 'H100 SXM']
      >>> resolve("H100 cuBLAS").library
      'cuBLAS'
    """
    require_kind(argument, name, str, "the name of a chip, such as 'H100'")
    chip = find(name)
    if chip is not None:
        return chip
    target = target_without_units(name)
    if target is not None:
        raise ValueError(
            f"{argument} must be a chip whose matrix units are known here; got {shown(name)} ({target}), whose are "
            "not. docs/matrix-units.md lists the known ones."
        )
    raise unknown(
        argument, name, all_sold(), {spelling.lower(): spelling for spelling in (*others, *spellings())},
        listing="docs/matrix-units.md", others=", ".join((*others, OTHERS)),
    )  # fmt: skip


def target_without_units(name: str) -> str | None:
    """Return the compute target of a chip whose matrix units are not known here, by any of its names; else None.

    Example:
      >>> from fpsim.matrix_units.chips import target_without_units
      >>> target_without_units("NVIDIA GeForce RTX 5090"), target_without_units("H100")
      ('sm_120', None)
    """
    key = _key(_parts(name)[0])
    targets = WITHOUT_UNITS.items()
    return next((of for of, names in targets if key in map(_key, (of, *capabilities(of), *names))), None)


def find(name: object) -> NamedChip | None:
    """Return the chip of a name, as `resolve` does, but None if there is none or `name` is not a string.

    Example:
      >>> from fpsim.matrix_units.chips import find
      >>> find("NVIDIA GeForce RTX 4090").chip.arch, find("A100-SXM4-80GB").chip.arch, find("H10")
      ('ada', 'ampere', None)
    """
    if not isinstance(name, str):
        return None
    written, library = _parts(name)
    by_key = _by_key(tuple(CHIPS.values()))
    chips = {by_key.get(_key(part)) for part in written.split("/")}  # "AMD Instinct MI250X/MI250" is one chip
    chip = chips.pop() if len(chips) == 1 else None
    return None if chip is None else NamedChip(chip, library, written)


def _parts(name: str) -> tuple[str, str]:
    """Split a name into chip and library: "H100 CUBLAS" gives ("H100", "cuBLAS"), and "H100" gives ("H100", "")."""
    match = WITH_LIBRARY.fullmatch(name.strip())
    if match is None:
        return name.strip(), ""
    key = _key(match[2])
    return match[1], next(library for library in LIBRARIES if _key(library) == key)


@lru_cache(maxsize=4)
def _by_key(chips: tuple[Chip, ...]) -> dict[str, Chip]:
    """Return a dict from every name of the chips, as `_key` normalises it, to the chip; cached.

    A name that several chips share, such as "hopper", leads to the first of them.
    """
    return {_key(name): chip for chip in reversed(chips) for name in names_of(chip)}


def _key(name: str) -> str:
    """Return a chip's name without maker, form of the card and separators: "NVIDIA A100-SXM4-80GB" gives "a100"."""
    return "".join(part for part in re.split(BETWEEN, name.lower()) if not FORM.fullmatch(part))


def names_of(chip: Chip) -> tuple[str, ...]:
    """Return all names of a chip in lower case: products, architecture, compute targets and compute capability.

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, names_of
      >>> names_of(CHIPS["H100 SXM"])
      ('h100 sxm', 'h100', 'h200', 'gh200', 'h800', 'h20', 'hopper', 'sm_90', 'sm_90a', '9.0')
      >>> names_of(CHIPS["MI300"])
      ('mi300', 'mi300a', 'mi300x', 'mi325x', 'cdna3', 'gfx942')
    """
    targets = [chip.sm, *(f"{chip.sm}{letter}" for letter in chip.features)] if chip.sm else []
    targets += [chip.gfx] if chip.gfx else []
    names = (chip.name, *sold_as(chip), chip.arch, *targets, *capabilities(chip.sm))
    return tuple(dict.fromkeys(name.lower() for name in names))


def sold_as(chip: Chip) -> list[str]:
    """List the products that a Chip stands for, without the form of the card (SXM).

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, sold_as
      >>> sold_as(CHIPS["H100 SXM"])
      ['H100', 'H200', 'GH200', 'H800', 'H20']
    """
    return [*(name.strip().removesuffix(" SXM") for name in chip.name.split(",")), *chip.others]


def all_sold() -> list[str]:
    """List the product names of all chips whose matrix units fpsim knows.

    Example:
      >>> from fpsim.matrix_units.chips import all_sold
      >>> all_sold()[:3]
      ['V100', 'TITAN V', 'Quadro GV100']
    """
    return [name for chip in CHIPS.values() for name in sold_as(chip)]


def spellings() -> list[str]:
    """List the names that error messages suggest: products, architectures, targets, and products with a library.

    Example:
      >>> from fpsim.matrix_units.chips import spellings
      >>> {"H100", "hopper", "sm_90", "9.0", "H100 cuBLAS"} <= set(spellings())
      True
    """
    names = [name for chip in CHIPS.values() for name in (*sold_as(chip), chip.arch, chip.sm, chip.gfx) if name]
    names += [capability for chip in CHIPS.values() for capability in capabilities(chip.sm)]
    return [*names, *(f"{name} {library}" for name in all_sold() for library in LIBRARIES)]


def capabilities(target: str) -> tuple[str, ...]:
    """Return the compute capability of a compiler's target as a tuple of one string; empty unless it is "sm_...".

    Example:
      >>> from fpsim.matrix_units.chips import capabilities
      >>> capabilities("sm_103"), capabilities("cdna4")
      (('10.3',), ())
    """
    return (f"{target[3:-1]}.{target[-1]}",) if target.startswith("sm_") else ()


def capability_of(chip: str) -> tuple[int, int]:
    """Return the compute capability (major, minor) of one of NVIDIA's chips; of an architecture, its lowest one.

    Raises a ValueError if there is no such chip, or it has no compute capability.

    Example:
      >>> from fpsim.matrix_units.chips import capability_of
      >>> capability_of("hopper"), capability_of("GB300")
      ((9, 0), (10, 3))
    """
    capability = resolve(chip).chip.capability
    if capability is None:
        raise ValueError(f"chip must be one with a compute capability, such as H100; got {shown(chip)}.")
    return capability
