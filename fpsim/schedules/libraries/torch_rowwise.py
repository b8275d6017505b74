"""The schedule of PyTorch's own CUTLASS kernel for FP8 with a scale per row and column."""

from __future__ import annotations

from collections.abc import Iterator

from fpsim.errors import require_kind
from fpsim.formats.named import E5M2
from fpsim.schedules.arguments import call_text
from fpsim.schedules.call import Call, Library, other_chip
from fpsim.schedules.schedule import Chain, Epilogue, Schedule

SOURCE = "pytorch/pytorch: aten/src/ATen/native/cuda/RowwiseScaledMM.cu"
TORCH = "torch._scaled_mm"


def torch_rowwise(fast_accum: bool = False) -> Schedule:
    """Return the schedule of PyTorch's own CUTLASS kernel for FP8 with a scale per row and column.

    torch._scaled_mm calls it if cuBLAS is older than 12.9. Terms are added as in `cutlass_2xacc`, or with fast_accum in
    one chain over K. The result is (sum * scale_a) * scale_b + bias, each operation rounded.

    Args:
      fast_accum: use_fast_accum of torch._scaled_mm.

    Source: pytorch, aten/src/ATen/native/cuda/RowwiseScaledMM.cu; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.torch_rowwise(fast_accum=True)
      torch_rowwise(fast_accum=True)
    """
    require_kind("fast_accum", fast_accum, bool, "True or False")
    return Schedule(
        call_text("torch_rowwise", fast_accum=(fast_accum, False)), "PyTorch", "rowwise", "hopper",
        Chain(0 if fast_accum else 128), epilogue=Epilogue("a_first"), fast_accum=fast_accum, source=SOURCE,
        evidence="source",
    )  # fmt: skip


def _shape_and_operands(call: Call) -> Iterator[str]:
    """Yield reasons why torch refuses a call: N or K is no multiple of 16, or both operands are E5M2."""
    if call.n % 16 or call.k % 16:
        yield f"{TORCH} wants N and K to be multiples of 16; got N = {call.n}, K = {call.k}. Pad with zeros."
    if call.unit.a.fmt == E5M2 and call.unit.b.fmt == E5M2:
        yield f"{TORCH} does not multiply E5M2 by E5M2 on CUDA. Encode one operand in E4M3."


LIBRARY = Library(
    "PyTorch", (torch_rowwise(), torch_rowwise(fast_accum=True)), refusals=(other_chip, _shape_and_operands)
)
