"""Evaluation of an elementwise operation: validates the call, chooses an implementation, runs it, collects flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.keywords import complete
from fpsim.arithmetic.operands import Operands, check_output, integers, operands
from fpsim.arithmetic.operation import deciding, integer_dtype, operation_of
from fpsim.arrays import Array, words
from fpsim.errors import unknown
from fpsim.formats.cast_options import checked_seed
from fpsim.formats.ieee import Flags
from fpsim.formats.named import DTYPES, Format
from fpsim.runtime.elementwise import Run, run_elementwise
from fpsim.runtime.pipeline import Stage, run_stages


class CallPlan(NamedTuple):
    """The result's dtype and the loops of an operation, for all calls with the same formats and keywords.

    A loop is `run(sources, targets, first)`: it fills targets, 1-D arrays, from sources; first: flat index of the
    arrays' first element.

    Attributes:
      dtype: dtype of the result.
      accepted: dtypes that `out` may have.
      holds_codes: whether results are codes (not bools, classes or integers).
      core: the loop in exact integer arithmetic, which is correct for every number of results.
      core_below: the number of results below which `core` is always the fastest loop.
      route: function from a number of results to the fastest loop for it.
      cast: for a conversion that runs as a cast, the function from a seed, or None, to the cast's kernels (`Stage`);
        None for other operations.
      draws: whether the loops take a keyword argument `seed`, as stochastic ones do.
    """

    dtype: np.dtype[Any]
    accepted: frozenset[np.dtype[Any]]
    holds_codes: bool
    core: Run
    core_below: int
    route: Callable[[int], Run]
    cast: Callable[[int | None], tuple[Stage, ...]] | None
    draws: bool


def evaluate(name: str, values: tuple[npt.ArrayLike, ...], keywords: Mapping[str, Any], target: Any = None) -> Any:
    """Return the result of an operation on arrays; with the keyword `flags`, a tuple (result, flags).

    Args:
      name: the operation's name in `fpsim`, such as "add".
      values: the operands: arrays of float dtypes, or unsigned codes.
      keywords: the keywords of the call, as for `fpsim.add`. With `out`, that array is filled and returned.
      target: the format that convert and from_int round to, the dtype of to_int; else None.

    Raises:
      TypeError: an unknown keyword, or an operand of a wrong dtype.
      ValueError: a wrong option, format or `out`, codes out of range, or shapes that do not broadcast.
    """
    options = complete(name, keywords)
    inputs = integers(values[0]) if name == "from_int" else operands(name, values, options["fmt"])
    integer = inputs.codes[0].dtype if name == "from_int" else None
    seed = options["seed"]
    if seed is not None:
        seed, options = checked_seed(seed), {**options, "seed": 0}  # one plan for all seeds
    key = (name, inputs.formats, inputs.typed, target, integer, *deciding(options))
    try:
        plan = _plan(*key)
    except TypeError:  # an argument cannot be hashed: the checks raise an error that names it
        plan = _plan.__wrapped__(*key)
    result, flags = options["out"], options["flags"]
    if result is None:
        result = np.empty(inputs.shape, plan.dtype)
    else:
        check_output(result, inputs, plan.accepted)
    filled = words(result) if plan.holds_codes else result
    if not isinstance(flags, (bool, np.bool_)) and (not isinstance(flags, str) or flags != "any"):
        raise unknown("flags", flags, ("False", "True", "any"))
    if plan.cast is not None and not flags:
        run_stages(plan.cast(seed), inputs.codes[0], filled)
        return result
    run = plan.core if result.size < plan.core_below else plan.route(result.size)
    if plan.draws:
        run = partial(run, seed=seed)  # type: ignore[call-arg]
    if not flags:
        run_elementwise(run, inputs.codes, (filled,), inputs.shape)
        return result
    if flags == "any":
        return result, _any_flags(run, inputs, filled)
    element_flags = np.empty(inputs.shape, np.uint8)
    run_elementwise(run, inputs.codes, (filled, element_flags), inputs.shape)
    return result, element_flags


def _any_flags(run: Run, inputs: Operands, filled: Array) -> Flags:
    """Run a loop on all operands, writing results to the array `filled`, and return the union of the flags raised.

    run: the loop, a function (sources, targets, first) -> None that fills targets, (piece of `filled`, uint8 flags),
    from sources, pieces of the operands; first: flat index of the pieces' first element. inputs: the operands.
    """
    raised, lock = Flags.NONE, Lock()

    def run_and_collect(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int) -> None:
        nonlocal raised
        element_flags = np.empty(targets[0].size, np.uint8)
        run(sources, (*targets, element_flags), first)
        piece_flags = Flags(int(np.bitwise_or.reduce(element_flags, initial=0)))
        with lock:
            raised |= piece_flags

    run_elementwise(run_and_collect, inputs.codes, (filled,), inputs.shape, whole=False)
    return raised


@lru_cache(maxsize=4096, typed=True)  # True and 1.0 equal 1, but are not numbers of bits
def _plan(
    name: str, formats: tuple[Format, ...], typed: bool, target: Any, integer: np.dtype[Any] | None, *words: Any
) -> CallPlan:
    """Return the result's dtype and the loops for calls of an operation with given formats and options; cached.

    name: the operation's name. formats: the operands' formats. typed: whether all operands have float dtypes. target:
    the format that convert and from_int round to, the dtype of to_int; else None. integer: dtype that from_int reads,
    else None. words: the values of out_fmt, rounding, overflow, subnormals, seed, random_bits, input_subnormals and
    tininess, in this order.

    Raises:
      ValueError: a wrong option or format.
    """
    from fpsim.arithmetic import routes
    from fpsim.casts.pipelines import encoding

    dtype = integer_dtype(target) if name == "to_int" else None
    operation = operation_of(name, formats, target, dtype.newbyteorder("=") if dtype else integer, *words)
    fmt, cast = operation.result.fmt, None

    def stages(seed: int | None) -> tuple[Stage, ...]:
        return encoding(formats[0], operation.result.with_seed(seed))

    if name == "convert" and operation.input_subnormals == "keep" and formats[0].bits > 16:
        cast = stages  # no table, and no flags
    if operation.holds_codes:
        accepted = {fmt.storage, DTYPES.get(fmt, fmt.storage)}
        dtype = DTYPES.get(fmt, fmt.storage) if typed else fmt.storage
    else:
        accepted = {operation.word}
        dtype = dtype or operation.word
    return CallPlan(
        dtype, frozenset(accepted), operation.holds_codes, routes.by_core(operation), routes.core_below(operation),
        partial(routes.route, operation), cast, operation.is_stochastic,
    )  # fmt: skip
