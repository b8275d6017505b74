"""Checks of zero points against mean codes, which also detect a wrong version of GPTQ and a wrong order of AWQ.

Weights have a mean near zero, so that the mean code of a group is near its zero point. The distance of the two in a
single group shows little; its median over many groups is only a small fraction of a code, if the zero points are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fpsim.analysis.tensors.layouts.hqq import PACKINGS, grouped_codes
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.packed_integers import groups_of, read_zero_points
from fpsim.analysis.tensors.layouts.unpacking import AWQ_ORDER, WORD, fields, fields_down
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.arrays import Array
from fpsim.display.wording import are

COLUMNS = 512  # outputs of a weight that the checks read
ENOUGH = 24  # the number of groups below which the checks yield nothing
OFF = 0.5  # the distance of the median, in codes, up to which zero points count as correct
LEAN = 0.15  # the same in standard deviations of a group's codes, because the mean weight is not exactly 0
GROSS = 1.0  # the same where LEAN standard deviations are a code or more, as in 8 bits: only large faults show there
ZEROS = 0.6  # the share of a group's codes that are its zero point from which the weights are taken for sparse
SURE = 4.0  # the number of standard errors by which a median must exceed that distance
MEDIAN = 1.2533  # standard error of a median divided by that of a mean
PLAIN_ORDER = np.arange(8)


class Offsets(NamedTuple):
    """Statistics, over the groups of a weight, of the distance of a group's mean code from its zero point.

    Groups that cannot show a fault are left out: those whose largest and smallest code differ by 2 or less; those whose
    zero point is the smallest or largest code of all groups, as if their weights have one sign; and those in which more
    than 60 % of the codes are the zero point, as if weights are sparse.

    Attributes:
      median: the median of the distances (mean code - zero point), in codes.
      error: the standard error of the median, in codes.
      spread: the mean of the magnitudes of the distances, in codes.
      groups: the number of groups.
      deviation: the standard deviation of codes within their groups, as the root mean square over the groups.
    """

    median: float
    error: float
    spread: float
    groups: int
    deviation: float

    @property
    def limit(self) -> float:
        """Largest |median|, in codes, at which zero points count as correct.

        It is max(0.5, 0.15 * deviation), or the deviation itself if 0.15 * deviation is 1 code or more.
        """
        return max(OFF, LEAN * self.deviation) if LEAN * self.deviation < 1 else GROSS * self.deviation

    @property
    def is_off(self) -> bool:
        """True if zero points are wrong: for 24 groups or more, |median| exceeds both `limit` and 4 * error."""
        return self.groups >= ENOUGH and abs(self.median) > self.limit and abs(self.median) - SURE * self.error > 0

    @property
    def is_blind(self) -> bool:
        """True if these statistics could not show that zero points are wrong by one code.

        This is so if there are fewer than 24 groups, if 4 * error exceeds 0.5 codes, or if `limit` is 1 code or more.
        """
        return self.groups < ENOUGH or SURE * self.error > OFF or self.limit >= 1


NOTHING = Offsets(0.0, 0.0, 0.0, 0, 0.0)


def offsets(codes: Array, zeros: Array, group_of: Array) -> Offsets:
    """Return how far the mean codes of groups are from their zero points, as statistics over the groups.

    codes: (K, N) unsigned codes. zeros: (groups, N) zero points, float32. group_of: (K,), the index of the group of
    each input.

    Example:
      >>> codes = np.tile(np.arange(16, dtype=np.uint8), (40, 1)).T
      >>> offsets(codes, np.full((1, 40), 7.5, np.float32), np.zeros(16, int)).median
      0.0
    """
    if not codes.size:
        return NOTHING
    order = np.argsort(group_of, kind="stable")
    groups, starts = np.unique(group_of[order], return_index=True)
    sorted_codes = codes[order].astype(np.float32)
    counts = np.diff([*starts, len(order)])[:, None]
    means = np.add.reduceat(sorted_codes, starts, axis=0) / counts
    of_groups = zeros[groups]
    spans = np.maximum.reduceat(sorted_codes, starts, axis=0) - np.minimum.reduceat(sorted_codes, starts, axis=0)
    at_zero = np.abs(sorted_codes - np.repeat(of_groups, counts[:, 0], axis=0)) <= OFF
    at_end = np.minimum(np.abs(of_groups - codes.min()), np.abs(of_groups - codes.max())) <= OFF
    wide = (spans > 2) & ~at_end
    wide &= np.add.reduceat(at_zero, starts, axis=0, dtype=np.int64) <= ZEROS * counts
    differences = (means - of_groups)[wide]
    if not differences.size:
        return NOTHING
    squares = np.add.reduceat(np.square(sorted_codes), starts, axis=0) / counts
    deviation = float(np.sqrt(np.mean(np.maximum(squares - np.square(means), 0)[wide])))
    error = MEDIAN * float(np.std(differences)) / np.sqrt(differences.size)
    return Offsets(
        float(np.median(differences)), error, float(np.mean(np.abs(differences))), differences.size, deviation
    )


def gptq_findings(one: Recognised, bits: int, group_of: Array) -> Iterator[Finding]:
    """Yield findings on GPTQ zero points that contradict the configured version, or the mean codes of their groups.

    If all zero points are equal, they should be the middle code, unless the configuration says sym false. Otherwise
    they are decoded as GPTQ v1 and as v2, and those of the configured version should be near the mean codes. A note
    tells of zero points of 0 in v1, which some readers misread. `bits`: bits of a code. `group_of`: index of the group
    of each input.
    """
    parts, name = one.parts, one.parts.name
    n = parts.beside["scale"].shape[1]
    readings = read_zero_points(parts, bits, n)
    stored = readings[2]
    said = {"gptq_v2": 2, "gptq": 1}.get(str(parts.settings.get("checkpoint_format", "")), 0)
    if not said and parts.settings.get("quant_method") == "gptq":
        said = 1  # files without the key are of the first version
    if (stored == stored.flat[0]).all() and parts.settings.get("sym") is not False:
        yield from _symmetric_findings(name, bits, int(stored.flat[0]), said)
        return
    if parts.settings.get("sym") is True:
        yield Finding.about(
            name, "not symmetric", "the configuration says sym, and its zero points are not all the same."
        )
    words = _columns(parts.codes, COLUMNS)
    codes = fields_down(words, bits, len(words) * (WORD // bits))
    wide = codes.shape[1]
    by_version = {
        version: offsets(codes, zeros[:, :wide].astype(np.float32), group_of) for version, zeros in readings.items()
    }
    read = said or (2 if one.decoded.layout == "gptq_v2" else 1)
    other = 3 - read
    if by_version[read].is_off and not by_version[other].is_off and by_version[other].groups >= ENOUGH:
        yield Finding.about(name, "version of GPTQ", f"the mean codes of the groups are {by_version[read].median:+.2f} "
                            f"codes from the zero points read as GPTQ v{read}, and {by_version[other].median:+.2f} "
                            f"from those read as v{other}: the file is v{other}, or the zero points are off by "
                            "one.")  # fmt: skip
    else:
        yield from _off(name, by_version[read])
    zeros = readings[read]
    if read == 1 and (zeros == 0).any():
        count = int((zeros == 0).sum())
        carried = stored != (zeros.astype(int) - 1) % (1 << bits)
        yield Finding.about(name, "zero points of 0 in v1", f"{count} of its zero points {are(count)} 0, for "
                            "which GPTQ v1 borrows from the next field of the word; readers that add 1 to each field "
                            f"read {int(carried.sum())} of {zeros.size} wrongly.", False)  # fmt: skip


def _symmetric_findings(name: str, bits: int, stored: int, said: int) -> Iterator[Finding]:
    """Yield a finding on a GPTQ weight whose groups all have the same zero point, which should be the middle code.

    The middle code of 4 bits is 8; version 2 of GPTQ stores it as 8, version 1 as 7. The finding says that `stored` is
    neither, or belongs to another version than the configured one. name: name of the weight. bits: bits of a
    code. stored: the stored zero point. said: the configured version (1 or 2), 0 if unknown.
    """
    middle = 1 << bits - 1
    version = {middle: 2, middle - 1: 1}.get(stored, 0)
    if not version:
        yield Finding.about(name, "symmetric zero point", f"all its zero points are stored as {stored}; for symmetric "
                            f"codes of {bits} bits they are {middle} (v2) or {middle - 1} (v1).")  # fmt: skip
    elif said and said != version:
        yield Finding.about(name, "version of GPTQ", f"the configuration says GPTQ v{said}, and all its zero points "
                            f"are stored as {stored}, the middle code in v{version}.")  # fmt: skip


def awq_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if codes or zero points of an AWQ weight are packed in plain order, or zero points are wrong.

    AWQ's order of the nibbles in a word is 0 2 4 6 1 3 5 7. The codes (or the zero points) are judged to be in plain
    order if reading them so brings the mean codes of the groups at least 20 % nearer to the zero points. If neither are
    in plain order, the zero points must be near the mean codes.
    """
    parts, name = one.parts, one.parts.name
    (k, words), groups = parts.codes.shape, parts.beside["scale"].shape[0]
    used = min(words, COLUMNS // 8)
    codes = fields(_columns(parts.codes, used), 4, 8 * used)
    zeros = fields(np.ascontiguousarray(parts.array("zero_point")[:, :used]), 4, 8 * used)
    group_of = np.arange(k) // (k // groups)
    awq_order, plain_order = (np.arange(8 * used) // 8 * 8 + np.tile(order, used) for order in (AWQ_ORDER, PLAIN_ORDER))
    by_orders = {
        (first, second): offsets(codes[:, one_way], zeros[:, other_way].astype(np.float32), group_of)
        for first, one_way in (("awq", awq_order), ("plain", plain_order))
        for second, other_way in (("awq", awq_order), ("plain", plain_order))
        if (first, second) != ("plain", "plain")
    }
    best = min(by_orders, key=lambda pair: by_orders[pair].spread)
    if (
        best != ("awq", "awq")
        and by_orders[best].spread < 0.8 * by_orders["awq", "awq"].spread
        and by_orders[best].groups >= ENOUGH
    ):
        which = "qweight" if best[0] == "plain" else "qzeros"
        yield Finding.about(name, "order of AWQ", f"the nibbles of its {which} are in plain order instead of AWQ's, 0 "
                            "2 4 6 1 3 5 7: read in AWQ's order, the codes are not near their zero "
                            "points.")  # fmt: skip
    else:
        yield from _off(name, by_orders["awq", "awq"])


def packed_findings(one: Recognised, bits: int, n: int, k: int) -> Iterator[Finding]:
    """Yield a finding if zero points of compressed-tensors' packed integers are far from the mean codes of groups.

    `Offsets.is_off` says when they are too far. Yield a note instead if these data could not show an error of one code.
    At most 512 rows are checked.

    bits: bits of a code. n, k: outputs and inputs of the weight.
    """
    parts, name = one.parts, one.parts.name
    groups = parts.beside["scale"].shape[1]
    rows = min(n, COLUMNS)
    width = parts.codes.shape[1]
    codes = next(iter(parts.codes.chunks(rows * width))).reshape(-1, width)[:rows]
    zeros = fields_down(parts.array("zero_point"), bits, n)[:rows]
    group_of = groups_of(parts, k, groups)
    yield from _off(name, offsets(fields(codes, bits, k).T, zeros.T.astype(np.float32), group_of))


def hqq_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if an HQQ weight's zero points are too far from their groups' mean codes (`Offsets.is_off`).

    Groups whose zero point is not within the range of codes are left out: their weights all have one sign, so that
    their mean is not near 0.
    """
    zeros = one.parts.array("zero_point").reshape(-1).astype(np.float32)
    within = (zeros > 0) & (zeros < (1 << PACKINGS[one.parts.text("packing")]) - 1)
    yield from flat_findings(one.parts.name, grouped_codes(one.parts)[within], zeros[within])


def flat_findings(name: str, codes: Array, zeros: Array) -> Iterator[Finding]:
    """Yield a finding if zero points of the weight `name` are too far from their groups' mean codes (`Offsets.is_off`).

    codes: (groups, group size). zeros: the zero point of each group, float32.
    """
    yield from _off(name, offsets(codes.T, zeros.reshape(1, -1), np.zeros(codes.shape[1], np.int64)))


def _off(name: str, distances: Offsets) -> Iterator[Finding]:
    """Yield a finding if `distances` show that the zero points of the weight `name` are wrong.

    Yield a note instead if the groups are too few, or their codes too spread, to tell.
    """
    if distances.is_off:
        way = "low" if distances.median > 0 else "high"
        yield Finding.about(name, "zero points off", f"its zero points are {abs(distances.median):.2f} codes too {way} "
                            f"against the mean codes of their groups ({distances.groups} groups, standard error "
                            f"{distances.error:.2f}).")  # fmt: skip
    elif distances.is_blind:
        yield Finding.about(name, "zero points not judged", "the codes do not show whether zero points are off by one: "
                            "the groups are too few, or the codes of a group too spread.", False)  # fmt: skip


def _columns(words: Tensor, most: int) -> Array:
    """Return the first `most` columns of the stored matrix `words` as an array."""
    width = words.shape[1]
    bands = words.chunks(max((1 << 20) // width, 1) * width)
    return np.concatenate([band.reshape(-1, width)[:, :most] for band in bands])
