"""Accumulators as data: the format of a sum, the order in which its terms are added, and its rounding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpsim.errors import require_integer, shown
from fpsim.formats.cast_options import FormatLike, cast_options
from fpsim.formats.named import FP64, Format, format_argument
from fpsim.formats.policies import overflow_outcome
from fpsim.formats.rounding import Rounding
from fpsim.reload import reloadable


@reloadable
@dataclass(frozen=True)
class Accumulator:
    """Base class of the accumulators: a format, and the options of rounding into it.

    It cannot be instantiated: use `Sequential`, `FusedMultiplyAdd`, `Pairwise`, `Chunked` or `Exact`.

    Attributes:
      fmt: the format of the sums (of Chunked's partial sums).
      rounding, seed, overflow, subnormals, random_bits: as in `fpsim.encode`, at every rounding.
    """

    fmt: Format
    rounding: Rounding = field(default=Rounding.NEAREST_EVEN, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    overflow: str = field(default="nonfinite", kw_only=True)
    subnormals: str = field(default="keep", kw_only=True)
    random_bits: int = field(default=32, kw_only=True)

    def __init__(self, fmt: FormatLike, **keywords: Any) -> None:
        raise TypeError("use Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact; Accumulator is what they share.")

    @property
    def result_format(self) -> Format:
        """Format of the result and of the start value c."""
        return self.fmt

    def _set(
        self, fmt: FormatLike, rounding: str | Rounding, seed: int | None, overflow: str, subnormals: str,
        random_bits: int,
    ) -> None:  # fmt: skip
        """Check the arguments, which have the names and meanings of the fields, and store them in the fields.

        Raises:
          ValueError: an unknown option, or a format that the options or an accumulator do not allow.
        """
        options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
        for name, value in options.keywords().items():
            object.__setattr__(self, name, value)
        self._refuse_format(options.fmt)

    def _refuse_format(self, fmt: Format) -> None:
        """Raise a ValueError if `fmt` has no zero, or this accumulator's options cannot be used with it."""
        overflow_outcome(self.overflow, fmt)
        if not fmt.has_zero:
            raise ValueError(f"an accumulator needs a format with a zero to start from; got {fmt}. Use BF16 or FP32.")
        if fmt == FP64:
            self._refuse_double()

    def _refuse_double(self) -> None:
        """Raise a ValueError unless the options are those of FP64, in which the processor itself adds.

        They are the rounding "nearest_even", the overflow "nonfinite" and the subnormals "keep".
        """
        if (self.rounding, self.overflow, self.subnormals) != (Rounding.NEAREST_EVEN, "nonfinite", "keep"):
            raise ValueError(
                f"FP64 accumulates with rounding='nearest_even', overflow='nonfinite' and subnormals='keep', the "
                f"processor's own arithmetic; got {shown(self.rounding.name.lower())}, {self.overflow!r} and "
                f"{self.subnormals!r}. Use FP32, or Exact."
            )

    def __repr__(self) -> str:
        shown = [str(self.fmt), *self._extra()]
        if self.rounding is not Rounding.NEAREST_EVEN:
            shown.append(f"rounding={self.rounding.name.lower()!r}")
        defaults = {"seed": None, "overflow": "nonfinite", "subnormals": "keep", "random_bits": 32}
        shown += [f"{name}={getattr(self, name)!r}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _extra(self) -> list[str]:
        """Return the arguments, as text, that `repr` shows between the format and the keywords."""
        return []


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class _InOneFormat(Accumulator):
    """An accumulator whose running sums and result have the same format."""

    def __init__(
        self, fmt: FormatLike, *, rounding: str | Rounding = "nearest_even", seed: int | None = None,
        overflow: str = "nonfinite", subnormals: str = "keep", random_bits: int = 32,
    ) -> None:  # fmt: skip
        self._set(fmt, rounding, seed, overflow, subnormals, random_bits)


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class Sequential(_InOneFormat):
    """Accumulator that rounds every product, then every sum, for ascending k: `t = R(t + R(a * b))`.

    R rounds to `fmt`. t starts at +0, or at the element of the product's argument c.

    Args:
      fmt: the format of products and sums, by name, dtype or object; it needs a zero.
      rounding: as in `fpsim.encode`; FP64 only rounds to nearest even.
      seed: key of the stochastic mode, 0 to 2**64 - 1, which needs one.
      overflow, subnormals, random_bits: as in `fpsim.encode`, at every rounding.

    Raises:
      ValueError: an unknown option, a stochastic mode without a seed, or a format without zero.

    Source: docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> fp.Sequential("bf16"), fp.Sequential("fp16", rounding="RTZ")
      (Sequential(BF16), Sequential(FP16, rounding='toward_zero'))
    """


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class FusedMultiplyAdd(_InOneFormat):
    """Accumulator that rounds every sum and no product, for ascending k: `t = R(t + a * b)`.

    R rounds to `fmt`. t starts at +0, or at the element of the product's argument c.

    Args:
      fmt: the format of sums, by name, dtype or object; it needs a zero.
      rounding, seed, overflow, subnormals, random_bits: as for `Sequential`.

    Raises:
      ValueError: as for `Sequential`.

    Source: docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> fp.FusedMultiplyAdd("fp32")
      FusedMultiplyAdd(FP32)
    """


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class Pairwise(_InOneFormat):
    """Accumulator that adds rounded products in pairs, then the sums of pairs, level by level, each sum rounded.

    Pairs are of neighbours from k = 0 on; the last of an odd number moves up a level unchanged. c is added at the end.

    Args:
      fmt: the format of products and sums, by name, dtype or object; it needs a zero.
      rounding, seed, overflow, subnormals, random_bits: as for `Sequential`.

    Raises:
      ValueError: as for `Sequential`.

    Source: docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> fp.Pairwise("bf16", rounding="stochastic", seed=1)
      Pairwise(BF16, rounding='stochastic', seed=1)
    """


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class Chunked(Accumulator):
    """Accumulator of partial sums: each `chunk` terms are summed as by `Sequential`, and their totals added in order.

    Each partial sum starts at +0. The sum of totals, rounded to `outer`, starts at +0, or at the element of the
    product's argument c.

    Args:
      fmt: the format of products and of partial sums.
      chunk: terms of a partial sum.
      outer: the format of the sum of the totals, and of the result; `fmt` by default.
      rounding, seed, overflow, subnormals, random_bits: as for `Sequential`, of both formats.

    Raises:
      ValueError: as for `Sequential`, or chunk is not an integer >= 1.

    Source: docs/accumulators.md; Wang et al., "Training deep neural networks with 8-bit floating point numbers",
      NeurIPS 2018, section 3.1.

    Example:
      >>> import fpsim as fp
      >>> fp.Chunked("fp16"), fp.Chunked("bf16", chunk=32, outer="fp32").result_format.name
      (Chunked(FP16, chunk=64), 'FP32')
    """

    chunk: int = 64
    outer: Format = None  # type: ignore[assignment]  # filled in by __init__, so that readers see a Format

    def __init__(
        self, fmt: FormatLike, chunk: int = 64, outer: FormatLike | None = None, *,
        rounding: str | Rounding = "nearest_even", seed: int | None = None, overflow: str = "nonfinite",
        subnormals: str = "keep", random_bits: int = 32,
    ) -> None:  # fmt: skip
        self._set(fmt, rounding, seed, overflow, subnormals, random_bits)
        if not isinstance(chunk, (int, np.integer)) or isinstance(chunk, bool) or chunk < 1:
            raise ValueError(f"chunk must be an integer >= 1, the terms of a run; got {shown(chunk)}.")
        require_integer("chunk", chunk)
        object.__setattr__(self, "chunk", int(chunk))
        object.__setattr__(self, "outer", self.fmt if outer is None else format_argument("outer", outer))
        self._refuse_format(self.outer)

    @property
    def result_format(self) -> Format:
        """Format in which the totals of the partial sums are added, which is that of the result."""
        return self.outer

    def _extra(self) -> list[str]:
        """Return the arguments that `repr` adds: the chunk, and the outer format if it differs."""
        return [f"chunk={self.chunk}", *([f"outer={self.outer}"] if self.outer != self.fmt else [])]


@reloadable
@dataclass(frozen=True, init=False, repr=False)
class Exact(_InOneFormat):
    """Accumulator that adds all products and c exactly and rounds the sum once.

    Args:
      fmt: the format of the sum, by name, dtype or object; it needs a zero.
      rounding, seed, overflow, subnormals, random_bits: as for `Sequential`; FP64 allows every deterministic rounding
        mode.

    Raises:
      ValueError: as for `Sequential`.

    Source: docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> fp.Exact("fp64", rounding="up")
      Exact(FP64, rounding='up')
    """

    def _refuse_double(self) -> None:
        """Raise a ValueError if the rounding is stochastic, which FP64 does not support."""
        if self.rounding is Rounding.STOCHASTIC:
            raise ValueError("stochastic rounding works for results of up to 32 bits; got FP64. Use FP32.")
