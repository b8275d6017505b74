"""Identification of quantizers: the policy that a function follows, or the nearest policy and the faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fpsim.arrays import FORMAT_OF
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import ElementLike, coded_element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import format as find_format
from fpsim.scaling.scaled import Scaled
from fpsim.testing.black_box import FunctionMisbehaved, require_function
from fpsim.testing.quantizers.arrangement import arrangements, uniform_grid
from fpsim.testing.quantizers.black_box import CalledQuantizer
from fpsim.testing.quantizers.family import plain_models
from fpsim.testing.quantizers.inputs import inputs_of, smallest_normal_of
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.regions import where
from fpsim.testing.quantizers.report import but, certificate, shown_input
from fpsim.testing.quantizers.restricted import Restricted
from fpsim.testing.quantizers.search import FoundModel, ModelSearch

if TYPE_CHECKING:
    from fpsim.testing.quantizers.given_scales.identity import IntegerIdentity
    from fpsim.testing.quantizers.scales.identity import ScalingIdentity


@dataclass(frozen=True)
class QuantizerIdentity:
    """The arithmetic of a quantizer, as far as its results show it.

    Attributes:
      fmt: the format of the results.
      rounding: the rounding, as a keyword of `fpsim.encode`, or the name of another rule, such as "nearest_up", which
        one of `faults` describes.
      overflow, subnormals: keywords of `fpsim.encode` of the nearest policy.
      keywords: all keywords of the nearest policy.
      faults: what the quantizer does instead of that policy, as clauses ("drops the sign").
      intermediate: name of the format to which inputs are rounded first, or None.
      exact: whether policy and faults together reproduce every result.
      differ, of: number of results that they do not reproduce, and number of all results.
      model: the model of the policy with its faults.
      tried: number of models that were compared with the results.
      excluded: number of other policies and faults that would change at least one result.
      rivals: other policies and faults that would change no result.
      where: sentences on the inputs whose results are not reproduced; "" if all are.
    """

    fmt: Format
    rounding: str
    overflow: str
    subnormals: str
    keywords: dict[str, Any] = field(repr=False)
    faults: tuple[str, ...]
    intermediate: str | None
    exact: bool
    differ: int
    of: int
    model: QuantizerModel | Restricted = field(repr=False)
    tried: int
    excluded: int
    rivals: tuple[str, ...] = field(repr=False)
    where: str

    @property
    def is_policy(self) -> bool:
        """True if `fpsim.encode` with these keywords reproduces all results of the quantizer."""
        return self.exact and not self.faults

    def __str__(self) -> str:
        policy = f"{self.fmt}, {', '.join(f'{word}={value!r}' for word, value in self.keywords.items())}"
        if not self.exact:
            near = f" The nearest, {policy}{but(self.faults)}, does not give {self.differ:,}." if self.differ else ""
            return f"None of {self.tried:,} models gives all {self.of:,} results.{near} {self.where}"
        return f"{policy}{but(self.faults)}: all {self.of:,} results. {certificate(self.excluded, self.rivals)}"


@overload
def identify_quantizer(fn: Callable[..., Any], fmt: IntegerFormat) -> IntegerIdentity | ScalingIdentity: ...
@overload
def identify_quantizer(fn: Callable[..., Any], fmt: FormatLike) -> QuantizerIdentity: ...
def identify_quantizer(
    fn: Callable[..., Any], fmt: ElementLike
) -> QuantizerIdentity | IntegerIdentity | ScalingIdentity:
    """Identify the policy that reproduces a quantizer's results, or the nearest policy and the faults added to it.

    Args:
      fn: the function, as for `check_quantizer`.
      fmt: the format of its results, a float or an integer format.

    Returns:
      For a float format: a `QuantizerIdentity`, with `.rounding`, `.overflow` and `.subnormals` (the policy, as for
      `fpsim.encode`), `.faults` (clauses on what fn does instead), `.intermediate` (name of the format that inputs are
      rounded to first, or None), `.exact` (whether policy and faults reproduce every result) and `.rivals` (other
      policies and faults that would change no result).
      For an integer format: an `IntegerIdentity`, with `.scale`, `.zero_point`, `.rounding`, `.overflow`, `.faults` and
      `.exact`; or, if fn returns (codes, scales) or (codes, scales, zero points), a `ScalingIdentity`, as
      `identify_scaling` returns it. In the latter case, fn is called with matrices that this function makes.

    Raises:
      ValueError: the format is unknown, or the function raises, returns no results, or is not deterministic.
      TypeError: fn cannot be called.

    Example:
      >>> import fpsim as fp
      >>> from functools import partial
      >>> quantizer = partial(fp.quantize, fmt="e5m2", rounding="toward_zero", overflow="saturate")
      >>> identity = fp.testing.identify_quantizer(quantizer, "e5m2")
      >>> identity.rounding, identity.overflow, identity.is_policy
      ('toward_zero', 'saturate', True)
      >>> halves = lambda x: np.clip(np.rint(x / np.float32(0.1)) + 3, -128, 127).astype(np.int8)
      >>> identity = fp.testing.identify_quantizer(halves, "int8")
      >>> round(identity.scale, 6), identity.zero_point, identity.rounding, identity.is_policy
      (0.1, 3, 'nearest_even', True)
    """
    element = coded_element(fmt)
    if isinstance(element, IntegerFormat):
        return _identified_integers(fn, element)
    target_fmt = find_format(element)
    box = CalledQuantizer(fn, target_fmt)
    x, apart, known = inputs_of(target_fmt)
    try:
        box.settle(x)
        result = box.call(x.copy())
        again = box.call(x.copy())
    except FunctionMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal
    if (result.words != again.words).any():
        at = int(np.argmax(result.words != again.words))
        raise ValueError(f"fn is not deterministic: {shown_input(x[at])} gave two results. Use check_stochastic.")
    search = ModelSearch(apart, result.words, FORMAT_OF[x.dtype], result.codes, known)
    plain = plain_models(target_fmt, smallest_normal_of(x))
    start = min(plain, key=search.count)
    placed = cache(lambda: _placed(search, plain))
    match = search.explain(start, lambda: placed() is not None)
    if not match.differ:
        return _identity(search, plain, start, match, ())
    identity = placed()
    if identity is not None:
        return identity
    grid = uniform_grid(box)
    return _identity(search, plain, start, match, () if grid is None else (grid,))


def _identified_integers(fn: Callable[..., Any], fmt: IntegerFormat) -> IntegerIdentity | ScalingIdentity:
    """Return the identity of a quantizer to integers, with a fixed scale or with scales that it returns.

    Raises:
      ValueError: the function raises, returns no results, or is not deterministic.
      TypeError: fn cannot be called.
    """
    from fpsim.testing.quantizers.given_scales.identity import identify_integers
    from fpsim.testing.quantizers.scales.identity import identity_on, telling_matrices

    require_function(fn)
    try:
        with np.errstate(all="ignore"):
            result = fn(np.zeros((2, 2), np.float32))
    except Exception:  # other arguments, such as tensors, are tried below
        result = None
    try:
        if isinstance(result, (tuple, list, Scaled)):
            return identity_on(fn, fmt, telling_matrices(fmt), {})
        return identify_integers(fn, fmt)
    except FunctionMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal


def _placed(search: ModelSearch, plain: dict[QuantizerModel, dict[str, Any]]) -> QuantizerIdentity | None:
    """Return the identity of a quantizer that follows a policy but returns results in a wrong order, or None.

    search: a search over the results. plain: the policies to try, as `plain_models` returns them.
    """
    for cause, places in arrangements(search.got.size):
        undone = search.rearranged(places)
        for model in plain:
            if undone.gives_all(model):
                return _identity(undone, plain, model, undone.explain(model), (cause,))
    return None


def _identity(
    search: ModelSearch, plain: dict[QuantizerModel, dict[str, Any]], start: QuantizerModel, match: FoundModel,
    more: tuple[str, ...],
) -> QuantizerIdentity:  # fmt: skip
    """Return the identity of a quantizer from the model that a search found.

    Args:
      search: the search.
      plain: the policies that were tried, with their keywords.
      start: the policy from which the search began.
      match: the model found.
      more: clauses on faults that a model of one value at a time cannot describe, such as a wrong order of results.
    """
    faults = list(match.faults)
    whole = match.model if isinstance(match.model, QuantizerModel) else None
    for fault in match.faults if whole is not None else ():  # a fault that turns a policy into another one is none
        if fault.apply(start) in plain:
            start = fault.apply(start)
            faults.remove(fault)
    keywords = plain[start]
    does = {} if whole is None or match.differ else {"rounding": whole.rounding}
    through = match.model.through
    differ = search.differing(match.model)
    return QuantizerIdentity(
        fmt=start.fmt, **{**keywords, **does}, keywords=dict(keywords),
        faults=(*more, *(fault.words for fault in faults)), intermediate=None if through is None else through.name,
        exact=match.differ == 0, differ=match.differ, of=differ.size, model=match.model, tried=match.tried,
        excluded=match.excluded, rivals=match.rivals,
        where=where(search.inputs, differ, start.fmt, search.got) if match.differ else "",
    )  # fmt: skip
