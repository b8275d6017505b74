"""Schedules and accumulators parsed from the text of their `repr`, which files and users write."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from typing import Any

from fpsim.errors import nearest, shown, unknown
from fpsim.formats.named import NAMED
from fpsim.formats.named import format as find_format
from fpsim.lazy import deferred
from fpsim.schedules.libraries.cublas import cublas
from fpsim.schedules.libraries.cutlass import cutlass_2xacc, cutlass_blockwise
from fpsim.schedules.libraries.deepgemm import deepgemm
from fpsim.schedules.libraries.mkl import mkl
from fpsim.schedules.libraries.onednn import onednn
from fpsim.schedules.libraries.openblas import openblas
from fpsim.schedules.libraries.segments import rounds, segments
from fpsim.schedules.libraries.torch_cpu import torch_mm, torch_native
from fpsim.schedules.libraries.torch_rowwise import torch_rowwise
from fpsim.schedules.libraries.triton import triton
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.shaped import ShapedSchedule, is_regions
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

SCHEDULES = {maker.__name__: maker for maker in (
    cublas, cutlass_2xacc, cutlass_blockwise, deepgemm, torch_rowwise, triton,
)}  # fmt: skip
# Parts of other schedules, and libraries whose schedules depend on the shape.
PARTS: dict[str, Callable[..., Schedule]] = {maker.__name__: maker for maker in (rounds, segments)}
eigens = deferred("fpsim.schedules.libraries.eigen")
SHAPED: dict[str, Callable[..., ShapedSchedule]] = {
    "eigen": lambda *values, **keywords: eigens().eigen(*values, **keywords),
    **{maker.__name__: maker for maker in (mkl, onednn, openblas, torch_mm, torch_native)},
}
MAKERS: dict[str, Callable[..., Schedule | ShapedSchedule | Accumulator]] = (
    SCHEDULES
    | PARTS
    | SHAPED
    | {maker.__name__: maker for maker in (Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential)}
)


def no_schedule(got: object) -> TypeError:
    """Return the error for an argument that is not a schedule; a string gets a suggestion of similarly named ones.

    Example:
      >>> from fpsim.schedules.written import no_schedule
      >>> print(no_schedule("cutlas_2xacc"))
      schedule must be one of fp.schedules, such as fp.schedules.FLAT, or made by one of its 6 functions
      (fp.schedules.ROWS has an example of each); got 'cutlas_2xacc'. Did you mean fp.schedules.cutlass_2xacc(...)?
      >>> [str(no_schedule(got)).partition("mean ")[2] for got in ("flat", "cutlass", 3)]
      ['fp.schedules.FLAT?', 'fp.schedules.cutlass_2xacc(...) or fp.schedules.cutlass_blockwise(...)?', '']
    """
    if isinstance(got, ShapedSchedule):
        return TypeError(
            f"schedule must be that of one shape here; got {got}, which chooses one by the shape. Pass "
            "its .at(m, n, k, fmt).schedule, with .accumulate."
        )
    if is_regions(got):
        return TypeError(
            f"schedule must be one order of additions here; got {got}, which has one for each region of the result. "
            "Pass its .order_at(row, column) to fp.schedules.tree."
        )
    meant = schedules_meant(got) if isinstance(got, str) else []
    hint = f" Did you mean {' or '.join(meant)}?" if meant else ""
    return TypeError(
        f"schedule must be one of fp.schedules, such as fp.schedules.FLAT, or made by one of its {len(SCHEDULES)} "
        f"functions (fp.schedules.ROWS has an example of each); got {shown(got)}.{hint}"
    )


def schedules_meant(text: str) -> list[str]:
    """Return the calls of the schedules that a text may mean.

    These are the schedules whose names begin with the name in the text, or else the one with the most similar name. The
    list is empty if no name is similar.

    Example:
      >>> from fpsim.schedules.written import schedules_meant
      >>> schedules_meant("deepgem('1d2d')"), schedules_meant("word")
      (['fp.schedules.deepgemm(...)'], [])
    """
    name = text.partition("(")[0].removeprefix("fp.schedules.")
    words = {FLAT.name: "fp.schedules.FLAT", **{maker: f"fp.schedules.{maker}(...)" for maker in SCHEDULES}}
    meant = [words[word] for word in words if name and word.lower().startswith(name.lower())]
    near = None if meant else nearest(name.lower(), words)
    return [*meant, words[near]] if near else meant


def parsed(text: str) -> Schedule | ShapedSchedule | Accumulator:
    """Return the schedule or accumulator whose `repr` is the given text.

    Only calls of their functions with plain values and names of formats are read; no code is evaluated.

    Raises:
      ValueError: the text is not such a call.

    Example:
      >>> from fpsim.schedules.written import parsed
      >>> parsed("Chunked(FP16, chunk=64, outer=FP32)"), parsed("cublas('sm_90', split_k=4)")
      (Chunked(FP16, chunk=64, outer=FP32), cublas('sm_90', split_k=4))
    """
    wanted = 'a schedule or an accumulator as it is written, such as "deepgemm(\'1d2d\')" or "Sequential(BF16)"'
    if text == FLAT.name:
        return FLAT
    call: ast.expr | None = None
    with contextlib.suppress(SyntaxError, ValueError, TypeError, MemoryError, RecursionError):  # the last: deep nesting
        call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{wanted} is needed; got {shown(text)}.")
    if call.func.id not in MAKERS:
        raise unknown(
            "schedule or accumulator", call.func.id, [*MAKERS, FLAT.name], listing="docs/schedules.md"
        )  # fmt: skip
    values = [_value(node, text) for node in call.args]
    keywords = {word.arg or "": _value(word.value, text) for word in call.keywords}
    if len(keywords) < len(call.keywords):
        raise ValueError(f"{wanted} is needed; got {shown(text)}, which repeats a keyword.")
    try:
        return MAKERS[call.func.id](*values, **keywords)
    except TypeError as reason:
        raise ValueError(f"{wanted} is needed; got {shown(text)}: {reason}") from None


def _value(node: ast.expr, text: str) -> Any:
    """Return the value of an argument: a literal, or a format by its name.

    node: the argument's syntax tree. text: the whole call, for the message.

    Raises:
      ValueError: the argument is another expression, or no format has that name.
    """
    if isinstance(node, ast.Name):
        return NAMED.get(node.id) or find_format(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        raise ValueError(
            f"{shown(text)} must have plain values and names of formats; got {ast.unparse(node)}."
        ) from None
