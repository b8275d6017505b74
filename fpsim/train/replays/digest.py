"""The digest of a run: one number for all weights, moments and losses after each step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np

from fpsim.arrays import Array

VERSION = 1  # of the arithmetic of a step: a change of bits raises it, and says so in CHANGES
CHANGES: dict[int, str] = {}  # version -> what changed in it, and since which release
NAN = 0x7FC00000
DIGITS = 32


def next_digest(before: str, step: int, loss: float, arrays: Iterable[tuple[str, Array]]) -> str:
    """Return the digest after a step: the version, a hyphen, and 32 hexadecimal digits.

    They are the first 16 bytes of SHA-256 over a text, "digest-before step loss" with the loss as float.hex writes it
    ("nan" for every NaN), and then over each array: "name shape", and its float32 elements in C order, low byte first,
    every NaN as 0x7FC00000. Texts end with a line feed.

    Args:
      before: the digest before the step, "" before the first one.
      step: the number of the step, from 0.
      loss: the step's loss.
      arrays: name and float32 array of everything that is kept after the step.

    Example:
      >>> from fpsim.train.replays.digest import next_digest
      >>> next_digest("", 0, 1.5, [("w", np.float32([1, 2]))])
      '1-ff5beef639e50647eba0a6ba0b5484cd'
    """
    digest = hashlib.sha256()
    digest.update(f"{before} {step} {'nan' if math.isnan(loss) else loss.hex()}\n".encode())
    for name, array in arrays:
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(canonical(array).tobytes())
    return f"{VERSION}-{digest.hexdigest()[:DIGITS]}"


def canonical(array: Array) -> Array:
    """Return the bits of a float32 array as bytes in C order, every NaN as the quiet one without a sign."""
    flat = np.ascontiguousarray(array, "<f4").reshape(-1)
    if np.isnan(flat).any():
        flat = np.where(np.isnan(flat), np.uint32(NAN).view(np.float32), flat)
    return flat.view(np.uint8)


def require_version(digest: str) -> None:
    """Raise a ValueError unless a digest is of this version of the arithmetic."""
    version, _, digits = digest.partition("-")
    if not version.isdigit() or len(digits) != DIGITS:
        raise ValueError(f"a digest must be a version, a hyphen and 32 hexadecimal digits; got {digest!r}.")
    if int(version) == VERSION:
        return
    changed = [CHANGES[number] for number in sorted(CHANGES) if int(version) < number <= VERSION]
    reason = "; ".join(changed) if changed else "by a newer fpsim, which this one does not know"
    raise ValueError(
        f"digests must be of version {VERSION} of the arithmetic of training; got one of version {version}. Its bits "
        f"differ {'since ' if changed else ''}{reason}. Train again, or install the fpsim that made it."
    )


def state_arrays(optimizer: Mapping[str, Array], weights: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """Return the arrays of a digest in order: what the optimizer keeps, and the weights that the model sees."""
    return [*sorted(optimizer.items()), *sorted((f"model/{name}", array) for name, array in weights.items())]
