"""CPU libraries: the schedule for each shape, format and memory layout of a product, or why it is not known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, get_args

from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import INT8, IntegerFormat
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.reload import reloadable
from fpsim.schedules.arguments import positive
from fpsim.schedules.schedule import Schedule
from fpsim.sums.accumulators import FusedMultiplyAdd

if TYPE_CHECKING:
    from fpsim.schedules.regions import Regions

Isa = Literal[
    "amx_fp16", "amx", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2"
]  # fmt: skip
Layout = Literal["nn", "nt", "tn"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ISAS: tuple[Isa, ...] = get_args(Isa)  # the largest first, as oneDNN orders them
CHAIN = FusedMultiplyAdd(FP32)
FORMATS = (BF16, FP16, FP32, INT8)


@reloadable
class ProductShape(NamedTuple):
    """The shape of a product a (M, K) times b (K, N), the format of its operands, and their memory layout.

    layout: "nn": both operands in C order; "nt": b is the transpose of an array in C order; "tn": a is such a
    transpose.
    """

    m: int
    n: int
    k: int
    fmt: Format | IntegerFormat
    layout: Layout

    @property
    def is_vector(self) -> bool:
        """True if the result is one row or one column."""
        return 1 in (self.m, self.n)


@reloadable
class ChosenSchedule(NamedTuple):
    """The schedule of a library for one shape.

    kernel: the library's name of the kernel.
    schedule: the order of additions, or the orders of regions of the result.
    accumulate, out_fmt: the keywords for `fp.matmul` with this schedule; regions need no accumulate.
    rule: a text on how the kernel adds.
    bias: how the kernel adds a bias. "last": to the float32 sum, before the cast. "first": the sums of segments are
      added to the bias. "start": the chain of multiply-adds starts at the bias. "" if this is not known.
    shifted: the operand of INT8 to which 128 is added before it is multiplied by the other, "a" or "b"; 128 times the
      other's sums over K are subtracted at the end. "" for none.
    flushes: True if the cast of the float32 sum takes subnormals for zeros, as VCVTNEPS2BF16 does.
    starts_at: the number to which a result's first term is added without a bias: 0.0; or -0.0, so that a result of one
      term is the product with its sign.
    """

    kernel: str
    schedule: Schedule | Regions
    accumulate: str | FusedMultiplyAdd | None
    out_fmt: Format | None
    rule: str
    bias: Literal["", "last", "first", "start"] = ""
    shifted: Literal["", "a", "b"] = ""
    flushes: bool = False
    starts_at: float = 0.0

    @property
    def adds_bias(self) -> bool:
        """True if it is known how the kernel adds a bias."""
        return bool(self.bias)


def is_regions(x: Any) -> TypeGuard[Regions]:
    """Return whether x is a Regions of `fp.schedules`, without importing their module."""
    module = sys.modules.get("fpsim.schedules.regions")
    return module is not None and isinstance(x, module.Regions)


class DeclinedShape(ValueError):
    """The error for a shape whose order of additions is not known; its message names the missing rule."""


@reloadable
@dataclass(frozen=True)
class ShapedSchedule:
    """A library whose schedule depends on the shape of the product; passed as `fp.matmul(schedule=)`.

    Attributes:
      name: the call that makes it.
      library: name of the library, with its version.
      choose: function from a ProductShape to a ChosenSchedule, which `at` calls; it raises a DeclinedShape for a shape
        whose order of additions is not known.
      layout: "nn": a and b in C order; "nt": b is the transpose of an array in C order, as the weights of a linear
        layer; "tn": a is such a transpose.
      source: the source of the rules.
      own_transpose: a clause that says why `fp.matmul` refuses a product of a matrix and its own transposed view; ""
        if the library adds such a product as any other.

    Example:
      >>> import fpsim as fp
      >>> cpu = fp.schedules.onednn("avx512_bf16")
      >>> cpu.at(40, 50, 1500, "bf16").schedule
      segments(1024, 476)
      >>> print(cpu.declines(40, 50, 1500, "fp16"))
      onednn('avx512_bf16') has no proven rule for 40 x 50 x 1500 in FP16 (nn): torch gives oneDNN no FP16 with these
      instructions; take torch_mm().
    """

    name: str
    library: str
    choose: Callable[[ProductShape], ChosenSchedule] = field(compare=False, repr=False)
    layout: Layout = "nn"
    source: str = field(default="", repr=False)
    own_transpose: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return self.name

    def at(self, m: int, n: int, k: int, fmt: FormatLike | IntegerFormat = BF16) -> ChosenSchedule:
        """Return the schedule for a product of an m x k by a k x n matrix, whose elements have the format `fmt`.

        Raises:
          DeclinedShape: the order of additions is not known; a ValueError whose sentence names the missing rule.
          ValueError: a size is not a positive integer, or the format is none of BF16, FP16, FP32 and INT8.
        """
        rows, columns, terms = positive(m, "m"), positive(n, "n"), positive(k, "k")
        element = element_format(fmt)
        known = next((known for known in FORMATS if known == element), None)
        if known is None:
            raise ValueError(
                f"fmt must be BF16, FP16, FP32 or INT8, whose products are known on CPUs; got {shown(fmt)}."
            )
        return self.choose(ProductShape(rows, columns, terms, known, self.layout))

    def declines(self, m: int, n: int, k: int, fmt: FormatLike | IntegerFormat = BF16) -> str:
        """Return a sentence on why `at(m, n, k, fmt)` finds no schedule for a product; "" if it finds one."""
        try:
            self.at(m, n, k, fmt)
        except DeclinedShape as reason:
            return str(reason)
        return ""


def declined(name: str, shape: ProductShape, missing: str) -> DeclinedShape:
    """Return the error for a product whose order of additions is not known.

    name: name of the ShapedSchedule. shape: the product's shape. missing: a clause that names the unknown rule.

    Example:
      >>> from fpsim.schedules.shaped import ProductShape, declined
      >>> print(declined("mkl()", ProductShape(1, 8, 64, fp.FP32, "nn"), "how sgemv adds is not known here"))
      mkl() has no proven rule for 1 x 8 x 64 in FP32 (nn): how sgemv adds is not known here.
    """
    sizes = f"{shape.m} x {shape.n} x {shape.k}"
    return DeclinedShape(f"{name} has no proven rule for {sizes} in {shape.fmt} ({shape.layout}): {missing}.")


def cut(k: int, length: int) -> tuple[int, ...]:
    """Return the lengths of the segments into which k terms are cut: `length` each, but the last may be shorter.

    Example:
      >>> from fpsim.schedules.shaped import cut
      >>> cut(1100, 512)
      (512, 512, 76)
    """
    whole, rest = divmod(k, length)
    return (length,) * whole + ((rest,) if rest else ())
