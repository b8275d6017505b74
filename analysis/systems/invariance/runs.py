"""`fp.analysis.compare_runs`: compares two recorded runs tensor by tensor, also from files of other programs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.exponent_range import range as range_of
from fpsim.analysis.measures.log_probabilities import divergence, log_softmax
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.models.rows import RecordedRow
from fpsim.analysis.systems.invariance.differences import relative_difference
from fpsim.analysis.systems.invariance.run_report import RunComparison, TensorDifference, TokenChange
from fpsim.analysis.systems.invariance.tensor_log import TensorLog
from fpsim.arrays import Array, float_array, words
from fpsim.errors import nearest, require_word, shown
from fpsim.scaling.file import ScaledFileError

Key = tuple[int, str, str]
RunLike = Recording | TensorLog | str | os.PathLike[str] | Mapping[Key, npt.ArrayLike]  # arguments of `compare_runs`
MOST_CHANGES = 1000
STATISTICS = (
    "Statistics of some tensors were compared; keep=n and outputs=True of record(), or a TensorLog, keep elements."
)


class RunTensors(NamedTuple):
    """The tensors of one run of a model.

    Attributes:
      name: name of the run in reports.
      arrays: (step, layer, tensor) -> elements, for tensors whose elements the run stored.
      rows: (step, layer, tensor) -> RecordedRow of statistics, for tensors that a Recording measured.
      keys: (step, layer, tensor) of all tensors, in the order in which the run computed them.
      model: the model's name and digest, or "" if unknown.
    """

    name: str
    arrays: dict[Key, Array]
    rows: dict[Key, RecordedRow]
    keys: list[Key]
    model: str

    @property
    def steps(self) -> list[int]:
        """The numbers of the run's steps, ascending."""
        return sorted({step for step, _, _ in self.keys})


def compare_runs(
    a: RunLike, b: RunLike, *, steps: str = "number", rename: Mapping[str, str] | Callable[[str], str] | None = None,
    logits: str | None = None, tolerance: float = 0.0,
) -> RunComparison:  # fmt: skip
    """Compare two runs of a model tensor by tensor; the runs may come from other processes or libraries.

    Tensors with the same step, layer and name are compared; tensors of only one run are listed. Elements are compared
    if both runs stored them, otherwise statistics.

    Args:
      a, b: the two runs: each a Recording of `fp.analysis.record`, a `fp.analysis.TensorLog`, the path of a file that
        either saved, the path of a .npz or .safetensors file with arrays named "step/layer/tensor", or a mapping of
        (step, layer, tensor) to arrays.
      steps: "number" compares steps with the same number; "order" compares the i-th step of one run with the i-th step
        of the other.
      rename: function or mapping from names of layers in b to their names in a; None for equal names.
      logits: the layer whose output holds the logits, along the last axis; None for the last output that both runs
        stored (the model's own output in recordings with outputs=True), or else the input of the last linear layer
        times its weight, without its bias.
      tolerance: a tensor counts as equal if its relative difference is at most this and Inf and NaN are at the same
        places (if only statistics are compared: and at most this share of elements differs); 0 compares bits.

    Returns:
      A RunComparison; its bool() is True if some tensor differs.

    Raises:
      TypeError: a run has another type.
      ValueError: a file is damaged or holds no tensors, the runs have no tensor in common, `rename` gives two
        layers of b one name, or no layer is named as `logits` says.

    Source: docs/batch-invariance.md.

    Example:
      >>> import fpsim as fp
      >>> logs = [fp.analysis.TensorLog(), fp.analysis.TensorLog()]
      >>> for log, last in zip(logs, (2.0, 2.5)):
      ...     log.add(1, "embedding", "output", np.float32([[1, 2]]))
      ...     log.add(1, "head", "output", np.float32([[1, last], [3, 2.25]]))
      >>> report = fp.analysis.compare_runs(*logs)
      >>> print(report)
      First difference: step 1, head output: 25.0 % of its elements, relative difference 0.11.
      1 of 2 tensors in 1 step differs, at most by 0.11 (relative), at step 1.
      KL of the outputs (head output): 0.011 nats; 0 of 2 tokens would change.
    """
    require_word("steps", steps, ("number", "order"))
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not tolerance >= 0:
        raise ValueError(f"tolerance must be a number >= 0; got {shown(tolerance)}.")
    first, second = _run(a, "a"), _renamed(_run(b, "b"), rename)
    if steps == "order":
        second = _in_order(first, second)
    others = set(second.keys)
    common = [key for key in first.keys if key in others]
    if not common:
        raise ValueError(_nothing_in_common(first, second))
    order = {step: number for number, step in enumerate(sorted({key[0] for key in common}))}
    common.sort(key=lambda key: order[key[0]])  # stable: keeps the first run's order within a step
    rows = tuple(
        _of_arrays(key, first.arrays[key], second.arrays[key], float(tolerance))
        if key in first.arrays and key in second.arrays
        else _of_figures(key, first, second, float(tolerance))
        for key in common
    )
    chosen, pairs = _logits(first, second, common, logits)
    kl, changes, tokens = _tokens(pairs)
    notes = [STATISTICS] if any(row.compared == "figures" for row in rows) else []
    if first.model and second.model and first.model != second.model:
        notes.append(f"The models differ: {first.model} and {second.model}.")
    return RunComparison(
        rows, (first.name, second.name), _missing(second, first), _missing(first, second), chosen, kl, tokens,
        tuple(changes[:MOST_CHANGES]), len(changes), tuple(notes),
    )  # fmt: skip


def _run(x: Any, name: str) -> RunTensors:
    """Return the tensors of a run x: a Recording, a TensorLog, the path of a file, or a mapping of keys to arrays.

    The keys of a mapping are (step, layer, tensor). name: name of the run in reports; a run from a file gets the file's
    name instead. Raises TypeError for other types and keys, ValueError for a file that holds no run.
    """
    if isinstance(x, Recording):
        arrays = {**x.operands, **x.outputs}
        keys = list(dict.fromkeys([*(row.key for row in x), *arrays]))
        return RunTensors(name, arrays, {row.key: row for row in x}, keys, x.model)
    if isinstance(x, TensorLog):
        return RunTensors(name, dict(x.tensors), {}, list(x.tensors), "")
    if isinstance(x, Mapping):
        log = TensorLog()
        for key, values in x.items():
            if not isinstance(key, tuple) or len(key) != 3:
                raise TypeError(f"keys of {name} must be (step, layer, tensor); got {shown(key)}.")
            log.add(*key, values)
        return _run(log, name)
    if isinstance(x, (str, os.PathLike)):
        return _run(_opened(x), name)._replace(name=Path(x).name)
    raise TypeError(
        f"{name} must be a Recording, a TensorLog, a path or a mapping of (step, layer, tensor) to arrays; got "
        f"{shown(x)}."
    )


def _opened(path: str | os.PathLike[str]) -> Recording | TensorLog:
    """Load the Recording or TensorLog that fpsim saved; return the arrays of another program's file as a TensorLog.

    Raises ValueError for a damaged file, or one that fpsim saved for another purpose.
    """
    reasons = []
    for load in (Recording.load, TensorLog.load):
        try:
            return load(path)
        except ScaledFileError as problem:
            reasons.append(str(problem))
    if not all("without its header" in reason for reason in reasons):  # a damaged or other file of fpsim
        raise ValueError(reasons[-1])
    return TensorLog.of_file(path)


def _renamed(run: RunTensors, rename: Any) -> RunTensors:
    """Return a run with its layers renamed by `rename`, a mapping or a function of a name; unchanged for None."""
    if rename is None:
        return run
    if not callable(rename) and not isinstance(rename, Mapping):
        raise TypeError(f"rename must be a mapping or a function of layers' names; got {shown(rename)}.")

    def new(key: Key) -> Key:
        layer = rename(key[1]) if callable(rename) else rename.get(key[1], key[1])
        return key[0], str(layer), key[2]

    sources: dict[Key, Key] = {}
    for key in run.keys:
        other = sources.setdefault(new(key), key)
        if other != key:
            raise ValueError(
                f"rename must give different layers different names; it names both {other[1]!r} and {key[1]!r} "
                f"{new(key)[1]!r}."
            )
    return _with_keys(run, new)


def _with_keys(run: RunTensors, new: Callable[[Key], Key]) -> RunTensors:
    """Return a run in which every key (step, layer, tensor) is replaced by new(key)."""
    arrays = {new(key): x for key, x in run.arrays.items()}
    rows = {new(key): row for key, row in run.rows.items()}
    return run._replace(arrays=arrays, rows=rows, keys=[new(key) for key in run.keys])


def _in_order(first: RunTensors, second: RunTensors) -> RunTensors:
    """Return the second run with the number of its i-th step replaced by that of the first run's i-th step.

    If the second run has more steps, the others get the numbers after the first run's last.
    """
    mine, others = first.steps, second.steps
    extra = max(mine, default=0)
    numbers = {step: mine[i] if i < len(mine) else extra + 1 + i - len(mine) for i, step in enumerate(others)}
    return _with_keys(second, lambda key: (numbers[key[0]], key[1], key[2]))


def _nothing_in_common(first: RunTensors, second: RunTensors) -> str:
    """Return the error message for runs that have no tensor in common, with a likely reason."""
    if not first.keys or not second.keys:
        empty = first.name if not first.keys else second.name
        return f"runs to compare must have tensors; {empty} has none."
    layers = {key[1] for key in first.keys}, {key[1] for key in second.keys}
    if layers[0] & layers[1]:
        return (
            f"the runs have no step in common: {first.name} has {_listed(first.steps)}, {second.name} has "
            f"{_listed(second.steps)}. Pass steps='order' to compare the i-th with the i-th."
        )
    layer = next(key[1] for key in first.keys)
    near = nearest(layer, layers[1], 0.3)
    hint = f"; {layer!r} may be {near!r} in {second.name}" if near else ""
    return (
        f"the runs have no layer in common{hint}. Pass rename=, a mapping or a function from names in {second.name} to "
        f"names in {first.name}."
    )


def _listed(steps: list[int]) -> str:
    """Return step numbers, ascending, as text: up to three in full, more as a range such as "1 to 9"."""
    return ", ".join(map(str, steps)) if len(steps) < 4 else f"{steps[0]} to {steps[-1]}"


def _missing(run: RunTensors, other: RunTensors) -> tuple[str, ...]:
    """Return the tensors of `run` that `other` lacks, each as "step layer tensor"."""
    known = set(other.keys)
    return tuple(f"{step} {layer} {tensor}" for step, layer, tensor in run.keys if (step, layer, tensor) not in known)


def _of_arrays(key: Key, x: Array, y: Array, tolerance: float) -> TensorDifference:
    """Return the difference between the arrays x and y of one tensor in two runs.

    The arrays are compared bit by bit if their dtypes are equal, otherwise value by value; any two NaNs are equal.
    Arrays of different shapes differ. key: (number of the step, name of the layer, name of the tensor). tolerance: the
    tensors also count as equal if the norm of y - x is at most this times the norm of x, both over finite elements, and
    Inf and NaN are at the same places; 0 allows no difference.
    """
    p, q = x.astype(np.float64), y.astype(np.float64)
    amax = [float(np.abs(z[np.isfinite(z)]).max(initial=0.0)) for z in (p, q)]
    if x.shape != y.shape:
        return TensorDifference(*key, "shape", True, 1.0, float("nan"), *amax)
    both_nan = np.isnan(p) & np.isnan(q)
    if x.dtype == y.dtype:
        differ = (words(np.ascontiguousarray(x)) != words(np.ascontiguousarray(y))) & ~both_nan
    else:
        differ = (p != q) & ~both_nan
    finite = np.isfinite(p) & np.isfinite(q)
    relative = relative_difference(q, p)
    same_specials = bool(((p == q) | both_nan | finite).all())
    differs = bool(differ.any()) and not (tolerance and relative <= tolerance and same_specials)
    share = float(differ.mean()) if differ.size else 0.0
    compared = "bits" if x.dtype == y.dtype else "values"
    return TensorDifference(*key, compared, differs, share, relative, *amax)


def _of_figures(key: Key, first: RunTensors, second: RunTensors, tolerance: float) -> TensorDifference:
    """Compare the statistics of one tensor in the runs `first` and `second`, measured or computed from its elements.

    Compared are the shape; the counts of elements by exponent and of zeros, Inf and NaN; and the rounding errors in
    formats if both runs recorded these over equally many calls. tolerance: the tensors also count as equal if the
    relative difference of their largest magnitudes, and the share of elements that their counts place differently, are
    at most this. key: (number of the step, name of the layer, name of the tensor).
    """
    runs = (first, second)
    rows = [run.rows.get(key) for run in runs]
    shapes = [run.arrays[key].shape if row is None else row.shape for run, row in zip(runs, rows, strict=True)]
    x, y = (range_of(run.arrays[key]) if row is None else row.range for run, row in zip(runs, rows, strict=True))
    amax = x.amax, y.amax
    if shapes[0] != shapes[1]:
        return TensorDifference(*key, "shape", True, 1.0, float("nan"), *amax)
    bins = [dict(spread.bins) for spread in (x, y)]
    apart = sum(abs(bins[0].get(p, 0) - bins[1].get(p, 0)) for p in {*bins[0], *bins[1]}) / 2
    apart += sum(abs(getattr(x, n) - getattr(y, n)) for n in ("zeros", "infinities", "nans")) / 2
    share = apart / x.count if x.count else 0.0
    relative = abs(amax[0] - amax[1]) / amax[0] if amax[0] else (float("inf") if amax[1] else 0.0)
    differs = x != y
    if rows[0] is not None and rows[1] is not None and rows[0].calls == rows[1].calls:
        differs |= [e.sums for e in rows[0].errors] != [e.sums for e in rows[1].errors]
    differs = differs and not (tolerance and relative <= tolerance and share <= tolerance)
    return TensorDifference(*key, "figures", bool(differs), float(share), float(relative), *amax)


def _logits(
    first: RunTensors, second: RunTensors, common: list[Key], layer: str | None
) -> tuple[str, Iterator[tuple[int, Array, Array]]]:
    """Return (name of the tensor read as logits, iterator over its steps).

    The iterator yields (step, first run's logits, second run's), float64 (tokens, vocabulary). common: keys (step,
    layer, tensor) of both runs. layer: the requested layer, or None to choose one. If no layer has an output, or input
    and weight, in both runs, the name is "".

    Raises:
      ValueError: the requested layer is unknown, or a run stored neither its output nor its input and weight.
    """
    if layer is not None and not any(key[1] == layer for key in common):
        near = nearest(layer, {key[1] for key in common})
        hint = f" Did you mean {near!r}?" if near else ""
        raise ValueError(f"logits must name a layer of both runs; got {layer!r}.{hint}")
    kept = {key: None for key in common if key in first.arrays and key in second.arrays}
    outputs = [key for key in kept if key[2].partition(" ")[0] == "output" and layer in (None, key[1])]
    if outputs:
        name = outputs[-1][1]
        chosen = [key for key in outputs if key[1] == name]
        return f"{name or 'the model'} output", _pairs([(key,) for key in chosen], first, second)
    products = [
        (key, (key[0], key[1], "weight"))
        for key in kept
        if key[2] == "input" and layer in (None, key[1]) and (key[0], key[1], "weight") in kept
    ]
    products = [keys for keys in products if _multiplies(first, *keys) and _multiplies(second, *keys)]
    if not products:
        if layer is not None:
            raise ValueError(
                f"logits must be a layer whose output, or input and weight, both runs kept; got {layer!r}. Record with "
                "outputs=True or keep=1, or log outputs with a TensorLog."
            )
        return "", iter(())
    places = {key: place for place, key in enumerate(first.keys)}
    name = max(products, key=lambda keys: places[keys[0]])[0][1]
    chosen_products = [keys for keys in products if keys[0][1] == name]
    return f"{name} input x weight, without a bias", _pairs(chosen_products, first, second)


def _pairs(
    chosen: Sequence[tuple[Key, ...]], first: RunTensors, second: RunTensors
) -> Iterator[tuple[int, Array, Array]]:
    """Yield (step, first run's logits, second run's), float64 (tokens, vocabulary), for each item of `chosen`.

    chosen: for each step the key (step, layer, tensor) of the logits in a tuple, or the two keys of a linear layer's
    input and weight, whose product is the logits. Steps with different shapes, or without logits, are left out.
    """
    for keys in chosen:
        x, y = (_matrix(run.arrays[keys[0]]) for run in (first, second))
        if len(keys) > 1:
            x, y = x @ _matrix(first.arrays[keys[1]]).T, y @ _matrix(second.arrays[keys[1]]).T
        if x.shape == y.shape and x.size:
            yield keys[0][0], x, y


def _multiplies(run: RunTensors, of_input: Key, of_weight: Key) -> bool:
    """Return whether input @ weight.T is possible with a run's arrays.

    of_input, of_weight: keys (step, layer, tensor) of the two arrays.
    """
    x, w = run.arrays[of_input], run.arrays[of_weight]
    return w.ndim == 2 and x.ndim >= 1 and x.shape[-1] == w.shape[1]


def _matrix(x: Array) -> Array:
    """Return an array of floats (..., n) as a float64 matrix (rows, n): all axes but the last become one."""
    values = float_array(x)[0].astype(np.float64)
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1] if values.ndim else 1)


def _tokens(pairs: Iterable[tuple[int, Array, Array]]) -> tuple[float, list[TokenChange], int]:
    """Return (mean KL divergence in nats, tokens whose most likely value changes, number of tokens).

    pairs: (step, first run's logits, second run's). The mean is NaN if there are no pairs.
    """
    divergences: list[Array] = []
    changes: list[TokenChange] = []
    count = 0
    for step, x, y in pairs:
        with np.errstate(all="ignore"):
            p, q = log_softmax(x), log_softmax(y)
            divergences.append(divergence(p, q))
        mine, others = p.argmax(axis=-1), q.argmax(axis=-1)
        count += len(mine)
        for row in np.flatnonzero(mine != others):
            margin = float(p[row, mine[row]] - p[row, others[row]])
            changes.append(TokenChange(int(step), int(row), int(mine[row]), int(others[row]), margin))
    kl = float(np.concatenate(divergences).mean()) if divergences else float("nan")
    return kl, changes, count
