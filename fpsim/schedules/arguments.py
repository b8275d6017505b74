"""Checks of the arguments that schedules of several libraries share."""

from __future__ import annotations

from fpsim.errors import is_integer, shown
from fpsim.matrix_units.chips import CHIPS, NamedChip, resolve
from fpsim.schedules.schedule import ScaleOrder

ORDERS: tuple[ScaleOrder, ...] = ("product", "a_first", "b_first")  # of applying two scales
LARGEST = (1 << 31) - 1  # size, which the libraries keep in 32 bits


def positive(value: int, name: str, largest: int = LARGEST) -> int:
    """Return an argument's value as an int, after checking it; name: the argument's name, for errors.

    Raises:
      ValueError: the value is not a positive integer, or it is larger than `largest`.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(f"{name} must be a positive integer; got {shown(value)}.")
    if value > largest:
        raise ValueError(f"{name} must be at most {largest}; got 2**{int(value).bit_length() - 1} or more.")
    return int(value)


def chip_of(name: str, library: str, architectures: tuple[str, ...]) -> NamedChip:
    """Return the chip that `name` means, if the library's order of additions is known on its architecture.

    name: the chip, its architecture or its target, such as "H100", "hopper" or "sm_90", alone or with the library's
    name. library: name of the library, such as "cuBLAS". architectures: names of the architectures on which the order
    of the library is known.

    Raises:
      ValueError: there is no such chip, the library's order on it is not known, or the name also names another library.
      TypeError: the name is not a string.

    Example:
      >>> from fpsim.schedules.arguments import chip_of
      >>> [chip_of(name, "cuBLAS", ("hopper",)).chip.sm for name in ("sm_90a", "hopper", "H100", "H100 cuBLAS")]
      ['sm_90', 'sm_90', 'sm_90', 'sm_90']
    """
    named = resolve(name)
    if named.library not in ("", library):
        raise ValueError(f"chip must be one alone or with {library}; got {shown(name)}. Leave {named.library} out.")
    if named.chip.arch not in architectures:
        known = dict.fromkeys(
            word for chip in CHIPS.values() if chip.arch in architectures for word in (chip.sm, chip.arch)
        )
        raise ValueError(
            f"chip must be one of {', '.join(known)}; got {shown(name)}, on which the order of {library} is not known "
            "here."
        )
    return named


def call_text(maker: str, *values: object, **fields: tuple[object, object]) -> str:
    """Return the Python text of a call of the function `maker`, without keywords that have their default value.

    values: positional arguments. fields: keyword -> (value, default). NumPy integers are written as Python's.

    Example:
      >>> from fpsim.schedules.arguments import call_text
      >>> call_text("onednn", "amx", threads=(2, 1), layout=("nn", "nn"))
      "onednn('amx', threads=2)"
    """
    passed = [("", value) for value in values] + [(f"{name}=", x) for name, (x, usual) in fields.items() if x != usual]
    words = (f"{name}{shown(int(value) if is_integer(value) else value)}" for name, value in passed)  # type: ignore[call-overload]
    return f"{maker}({', '.join(words)})"
