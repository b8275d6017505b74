"""cublas_choice: the schedule of the kernel that cuBLAS chose, by the fields of its algorithm or from recorded choices.

cuBLAS's heuristic is not public. Its answer fixes the order of additions, and can be read on the GPU (`Fields`).
Without it, the choice is known only for the shapes that were recorded; every other shape is declined.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, Format, format_argument
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.chips import NamedChip
from fpsim.schedules.arguments import chip_of
from fpsim.schedules.libraries.cublas import ALGORITHMS, EQUIV, GEMV_BUTTERFLY, GEMV_OUTPUTS, ON, cublas
from fpsim.schedules.libraries.cublas_table import recorded_kernel, table
from fpsim.schedules.plan import BLOCK_BITS
from fpsim.schedules.schedule import Schedule

LAYOUTS = ("nn", "nt", "tn")  # both operands row-major; both contiguous along K; a along M and b along N
NVJET = 66
STAGES = {16: 35, 8: 36}  # bits of operands -> STAGES_ID of nvjet, as it was seen


class Fields(NamedTuple):
    """The attributes of a cuBLASLt algorithm, in the order of their numbers in cuBLASLt's enumeration.

    In this order they are CUBLASLT_ALGO_CONFIG_ID, then those whose names end in TILE_ID, SPLITK_NUM, REDUCTION_SCHEME,
    CTA_SWIZZLING, CUSTOM_OPTION, STAGES_ID, INNER_SHAPE_ID and CLUSTER_SHAPE_ID.
    """

    algo: int
    tile: int
    split_k: int
    reduction: int
    swizzle: int
    option: int
    stages: int
    inner_shape: int
    cluster: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


class CublasChoice(NamedTuple):
    """The kernel that cuBLAS runs for a call, as far as it is known.

    Attributes:
      schedule: the kernel's order of additions; None where it is not known.
      reason: why there is no schedule, as a sentence; empty where there is one.
      source: where the choice was published or recorded, with the version of cuBLAS; empty without a schedule.
      workspace: bytes of workspace that the kernel needs for the sums of its slices; 0 for one slice, and for slices
        that are added in the result itself (REDUCTION_SCHEME 1). If the caller has less, or for an nvjet kernel with
        several slices exactly as much, cuBLAS takes another kernel. torch has 32 MiB for torch.mm on Hopper, but 1 MiB
        for FP8 and for addmm with a bias; the environment variable CUBLASLT_WORKSPACE_SIZE (in KiB) changes the 1 MiB.
    """

    schedule: Schedule | None
    reason: str = ""
    source: str = ""
    workspace: int = 0


class RecordedChoice(NamedTuple):
    """A product whose result was recorded on a GPU, with the arguments of `cublas` that reproduce all its bits.

    shape: (M, N, K); operands, out: names of formats; layout: "nn", both operands row-major, or "nt", both contiguous
    along K; fast_accum: whether FP8's fast accumulation was on; options: arguments of `cublas`.
    """

    shape: tuple[int, int, int]
    operands: tuple[str, str]
    out: str
    layout: str
    fast_accum: bool
    options: dict[str, Any]


def _recorded() -> list[RecordedChoice]:
    """List the recorded products for which an H100 and an H200 with cuBLAS 13.1.0 returned the same bits.

    The fields of their algorithms were read from cublasLtMatmul, except for FP16 operands with an FP32 result in the
    layout "nt": these are products of torch.mm, whose bits the listed arguments of `cublas` reproduce.
    """
    square, deep, odd = (32, 32, 512), (16, 16, 2048), (9, 24, 100)
    rows = [
        RecordedChoice(square, (kind, kind), kind, layout, False, {})
        for kind in ("FP16", "BF16")
        for layout in ("nn", "nt")
    ]
    rows += [RecordedChoice(square, ("FP16", "FP16"), "FP32", layout, False, {}) for layout in ("nn", "nt")]
    stages = {"family": 23, "stages": 20}
    rows += [RecordedChoice(odd, ("FP16", "FP16"), out, "nn", False, stages) for out in ("FP16", "FP32")]
    rows.append(RecordedChoice(odd, ("BF16", "BF16"), "BF16", "nn", False, {**stages, "split_k": 264, "merge": 2}))
    for shape, pair in ((square, ("E4M3", "E4M3")), (deep, ("E4M3", "E4M3")), (square, ("E4M3", "E5M2"))):
        rows.append(RecordedChoice(shape, pair, "FP16", "nt", True, {"fast_accum": True}))
        rows.append(RecordedChoice(shape, pair, "FP32", "nt", False, {}))
    return rows


RECORDED = tuple(_recorded())
RECORDING = "tests/gpu/recordings: an H100 on 2026-11-22 and an H200 on 2026-11-26, cuBLAS 13.1.0"


def cublas_choice(
    chip: str, m: int, n: int, k: int, *, fmt: FormatLike | tuple[FormatLike, FormatLike] = "fp16",
    out_fmt: FormatLike | None = None, layout: str = "nn", fast_accum: bool = False, fields: Fields | None = None,
) -> CublasChoice:  # fmt: skip
    """Return the schedule of the kernel that cuBLAS takes for a product, or the reason why it is not known.

    Args:
      chip: "H100", "sm_90" or another name of a Hopper or Blackwell chip.
      m, n, k: shape of the product: a is (m, k), b is (k, n).
      fmt: format of both operands, or (format of a, format of b).
      out_fmt: format of the result; None for the operands' format, or for float32 if they are FP8.
      layout: layout of the operands in memory: "nn", both row-major; "nt", b transposed (both contiguous along K), as
        in `x @ weight.t()`; "tn", a transposed, as in `grad.t() @ x`. FP8 is always "nt".
      fast_accum: CUBLASLT_MATMUL_DESC_FAST_ACCUM of FP8 products; ignored for other operands.
      fields: fields of the algorithm that cuBLAS's heuristic returned, as `fp.gpu.hardware.lt_fields` reads them. Then
        the recorded choices are not used, and out_fmt only affects `.workspace` of the result.

    Returns:
      A CublasChoice. `.schedule` is the order of additions, and `.source` says where the choice was recorded; if it is
      not known, `.schedule` is None and `.reason` says why.

    Raises:
      ValueError: an unknown chip, format or layout, a shape without elements, or a negative field.
      TypeError: a size or a field that is no integer, fields that are no Fields, or fast_accum that is no bool.

    Source:
      With fields: facebookexperimental/triton, bitequiv/cublas_match (cuBLASLt 13.1.1), which maps fields to orders of
      additions, but does not say which fields the heuristic returns for a shape. Without fields: recordings of this
      project on an H200, for Hopper (docs/schedules.md). One size of the products is a number of tokens, of which there
      are 25 from 1 to 32,768. The other two are widths of layers from 64 to 65,536, or a width and the size of a
      vocabulary. cuBLAS had 32 MiB of workspace and was allowed every scheme of reduction, as in torch.mm by default.
      GPUs with a number of multiprocessors other than 132, such as the H100 PCIe and the H20, may choose otherwise.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cublas_choice("H100", 9, 24, 100).schedule
      cublas('sm_90', family=23, stages=20)
      >>> fp.schedules.cublas_choice("H100", 64, 4096, 14336, fmt="bf16", layout="nt").schedule
      cublas('sm_90', family=66, split_k=3)
      >>> unknown = fp.schedules.cublas_choice("H100", 4097, 4096, 4096)
      >>> unknown.schedule is None, unknown.reason
      (True, "cuBLAS's choice for FP16 x FP16 -> FP16, nn, 4097 x 4096 x 4096 was not recorded. Pass fields=,
      which fp.gpu.hardware.lt_fields reads on the GPU.")
    """
    named = chip_of(chip, "cuBLAS", tuple(ON))
    known = named.chip
    for name, value in (("m", m), ("n", n), ("k", k)):
        require_integer(name, value, 1)
    require_word("layout", layout, LAYOUTS)
    require_kind("fast_accum", fast_accum, bool, "True or False")
    sides = fmt if isinstance(fmt, (tuple, list)) else (fmt, fmt)
    if len(sides) != 2:
        raise ValueError(f"fmt must name one format, or 2 for a product; got {len(sides)}: {fmt!r}.")
    operands = find_format(sides[0]), find_format(sides[1])
    narrow = set(operands) <= {E4M3, E5M2}
    fast_accum = fast_accum and narrow
    out = format_argument("out_fmt", out_fmt) if out_fmt is not None else find_format("fp32") if narrow else operands[0]
    if not (narrow or operands in ((FP16, FP16), (BF16, BF16))) or operands == (E5M2, E5M2):
        pair = f"{operands[0]} by {operands[1]}"
        return CublasChoice(None, f"choices are known for FP16, BF16, and FP8 except E5M2 by E5M2; got {pair}.")
    if fields is not None:
        if not isinstance(fields, Fields):
            raise TypeError(f"fields must be Fields, as fp.gpu.hardware.lt_fields returns them; got {shown(fields)}.")
        for name, value in fields._asdict().items():
            require_integer(f"fields.{name}", value, 0)
        return _choice_of(fields, named, (m, n, k), layout, fast_accum, narrow, out, EQUIV)
    wanted = ((m, n, k), (operands[0].name, operands[1].name), out.name, "nt" if narrow else layout, fast_accum)
    if known.sm == "sm_90":
        count = named.multiprocessors
        if count != known.multiprocessors:
            return CublasChoice(
                None,
                f"cuBLAS's choices were recorded with {known.multiprocessors} multiprocessors, and {chip} has "
                f"{count or 'an unknown number'}. Pass fields=, which fp.gpu.hardware.lt_fields reads on the GPU.",
            )
        for row in RECORDED:
            if row[:-1] == wanted:
                return CublasChoice(cublas(known.sm, **row.options), source=RECORDING)
        formats = (operands[0].name.lower(), operands[1].name.lower(), out.name.lower())
        kernel = recorded_kernel((m, n, k), formats, wanted[3], fast_accum)
        if kernel is not None:
            algo, split_k, reduction, option, stages = kernel
            read = Fields(algo, 0, split_k, reduction, 0, option, stages, 0, 0)
            return _choice_of(read, named, (m, n, k), wanted[3], fast_accum, narrow, out, table().about)
    product = f"{operands[0]} x {operands[1]} -> {out}, {wanted[3]}{', fast accumulation' * fast_accum}"
    return CublasChoice(
        None,
        f"cuBLAS's choice for {product}, {m} x {n} x {k} was not recorded. Pass fields=, which "
        "fp.gpu.hardware.lt_fields reads on the GPU.",
    )


def _choice_of(
    fields: Fields, named: NamedChip, shape: tuple[int, int, int], layout: str, fast_accum: bool, narrow: bool,
    out: Format, source: str,
) -> CublasChoice:  # fmt: skip
    """Return the choice for an algorithm's fields: its schedule, or the reason why no schedule is known.

    named: the chip. shape: (M, N, K). layout, fast_accum: as for `cublas_choice`. narrow: operands have at most 8 bits.
    out: the result's format. source: where the fields, or their meaning, were published or recorded.
    """
    reason = _refusal(fields, named, shape, layout, narrow)
    if reason:
        return CublasChoice(None, reason)
    try:
        schedule = schedule_of(fields, named.chip.sm, fast_accum=fast_accum)
    except ValueError as unknown:
        return CublasChoice(None, str(unknown))
    m, n, _ = shape
    # cuBLAS manual, cublasLtReductionScheme_t: the workspace holds slices' sums of the compute or the output type
    held = {"in_place": 0, "output": out.bits // 8}.get(schedule.slicing.merge, 4)
    return CublasChoice(schedule, "", source, held * int(m) * int(n) * fields.split_k if fields.split_k > 1 else 0)


def schedule_of(fields: Fields, chip: str = "sm_90", *, fast_accum: bool = False) -> Schedule:
    """Return the schedule of the cuBLASLt algorithm with the given fields.

    Args:
      fields: fields of the algorithm, as `fp.gpu.hardware.lt_fields` returns them.
      chip: as for `fpsim.schedules.cublas`.
      fast_accum: CUBLASLT_MATMUL_DESC_FAST_ACCUM.

    Raises:
      ValueError: the algorithm, or the value of a field, is unknown.

    Example:
      >>> from fpsim.schedules.libraries.cublas_choice import Fields, schedule_of
      >>> schedule_of(Fields(66, 0, 4, 2, 0, 0, 35, 0, 0))
      cublas('sm_90', family=66, split_k=4)
    """
    options: dict[str, Any] = {"family": fields.algo}
    if ALGORITHMS.get(fields.algo) == "cutlass":
        options |= {"stages": fields.stages} | ({"merge": fields.reduction} if fields.split_k > 1 else {})
    if fields.algo in (11, 13):
        options["option"] = fields.option
    if fields.split_k > 1:
        options["split_k"] = fields.split_k
    if fast_accum and fields.algo == NVJET:
        options["fast_accum"] = True
    return cublas(chip, **options)


def _refusal(fields: Fields, named: NamedChip, shape: tuple[int, int, int], layout: str, narrow: bool) -> str:
    """Return a sentence that says why no schedule is known for an algorithm's fields; "" if one is known.

    named: the chip. shape: (M, N, K). layout: as for `cublas_choice`. narrow: True if operands have at most 8 bits.
    """
    m, n, k = shape
    family = ALGORITHMS.get(fields.algo, "")
    if not family:
        known = ", ".join(map(str, sorted(ALGORITHMS)))
        return f"the order of algorithm {fields.algo} is not known; known are {known}."
    if narrow and family != "nvjet":
        return f"FP8 was seen with nvjet kernels (66) only; got algorithm {fields.algo}."
    if family in ("gemv", "dot") and m != 1 and n != 1:
        return f"algorithm {fields.algo} multiplies by a vector; got {m} x {n} outputs."
    if family == "gemm_sn" and layout != "nn":
        return f"the order of gemmSN kernels is known for layout 'nn' only; got {layout!r}."
    if family in ("gemm_sn", "magma") and (fields.split_k > 1 or (family == "magma" and fields.option)):
        return f"algorithm {fields.algo} was seen without split-K and options only; got {fields}."
    if family == "gemv" and fields.option == 5 and m != 1:
        return f"option 5 of gemv was seen with one row only; got {m}."
    most = GEMV_OUTPUTS * (named.multiprocessors or math.inf)
    if family == "gemv" and fields.option == GEMV_BUTTERFLY and max(m, n) > most:
        return (
            f"option {GEMV_BUTTERFLY} of gemv takes as many lanes as the GPU has room for, and was seen with up to "
            f"{most} outputs; got {max(m, n)}."
        )
    bits = 8 if narrow else 16
    if family == "nvjet" and fields.stages != STAGES[bits]:
        return f"nvjet was seen with STAGES_ID {STAGES[bits]} for operands of {bits} bits only; got {fields.stages}."
    if family == "nvjet" and fields.split_k > 1:
        grain = BLOCK_BITS // bits
        chunk = grain * math.ceil(math.ceil(k / grain) / fields.split_k)
        if chunk >= k:
            schedule = schedule_of(fields, named.chip.sm)
            return f"{schedule} cuts K into slices of {chunk} terms; got K = {k}, for which it was not seen."
    return ""
