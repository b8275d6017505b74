"""Chips as data: a row per compute target, with the names that units, compilers and CUDA have for it.

What a row leaves out is not known here with a source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fpsim.errors import require_kind, shown, unknown
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
      gfx: what AMD's compilers call it, "gfx942".
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
CHIPS: dict[str, Chip] = {chip.name: chip for chip in ROWS}
# Words of full names, such as "NVIDIA H100 80GB HBM3", that say who makes a card and in which form.
BESIDES = re.compile(
    r"nvidia|amd|geforce|tesla|instinct|laptop|gpu|generation|edition|server|workstation|sff|super|ti|oam|pcie|nvl\d*|sxm\d?|hbm\d?e?|"
    r"\d+gb?|dgx|hgx"
)


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
    """Return the chip that a word names: as it is sold, its architecture, or the name of compilers for it.

    Of several chips of an architecture it is the first. Words on the maker and the form of a card may stand beside the
    name, as in "NVIDIA H100 80GB HBM3".

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
    chip = find(word)
    if chip is not None:
        return chip
    key = _key(word)
    for target, names in WITHOUT_UNITS.items():
        if key in map(_key, (target, *names)):
            raise ValueError(
                f"{argument} must be a chip whose matrix units are known here; got {shown(word)} ({target}), whose are "
                "not. docs/matrix-units.md lists the known ones."
            )
    sold = [name for chip in CHIPS.values() for name in sold_as(chip)]
    spellings = {name.lower(): name for name in (*others, *sold, *(chip.arch for chip in CHIPS.values()))}
    besides = ", ".join((*others, "an architecture such as hopper", "a target such as sm_90"))
    raise unknown(argument, word, sold, spellings, listing="docs/matrix-units.md", others=besides)


def find(word: object) -> Chip | None:
    """Return the chip that a word names, as of `named`, or None.

    Example:
      >>> from fpsim.matrix_units.chips import find
      >>> find("NVIDIA GeForce RTX 4090").arch, find("A100-SXM4-80GB").arch, find("H10")
      ('ada', 'ampere', None)
    """
    key = _key(word) if isinstance(word, str) else ""
    return next((chip for chip in CHIPS.values() if key in map(_key, names_of(chip))), None) if key else None


def _key(word: str) -> str:
    """Return a name in lower case without the maker, the form of the card, spaces, hyphens and underscores."""
    return "".join(part for part in re.split(r"[\s_-]+", word.lower()) if not BESIDES.fullmatch(part))


def names_of(chip: Chip) -> tuple[str, ...]:
    """Return the names of a chip in lower case.

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, names_of
      >>> names_of(CHIPS["H100 SXM"])
      ('h100 sxm', 'h100', 'h200', 'gh200', 'h800', 'h20', 'hopper', 'sm_90', 'sm_90a')
      >>> names_of(CHIPS["MI300"])
      ('mi300', 'mi300a', 'mi300x', 'mi325x', 'cdna3', 'gfx942')
    """
    targets = [chip.sm, *(f"{chip.sm}{letter}" for letter in chip.features)] if chip.sm else []
    targets += [chip.gfx] if chip.gfx else []
    names = (chip.name, *sold_as(chip), chip.arch, *targets)
    return tuple(dict.fromkeys(name.lower() for name in names))


def sold_as(chip: Chip) -> list[str]:
    """What is sold with a row's facts, without what follows on the form of the card.

    Example:
      >>> from fpsim.matrix_units.chips import CHIPS, sold_as
      >>> sold_as(CHIPS["H100 SXM"])
      ['H100', 'H200', 'GH200', 'H800', 'H20']
    """
    return [*(name.strip().removesuffix(" SXM") for name in chip.name.split(",")), *chip.others]
