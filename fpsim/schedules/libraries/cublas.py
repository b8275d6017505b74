"""cuBLASLt's schedules: the order in which each kernel family adds, by the fields of its algorithm.

Sources: EQUIV is facebookexperimental/triton, bitequiv/cublas_match (August 2026), whose authors compared 1.89
million results of cuBLASLt 13.1.1 on an H100 and 2.4 million on a GB300; MMAEMU is mmaemu 0.1.0, which compared
recordings of cuBLASLt 12.8.3 on an H100 and an RTX 4060; TE is TransformerEngine's exact test of block-scaled products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fpsim.deprecation import renamed_arguments
from fpsim.errors import is_integer, require_kind, require_word, shown, unknown
from fpsim.matrix_units.chips import Chip
from fpsim.schedules.arguments import ORDERS, call_text, chip_of, positive
from fpsim.schedules.schedule import (
    BLOCK_THREADS,
    Chain,
    Epilogue,
    LaneMerge,
    Lanes,
    Merge,
    Rule,
    ScaleOrder,
    Schedule,
    Slicing,
)

HEURISTIC = "facebookexperimental/triton, bitequiv/cublas_match"
EQUIV = f"{HEURISTIC} (cuBLASLt 13.1.1)"
MMAEMU = "mmaemu 0.1.0 (recordings of cuBLASLt 12.8.3)"
RECORDED = "an H100 with cuBLAS 13.1.0, tests/gpu/recordings"
TE = "TransformerEngine, tests/pytorch/references/blockwise_fp8_gemm_reference.py"

# CUBLASLT_ALGO_CONFIG_ID -> family
ALGORITHMS = {66: "nvjet", 12: "cutlass", 21: "cutlass", 23: "cutlass", 24: "cutlass", 11: "gemm_sn", 16: "magma",
              13: "gemv", 14: "dot"}  # fmt: skip
ALIASES = {"simt": "gemm_sn"}
# The families that are known on an architecture, the default first
ON = {
    "ada": ("xmma",),
    "hopper": ("nvjet", "cutlass", "cutlass_tf32", "cutlass_fp32", "gemm_sn", "magma", "gemv", "dot", "block_scaled"),
    "blackwell": ("nvjet", "cutlass", "gemm_sn", "magma", "gemv", "dot"),
}
FAMILIES = (*ON["hopper"], *ON["ada"])

# How slices are merged, by CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME or by name
MERGES: dict[int | str, Merge] = {
    0: "in_place", 1: "in_place", 2: "float32", 4: "output",
    "none": "in_place", "in_place": "in_place", "compute_type": "float32", "float32": "float32",
    "output_type": "output", "output": "output", "serial": "float32", "pairwise": "from_both_ends",
}  # fmt: skip
MOST_SLICES = 65535  # blocks along z, the most that a CUDA grid has
UNDEFINED_STAGES = (32, 8)  # STAGES_ID 0: block_k, and terms of an instruction
KNOWN_STAGES = (*range(7, 21), 25)
INSTRUCTION = 16  # terms of an instruction of the other CUTLASS kernels
CUTLASS_BLOCKS = (32, 64, 128)  # block_k of the CUTLASS kernels that were seen
TF32_BLOCKS, TF32_STEP = (16, 32), 8  # those of TF32, and the terms of its instruction
LAYERS = "one H200 with cuBLAS 13.1.0, docs/schedules.md"

# CUSTOM_OPTION of gemmSN (ALGO 11) -> threads of an output, terms of a thread's sub-block
GEMM_SN = {0: (2, 256), 1: (4, 128)}
NAMED = "named"  # the option of a schedule whose caller named the family
GEMV_UP_TO = -64  # as the run of a lane: up to 64 terms
# An option of gemv that has its 32 lanes for up to so many outputs per multiprocessor (EQUIV), and others beyond
GEMV_BUTTERFLY, GEMV_OUTPUTS = 10, 2048 // 32


class GemvRow(NamedTuple):
    """The order in which cuBLAS's gemv kernels (ALGO 13) add with one CUSTOM_OPTION.

    lanes: number of lanes (partial sums of an output). run: consecutive terms that a lane adds before the next lane's
    turn; a negative run as in `Lanes`. chunk: runs that a lane adds from +0 before their sum is added to its total, 0
    for all. butterfly: True if lane l + lanes / 2 is added to lane l, then lane l + lanes / 4, and so on; False if
    lanes are added one after the other.
    """

    run: int
    lanes: int
    chunk: int
    butterfly: bool


def _gemv_rows(chunks: dict[int, int]) -> dict[int, GemvRow]:
    """Return the GemvRow (order of additions) of each CUSTOM_OPTION of cuBLAS's gemv kernels on one architecture.

    chunks: the GemvRow.chunk of the options 0, 7 and 8, which differs between architectures.
    """
    rows = {option: GemvRow(1, 1, chunks[option], False) for option in (0, 7, 8)}
    rows |= {option: GemvRow(1, 1, 0, False) for option in (6, 84)}
    rows[10] = GemvRow(4, 32, 0, True)
    rows[11] = GemvRow(1, 16, 32, False)
    rows |= {option: GemvRow(1, 16, 16, False) for option in (12, 13, 14)}
    one = {2: (49, 57, 63, 95), 4: (41, 51, 59, 65, 69, 111), 8: (43, 53, 61, 67, 89), 16: (35, 45, 55, 81, 91, 101),
           32: (37, 47, 75, 83, 93)}  # fmt: skip
    many = {2: (48, 56, 62, 102), 4: (40, 50, 58, 68, 86, 96, 110), 8: (42, 52, 60, 66, 98, 106),
            16: (44, 54, 72, 90, 100), 32: (36, 46, 74, 82, 92)}  # fmt: skip
    for run, table in ((1, one), (GEMV_UP_TO, many)):
        rows |= {option: GemvRow(run, lanes, 0, True) for lanes, options in table.items() for option in options}
    return rows


GEMV = {
    "sm_90": _gemv_rows({0: 512, 7: 256, 8: 256}),
    "sm_100": _gemv_rows({0: 0, 7: 0, 8: 0}),
    "sm_103": _gemv_rows({0: 0, 7: 0, 8: 256}),
}
GEMV_SLICES = 5  # the option whose lanes have a contiguous slice each; it was seen with one row only
GEMV_SLICES_ROW = (32, 16)  # its lanes, and the terms of a chunk


@renamed_arguments(arch="chip")
def cublas(
    chip: str = "sm_90", *, family: str | int | None = None, split_k: int = 1, merge: str | int | None = None,
    fast_accum: bool = False, stages: int | None = None, block_k: int | None = None, step: int | None = None,
    option: int | None = None, scale_order: ScaleOrder | None = None, tail_loss: bool = True,
) -> Schedule:  # fmt: skip
    """Return the schedule of a kernel family of cuBLASLt, by the fields of the algorithm that its heuristic chose.

    Args:
      chip: Ada, Hopper or Blackwell: a target ("sm_89", "sm_90", "sm_100" or "sm_103"), or any other name of a chip
        ("H100", "hopper", "9.0").
      family: the kernel family, or its CUBLASLT_ALGO_CONFIG_ID: "nvjet" (66, the default: FP16, BF16 and FP8 with
        aligned K and N), "cutlass" (12, 21, 23, 24: FP16 and BF16 without alignment), "cutlass_tf32" (TF32),
        "cutlass_fp32" (float32 without tensor cores, with accumulate=fp.FusedMultiplyAdd("fp32")), "gemm_sn" (11; also
        called "simt"), "magma" (16), "gemv" (13) and "dot" (14), all four without tensor cores, "block_scaled" (FP8
        with scales per 1x128 or 128x128), "xmma" (FP8 on Ada, where it is the default).
      split_k: SPLITK_NUM, the number of slices of K.
      merge: how the sums of slices are added, for "cutlass" and "xmma" alone. Of "cutlass", a REDUCTION_SCHEME or its
        name: 2 "compute_type" (the default: in float32), 4 "output_type" (each sum is rounded to the output format
        first), 0 "none" or 1 "in_place" (both: the running sum is rounded to the output format after every slice). Of
        "xmma": "serial" (the default: from left to right) or "pairwise", which is CUSTOM_OPTION 1 and adds as
        "from_both_ends" of `fpsim.schedules.Slicing` does.
      fast_accum: CUBLASLT_MATMUL_DESC_FAST_ACCUM: FP8 sums stay in the tensor cores' accumulator.
      stages: STAGES_ID of "cutlass", 0, 7 to 20 or 25, which fixes block_k and step.
      block_k, step: terms of a tile (32 by default, 64 or 128) and of an instruction (16 by default, or 8) of
        "cutlass", where stages is not given. Of "cutlass_tf32", block_k is 16 (the default) or 32.
      option: CUSTOM_OPTION, which decides how terms are distributed over threads: for "gemm_sn" 0 (the default) or 1;
        for "gemv" it must be given, as a number of the table in docs/schedules.md.
      scale_order: of "block_scaled", by what a partial sum is multiplied: "product" (by the product of both scales),
        "a_first" (by a's scale, then by b's) or "b_first". None is what cuBLAS 13.1 does on an H100: "a_first" where
        both sides have a scale per 1x128, "product" where one has a scale per 128x128.
      tail_loss: True leaves out the last terms for some K in nvjet's split-K, as cuBLASLt 12.8.5 and 13.1.1 do.

    Raises:
      ValueError: a field that the family does not have, or a value that was not seen in any kernel.
      TypeError: the chip is not a string, or a flag is not a bool.

    Source: docs/schedules.md, which says what was measured on which chip.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cublas("sm_90", split_k=9)
      cublas('sm_90', split_k=9)
      >>> fp.schedules.cublas("sm_90", family="gemv", option=10)
      cublas('sm_90', family='gemv', option=10)
    """
    known = chip_of(chip, "cuBLAS", tuple(ON)).chip
    arch = known.arch
    kind, count = _family(family, arch), positive(split_k, "split_k", MOST_SLICES)
    for flag, value in (("fast_accum", fast_accum), ("tail_loss", tail_loss)):
        require_kind(flag, value, bool, "True or False")
    fields = {
        "split_k": None if count == 1 else count, "merge": merge, "fast_accum": fast_accum or None,
        "stages": stages, "block_k": block_k, "step": step, "option": option, "scale_order": scale_order,
        "tail_loss": None if tail_loss else False,
    }  # fmt: skip
    for field, passed in fields.items():
        if passed is not None and field not in FIELDS[kind]:
            has = ", ".join(FIELDS[kind]) or "no further fields"
            raise ValueError(f"{field} is no field of cuBLAS's {kind} kernels; got {shown(passed)}. They have {has}.")
    make = {
        "nvjet": lambda: _nvjet(arch, count, fast_accum, tail_loss), "xmma": lambda: _xmma(count, merge, fast_accum),
        "cutlass": lambda: _cutlass(count, merge, stages, block_k, step), "gemm_sn": lambda: _gemm_sn(option),
        "cutlass_tf32": lambda: _cutlass_tf32(count, block_k),
        "cutlass_fp32": lambda: _of_float32(Lanes(1, lanes_from_zero=True), count),
        "magma": lambda: _threads(Lanes(1, lanes_from_zero=True)), "gemv": lambda: _gemv(known, option, count),
        # dot_kernel, whose blocks' sums reduce_1Block_kernel adds (docs/schedules.md)
        "dot": lambda: _threads(Lanes(BLOCK_THREADS, merge="blocks", chunks_from_zero=True, blocks=count)),
        "block_scaled": lambda: _block_scaled(scale_order),
    }  # fmt: skip
    schedule: Schedule = make[kind]()
    name = call_text("cublas", known.sm, **{field: (x, None) for field, x in {"family": family, **fields}.items()})
    operands = OPERANDS.get(kind, "f16")
    options = schedule.options if family is None else (*schedule.options, (NAMED, 1))
    return replace(
        schedule, name=name, library="cuBLAS", family=kind, arch=arch, fast_accum=fast_accum, operands=operands,
        options=options,
    )  # fmt: skip


# The fields of each family
FIELDS = {
    "nvjet": ("split_k", "fast_accum", "tail_loss"), "xmma": ("split_k", "merge", "fast_accum"),
    "cutlass": ("split_k", "merge", "stages", "block_k", "step"), "cutlass_tf32": ("split_k", "block_k"),
    "cutlass_fp32": ("split_k",), "gemm_sn": ("option",), "magma": (),
    "gemv": ("split_k", "option"), "dot": ("split_k",), "block_scaled": ("scale_order", "fast_accum"),
}  # fmt: skip


# Operands of examples of the families that take no FP16: an element of a matrix unit, or float32 without one
OPERANDS = {"xmma": "e4m3", "block_scaled": "e4m3", "cutlass_tf32": "tf32", "cutlass_fp32": "fp32"}


def _family(family: str | int | None, arch: str) -> str:
    """Return the name of the kernel family that a name, alias or ALGO number means; None means the default of `arch`.

    Raises:
      ValueError: it is unknown, or not known on `arch`.
    """
    if family is None:
        return ON[arch][0]
    number = ALGORITHMS.get(int(family)) if is_integer(family) else None
    word = family.lower() if isinstance(family, str) else shown(family)
    name = number or ALIASES.get(word, word)
    if name not in FAMILIES:
        raise unknown("family", family, [*FAMILIES, *map(str, ALGORITHMS)], ALIASES)
    if name not in ON[arch]:
        raise ValueError(f"family must be one of those known on {arch}, {', '.join(ON[arch])}; got {shown(family)}.")
    return name


def _nvjet(arch: str, count: int, fast_accum: bool, tail_loss: bool) -> Schedule:
    """Return nvjet's schedule: a chain over each slice of K; for FP8 on Hopper, a partial sum for every 128 terms.

    arch: "hopper" or another architecture. count: number of slices. fast_accum: True for one chain on Hopper too.
    tail_loss: True if the lengths of slices are rounded down, which leaves out the last terms for some K.
    """
    blocks = 128 if arch == "hopper" and not fast_accum else 0
    rule: Rule = "floor" if tail_loss else "ceiling"
    source = f"{EQUIV}; fast accumulation: {MMAEMU}" if fast_accum else EQUIV
    order: ScaleOrder = "cublas" if arch == "hopper" else "product"
    return Schedule(
        "", sums=Chain(blocks, short_sums_only=True, first_as_is=True), slicing=Slicing(count, 0, rule),
        epilogue=Epilogue(order, adds_c=True), source=source, evidence="hardware",
    )  # fmt: skip


def _xmma(count: int, merge: str | int | None, fast_accum: bool) -> Schedule:
    """Return the schedule of FP8 on Ada: tiles of 64 terms are dealt in turn to the slices of K.

    count: number of slices. merge: "serial" or None adds their sums from left to right, "pairwise" from both ends.
    fast_accum: True for one chain; False adds a partial sum to the total after every 128 terms.
    """
    how = _merge("serial" if merge is None else merge, ("serial", "pairwise"))
    return Schedule(
        "", sums=Chain(0 if fast_accum else 128), slicing=Slicing(count, 64, "interleaved", how),
        epilogue=Epilogue(adds_c=True), source=MMAEMU, evidence="hardware",
    )  # fmt: skip


def _cutlass(
    count: int, merge: str | int | None, stages: int | None, block_k: int | None, step: int | None
) -> Schedule:
    """Return the schedule of cuBLAS's CUTLASS kernels: a slice begins with the terms that fill no whole tile.

    count: slices of K. merge, stages, block_k, step: as for `fpsim.schedules.cublas`; None for the defaults.
    """
    how = _merge("compute_type" if merge is None else merge, (0, 1, 2, 4, "none", "in_place", "compute_type",
                                                              "output_type"))  # fmt: skip
    if stages is not None:
        if block_k is not None or step is not None:
            raise ValueError("stages fixes block_k and step; got both. Leave block_k and step out.")
        block_k, step = blocks_of(stages)
    else:
        block_k = 32 if block_k is None else positive(block_k, "block_k")
        step = INSTRUCTION if step is None else positive(step, "step")
    if block_k not in CUTLASS_BLOCKS:
        raise ValueError(f"block_k must be one of 32, 64, 128, which are those of cuBLAS's CUTLASS kernels; "
                         f"got {block_k}.")  # fmt: skip
    if step not in (8, 16):
        raise ValueError(f"step must be 8 (kernels named s1688) or 16 terms; got {step}.")
    return Schedule(
        "", sums=Chain(residue=block_k, step=step), slicing=Slicing(count, 0, "cutlass", how),
        epilogue=Epilogue(source="first", adds_c=True), source=EQUIV, evidence="hardware",
    )  # fmt: skip


def _cutlass_tf32(count: int, block_k: int | None) -> Schedule:
    """Return the schedule of CUTLASS's TF32 kernels (named s1688gemm).

    If the terms of a slice do not fill all tiles, its first tile is the incomplete one. count: slices of K. block_k:
    terms of a tile, 16 or 32; None for 16.
    """
    tile = TF32_BLOCKS[0] if block_k is None else positive(block_k, "block_k")
    if tile not in TF32_BLOCKS:
        raise ValueError(f"block_k must be 16 or 32, which are those of cuBLAS's TF32 kernels; got {tile}.")
    return _of_float32(Chain(residue=tile, step=TF32_STEP), count)


def _of_float32(sums: Chain | Lanes, count: int) -> Schedule:
    """Return the schedule of CUTLASS's kernels of float32 or TF32: `count` slices of K, each added by `sums`."""
    return Schedule(
        "", sums=sums, slicing=Slicing(count, 0, "cutlass"), epilogue=Epilogue(source="first", adds_c=True),
        source=LAYERS, evidence="hardware",
    )  # fmt: skip


def blocks_of(stages: int) -> tuple[int, int]:
    """Return (block_k, terms of an instruction) of cuBLAS's CUTLASS kernels with the STAGES_ID `stages`.

    Example:
      >>> from fpsim.schedules.libraries.cublas import blocks_of
      >>> blocks_of(0), blocks_of(13)
      ((32, 8), (64, 16))
    """
    if not is_integer(stages) or stages not in (0, *KNOWN_STAGES):
        raise ValueError(f"stages must be a STAGES_ID of a CUTLASS kernel, 0, 7 to 20 or 25; got {shown(stages)}.")
    if stages == 0:
        return UNDEFINED_STAGES
    block = 32 if stages == 25 else 16 << (int(stages) - 1) // 6
    return block, INSTRUCTION


def _threads(lanes: Lanes, count: int = 1) -> Schedule:
    """Return the schedule of a kernel without tensor cores, which adds each of `count` slices of K by `lanes`."""
    return Schedule(
        "", sums=lanes, slicing=Slicing(count, 0, "even"), epilogue=Epilogue(adds_c=True), source=EQUIV,
        evidence="hardware",
    )  # fmt: skip


def _gemm_sn(option: int | None) -> Schedule:
    """Return the schedule of cuBLAS's gemmSN_NN kernels, whose threads add contiguous terms in sub-blocks.

    option: the kernel's CUSTOM_OPTION, 0 or 1, which decides the number of threads and the terms of a sub-block; None
    for 0.
    """
    if option is not None and not (is_integer(option) and option in GEMM_SN):
        raise ValueError(f"option must be a CUSTOM_OPTION of gemmSN, 0 or 1; got {shown(option)}.")
    threads, block = GEMM_SN[option or 0]
    return _threads(Lanes(threads, 0, block, chunks_from_zero=True, lanes_from_zero=True))


def _gemv(chip: Chip, option: int | None, count: int) -> Schedule:
    """Return the schedule of cuBLAS's gemv kernels, in which lanes of partial sums take runs of terms in turn.

    chip, option: the chip and the kernel's CUSTOM_OPTION, which decide lanes and runs (see GEMV). count: number of
    slices of K.
    """
    rows = GEMV[chip.sm]
    if option is None or not is_integer(option) or option not in (*rows, GEMV_SLICES):
        known = [str(number) for number in sorted([*rows, GEMV_SLICES])]
        raise unknown("option of gemv", option, known, listing="fp.schedules.ROWS")
    if option == GEMV_SLICES:
        if count > 1:
            raise ValueError(f"option {GEMV_SLICES} of gemv was seen without split-K only; got split_k={count}.")
        lanes, chunk = GEMV_SLICES_ROW
        return replace(_threads(Lanes(lanes, 0, chunk)), options=(("option", option),))
    row = rows[option]
    merge: LaneMerge = "butterfly" if row.butterfly else "forward"
    schedule = _threads(Lanes(row.lanes, row.run, row.chunk * max(row.run, 1), merge=merge), count)
    return replace(schedule, options=(("option", option),))


def _block_scaled(scale_order: ScaleOrder | None) -> Schedule:
    """Return the schedule of cuBLAS's FP8 kernels for scales per 1x128 or 128x128.

    scale_order: the order in which the two scales are applied, as for `cublas`; None for cuBLAS's own.
    """
    if scale_order is not None:
        require_word("scale_order", scale_order, ORDERS)
    return Schedule(
        "", sums=Chain(128), epilogue=Epilogue(scale_order or "cublas", "after_cast", adds_c=True), block_scaled=True,
        source=f"{RECORDED}; {TE}", evidence="hardware",
    )  # fmt: skip


def _merge(method: str | int, accepted: tuple[str | int, ...]) -> Merge:
    """Return `Slicing.merge` for a method of merging slices, given as a name or as cuBLAS's REDUCTION_SCHEME number.

    Raises:
      ValueError: the method is not in `accepted`.
    """
    if not (isinstance(method, str) or is_integer(method)) or method not in accepted:
        raise unknown("merge", method, [str(value) for value in accepted])
    return MERGES[method]
