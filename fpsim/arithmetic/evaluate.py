"""From checked operands to results: takes the route, runs it over the arrays, and collects the flags."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.keywords import WantedFlags, complete
from fpsim.arithmetic.operands import Operands, common_format, operands, result_array
from fpsim.arithmetic.operation import Operation, operation
from fpsim.arrays import Array
from fpsim.errors import unknown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.ieee import Flags
from fpsim.formats.named import Format


def rounded_operation(
    name: str, formats: tuple[Format, ...], words: dict[str, Any], out_fmt: FormatLike | None = None
) -> Operation:
    """An operation that rounds, by its complete keywords; out_fmt: where it is no keyword."""
    fmt = common_format(name, formats, words["out_fmt"] if out_fmt is None else out_fmt)
    return operation(
        name, formats, fmt, rounding=words["rounding"], overflow=words["overflow"], subnormals=words["subnormals"],
        seed=words["seed"], random_bits=words["random_bits"], input_subnormals=words["input_subnormals"],
        tininess=words["tininess"],
    )  # fmt: skip


def evaluate_rounded(
    name: str, values: tuple[npt.ArrayLike, ...], keywords: Any, out_fmt: FormatLike | None = None
) -> Any:
    """The result of an operation that rounds, with flags where they are wanted."""
    words = complete(name, keywords)
    given = operands(name, values, words["fmt"])
    what = rounded_operation(name, given.formats, words, out_fmt)
    fmt = what.result.fmt
    result, target = result_array(words["out"], given, fmt)
    return evaluate(what, given, result, target, words["flags"])


def evaluate(what: Operation, given: Operands, result: Array, target: Array, flags: WantedFlags) -> Any:
    """Fill target, which is result's memory, and return result, with the flags where they are wanted."""
    from fpsim.arithmetic.routes import route
    from fpsim.casts.pipelines import encoding
    from fpsim.runtime.elementwise import run_elementwise
    from fpsim.runtime.pipeline import run_stages

    if not (isinstance(flags, (bool, np.bool_)) or flags == "any"):
        raise unknown("flags", flags, ("False", "True", "any"))
    if what.name == "convert" and what.input_subnormals == "keep" and not flags and what.formats[0].bits > 16:
        run_stages(encoding(what.formats[0], what.result), given.codes[0], target)  # a cast: no table, and no flags
        return result
    run = route(what, target.size)
    if flags == "any":
        raised, lock = Flags.NONE, Lock()

        def run_and_collect(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int) -> None:
            nonlocal raised
            each = np.empty(targets[0].size, np.uint8)
            run(sources, (*targets, each), first)
            found = Flags(int(np.bitwise_or.reduce(each, initial=0)))
            with lock:
                raised |= found

        run_elementwise(run_and_collect, given.codes, (target,), given.shape, whole=False)
        return result, raised
    if flags:
        each = np.empty(given.shape, np.uint8)
        run_elementwise(run, given.codes, (target, each), given.shape)
        return result, each
    run_elementwise(run, given.codes, (target,), given.shape)
    return result
