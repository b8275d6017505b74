"""The class of schedules: how a library divides K into slices, chains instructions and merges the sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from fpsim.errors import integer_fields, require_integer, require_kind, require_word, shown
from fpsim.reload import reloadable

Rule = Literal["even", "ceiling", "floor", "cutlass", "interleaved", "rounds", "listed"]
Merge = Literal["float32", "output", "in_place", "from_both_ends"]
LaneMerge = Literal["forward", "butterfly", "blocks"]
ScaleOrder = Literal["product", "a_first", "b_first", "cublas"]
Source = Literal["added", "first", "after_cast"]
Evidence = Literal["hardware", "source", "inferred"]
BLOCK_THREADS = 128  # of cuBLAS's dot_kernel, the lanes of the merge "blocks"


@reloadable
@dataclass(frozen=True)
class Slicing:
    """The slices of K, whose sums are merged afterwards (split-K).

    Args:
      count: the requested number of slices; there are fewer if K has too few terms.
      grain: consecutive terms that stay in one slice; 0 for the schedule's own number, which depends on the operands'
        width.
      rule: the terms of a slice. The first four rules give its number of consecutive terms.
        - "even": ceil(K / count).
        - "ceiling": grain * ceil(ceil(K / grain) / count).
        - "floor": grain * ceil(floor(K / count) / grain), at least one grain, so that the last terms of K may be left
          out of the sum.
        - "cutlass": as "ceiling", where the grain is the number of terms of operand a in 128 bytes (64 of FP16) if that
          number divides K, else the number in 16 bytes (8 of FP16).
        - "interleaved": K is cut into runs of `grain` terms; slice s has the runs s, s + count, s + 2 * count, ...
        - "rounds": as "interleaved" as long as every slice gets a run; the terms left then all belong to slice 0.
        - "listed": slice s has `lengths[s]` consecutive terms.
      merge: how the slices' sums are added. A single slice is unchanged.
        - "float32": one after the other, in float32.
        - "output": as "float32", but each slice's sum is rounded to the output format first.
        - "in_place": as "float32", but the running sum is rounded to the output format after every slice.
        - "from_both_ends": the total starts with the sum of the last slice. For i = 0 to h - 1, with
          h = ceil(count / 2), the sums of slices i and i + h are added, and their sum is added to the total; slice i is
          added alone if i + h is the last slice or beyond.
      lengths: terms of each slice, which add up to K, for the rule "listed".

    Raises:
      ValueError: lengths without the rule "listed", or another number of them than `count`.
    """

    count: int = 1
    grain: int = 0
    rule: Rule = "even"
    merge: Merge = "float32"
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        integer_fields(self, "count", lowest=1)
        integer_fields(self, "grain", lowest=0)
        require_word("rule", self.rule, get_args(Rule))
        require_word("merge", self.merge, get_args(Merge))
        require_kind("lengths", self.lengths, tuple, "a tuple of numbers of terms")
        for length in self.lengths:
            require_integer("a length", length, 1)
        object.__setattr__(self, "lengths", tuple(map(int, self.lengths)))
        if len(self.lengths) != (self.count if self.rule == "listed" else 0):
            raise ValueError(
                f"the rule 'listed' has a length for each of its {self.count} slices, and other rules have none; got "
                f"the rule {self.rule!r} with {len(self.lengths)} lengths."
            )


@reloadable
@dataclass(frozen=True)
class Chain:
    """The order in which matrix instructions add the terms of a slice of K.

    Args:
      interval: terms after which the partial sum is added to a float32 total and starts again at +0; 0 for one chain.
      short_sums_only: the interval holds only for units that keep fewer bits than float32 has (FP8 on Ada and
        Hopper); with any other unit there is one chain.
      restart: terms after which the counting of intervals starts again; 0 for never.
      first_as_is: True if a total starts at its first partial sum, False if at +0 (only a sum of -0 shows which).
      residue: terms of a tile. The first (terms of the slice) mod `residue` terms, which fill no whole tile, are
        added by separate instructions; then come whole tiles. 0: all terms are added alike.
      step: terms of an instruction, if fewer than the unit's; 0 for the unit's.
      odd_first: True adds the second term of each pair in a slice before the first; False adds them in order.

    Raises:
      ValueError: both an interval and a residue are given, which no library has.
    """

    interval: int = 0
    short_sums_only: bool = False
    restart: int = 0
    first_as_is: bool = False
    residue: int = 0
    step: int = 0
    odd_first: bool = False

    def __post_init__(self) -> None:
        integer_fields(self, "interval", "restart", "residue", "step", lowest=0)
        for flag in ("short_sums_only", "first_as_is", "odd_first"):
            require_kind(flag, getattr(self, flag), bool, "True or False")
        if self.interval and self.residue:
            raise ValueError(
                f"a chain takes an interval or a residue; got interval={self.interval} and "
                f"residue={self.residue}. Leave one out."
            )


@reloadable
@dataclass(frozen=True)
class Lanes:
    """The order in which threads without matrix instructions add a slice of K, by fused multiply-adds in float32.

    A lane is a partial sum of an output.

    Args:
      count: number of lanes that share an output; a power of two for "butterfly", 128 for "blocks".
      run: number of consecutive terms that a lane takes before the next lane takes its terms. 0: ceil(terms / count),
        where `terms` is ceil(K / number of slices); negative: the smaller of -run and ceil(terms / count).
      chunk: terms of a lane that are summed from +0 before they are added to its total; 0 for all.
      chunks_from_zero: True if a lane's total starts at +0, False if at the sum of its first chunk.
      merge: how lanes are joined. "forward": one after the other. "butterfly": lane l + count / 2 is added to lane l,
        then lane l + count / 4, and so on. "blocks": dot_kernel and reduce_1Block_kernel of cuBLAS (docs/schedules.md).
      lanes_from_zero: True if a "forward" merge starts at +0, False if at the first lane.
      blocks: for "blocks": number of blocks of 128 threads. A thread has one lane, or two if the result has one column.

    Raises:
      ValueError: blocks without the merge "blocks", or this merge without blocks; or a number of lanes that the merge
        cannot join.
    """

    count: int
    run: int = 1
    chunk: int = 0
    chunks_from_zero: bool = False
    merge: LaneMerge = "forward"
    lanes_from_zero: bool = False
    blocks: int = 0

    def __post_init__(self) -> None:
        integer_fields(self, "count", lowest=1)
        integer_fields(self, "run")
        integer_fields(self, "chunk", "blocks", lowest=0)
        for flag in ("chunks_from_zero", "lanes_from_zero"):
            require_kind(flag, getattr(self, flag), bool, "True or False")
        require_word("merge", self.merge, get_args(LaneMerge))
        if (self.merge == "blocks") != (self.blocks > 0):
            raise ValueError(
                f"lanes that are merged as 'blocks' have one or more blocks, and others have none; got "
                f"merge={self.merge!r} and blocks={self.blocks}."
            )
        if self.merge == "butterfly" and self.count & (self.count - 1):
            raise ValueError(f"count must be a power of two for the merge 'butterfly'; got {self.count}.")
        if self.merge == "blocks" and self.count != BLOCK_THREADS:
            raise ValueError(f"count must be {BLOCK_THREADS} for the merge 'blocks'; got {self.count}.")


@reloadable
@dataclass(frozen=True)
class Epilogue:
    """The operations on a finished sum: scales, alpha, bias, C and the cast, each rounded once to float32.

    Args:
      scale_order: "product": fma(scale_a * scale_b, sum, 0); "a_first": (sum * scale_a) * scale_b; "b_first":
        (sum * scale_b) * scale_a. "cublas": as cuBLAS 13.1 does on an H100: "a_first" if both operands have a scale per
        1x128 block, "b_first" if they have scales per row and per column, else "product".
      source: how beta * C is added, where y is the sum times scales and alpha, plus the bias. "added":
        fma(beta, C, y). "first": fma(alpha, sum, beta * C), to which the bias is added. "after_cast": y is cast to the
        output format, then fma(beta, C, y) is computed and cast.
      fused_bias: True if y is fma(alpha, sum, bias), False if it is alpha * sum + bias with two roundings.
      adds_c: True if C without a beta is added in the epilogue as if beta were 1, False if sums start at C instead.
    """

    scale_order: ScaleOrder = "product"
    source: Source = "added"
    fused_bias: bool = False
    adds_c: bool = False

    def __post_init__(self) -> None:
        require_word("scale_order", self.scale_order, get_args(ScaleOrder))
        require_word("source", self.source, get_args(Source))
        for flag in ("fused_bias", "adds_c"):
            require_kind(flag, getattr(self, flag), bool, "True or False")


@reloadable
@dataclass(frozen=True)
class Schedule:
    """The order in which a library adds the K products of every output, and its epilogue.

    Args:
      name: the call that makes it.
      library, family, arch: its library, kernel family and architecture ("hopper"); "" for any architecture.
      sums: the order of additions in a slice of K.
      slicing: the slices of K.
      epilogue: the operations on the finished sum.
      block_scaled: True if partial sums of `sums.interval` terms are multiplied by the scales of their blocks.
      fast_accum: True if partial sums of FP8 products are not added to a float32 total.
      options: further fields of the library's algorithm, as (name, value).
      source: text on where these facts are published.
      evidence: "hardware" (the source compared it with real output), "source" (read from the library's source code)
        or "inferred".
      operands: the operands' format as units name it, such as "e4m3" of "hopper_e4m3_f32". The unit with this format,
        `arch` (hopper if that is "") and float32 sums is the default one. "fp32": float32 multiply-adds.
      fuses_scales: True if the second multiplication by a block's scales and the addition to the total are one fused
        multiply-add; False if the scaled partial sum is rounded before it is added.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cublas("sm_90", split_k=4)
      cublas('sm_90', split_k=4)
    """

    name: str
    library: str = "fpsim"
    family: str = ""
    arch: str = ""
    sums: Chain | Lanes = Chain()
    slicing: Slicing = Slicing()
    epilogue: Epilogue = Epilogue()
    block_scaled: bool = False
    fast_accum: bool = False
    options: tuple[tuple[str, int], ...] = ()
    source: str = field(default="", repr=False)
    evidence: Evidence = "inferred"
    operands: str = "e4m3"
    fuses_scales: bool = True

    def __post_init__(self) -> None:
        for text in ("name", "library", "family", "arch", "source", "operands"):
            require_kind(text, getattr(self, text), str, "a text")
        require_kind("sums", self.sums, (Chain, Lanes), "a Chain or Lanes")
        require_kind("slicing", self.slicing, Slicing, "a Slicing")
        require_kind("epilogue", self.epilogue, Epilogue, "an Epilogue")
        for flag in ("block_scaled", "fast_accum", "fuses_scales"):
            require_kind(flag, getattr(self, flag), bool, "True or False")
        require_kind("options", self.options, tuple, "a tuple of pairs (name, number)")
        for pair in self.options:
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                raise TypeError(f"options must be a tuple of pairs (name, number); got {shown(self.options)}.")
        require_word("evidence", self.evidence, get_args(Evidence))
        if isinstance(self.sums, Lanes) and self.slicing.count > 1 and self.slicing.rule in ("interleaved", "rounds"):
            raise ValueError(
                "lanes add slices of consecutive terms, which no library deals out in turn; got the rule "
                f"{self.slicing.rule!r}. Take 'even', 'ceiling', 'floor', 'cutlass' or 'listed'."
            )

    def __repr__(self) -> str:
        return self.name

    def option(self, name: str, otherwise: int = 0) -> int:
        """Return the value of the entry `name` in `options`, or `otherwise` if there is none."""
        return dict(self.options).get(name, otherwise)


FLAT = Schedule(
    "FLAT", sums=Chain(), source="fp.dot_add: instructions chained over ascending k", evidence="hardware"
)  # fmt: skip
