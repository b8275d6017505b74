"""Sums of the gradients of micro-batches in chosen formats, compared with float64 and the large batch's gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpsim.analysis.systems.accumulation.report import LARGE, AccumulationReport, AccumulationRow, accumulation_row
from fpsim.arithmetic.functions import add
from fpsim.arrays import Array, float_array, without_gradient, words
from fpsim.casts.cast import decode, encode, quantize
from fpsim.errors import require_word, shown
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Accumulator, Sequential

# Name -> the format of a micro-batch's gradient (None is float32), and the format of the sums or an accumulator.
WAYS: dict[str, tuple[Any, Any]] = {
    "float32": (None, "fp32"),
    "BF16, float32 sums": ("bf16", "fp32"),
    "BF16 sums": ("bf16", "bf16"),
}
DIVIDE = ("after", "before")
Gradients = Any


@np.errstate(all="ignore")  # the report counts overflows
def accumulation(
    gradients: Gradients, batches: Sequence[object] | None = None, loss: Callable[..., Any] | None = None, *,
    ways: Mapping[str, tuple[Any, Any]] | None = None, weights: Sequence[float] | None = None, divide: str = "after",
) -> AccumulationReport:  # fmt: skip
    """Add the gradients of micro-batches in several formats and orders, and measure the errors against float64's mean.

    A micro-batch's gradient is rounded to a format, to nearest even, and added to the sum, which is rounded after each
    addition. Float32 sums of BF16 gradients are known as master gradients; torch adds in BF16 where a BF16 weight
    accumulates in its `.grad`. The mean is the sum divided by the sum of `weights`, in float32.

    Args:
      gradients: array or tensor (micro-batches, ...) of floats, which are first rounded to float32, or a
        torch.nn.Module whose parameters have the gradients.
      batches: with a module, the micro-batches: each a tensor, or a tuple or dict of tensors whose first axis is the
        batch. The report gets one more way of adding, "large batch": the gradient of all of them as one batch.
      loss: with a module, a function of (model, batch) that returns a mean over the batch, or a torch criterion.
      ways: ways of adding to compare, name -> (format of a micro-batch's gradient, or None for float32; format of the
        sums, or an accumulator such as `fp.Sequential("bf16", rounding="stochastic", seed=0)`). By default three:
        float32, BF16 gradients with float32 sums, and BF16 gradients with BF16 sums.
      weights: a weight for each micro-batch, for a weighted mean. None: all 1, or with a module the number of examples
        of each micro-batch.
      divide: "after" divides the sum by the sum of weights. "before" multiplies each gradient by its weight / the sum
        of weights, then rounds and adds it, as `(loss / n).backward()` does; this keeps FP16 sums from overflowing.

    Returns:
      An AccumulationReport: for each way of adding, a row for the first 1, 2, 4, ... and for all micro-batches.

    Raises:
      TypeError, ValueError: gradients, batches or loss are missing, a format or name is unknown, or weights are not a
        number > 0 for each micro-batch.

    Example:
      >>> report = fp.analysis.accumulation(np.float32([[256.0], [1.0]]))
      >>> {way: float(values[0] * 2) for way, values in report.values.items()}  # BF16 has 256 and 258
      {'float32': 257.0, 'BF16, float32 sums': 257.0, 'BF16 sums': 256.0}
    """
    require_word("divide", divide, DIVIDE)
    chosen = _checked_ways(WAYS if ways is None else ways)
    large, shares = None, weights
    if hasattr(gradients, "named_parameters") and hasattr(gradients, "zero_grad"):  # a module, without importing torch
        terms, large, sizes = _of_model(gradients, batches, loss)
        shares = list(map(float, sizes)) if weights is None else weights
    elif batches is not None or loss is not None:
        raise TypeError(
            f"batches and loss are for a torch.nn.Module; got them with {shown(gradients)}. Leave them out."
        )
    else:
        terms, _ = float_array(without_gradient(gradients), "gradients")
    if terms.ndim < 1 or not terms.size:
        raise ValueError(f"gradients must be an array (micro-batches, ...) with elements; got shape {terms.shape}.")
    terms = terms.astype(np.float32)
    factors = _checked_weights(shares, len(terms))
    flat = terms.reshape(len(terms), -1)
    rows: list[AccumulationRow] = []
    values: dict[str, Array] = {}
    exact = _exact_means(flat, factors)
    for name, way in chosen.items():
        way_rows, mean = _rows_of(name, way, flat, factors, divide, exact)
        rows += way_rows
        values[name] = mean.reshape(terms.shape[1:])
    if large is not None:
        rows = [_with_large(row, values[row.way], large, len(terms)) for row in rows]
        rows.append(accumulation_row(LARGE, len(terms), large, None, exact[len(terms)], flat[-1]))
        values[LARGE] = large
    return AccumulationReport(tuple(rows), flat.shape[1], divide, values)


def _rows_of(
    name: str, way: tuple[Any, Accumulator], terms: Array, weights: Array, divide: str, exact: Mapping[int, Array]
) -> tuple[list[AccumulationRow], Array]:  # fmt: skip
    """Return the report's rows for one way of adding gradients, and its mean of all micro-batches, flat float32.

    name: name of the way in the report. way: (format of gradients or None, accumulator). terms: gradients
    (micro-batches, elements) float32. weights: a number for each micro-batch. divide: as for `accumulation`.
    exact: count -> float64 mean of the first `count` gradients.
    """
    fmt, adds = way
    total = weights.sum(dtype=np.float64)
    factors = weights if divide == "after" else weights / total
    scaled = terms * factors.astype(np.float32)[:, None]
    rounded = scaled if fmt is None else np.asarray(quantize(scaled, fmt), np.float32)
    rows = []
    mean = rounded[0]
    for count, after, before in _prefixes(rounded, fmt, adds):
        divisor = np.float32(weights[:count].sum(dtype=np.float64) / (1 if divide == "after" else total))
        mean = after / divisor
        kept = None if before is None else before / divisor
        rows.append(accumulation_row(name, count, mean, kept, exact[count], rounded[count - 1]))
    return rows, mean


def _prefixes(terms: Array, fmt: Any, adds: Accumulator) -> Iterator[tuple[int, Array, Array | None]]:
    """Yield (count, sum of the first `count` terms, sum of the first count - 1) for the counts 1, 2, 4, ... and all.

    Sums are float32 arrays, added by the accumulator `adds`; the sum of no terms is None. fmt: format that the terms
    are rounded to, or None.
    """
    wanted = _counts(len(terms))
    if adds != Sequential(adds.fmt) or not FP32.holds(adds.fmt):
        for count in wanted:
            yield count, _sum(terms[:count], adds), None if count == 1 else _sum(terms[: count - 1], adds)
        return
    # one term after another, rounded to nearest even: a running sum has the bits of all these sums
    total = np.zeros(terms.shape[1:], np.float32)
    for count, term in enumerate(terms, 1):
        before, total = total, _added(total, term, fmt, adds.fmt)
        if count in wanted:
            yield count, total, None if count == 1 else before


def _added(total: Array, term: Array, fmt: Any, sums: Format) -> Array:
    """Return total + term rounded to `sums`, as float32.

    All values of `total` are values of `sums`, and those of `term` are values of `fmt` (None: any float32).
    """
    if sums == FP32:
        return np.asarray(total + term)
    if fmt == sums:
        codes = add(encode(total, sums), encode(term, sums), fmt=sums)
    else:
        codes = add(encode(total, sums), words(term), fmt=(sums, FP32), out_fmt=sums)
    return np.asarray(decode(np.asarray(codes), sums), np.float32)


def _sum(terms: Array, adds: Accumulator) -> Array:
    """Return the sum of float32 terms along the first axis by the accumulator `adds`, as float32."""
    total = np.asarray(sum_of(terms, accumulate=adds, axis=0))
    if total.dtype == np.float32:
        return total
    return np.asarray(decode(words(total), adds.result_format, np.float64), np.float32)


def _exact_means(terms: Array, weights: Array) -> dict[int, Array]:
    """Return count -> float64 weighted mean of the first `count` gradients, for the counts 1, 2, 4, ... and all.

    terms: the gradients (micro-batches, elements), float32. weights: a number for each micro-batch.
    """
    wanted, means = _counts(len(terms)), {}
    total = np.zeros(terms.shape[1:], np.float64)
    for count, (weight, term) in enumerate(zip(weights, terms, strict=True), 1):
        total += weight * term.astype(np.float64)
        if count in wanted:
            means[count] = total / weights[:count].sum()
    return means


def _counts(most: int) -> list[int]:
    """Return the powers of two below `most`, ascending, then `most`."""
    return [*(1 << i for i in range((most - 1).bit_length())), most]


def _with_large(row: AccumulationRow, mean: Array, large: Array, count: int) -> AccumulationRow:
    """Return the row with `equal` and `drift` filled in, or unchanged if it is not over all `count` micro-batches.

    mean: the row's mean gradient; large: the gradient of all examples as one batch.
    """
    if row.micro_batches != count:
        return row
    same = mean.view(np.uint32) == large.view(np.uint32)
    norm = float(np.linalg.norm(large.astype(np.float64)))
    difference = float(np.linalg.norm(mean.astype(np.float64) - large))
    return dataclasses.replace(row, equal=float(np.mean(same)), drift=difference / norm if norm else math.nan)


def _checked_ways(ways: Any) -> dict[str, tuple[Any, Accumulator]]:
    """Return name -> (format of gradients or None, accumulator of the sums) from the names and objects in `ways`.

    None for the format of gradients remains None, which means float32.

    Raises:
      TypeError, ValueError: `ways` is not a dict of pairs, a format is unknown, or a way has the name "large batch".
    """
    if not isinstance(ways, Mapping) or not ways or not all(isinstance(name, str) for name in ways):
        raise TypeError(f"ways must be a dict of name -> (format, sums), such as the default; got {shown(ways)}.")
    checked = {}
    for name, way in ways.items():
        if not isinstance(way, (tuple, list)) or len(way) != 2:
            raise TypeError(
                f"ways[{name!r}] must be (format of gradients, format of sums), such as ('bf16', 'fp32'); got "
                f"{shown(way)}."
            )
        fmt, sums = way
        adds = sums if isinstance(sums, Accumulator) else Sequential(sums)
        checked[name] = (None if fmt is None else find_format(fmt), adds)
    if LARGE in checked:
        raise ValueError(f"ways must not have the name {LARGE!r}, which is reserved for the gradient of all batches.")
    return checked


def _checked_weights(weights: Any, count: int) -> Array:
    """Return the weights of `count` micro-batches as float64, all 1 for None; raise ValueError unless all are > 0."""
    if weights is None:
        return np.ones(count)
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (count,) or not np.isfinite(array).all() or not (array > 0).all():
        raise ValueError(
            f"weights must have one finite number > 0 for each of {count} micro-batches; got {shown(weights)}."
        )
    return array


def _of_model(model: Any, batches: Any, loss: Any) -> tuple[Array, Array, Array]:
    """Return (gradients of the micro-batches, gradient of one large batch, number of examples of each micro-batch).

    The large batch has all examples. Shapes are (micro-batches, elements) and (elements,), float32, and
    (micro-batches,), float64. Raises TypeError if `batches` or `loss` is None, ValueError if there are no batches.

    model: a torch.nn.Module. batches: an iterable of micro-batches, each a tensor or a tuple or dict of tensors. loss:
    a function of (model, batch), or a torch criterion.
    """
    from fpsim.analysis.models.losses import loss_of, refuse_swapped

    refuse_swapped(model, batches, loss)
    if batches is None or loss is None:
        missing = " and ".join(name for name, x in (("batches", batches), ("loss", loss)) if x is None)
        raise TypeError(f"a torch.nn.Module needs batches and a loss; got no {missing}. Pass batches=[...], loss=....")
    function, listed = loss_of(loss), list(batches)
    if not listed:
        raise ValueError("batches must hold at least one micro-batch; got none.")
    grads = [_gradient(model, batch, function) for batch in listed]
    sizes = []
    for batch in listed:
        leaves = _leaves(batch)
        if not leaves:
            raise TypeError(
                f"batches must be tensors, or tuples or dicts of them, with a batch axis; got {shown(batch)}."
            )
        sizes.append(float(leaves[0].shape[0]))
    return np.stack(grads), _gradient(model, _joined(listed), function), np.array(sizes)


def _gradient(model: Any, batch: Any, function: Any) -> Array:
    """Return the gradient of function(model, batch) with respect to all trainable parameters, flat float32.

    model: a torch.nn.Module; the `.grad` of its parameters does not change. function: returns the loss. Raises
    ValueError if no parameter requires a gradient.
    """
    import torch

    parameters = [x for x in model.parameters() if x.requires_grad]
    if not parameters:
        raise ValueError("the model must have parameters that require a gradient; got none.")
    with torch.enable_grad():  # also for callers inside torch.no_grad()
        gradients = torch.autograd.grad(function(model, batch), parameters, allow_unused=True)
    whole = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(parameters, gradients, strict=True)]
    joined: Array = torch.cat([x.detach().float().reshape(-1) for x in whole]).cpu().numpy()
    return joined


def _leaves(batch: Any) -> list[Any]:
    """Return the tensors with one axis or more in a batch of nested dicts, tuples and lists."""
    if isinstance(batch, Mapping):
        return [leaf for value in batch.values() for leaf in _leaves(value)]
    if isinstance(batch, (tuple, list)):
        return [leaf for value in batch for leaf in _leaves(value)]
    return [batch] if hasattr(batch, "shape") and len(batch.shape) else []


def _joined(batches: Sequence[Any]) -> Any:
    """Join micro-batches to one batch: concatenate their tensors along the first axis.

    batches: micro-batches of one structure: tensors, or dicts, tuples or lists of tensors and other items. Items that
    are not tensors with an axis come from the first micro-batch.
    """
    import torch

    first = batches[0]
    if isinstance(first, Mapping):
        return {name: _joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(_joined(parts) for parts in zip(*batches, strict=True))
    return torch.cat([torch.as_tensor(batch) for batch in batches]) if len(getattr(first, "shape", ())) else first
