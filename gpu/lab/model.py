"""A matrix product as data, a model of how a library adds it, and the bits that the model predicts."""

from __future__ import annotations

import ast
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim import schedules
from fpsim.casts.cast import decode
from fpsim.errors import shown
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.products.matmul import matmul
from fpsim.schedules import Schedule

Words = npt.NDArray[Any]


class ProductProblem(NamedTuple):
    """A matrix product as data.

    Attributes:
      name: name of the set of inputs, such as "cancelling".
      unit: name of the matrix unit that the library is expected to use.
      a, b: codes of the operands, (M, K) and (K, N).
      c: float32 (M, N), to which products are added; None for 0.
      scale_a, scale_b: decode scales, float32; None for none.
      bias: codes of the result's format, (N,); None for none.
      out: name of the result's format.
    """

    name: str
    unit: str
    a: Words
    b: Words
    c: npt.NDArray[np.float32] | None = None
    scale_a: npt.NDArray[np.float32] | None = None
    scale_b: npt.NDArray[np.float32] | None = None
    bias: Words | None = None
    out: str = "fp32"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the product, (M, N, K)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


class LibraryModel(NamedTuple):
    """A model of how a library computes a product, as text and numbers that a recording can store.

    Attributes:
      schedule: a call of `fpsim.schedules`, such as "cublas('sm_90', split_k=4)"; or "FLAT", the matrix unit's
        instructions one after another over all of K.
      unit: name of a matrix unit to use instead of the product's; "" for the product's.
      scale_order: order in which two scales are multiplied, `fpsim.schedules.Epilogue.scale_order`: "product",
        "a_first", "b_first" or "cublas"; "" for the schedule's.
      fused_bias: True if the epilogue is fma(scale, sum, bias).
      slices, grain: number of slices of K, and number of terms of which the length of each slice is a multiple; 0 for
        the schedule's.
      k_order: "pairs" adds, of every 32 terms, those with k mod 4 in {0, 1} before the others; "" adds in order.
    """

    schedule: str = "FLAT"
    unit: str = ""
    scale_order: str = ""
    fused_bias: bool = False
    slices: int = 0
    grain: int = 0
    k_order: str = ""

    def __str__(self) -> str:
        settings = self._asdict() | {"schedule": ""}
        changes = ", ".join(f"{name} {value}" for name, value in settings.items() if value)
        return f"{self.schedule} with {changes}" if changes else self.schedule


def built(model: LibraryModel) -> Schedule:
    """Return the schedule that a model describes, with the model's changes of scale order, bias and slices.

    Raises a ValueError if the text is not a call of `fpsim.schedules` with plain values.

    Example:
      >>> from fpsim.gpu.lab.model import LibraryModel, built
      >>> built(LibraryModel("cublas('sm_90', split_k=4)", scale_order="a_first")).epilogue.scale_order
      'a_first'
    """
    schedule = _called(model.schedule)
    epilogue = schedule.epilogue
    if model.scale_order:
        epilogue = replace(epilogue, scale_order=model.scale_order)  # type: ignore[arg-type]
    if model.fused_bias:
        epilogue = replace(epilogue, fused_bias=True)
    slicing = schedule.slicing
    if model.slices:
        slicing = replace(slicing, count=model.slices, rule="ceiling")
    if model.grain:
        slicing = replace(slicing, grain=model.grain)
    return replace(schedule, epilogue=epilogue, slicing=slicing)


def _called(words: str) -> Schedule:
    """Return the schedule for a text such as "cutlass_2xacc(64)", parsed without running it as code."""
    refusal = ValueError(f"a model's schedule must be FLAT or a call of fpsim.schedules; got {shown(words)}.")
    try:
        node = ast.parse(words, mode="eval").body
        call = node if isinstance(node, ast.Call) else None
        name = call.func if call is not None else node
        if not isinstance(name, ast.Name) or name.id not in MAKERS or (call is None) != (name.id == "FLAT"):
            raise refusal
        if call is None:
            return schedules.FLAT
        positional = [ast.literal_eval(value) for value in call.args]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: deep nesting
        raise refusal from None
    made: Schedule = getattr(schedules, name.id)(*positional, **named)
    return made


MAKERS = ("FLAT", "cublas", "cutlass_2xacc", "cutlass_blockwise", "deepgemm", "torch_rowwise", "triton")


def predict(problem: ProductProblem, model: LibraryModel) -> Words:
    """Return the bits of a product's result that a model predicts, (M, N) uint8, uint16 or uint32.

    problem: the product with its operands.

    Example:
      >>> import numpy as np
      >>> from fpsim.gpu.lab.model import LibraryModel, ProductProblem, predict
      >>> ones = np.full((2, 2), 0x38, np.uint8)
      >>> predict(ProductProblem("ones", "hopper_e4m3_f32", ones, ones), LibraryModel("FLAT")).view(np.float32)[0, 0]
      np.float32(2.0)
    """
    unit = find_unit(model.unit or problem.unit)
    a, b = _carried(problem.a, problem.unit, "a", unit), _carried(problem.b, problem.unit, "b", unit)
    if model.k_order == "pairs":
        terms = np.arange(a.shape[1])
        order = terms[np.lexsort((terms, terms % 4 > 1, terms // 32))]
        a, b = np.ascontiguousarray(a[:, order]), np.ascontiguousarray(b[order])
    out = find_format(problem.out)
    bias = None if problem.bias is None else decode(problem.bias, out)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # warnings that the library's heuristic would choose another kernel
        result = matmul(
            a, b, problem.c, accumulate=unit, schedule=built(model), scale_a=problem.scale_a, scale_b=problem.scale_b,
            bias=bias, out_fmt=None if problem.out == "fp32" else out, strict=False,
        )  # fmt: skip
    return np.ascontiguousarray(result).view(f"u{result.dtype.itemsize}")


def _carried(codes: Words, name: str, side: str, unit: Any) -> Words:
    """Return the codes of an operand, converted to the format that `unit` reads.

    codes: codes in the format that the unit called `name` reads; the format of `unit` has all their values. side: the
    operand, "a" or "b".
    """
    source, wanted = getattr(find_unit(name), side), getattr(unit, side)
    if source == wanted:
        return codes
    values = decode(codes, source.fmt)
    return np.asarray(values.astype(np.float16).view(np.uint16)) if wanted.name == "f16" else codes
