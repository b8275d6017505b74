"""Training of recorded runs again, on another backend or machine, to find the first operation whose result differs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.divergence.divergence import Divergence
from fpsim.errors import require_integer, require_kind, require_word
from fpsim.probe.probing import matmul as find_order
from fpsim.torch.operators import one_thread, torch
from fpsim.torch.plan import BACKENDS
from fpsim.train.loop import Trainer
from fpsim.train.operations import WORDS
from fpsim.train.operations.trace import OperationTrace, canonical
from fpsim.train.record import machine, require_version
from fpsim.train.runs import Run, require_progress, traced_step
from fpsim.train.side_by_side import RunSide, compared_step, side

KERNELS = {  # torch's operations whose bits are known to depend on environment variables or the processor
    "mm": "a product by MKL or oneDNN", "bmm": "a product by MKL", "addmm": "a product by MKL or oneDNN",
    "_softmax": "torch's vector code of softmax", "_log_softmax": "torch's vector code of log-softmax",
    "_softmax_backward_data": "torch's vector code of softmax", "exp": "MKL's exp", "log": "MKL's log",
    "_log_softmax_backward_data": "torch's vector code of log-softmax", "silu": "torch's vector code of silu",
    "sigmoid": "torch's vector code of sigmoid", "sqrt": "MKL's square root", "lerp_": "torch's vector code of lerp",
    "addcmul_": "torch's vector code of addcmul", "sum": "torch's order of a sum", "mean": "torch's order of a mean",
}  # fmt: skip
PROBED = ("mm", "bmm")  # those whose order of additions fp.probe can find


@dataclass(frozen=True)
class ReplayedRun:
    """The comparison of a recorded run with the same run, trained again on this machine.

    Attributes:
      run: the recorded run.
      backend, arithmetic: the backend and the arithmetic of the second run.
      steps: the number of steps that were compared.
      digests: the digests of the recorded and of the second run after the last compared step.
      step: the first step, from 0, after which digests differ; None if none differ.
      operation: the first operation of that step whose results differ, such as "blocks.0.norm1, aten.mean"; "" if none
        differ, or if the run has no trace and its step cannot be repeated on this machine.
      element: (index, value in the recorded run, value here) of the first element that differs; None if not known.
      divergence: the first difference in that step's products of linear layers, else in the weights, with its cause;
        None if there is none or the step cannot be repeated.
      explanation: the result in a few sentences.
    """

    run: Run
    backend: str
    arithmetic: str
    steps: int
    digests: tuple[str, str]
    step: int | None
    operation: str = ""
    element: tuple[tuple[int, ...], float, float] | None = None
    divergence: Divergence | None = None
    explanation: str = field(default="", repr=False)

    @property
    def equal(self) -> bool:
        """True if the recorded run and the second run have the same bits in all compared steps."""
        return self.step is None

    def __str__(self) -> str:
        return self.explanation


class _Difference(NamedTuple):
    """The first operation whose results differ between two runs of a training step.

    Attributes:
      operation: the operation's name; "" if no results differ.
      element: (index, value in the recorded run, value here) of its first different element; None if not known.
      place: the index of the operation in the trace; None if traces were not compared.
    """

    operation: str
    element: tuple[tuple[int, ...], float, float] | None = None
    place: int | None = None


def replay(
    run: Run | str | os.PathLike[str],
    *,
    backend: str | None = None,
    arithmetic: str | None = None,
    text: object = None,
    steps: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> ReplayedRun:
    """Train a recorded run again, step by step, until a digest differs; name the first operation whose results differ.

    The step that differs is computed twice more, as the recorded run and as the second one, and their operations are
    compared one by one. If this machine cannot repeat the recorded step (torch's own arithmetic on another processor),
    operations are compared by name and digest in the recorded trace, if there is one (`fp.train.run(..., trace=True)`).

    Args:
      run: a Run, the path of a file that `Run.save` wrote, or the folder that was `out` of `fp.train.run`.
      backend: "emulated", "float32", "gpu", "hardware", "cpu", or a chip as for `fp.train.lockstep`; None for the
        recorded run's backend.
      arithmetic: "specified" or "torch"; None for the recorded run's.
      text: path of the run's training text on this machine; None for the recorded path.
      steps: the number of steps to compare, 1 or more; None for all.
      progress: called with the finished share of the work, 0 to 1, and a text.

    Raises:
      ValueError: the run is incomplete, was trained by several processes or has another version of training's
        arithmetic, the training data differ, the backend is unknown, or steps is not 1 or more.

    Example:
      >>> run = fp.train.run("FP8_RAW", steps=2, model="perceptron")
      >>> fp.train.replay(run).equal
      True
      >>> again = fp.train.replay(run, backend="B200")
      >>> again.step, again.operation, again.divergence.cause
      (0, 'first, fprop', 'arithmetic')
    """
    require_kind("run", run, (Run, str, os.PathLike), "a Run, or the path of a saved one")
    require_progress(progress)
    recorded = run if isinstance(run, Run) else Run.load(run)
    if not recorded.rows or "digest" not in recorded.rows[0]:
        raise ValueError("run must have a step with a digest; got one without. Train it with this fpsim.")
    require_version(recorded.rows[0]["digest"])
    if recorded.world > 1:
        raise ValueError(f"run must be of one process, as a replay is; got one that {recorded.world} trained together.")
    if steps is not None:
        require_integer("steps", steps, 1)
    require_word("arithmetic", arithmetic or recorded.settings.arithmetic, WORDS)
    first_settings = dataclasses.replace(
        recorded.settings, measure=0, text=recorded.settings.text if text is None else text
    )
    words = recorded.settings.backend if backend is None else backend
    second_settings = dataclasses.replace(first_settings, arithmetic=arithmetic or first_settings.arithmetic)
    names = ("the run", _name_of(words, second_settings.arithmetic, recorded))
    has_trace = "operations" in recorded.rows[0]
    again = side(names[1], recorded.recipe, words, second_settings, watched=not has_trace)  # `run` traces unwatched
    if recorded.data and again.trainer.data.digest != recorded.data:
        raise ValueError(
            f"text must be that of the run, whose SHA-256 begins with {recorded.data[:12]}; got one of "
            f"{again.trainer.data.digest[:12]}. Python's help topics and scikit-learn's digits differ between "
            "versions: train the run on a file of your own, and pass text= here."
        )
    total = len(recorded.rows) if steps is None else min(steps, len(recorded.rows))
    for step in range(total):
        before = again.trainer.state()
        row = traced_step(again.trainer) if has_trace else again.trainer.step()
        if progress is not None:
            progress((step + 1) / total, f"step {step + 1} of {total}")
        theirs = recorded.rows[step]
        if row["digest"] != theirs["digest"]:
            return _explained(_Case(recorded, again, names, first_settings, second_settings, words), before, row)
    last = recorded.rows[total - 1]["digest"]
    name = f"{names[1][:1].upper()}{names[1][1:]}"
    steps_compared = "its step" if total == 1 else f"each of {total} steps"
    said = f"{name} has the same digest as the run after {steps_compared}; the last is {last}."
    return ReplayedRun(recorded, words, second_settings.arithmetic, total, (last, last), None, explanation=said)


def _name_of(words: str, arithmetic: str, recorded: Run) -> str:
    """Return a name of the second run that tells it from the recorded one, such as "the run on B200".

    words: the backend or chip of the second run. arithmetic: "specified" or "torch", that of the second run. recorded:
    the recorded run. If neither differs from the recorded run's, the name is "the run here".
    """
    if words != recorded.settings.backend:
        return f"the run by {words}" if words in BACKENDS else f"the run on {words}"
    if arithmetic != recorded.settings.arithmetic:
        return f"the run by {arithmetic} arithmetic"
    return "the run here"


class _Case(NamedTuple):
    """A recorded run and its replay, whose digests differ after a step.

    Attributes:
      recorded: the recorded run.
      again: the replay, which has taken that step.
      names: names of the two runs in the explanation.
      first_settings, second_settings: the settings of the recorded run, and of the replay.
      words: the replay's backend or chip.
    """

    recorded: Run
    again: RunSide
    names: tuple[str, str]
    first_settings: Any
    second_settings: Any
    words: str

    def side(self, number: int, before: Any) -> RunSide:
        """Return the recorded run (`number` 0) or the replay (1), with a new trainer that is about to take the step.

        before: the arrays and fields of a trainer's state before the step that differs.
        """
        word = (self.recorded.settings.backend, self.words)[number]
        settings = (self.first_settings, self.second_settings)[number]
        result = side(self.names[number], self.recorded.recipe, word, settings)
        result.trainer.load(*before)
        return result


def _explained(case: _Case, before: Any, row: dict[str, Any]) -> ReplayedRun:
    """Return the result of a replay whose digest differs from the recorded one after a step.

    The result names the first operation of this step whose results differ, and the first product of a linear layer that
    differs.

    case: the recorded run and the replay. before: the arrays and fields of the trainer before the step, as its `state`
    returns them. row: the step's row in the log of the replay.
    """
    step, theirs = row["step"], case.recorded.rows[row["step"]]
    difference, divergence, remark = _Difference(""), None, ""
    first = case.side(0, before)
    kept: list[tuple[str, Array]] = []
    alike = case.first_settings.arithmetic == case.second_settings.arithmetic

    def keep(name: str, result: Array) -> None:
        if alike or OperationTrace.is_shared(name):
            kept.append((name, result.copy()))

    with OperationTrace(first.trainer.model, keep):
        row_again = first.trainer.step()
    if row_again["digest"] == theirs["digest"]:
        difference = _first_result(kept, case.side(1, before).trainer, alike)
        divergence = compared_step(case.side(0, before), case.side(1, before), case.names, step)
        if not difference.operation and divergence is not None:  # no result differs, but an operand
            place = f"{divergence.layer}, {divergence.product}"
            difference = _Difference(f"the {divergence.operand} of {place}" if divergence.operand else place)
    elif "operations" in theirs and "operations" in row:
        difference = _first_name(theirs["operations"], row["operations"])
        case.again.trainer.load(*before)
        remark = _probed(difference, case.again.trainer)
    else:
        remark = (
            "This machine computes the step otherwise even as the run did"
            f"{_machines(case.recorded)}. A run that is kept with trace=True tells which operation."
        )
    said = [f"step {step}: the digest is {theirs['digest']} in the run and {row['digest']} in {case.names[1]}."]
    said.append(f"Losses: {theirs['loss']!r} and {row['loss']!r}.")
    if difference.operation:
        said.append(_sentence(difference, case))
    if remark:
        said.append(remark)
    if divergence is not None:
        said.append(str(divergence))
    return ReplayedRun(
        case.recorded, case.words, case.second_settings.arithmetic, step + 1, (theirs["digest"], row["digest"]), step,
        difference.operation, difference.element, divergence, "\n".join(said),
    )  # fmt: skip


def _first_result(kept: list[tuple[str, Array]], trainer: Trainer, alike: bool) -> _Difference:
    """Return the first difference between recorded results of a step and those of a trainer that takes it now.

    kept: (name, result) of the recorded operations. trainer: the trainer before the step. alike: True if both runs have
    the same arithmetic, and so the same operations; else only results of products and modules are compared.
    """
    others = iter(kept)
    differences: list[_Difference] = []

    def see(name: str, result: Array) -> None:
        if differences or not (alike or OperationTrace.is_shared(name)):
            return
        theirs = next(others, None)
        if theirs is None or theirs[0] != name or theirs[1].shape != result.shape:
            differences.append(_Difference(name if theirs is None else theirs[0]))
            return
        unlike = canonical(theirs[1]).view(np.uint32) != canonical(result).view(np.uint32)
        if unlike.any():
            flat = int(unlike.argmax())
            at = tuple(int(i) for i in np.unravel_index(flat, result.shape))
            differences.append(_Difference(name, (at, float(theirs[1][at]), float(result[at]))))

    with OperationTrace(trainer.model, see):
        trainer.step()
    return differences[0] if differences else _Difference("")


def _first_name(theirs: list[Any], mine: list[Any]) -> _Difference:
    """Return the first operation at which the traces of a step in the recorded run and in its replay differ.

    theirs, mine: the traces of the recorded run and of the replay, lists of (name of an operation, digest of its
    result) in order. They differ at the first index where the name or the digest differs, or where only one has an
    operation. The result has this index and the operation's name (the recorded run's, if it has one); the name is ""
    and the index None if the traces are equal.
    """
    for place, (one, other) in enumerate(zip_longest(theirs, mine)):
        if one is None or other is None or list(one) != list(other):
            return _Difference(one[0] if one is not None else other[0], place=place)
    return _Difference("")


def _probed(difference: _Difference, trainer: Trainer) -> str:
    """Return a sentence on the order in which torch adds the terms of a differing product on this machine.

    `fp.probe` finds the order.

    Args:
      difference: the operation that differs; "" is returned unless it is torch's mm or bmm.
      trainer: a trainer in the state before the step that differs; it takes this step once more.
    """
    kernel = difference.operation.rpartition(", aten.")[2]
    if kernel not in PROBED or difference.place is None:
        return ""
    operands: list[tuple[Any, Any]] = []  # shape and strides of both
    places = iter(range(difference.place + 1))

    def see(name: str, _: Array) -> None:
        if next(places, None) == difference.place and name == difference.operation:
            operands.extend((tuple(x.shape), x.stride()) for x in trace.arguments[:2])

    with OperationTrace(trainer.model, see) as trace:
        trainer.step()
    if len(operands) != 2:
        return ""
    (left, _), (right, _) = operands
    rows, terms, columns = left[-2], left[-1], right[-1]

    def multiply(*matrices: Any) -> Any:
        """Return the product of two matrices by the operation that differs, torch's mm or bmm.

        The matrices are copied into tensors with the shapes and strides that the operation's operands had. For bmm,
        they are the first matrices of a batch whose others are 0.
        """
        tensors = [torch.empty_strided(shape, strides).zero_() for shape, strides in operands]
        for tensor, matrix in zip(tensors, matrices, strict=True):
            (tensor if tensor.dim() == 2 else tensor[0]).copy_(matrix)
        result = getattr(torch, kernel)(*tensors)
        return result if result.dim() == 2 else result[0]

    dtype: Any = torch.float32  # so that the probe passes tensors
    with one_thread():
        model = find_order(multiply, terms, a=dtype, rows=rows, columns=columns)
    shapes = " by ".join(" x ".join(map(str, shape)) for shape in (left, right))
    if not model.found:
        return (
            f"fp.probe does not find out how torch.{kernel} adds {shapes} on this machine: {'; '.join(model.unknown)}."
        )
    order = model.names[0] if model.names else model.structure or "an order without a name"
    return (
        f"On this machine torch.{kernel} of {shapes} adds its {terms} terms in this order, found by fp.probe: {order}."
    )


def _sentence(difference: _Difference, case: _Case) -> str:
    """Return a sentence on the first operation that differs: its name, element, two values, and the cause if known.

    difference: the operation, with the first element that differs and its value in both runs. case: the recorded run
    and the replay.
    """
    text = f"The first operation with another result is {difference.operation}"
    if difference.element is not None:
        at, theirs, mine = difference.element
        text += f": element {at} is {theirs!r} in the run and {mine!r} in {case.names[1]}"
    kernel = difference.operation.rpartition("aten.")
    cause = KERNELS.get(kernel[2], "") if kernel[1] else ""
    if cause:
        text += f". It is {cause}, which follows the processor{_machines(case.recorded)}"
    return text + "."


def _machines(recorded: Run) -> str:
    """Return, in parentheses, the differences between a recorded run's machine and this one; "" if none is known."""
    here = machine()
    unlike = [
        f"{name} {recorded.machine.get(name, 'unset')} there, {here.get(name, 'unset')} here"
        for name in dict.fromkeys([*recorded.machine, *here]) if recorded.machine.get(name) != here.get(name)
    ]  # fmt: skip
    return f" ({'; '.join(unlike)})" if recorded.machine and unlike else ""
