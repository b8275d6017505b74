"""Computing of the outputs of test vectors with fpsim: casts, arithmetic, matrix instructions, products, tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim import schedules
from fpsim.arithmetic import functions
from fpsim.casts.cast import decode, encode
from fpsim.core.layouts import encode_plan
from fpsim.errors import unknown
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding
from fpsim.instructions.dot_add import dot_add
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.conformance.loops import drawn_kernel
from fpsim.testing.conformance.vectors import Field, Vectors, Words, in_words, split
from fpsim.testing.products.integers import integers_from

Columns = list[npt.NDArray[Any]]
Fields = tuple[Field, ...]
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(functions, name) for name in ("add", "subtract", "multiply", "divide", "remainder", "sqrt", "fma")
}
COUNTS = {"sqrt": 1, "fma": 3}  # operands of operations that have other than two
WORD_BITS = 32  # bits of a random number
POLICY = ("rounding", "overflow", "subnormals")


def computed(vectors: Vectors) -> Words:
    """Return the outputs that fpsim computes for a set of test vectors: codes, uint64, (cases, numbers).

    Raises:
      ValueError: the kind, a keyword or a field of the set is unknown, or they do not fit each other.
    """
    if vectors.kind not in KINDS:
        raise unknown("kind of set", vectors.kind, list(KINDS))
    fields, run = KINDS[vectors.kind]
    try:
        takes, gives = fields(vectors)
        if (vectors.takes, vectors.gives) != (takes, gives):
            raise ValueError(f"{vectors.title!r} must have in={in_words(takes)} and out={in_words(gives)}.")
        if not len(vectors.inputs):
            return vectors.outputs
        with np.errstate(all="ignore"):
            outputs = run(vectors, split(vectors.inputs, vectors.takes))
    except KeyError as missing:
        raise ValueError(f"a set of {vectors.kind} must have the word {missing}.") from None
    parts = [np.asarray(part).reshape(len(vectors.inputs), -1).astype(np.uint64) for part in outputs]
    return np.concatenate(parts, axis=1)


def _format(vectors: Vectors, word: str = "format") -> Format:
    """Return the format that the keyword `word` of a set of test vectors names."""
    return find_format(vectors.words[word])


def _policy(vectors: Vectors) -> dict[str, Any]:
    """Return the cast policy of a set of test vectors as keywords of `encode`; raise a ValueError if stochastic."""
    if vectors.words["rounding"] == "stochastic":
        raise ValueError("rounding must be one that needs no random numbers; got 'stochastic'. Use stochastic_cast.")
    return {word: vectors.words[word] for word in POLICY}


def _integer(vectors: Vectors, word: str) -> int:
    """Return the keyword `word` of a set of test vectors as an integer; raise a ValueError unless it is 1 to 8191."""
    text = vectors.words[word]
    if not text.isdigit() or not 0 < int(text) < 1 << 13:
        raise ValueError(f"{word} must be an integer from 1 to 8191; got {text!r}.")
    return int(text)


# ---- fields: functions of a set of test vectors, which return (fields of the inputs, fields of the outputs)


def _cast_fields(vectors: Vectors) -> tuple[Fields, Fields]:
    """Return (input fields, output fields) of a set of casts; raise a ValueError if they are not from FP32 or FP64."""
    source = _format(vectors, "from")
    if source.name not in ("FP32", "FP64"):
        raise ValueError(f"from must be FP32 or FP64; got {source.name}.")
    return (Field(source, 1),), (Field(_format(vectors), 1),)


def unit_fields(unit: MatrixUnit | IntegerUnit, k: int) -> tuple[Fields, Fields]:
    """Return (input fields, output fields) of one case of a matrix unit that adds k products to a start value.

    The inputs are k codes of a, k codes of b and the start value. A unit with block scales also takes the codes of
    k / unit.block scales of a, and of as many of b. The output is a code of the accumulator.
    """
    if isinstance(unit, IntegerUnit):
        return (Field(unit.a, k), Field(unit.b, k), Field(unit.d, 1)), (Field(unit.d, 1),)
    takes = [Field(unit.a.carrier, k), Field(unit.b.carrier, k), Field(unit.d.carrier, 1)]
    if unit.scale_format is not None:
        takes += [Field(unit.scale_format, k // unit.block)] * 2
    return tuple(takes), (Field(unit.d.carrier, 1),)


def _tile_fields(vectors: Vectors) -> tuple[Fields, Fields]:
    """Return (input fields, output fields) of a set of test vectors that encode tiles.

    A case has the float32 values of a tile as inputs. Its outputs are their codes and the code of the tile's scale.
    """
    size, scaling = _integer(vectors, "elements"), scaling_of(vectors.words["scaling"])
    return (Field(FP32, size),), (Field(_format(vectors), size), Field(scaling.scale_format, 1))


def matrix_fields(fmt: Format, scaling: Scaling, rows: int, elements: int) -> tuple[Fields, Fields]:
    """Return (input fields, output fields) of a case that encodes a matrix with two levels of scales.

    The inputs are its float32 values. The outputs are their codes, the codes of the tile scales, and the float32 scale
    of the whole array.

    Args:
      fmt: the format of the codes.
      scaling: the recipe.
      rows, elements: shape of the matrix; tiles run along the elements of a row.
    """
    size = rows * elements
    tiles = rows * -(-elements // scaling.block[-1])
    return (Field(FP32, size),), (Field(fmt, size), Field(scaling.scale_format, tiles), Field(FP32, 1))


def _matrix_fields(vectors: Vectors) -> tuple[Fields, Fields]:
    """Return (input fields, output fields) of a set of scaled matrices, as `matrix_fields` does.

    Raises:
      ValueError: the set's scaling has no scale of the whole array.
    """
    scaling = scaling_of(vectors.words["scaling"])
    if not scaling.tensor_scale:
        raise ValueError(f"scaling must have a scale of the array, as NVFP4 has; got {vectors.words['scaling']!r}.")
    return matrix_fields(_format(vectors), scaling, _integer(vectors, "rows"), _integer(vectors, "elements"))


# ---- results: functions of a set and of the inputs of its fields, (cases, numbers) each, which return output codes


def _cast(vectors: Vectors, columns: Columns) -> Columns:
    """Return a list of one array (cases,): the codes to which a set of casts rounds its floats.

    The codes are in the storage dtype of their format. columns[0]: bit patterns of the floats, (cases, 1). vectors: the
    set, with its format and cast policy.
    """
    x = columns[0][:, 0].view(np.float32 if vectors.takes[0].fmt == FP32 else np.float64)
    return [encode(x, _format(vectors), **_policy(vectors))]


def _stochastic_cast(vectors: Vectors, columns: Columns) -> Columns:
    """Return a list of one array (cases,): the codes to which a set of stochastic casts rounds its floats.

    The codes are unsigned integers as wide as the floats. columns: bit patterns of the floats, and the random number of
    each rounding, from 0 to 2**32 - 1; each (cases, 1). vectors: the set, with its format and cast policy.
    """
    fmt, width = _format(vectors), vectors.takes[0].fmt.bits
    plan = encode_plan(
        fmt, width, Rounding.STOCHASTIC, vectors.words["overflow"], vectors.words["subnormals"], WORD_BITS
    )
    x, drawn = (column[:, 0].astype(plan.layout.dtype) for column in columns)
    codes = np.zeros(x.size, plan.layout.dtype)
    drawn_kernel(width)(x, drawn, codes, plan.layout, np.int64(Rounding.STOCHASTIC), np.int64(plan.kind))
    return [codes]


def _dot_add(vectors: Vectors, columns: Columns) -> Columns:
    """Return a list of one array (cases,): the results of a matrix instruction for all cases of a set of test vectors.

    Results are codes of the accumulator in its storage dtype; uint32 for integer units. columns: codes of a, of b, of
    the accumulator's start, and of any scales of a and b, each (cases, numbers). vectors: the set, which names the
    instruction by its keyword "unit".
    """
    a, b, c, *scales = columns
    unit = any_unit("unit", vectors.words["unit"])
    if isinstance(unit, IntegerUnit):
        elements = unit.a, unit.b, unit.d
        left, right, start = (integers_from(codes, of) for codes, of in zip(columns, elements, strict=True))
        return [dot_add(left, right, start[:, 0], unit).view(np.uint32)]
    keywords = dict(zip(("scale_a", "scale_b"), scales, strict=False))
    return [dot_add(a, b, c[:, 0], vectors.words["unit"], **keywords)]


def _matmul(vectors: Vectors, columns: Columns) -> Columns:
    """Return a list of one uint32 array (cases,): for each case the product a @ b, as a float32 bit pattern.

    Each partial sum of a fixed number of terms is added to a float32 total. columns: codes of a and of b, each
    (cases, K). vectors: the set of test vectors, which names the matrix unit ("unit") and the number of terms of a
    partial sum ("promote").
    """
    schedule = schedules.cutlass_2xacc(_integer(vectors, "promote"))
    products = [
        matmul(a[None], b[:, None], accumulate=vectors.words["unit"], schedule=schedule, strict=False)
        for a, b in zip(*columns, strict=True)
    ]
    return [np.array([product[0, 0] for product in products], np.float32).view(np.uint32)]


def _scaled(vectors: Vectors, columns: Columns) -> Columns:
    """Return [codes of the elements of each tile, (cases, elements), code of each tile's scale, (cases,)].

    Codes are in the storage dtypes of their formats. If the recipe rounds scales to no format, the second array has
    float32 bit patterns of the scales. vectors: the set of test vectors, with its format and recipe. columns[0]:
    float32 bit patterns of the values, one tile per row.
    """
    x = columns[0].view(np.float32)
    fmt, scaling = _format(vectors), scaling_of(vectors.words["scaling"])
    tiles = [encode_scaled(row[None], fmt, scaling) for row in x]  # a tile by itself, whatever the scaling's block
    scales = np.array([tile.scales.ravel()[0] for tile in tiles], np.float32)
    codes = [tile.scale_codes.ravel()[0] for tile in tiles if tile.scale_codes is not None]
    return [np.concatenate([tile.codes for tile in tiles]), np.array(codes) if codes else scales.view(np.uint32)]


def _scaled_matrix(vectors: Vectors, columns: Columns) -> Columns:
    """Return [codes of elements, codes of tile scales, scales of whole matrices], with one matrix per case.

    The first two arrays have a row per case; the third has float32 bit patterns, (cases,). columns[0]: float32 bit
    patterns of the values, one matrix per row. vectors: the set of test vectors, with its format, its recipe, and the
    rows and elements of a matrix.
    """
    shape = _integer(vectors, "rows"), _integer(vectors, "elements")
    fmt, scaling = _format(vectors), scaling_of(vectors.words["scaling"])
    encoded = [encode_scaled(x.view(np.float32).reshape(shape), fmt, scaling) for x in columns[0]]
    codes = np.stack([q.codes.ravel() for q in encoded])
    scale_codes = np.stack([np.asarray(q.scale_codes).ravel() for q in encoded])
    return [codes, scale_codes, np.array([q.tensor_scale for q in encoded], np.float32).view(np.uint32)]


KINDS: dict[str, tuple[Callable[[Vectors], tuple[Fields, Fields]], Callable[[Vectors, Columns], Columns]]] = {
    "cast": (_cast_fields, _cast),
    "decode": (
        lambda vectors: ((Field(_format(vectors), 1),), (Field(FP32, 1),)),
        lambda vectors, columns: [decode(columns[0][:, 0], _format(vectors), np.float32).view(np.uint32)],
    ),
    **dict.fromkeys(OPERATIONS, (
        lambda vectors: ((Field(_format(vectors), 1),) * COUNTS.get(vectors.kind, 2), (Field(_format(vectors), 1),)),
        lambda vectors, columns: [OPERATIONS[vectors.kind](
            *(column[:, 0] for column in columns), fmt=_format(vectors), **_policy(vectors))],
    )),
    "dot_add": (
        lambda vectors: unit_fields(any_unit("unit", vectors.words["unit"]), _integer(vectors, "terms")), _dot_add,
    ),
    "matmul": (
        lambda vectors: (unit_fields(find_unit(vectors.words["unit"]), _integer(vectors, "terms"))[0][:2],
                         (Field(FP32, 1),)), _matmul,
    ),
    "stochastic_cast": (  # the field of the random number has a format as every field has, and as many bits
        lambda vectors: ((_cast_fields(vectors)[0][0], Field(FP32, 1)), _cast_fields(vectors)[1]), _stochastic_cast,
    ),
    "scaled_matrix": (_matrix_fields, _scaled_matrix),
    "scaled": (_tile_fields, _scaled),
}  # fmt: skip


def is_nan(outputs: Words, fields: tuple[Field, ...]) -> npt.NDArray[np.bool_]:
    """Return a bool mask, in the shape of `outputs`, of the codes that stand for NaN; integers never do.

    outputs: uint64 codes, (cases, numbers): one row per test case, one column per number that a case has as results.
    fields: for each group of consecutive columns, in order, its format and its number of columns.
    """
    parts = [
        np.isnan(decode(part, field.fmt, np.float64)) if isinstance(field.fmt, Format) else np.zeros(part.shape, bool)
        for part, field in zip(split(outputs, fields), fields, strict=True)
    ]
    return np.concatenate(parts, axis=1)
