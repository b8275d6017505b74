"""A product as data, what a library is thought to do with it, and the words that this would give."""

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
from fpsim.matrix_units.catalogue import unit as find_unit
from fpsim.products.matmul import matmul
from fpsim.schedules import Schedule

Words = npt.NDArray[Any]


class ProductProblem(NamedTuple):
    """A product: codes, scales and the format of the result."""

    name: str
    unit: str  # of the instructions that the library is expected to use
    a: Words  # (M, K)
    b: Words  # (K, N)
    c: npt.NDArray[np.float32] | None = None  # (M, N), where the accumulator starts
    scale_a: npt.NDArray[np.float32] | None = None
    scale_b: npt.NDArray[np.float32] | None = None
    bias: Words | None = None  # (N,) words of the result's format
    out: str = "fp32"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


class LibraryModel(NamedTuple):
    """What a library is thought to do, in words that a record can hold.

    schedule: a call of `fpsim.schedules`, such as "cublas('sm_90', split_k=4)", or "FLAT". The others change it:
    unit: another one's name; scale_order: of the epilogue, or of the blocks; fused_bias: fma(s, sum, bias); slices and
    grain: K cut into so many slices of whole runs of terms; k_order: "pairs" takes, of every 32 terms, those with
    k mod 4 in {0, 1} before the others.
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
    """The schedule that a model names.

    Raises:
      ValueError: words that are no call of `fpsim.schedules` with plain values.

    Example:
      >>> from fpsim.gpu.lab.model import LibraryModel, built
      >>> built(LibraryModel("cublas('sm_90', split_k=4)", scale_order="a_first")).epilogue.scale_order
      'a_first'
    """
    found = _called(model.schedule)
    epilogue = found.epilogue
    if model.scale_order:
        epilogue = replace(epilogue, scale_order=model.scale_order)  # type: ignore[arg-type]
    if model.fused_bias:
        epilogue = replace(epilogue, fused_bias=True)
    slicing = found.slicing
    if model.slices:
        slicing = replace(slicing, count=model.slices, rule="ceiling")
    if model.grain:
        slicing = replace(slicing, grain=model.grain)
    return replace(found, epilogue=epilogue, slicing=slicing)


def _called(words: str) -> Schedule:
    """A schedule by its words, without running code."""
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
    except SyntaxError:
        raise refusal from None
    made: Schedule = getattr(schedules, name.id)(*positional, **named)
    return made


MAKERS = ("FLAT", "cublas", "cutlass_2xacc", "cutlass_blockwise", "deepgemm", "torch_rowwise", "triton")


def predict(problem: ProductProblem, model: LibraryModel) -> Words:
    """The words of a product as the model has it: uint8, uint16 or uint32.

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
        order = _pairs_first(a.shape[1])
        a, b = np.ascontiguousarray(a[:, order]), np.ascontiguousarray(b[order])
    out = find_format(problem.out)
    bias = None if problem.bias is None else decode(problem.bias, out)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that the library's heuristic would choose another kernel
        found = matmul(
            a, b, problem.c, accumulate=unit, schedule=built(model), scale_a=problem.scale_a, scale_b=problem.scale_b,
            bias=bias, out_fmt=None if problem.out == "fp32" else out, strict=False,
        )  # fmt: skip
    return np.ascontiguousarray(found).view(f"u{found.dtype.itemsize}")


def _carried(codes: Words, name: str, side: str, unit: Any) -> Words:
    """Codes of the problem's unit as those of another unit, which holds all their values."""
    source, wanted = getattr(find_unit(name), side), getattr(unit, side)
    if source == wanted:
        return codes
    values = decode(codes, source.fmt)
    return np.asarray(values.astype(np.float16).view(np.uint16)) if wanted.name == "f16" else codes


def _pairs_first(k: int) -> npt.NDArray[np.int64]:
    """0 .. k - 1, of every 32 those with k mod 4 in {0, 1} first."""
    terms = np.arange(k)
    return terms[np.lexsort((terms, terms % 4 > 1, terms // 32))]
