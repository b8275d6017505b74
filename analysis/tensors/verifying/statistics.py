"""Checks that read codes as a whole: zero points that are off, GPTQ's version, the order of AWQ's columns.

Weights have a mean near zero, so the mean code of a group lies near its zero point. One group says little; the median
over many is within a small part of a code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.unpacking import AWQ_ORDER, WORD, fields, fields_down
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.arrays import Array

COLUMNS = 512  # outputs of a weight that are looked at
ENOUGH = 24  # groups below which nothing is said
OFF = 0.5  # codes by which the median may be away
SURE = 4.0  # standard errors of a median that is believed
MEDIAN = 1.2533  # standard error of a median, in those of a mean
PLAIN_ORDER = np.arange(8)


class Offsets(NamedTuple):
    """The distances of the mean codes of groups from their zero points.

    `median` and `error` (its standard error) are in codes; `spread` is the mean distance; `groups` how many there are.
    """

    median: float
    error: float
    spread: float
    groups: int

    @property
    def is_off(self) -> bool:
        """True where the zero points are off for certain."""
        return self.groups >= ENOUGH and abs(self.median) > OFF and abs(self.median) - SURE * self.error > 0

    @property
    def is_blind(self) -> bool:
        """True where zero points that are off by one would not be seen."""
        return self.groups < ENOUGH or SURE * self.error > OFF


def offsets(codes: Array, zeros: Array, group_of: Array) -> Offsets:
    """Return how far the mean codes of groups are from their zero points.

    Args:
      codes: (K, N) codes.
      zeros: (groups, N) zero points.
      group_of: (K,) the group of each input.

    Example:
      >>> codes = np.tile(np.arange(16, dtype=np.uint8), (40, 1)).T
      >>> offsets(codes, np.full((1, 40), 7.5, np.float32), np.zeros(16, int)).median
      0.0
    """
    order = np.argsort(group_of, kind="stable")
    groups, starts = np.unique(group_of[order], return_index=True)
    sorted_codes = codes[order].astype(np.float32)
    counts = np.diff([*starts, len(order)])[:, None]
    means = np.add.reduceat(sorted_codes, starts, axis=0) / counts
    wide = np.maximum.reduceat(sorted_codes, starts, axis=0) - np.minimum.reduceat(sorted_codes, starts, axis=0) > 2
    differences = (means - zeros[groups])[wide]
    if not differences.size:
        return Offsets(0.0, 0.0, 0.0, 0)
    error = MEDIAN * float(np.std(differences)) / np.sqrt(differences.size)
    return Offsets(float(np.median(differences)), error, float(np.mean(np.abs(differences))), differences.size)


def gptq_findings(one: Recognised, bits: int, group_of: Array) -> Iterator[Finding]:
    """Yield what GPTQ's zero points contradict: the version that the configuration says, or their groups."""
    parts, name = one.parts, one.parts.name
    n = parts.beside["scale"].shape[1]
    words = parts.array("zero_point").view(np.uint32)
    stored = fields(words, bits, n)
    said = {"gptq_v2": 2, "gptq": 1}.get(str(parts.settings.get("checkpoint_format", "")), 0)
    if not said and parts.settings.get("quant_method") == "gptq":
        said = 1  # files without the key are of the first version
    middle = 1 << bits - 1
    first = int(stored.flat[0])
    if (stored == first).all():
        version = {middle: 2, middle - 1: 1}.get(first, 0)
        if not version:
            yield Finding(
                name,
                "symmetric zero point",
                f"{name}: all its zero points are stored as {first}; symmetric codes of {bits} bits have {middle} "
                f"(v2) or {middle - 1} (v1), so they are off.",
            )
        elif said and said != version:
            yield Finding(
                name,
                "version of GPTQ",
                f"{name}: the configuration says GPTQ v{said}, and all its zero points are stored as {first}, "
                f"which is v{version}'s middle.",
            )
        return
    if parts.settings.get("sym") is True:
        yield Finding(name, "not symmetric", f"{name}: the configuration says sym, and its zero points differ.")
    ones = np.uint32(sum(1 << place for place in range(0, WORD, bits)))
    with np.errstate(over="ignore"):
        first_version = fields(words + ones, bits, n)
    readings = {1: first_version, 2: stored}
    codes = _down(one, bits, n)
    wide = codes.shape[1]
    found = {
        version: offsets(codes, zeros[:, :wide].astype(np.float32), group_of) for version, zeros in readings.items()
    }
    read = said or (2 if one.weight is not None and one.weight.layout == "gptq_v2" else 1)
    other = 3 - read
    if found[read].is_off and not found[other].is_off and found[other].groups >= ENOUGH:
        yield Finding(
            name,
            "version of GPTQ",
            f"{name}: read as GPTQ v{read}, zero points are {found[read].median:+.2f} codes from the mean of their "
            f"groups, and read as v{other} {found[other].median:+.2f}: this is v{other}, or the zero points are "
            "off by one.",
        )
    else:
        yield from _off(name, found[read])
    zeros = readings[read]
    if read == 1 and (zeros == 0).any():
        carried = stored != (zeros.astype(int) - 1) % (1 << bits)
        yield Finding(
            name,
            "zero points of 0 in v1",
            f"{name}: {int((zeros == 0).sum())} of its zero points are 0, which GPTQ v1 stores as a borrow from "
            f"the next field of the word; readers that add 1 to each field read {int(carried.sum())} of "
            f"{zeros.size} wrongly.",
            False,
        )


def awq_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a lost order of AWQ's columns, or zero points that are off."""
    parts, name = one.parts, one.parts.name
    (k, words), groups = parts.codes.shape, parts.beside["scale"].shape[0]
    used = min(words, COLUMNS // 8)
    bands = [band.reshape(-1, words)[:, :used] for band in parts.codes.chunks(max((1 << 20) // words, 1) * words)]
    codes = fields(np.concatenate(bands), 4, 8 * used)
    zeros = fields(np.ascontiguousarray(parts.array("zero_point")[:, :used]), 4, 8 * used)
    group_of = np.arange(k) // (k // groups)
    right, plain = (np.arange(8 * used) // 8 * 8 + np.tile(order, used) for order in (AWQ_ORDER, PLAIN_ORDER))
    found = {
        (first, second): offsets(codes[:, one_way], zeros[:, other_way].astype(np.float32), group_of)
        for first, one_way in (("awq", right), ("plain", plain))
        for second, other_way in (("awq", right), ("plain", plain))
        if (first, second) != ("plain", "plain")
    }
    best = min(found, key=lambda pair: found[pair].spread)
    if (
        best != ("awq", "awq")
        and found[best].spread < 0.8 * found["awq", "awq"].spread
        and found[best].groups >= ENOUGH
    ):
        which = "qweight" if best[0] == "plain" else "qzeros"
        yield Finding(
            name,
            "order of AWQ",
            f"{name}: the nibbles of its {which} are in plain order; AWQ's order is 0 2 4 6 1 3 5 7, in which "
            "codes lie near their zero points no more.",
        )
    else:
        yield from _off(name, found["awq", "awq"])


def packed_findings(one: Recognised, bits: int, n: int, k: int) -> Iterator[Finding]:
    """Yield zero points of compressed-tensors' packed integers that are off."""
    parts, name = one.parts, one.parts.name
    groups = parts.beside["scale"].shape[1]
    rows = min(n, COLUMNS)
    codes = np.concatenate([band for band, _ in zip(_bands(one, rows), range(1), strict=False)])[:rows]
    zeros = fields_down(parts.array("zero_point"), bits, n)[:rows]
    group_of = np.arange(k) // -(-k // groups)
    yield from _off(name, offsets(fields(codes, bits, k).T, zeros.T.astype(np.float32), group_of))


def flat_findings(name: str, codes: Array, zeros: Array) -> Iterator[Finding]:
    """Yield a finding if zero points don't fit codes of the shape (groups, group size) with one zero point a group."""
    shape = codes.shape
    yield from _off(name, offsets(codes.T, zeros.reshape(1, -1), np.zeros(shape[1], np.int64)))


def _off(name: str, found: Offsets) -> Iterator[Finding]:
    """Yield a finding if zero points don't fit their codes, or if the data cannot show it."""
    if found.is_off:
        way = "low" if found.median > 0 else "high"
        yield Finding(
            name,
            "zero points off",
            f"{name}: its zero points are {abs(found.median):.2f} codes too {way} for the mean codes of their "
            f"groups ({found.groups} groups, standard error {found.error:.2f}).",
        )
    elif found.is_blind:
        yield Finding(
            name,
            "zero points not judged",
            f"{name}: zero points that are off by one would not be seen; there are too few groups, or codes spread "
            "too far.",
            False,
        )


def _down(one: Recognised, bits: int, n: int) -> Array:
    """Return codes of some outputs of GPTQ's layout: (K, outputs)."""
    wide = min(n, COLUMNS)
    per_word = WORD // bits
    bands = [band.reshape(-1, n)[:, :wide] for band in one.parts.codes.chunks(max((1 << 20) // n, 1) * n)]
    words = np.concatenate(bands)
    return fields_down(words, bits, len(words) * per_word)


def _bands(one: Recognised, rows: int) -> Iterator[Array]:
    """Yield bands of rows of words."""
    width = one.parts.codes.shape[1]
    for piece in one.parts.codes.chunks(rows * width):
        yield piece.reshape(-1, width)
