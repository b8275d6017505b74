"""The schedule of loops over tl.dot that Triton compiles for Hopper."""

from __future__ import annotations

from collections.abc import Iterator

from fpsim.formats.named import BF16, E4M3, E5M2, FP16, TF32
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.call import Call, Library
from fpsim.schedules.schedule import Chain, Schedule

LEAST_IMPRECISE = 32  # terms of an FP8 wgmma
TRITON = "triton-lang/triton: DotOpToLLVM/WGMMA.cpp, WarpGroupDotOp::needsPartialAccumulator, language/semantic.py"
OPERANDS = (FP16, BF16, TF32, E4M3, E5M2)
LEAST_BLOCK = 16  # terms of K of a tl.dot


def triton(block_k: int = 128, max_num_imprecise_acc: int | None = None) -> Schedule:
    """Return the schedule of a Triton loop `acc = tl.dot(a, b, acc, max_num_imprecise_acc=...)` on Hopper's wgmma.

    With FP8 operands and a max_num_imprecise_acc, a partial sum starts at +0 and takes that many terms, rounded up to
    whole instructions; then it is added to acc in float32. A block of K ends with a partial sum of its remaining terms.
    Otherwise all additions to acc are one chain.

    Args:
      block_k: terms of K that one tl.dot adds, usually named BLOCK_K.
      max_num_imprecise_acc: as in tl.dot; None is Triton's own choice on Hopper, 2**30: no promotion.

    Raises:
      ValueError: max_num_imprecise_acc is above block_k, or below 32; Triton refuses both.

    Source: triton-lang/triton, third_party/nvidia/lib/TritonNVIDIAGPUToLLVM/DotOpToLLVM/WGMMA.cpp; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.triton(64, max_num_imprecise_acc=32)
      triton(64, max_num_imprecise_acc=32)
    """
    block_k = positive(block_k, "block_k")
    sums, limit = Chain(), max_num_imprecise_acc
    if limit is not None:
        limit = positive(limit, "max_num_imprecise_acc")
        if not LEAST_IMPRECISE <= limit <= block_k:
            raise ValueError(
                f"max_num_imprecise_acc must be between {LEAST_IMPRECISE} and block_k, {block_k} (Triton's own rules); "
                f"got {limit}."
            )
        interval = -(-limit // LEAST_IMPRECISE) * LEAST_IMPRECISE
        sums = Chain(interval, short_sums_only=True, restart=block_k)
    return Schedule(
        call_text("triton", block_k, max_num_imprecise_acc=(limit, None)), "Triton", "tl.dot", sums=sums,
        options=(("block_k", block_k),), source=TRITON, evidence="source",
    )  # fmt: skip


def _block(call: Call) -> Iterator[str]:
    """Yield the reason why Triton refuses a call if block_k is no power of two, or too small for tl.dot."""
    block_k = call.schedule.option("block_k", LEAST_BLOCK)
    if block_k < LEAST_BLOCK or block_k & (block_k - 1):
        yield f"Triton takes blocks of K that are a power of two, {LEAST_BLOCK} or more (tl.dot); got {block_k}."


def _operands(call: Call) -> Iterator[str]:
    """Yield the reason why Triton refuses a call if the instruction wgmma does not multiply its operands' formats."""
    if {call.unit.a.fmt, call.unit.b.fmt} - set(OPERANDS):
        yield (
            f"Triton's tl.dot runs on wgmma, which takes {', '.join(map(str, OPERANDS))} ({TRITON}); "
            f"got {call.unit.name}."
        )


LIBRARY = Library("Triton", (triton(), triton(128, max_num_imprecise_acc=64)), refusals=(_block, _operands))
