"""Integers of 2 to 8 bits packed into 32-bit words: along rows (compressed-tensors), columns (GPTQ), or as in AWQ."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fpsim.analysis.tensors.layouts.parts import Decoder, LayoutError, WeightParts
from fpsim.analysis.tensors.layouts.unpacking import WORD, awq_fields, fields, fields_down, rounded_like, word_of_ones
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.arrays import Array

SAMPLE = 1 << 20  # codes from which the convention of the zero points is inferred
WIDTHS = (2, 3, 4, 8)


def packed_rows(parts: WeightParts) -> Tensor:
    """Return a weight in compressed-tensors' pack-quantized layout: codes are packed along rows, zero points along
    columns.

    A value is (code - zero point) * scale, rounded to the scales' dtype. Without zero points, 2^(bits - 1) is
    subtracted. The result decodes its values when they are read.

    Raises:
      LayoutError: the shapes do not fit each other.

    Source: compressed-tensors, whose own reader returns the same bits.
    """
    codes, stored = parts.codes, parts.beside["scale"]
    _refuse_floats(parts, "shape", "zero_point", "group")
    shape = tuple(int(n) for n in parts.array("shape").reshape(-1))
    if len(shape) != 2 or len(codes.shape) != 2 or len(stored.shape) != 2 or min(shape) < 1:
        raise LayoutError(f"it has the shape {shape}, codes of shape {codes.shape} and scales of shape {stored.shape}")
    n, k = shape
    groups = stored.shape[1]
    bits = _bits_of_rows(parts, n, k)
    if codes.shape[0] != n or not bits or stored.shape[0] not in (1, n) or not groups or k % groups:
        raise LayoutError(
            f"its codes of shape {codes.shape} and scales of shape {stored.shape} do not fit the shape {shape}"
        )
    if "zero_point" in parts.beside and parts.beside["zero_point"].shape != (-(-n * bits // WORD), groups):
        of_zeros = parts.beside["zero_point"].shape
        raise LayoutError(f"its zero points of shape {of_zeros} do not fit its scales of shape {stored.shape}")
    dtype = dtype_of(stored.dtype)
    of_column = groups_of(parts, k, groups)

    def load() -> Decoder:
        scales = np.broadcast_to(parts.floats("scale"), (n, groups))
        zeros = np.full((n, groups), np.float32(1 << bits - 1))
        if "zero_point" in parts.beside:
            zeros = fields_down(parts.array("zero_point"), bits, n).astype(np.float32)

        def decode(band: Array, first: int) -> Array:
            rows = slice(first, first + len(band))
            differences = fields(band, bits, k).astype(np.float32) - zeros[rows][:, of_column]
            with np.errstate(all="ignore"):  # scales may be anything
                return rounded_like(differences * scales[rows][:, of_column], dtype)

        return decode

    return parts.weight(shape, _words(bits, k, groups), load)


def _bits_of_rows(parts: WeightParts, n: int, k: int) -> int:
    """Return the bits of a code in compressed-tensors' packed layout; 0 if no number of bits fits the codes' shape.

    If the weight has few inputs, several numbers of bits may fit. Preferred are numbers that also fit the shape of the
    zero points; of these, one that the configuration names; and then 4. n, k: outputs and inputs of the weight.
    """
    columns, zeros, groups = parts.codes.shape[1], parts.beside.get("zero_point"), parts.settings.get("config_groups")
    schemes = groups.values() if isinstance(groups, Mapping) else ()
    weights = [scheme.get("weights") for scheme in schemes if isinstance(scheme, Mapping)]
    configured = [one.get("num_bits") for one in weights if isinstance(one, Mapping)]

    def rank(bits: int) -> tuple[bool, bool, bool]:
        misfits = zeros is not None and zeros.shape[:1] != (-(-n * bits // WORD),)
        return misfits, bits not in configured, bits != 4

    return min((bits for bits in WIDTHS if -(-k * bits // WORD) == columns), key=rank, default=0)


def packed_columns(parts: WeightParts) -> Tensor:
    """Return a weight in GPTQ's or AWQ's layout, (inputs, outputs), whose last axis is that of the outputs.

    A value is (code - zero point) * scale, rounded to the scales' dtype. GPTQ's first version stores zero points minus
    one: each 32-bit word of packed zero points minus a word of ones, so that a zero point of 0 borrows from the next.
    The version is inferred. If a version decodes all zero points to the middle code, it is that version, unless one is
    configured together with `sym` false. Otherwise it is the configured version, or if none is configured, the one
    whose zero points are nearer to the mean codes of groups.

    Raises:
      LayoutError: the shapes do not fit each other.

    Source: gptqmodel and autoawq, whose own readers return the same bits.
    """
    codes, stored, packed = parts.codes, parts.beside["scale"], parts.beside["zero_point"]
    _refuse_floats(parts, "zero_point", "group")
    if any(len(one.shape) != 2 or not one.size for one in (codes, stored, packed)):
        raise LayoutError(f"its codes have the shape {codes.shape} and its scales {stored.shape}; wanted matrices")
    groups, n = stored.shape
    bits = packed.shape[1] * WORD // n if packed.shape[0] == groups else 0
    along_rows = codes.shape[1] == packed.shape[1] and codes.shape[1] != n  # AWQ
    if bits not in (WIDTHS if along_rows else (2, 4, 8)) or packed.shape[1] * WORD != n * bits or (
        not along_rows and codes.shape[1] != n
    ):  # fmt: skip
        raise LayoutError(
            f"its codes of shape {codes.shape}, scales of shape {stored.shape} and zero points of shape {packed.shape} "
            "do not fit codes of 2, 4 or 8 bits"
        )
    if along_rows:
        return _awq(parts, bits)
    k = codes.shape[0] * WORD // bits
    group_of = groups_of(parts, k, groups)
    version, zeros = _zero_points(parts, bits, n, group_of)
    dtype, per_word = dtype_of(stored.dtype), WORD // bits

    def load() -> Decoder:
        scales = parts.floats("scale")

        def decode(band: Array, first: int) -> Array:
            groups = group_of[first * per_word : (first + len(band)) * per_word]
            differences = fields_down(band, bits, len(band) * per_word).astype(np.float32) - zeros[groups]
            with np.errstate(all="ignore"):  # scales may be anything
                return rounded_like(differences * scales[groups], dtype)

        return decode

    return parts.weight((k, n), f"{_words(bits, k, groups)} (GPTQ {version})", load, outputs_last=True)


def _awq(parts: WeightParts, bits: int) -> Tensor:
    """Return a weight in AWQ's layout, (inputs, outputs): (code - zero point) * scale, rounded to the scales' dtype.

    bits: bits of a code, inferred from the shapes of the tensors. Raises a LayoutError unless `bits` is 4 and the
    number of inputs is a multiple of the number of groups.
    """
    if bits != 4:
        raise LayoutError(f"its zero points have the shape of AWQ in {bits} bits; wanted 4")
    (k, _), (groups, n) = parts.codes.shape, parts.beside["scale"].shape
    if k % groups:
        raise LayoutError(f"its {k} rows are not a multiple of its {groups} groups")
    dtype = dtype_of(parts.beside["scale"].dtype)

    def load() -> Decoder:
        scales = parts.floats("scale")
        zeros = awq_fields(parts.array("zero_point")).astype(np.float32)

        def decode(band: Array, first: int) -> Array:
            group_of = np.arange(first, first + len(band)) // (k // groups)
            differences = awq_fields(band).astype(np.float32) - zeros[group_of]
            with np.errstate(all="ignore"):  # scales may be anything
                return rounded_like(differences * scales[group_of], dtype)

        return decode

    return parts.weight((k, n), f"{_words(4, k, groups)} (AWQ)", load, outputs_last=True)


def groups_of(parts: WeightParts, k: int, groups: int) -> Array:
    """Return, for each of the `k` inputs of a weight, the index of the group whose scale the input uses.

    The indices are those of the tensor g_idx if there is one; else all groups have k / groups inputs. Raises a
    LayoutError if the indices are out of range or not k, or k is not a multiple of `groups`.
    """
    if "group" not in parts.beside:
        if k % groups:
            raise LayoutError(f"its {k} inputs are not a multiple of its {groups} groups")
        return np.arange(k) // (k // groups)
    group_of = parts.array("group").reshape(-1)
    if group_of.size != k or not k:
        raise LayoutError(f"its g_idx has {group_of.size} entries; it has {k} inputs")
    if group_of.min() < 0 or group_of.max() >= groups:
        raise LayoutError(f"its g_idx names groups from {group_of.min()} to {group_of.max()}; it has {groups}")
    return group_of


def _zero_points(parts: WeightParts, bits: int, n: int, group_of: Array) -> tuple[str, Array]:
    """Return (version of GPTQ that wrote the weight, "v1" or "v2"; its zero points, (groups, n) float32).

    If a version decodes all zero points to the middle code, it is that version, unless one is configured together with
    `sym` false. Otherwise it is the configured version, or if none is configured, the one whose zero points are nearer
    to the mean codes of their groups. `bits`: bits of a code. `n`: number of outputs. `group_of`: index of the group of
    each input.
    """
    readings = read_zero_points(parts, bits, n)
    zeros = {f"v{version}": read.astype(np.float32) for version, read in readings.items()}
    said = {"gptq_v2": "v2", "gptq": "v1"}.get(str(parts.settings.get("checkpoint_format", "")))
    middle = 1 << bits - 1
    symmetric = [version for version, read in zeros.items() if (read == middle).all()]
    asymmetric = said is not None and parts.settings.get("sym") is False
    if symmetric and not asymmetric:  # the configuration of some files of symmetric codes names the wrong version
        return symmetric[0], zeros[symmetric[0]]
    if said is not None:
        return said, zeros[said]
    rows = max(SAMPLE // n // (WORD // bits), 1)
    band = next(iter(parts.codes.chunks(rows * n))).reshape(-1, n)
    count = len(band) * (WORD // bits)
    codes = fields_down(band, bits, count).astype(np.float32)
    used = group_of[:count]
    centred = {
        version: abs(float(np.median([np.mean(codes[used == group], 0) - read[group] for group in np.unique(used)])))
        for version, read in zeros.items()
    }
    version = min(centred, key=centred.__getitem__)
    return version, zeros[version]


def read_zero_points(parts: WeightParts, bits: int, n: int) -> dict[int, Array]:
    """Return the zero points as each version of GPTQ decodes them: version (1 or 2) -> (groups, n) uint8.

    bits: bits of a code. n: number of outputs.
    """
    words = parts.array("zero_point").view(np.uint32)
    with np.errstate(over="ignore"):
        return {1: fields(words + word_of_ones(bits), bits, n), 2: fields(words, bits, n)}


def _refuse_floats(parts: WeightParts, *keys: str) -> None:
    """Raise a LayoutError if a tensor parts.beside[key], for one of `keys`, does not hold integers.

    Zero points must be 32-bit words. Keys that are not in `parts.beside` are ignored.
    """
    for key in keys:
        dtypes = ("int32", "uint32") if key == "zero_point" else ("int32", "int64")
        if key in parts.beside and parts.beside[key].dtype not in dtypes:
            one = parts.beside[key]
            raise LayoutError(f"its {one.name.rpartition('.')[2]} holds {one.dtype}; wanted {dtypes[0]}")


def _words(bits: int, k: int, groups: int) -> str:
    """Return the integer format and the size of the groups as text, such as "INT4 in groups of 128".

    bits: bits of a code. k: number of inputs. groups: number of groups.
    """
    return f"INT{bits} with row scales" if groups == 1 else f"INT{bits} in groups of {math.ceil(k / groups)}"
