"""matmul by a matrix unit: what was asked for at the door, the sums by a schedule, the epilogue, and the result."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, format_of, from_torch, is_torch, output, words
from fpsim.cast import FormatLike, encode
from fpsim.epilogue import ONE, Finish, cast_codes, finished
from fpsim.errors import unknown
from fpsim.formats import DTYPES, FP16, FP32, FP64, Format
from fpsim.formats import format as find_format
from fpsim.kernels.native import under_ieee
from fpsim.kernels.panel import canonical_nan
from fpsim.matrix_unit import MatrixUnit
from fpsim.scheduled_product import Sums, chained, check_blocks, merged
from fpsim.schedules.libraries import FLAT
from fpsim.schedules.limits import Call, refusals, remarks
from fpsim.schedules.plan import Plan, plan_of
from fpsim.schedules.schedule import Chain, Epilogue, Schedule
from fpsim.unit_operands import accumulator, refuse_overlap, refuse_shapes, scales
from fpsim.unit_product import ADD, COLUMNS_FIRST, PRODUCT, ROWS_FIRST, Factors, Product
from fpsim.unit_side import Side, side

MODES = {"product": PRODUCT, "a_first": ROWS_FIRST, "b_first": COLUMNS_FIRST}
AT_START = Epilogue(source="first")  # where c belongs to the sum, scales multiply the rest


class Request(NamedTuple):
    """The keyword arguments of `fpsim.matmul` that concern units."""

    schedule: Schedule | None = None
    promote: int | None = None
    scale_a: Any = None
    scale_b: Any = None
    scale_order: str | None = None
    bias: Any = None
    alpha: float | None = None
    beta: float | None = None
    out_format: FormatLike | None = None
    strict: bool = True


@under_ieee
def unit_matmul(a: Any, b: Any, c: Any, unit: MatrixUnit, asked: Request, out: Array | None) -> Array:
    """`fpsim.matmul` by a matrix unit."""
    _refuse_conflicts(asked)
    blocks = asked.schedule is not None and asked.schedule.block_scaled
    left, right = side(a, "a", unit, asked.scale_a, blocks), side(b, "b", unit, asked.scale_b, blocks)
    refuse_shapes(left.codes, right.codes)
    (m, k), n = left.codes.shape, right.codes.shape[1]
    schedule = asked.schedule or _default_schedule(asked, unit, left, right)
    plan = plan_of(schedule, unit, k)
    fmt = None if asked.out_format is None else find_format(asked.out_format)
    if asked.schedule is not None:
        _obey(Call(schedule, unit, m, n, k, left.kind, right.kind, fmt or FP32), asked.strict)
    _refuse_sums(schedule, unit, left, right, asked, c)
    own = _own_dtype(schedule, plan, unit, left, right, asked, c)
    dtype = own if fmt is None else np.dtype(DTYPES.get(fmt, fmt.storage))
    result = output(out, (m, n), dtype, left.codes, "the result's")
    refuse_overlap(out, left.codes, right.codes)
    order = _scale_order(schedule, left, right)
    product = Product(unit, left.codes, right.codes, *_block_scales(left, right, unit), 0, Factors())

    def factors_at(starts: list[int]) -> Factors:
        scaled = schedule.block_scaled and not (left.factors is None and right.factors is None)
        return _factors(left, right, np.array(starts), MODES[order]) if scaled else Factors(mode=ADD)

    sums = Sums(schedule, plan, product, factors_at, fmt or FP32)
    work = result if dtype == own != np.float16 and result.flags.c_contiguous else None
    total = _epilogue(sums, left, right, order, c, asked, work)
    done = _as_result(total, unit, own, fmt) if k or fmt is not None else total.astype(own, copy=False)
    if done is not result:
        result[...] = done
    return result


# ---- what was asked for


def _refuse_conflicts(asked: Request) -> None:
    """A ValueError for arguments that exclude each other."""
    if asked.schedule is None:
        return
    if not isinstance(asked.schedule, Schedule):
        raise TypeError(
            f"schedule must be one of fp.schedules, such as fp.schedules.cublas('sm_90'); got {asked.schedule!r}."
        )
    for name, value in (("promote", asked.promote), ("scale_order", asked.scale_order)):
        if value is not None:
            raise ValueError(f"{name} is part of the schedule, {asked.schedule}; got both. Leave {name} out.")


def _default_schedule(asked: Request, unit: MatrixUnit, left: Side, right: Side) -> Schedule:
    """One chain, or the promotion that is asked for or that scales along K need."""
    promote, order = asked.promote, asked.scale_order or "product"
    if order not in MODES:
        raise unknown("scale_order", order, list(MODES))
    if promote is not None:
        if isinstance(promote, bool) or not isinstance(promote, (int, np.integer)) or promote < 1:
            raise ValueError(f"promote must be a number of terms, or None for no promotion; got {promote!r}.")
        if promote % unit.terms:
            raise ValueError(
                f"promote must be a multiple of the {unit.terms} terms that {unit.name} adds in a step; got {promote}."
            )
        if unit.d.name == "f64":
            raise ValueError(
                f"promote adds partial sums to a float32 total; {unit.name} has float64 sums. Leave it out."
            )
    blocks = [each.along_k for each in (left, right) if each.along_k is not None]
    interval = int(promote) if promote is not None else min(blocks, default=0)
    for block in blocks:
        if block % unit.terms:
            raise ValueError(
                f"{unit.name} adds {unit.terms} terms in a step, and scales of {block} terms of K cannot join between "
                "steps. Use larger tiles, or a unit that takes such scales."
            )
        if block % interval:
            raise ValueError(f"promote must divide the {block} terms of K that share a scale; got {interval}.")
    # a promotion that is asked for is CUTLASS's 2xAcc
    epilogue = Epilogue(order, fused_bias=interval > 0 and not blocks)  # type: ignore[arg-type]
    return Schedule(
        "promote" if interval else FLAT.name, sums=Chain(interval), epilogue=epilogue, block_scaled=bool(blocks)
    )


def _obey(call: Call, strict: bool) -> None:
    """A ValueError for what the library refuses, a warning for what it does otherwise."""
    refused = refusals(call)
    if refused and strict:
        raise ValueError(f"{refused[0]} strict=False computes it all the same.")
    for remark in remarks(call.schedule, call.unit, call.m, call.n, call.k):
        warnings.warn(f"{remark} These are the bits of {call.schedule}.", UserWarning, stacklevel=5)


def _refuse_sums(schedule: Schedule, unit: MatrixUnit, left: Side, right: Side, asked: Request, c: Any) -> None:
    """A ValueError for sums that the schedule cannot add."""
    if asked.schedule is None:
        pass
    elif isinstance(schedule.sums, Chain) and schedule.sums.interval % unit.terms:
        raise ValueError(
            f"{schedule} promotes every {schedule.sums.interval} terms, which must be a multiple of the {unit.terms} "
            f"terms that {unit.name} adds in a step."
        )
    elif unit.d.name == "f64" and schedule != FLAT:
        raise ValueError(f"{schedule} adds in float32; {unit.name} has float64 sums. Take FLAT.")
    for each in (left, right):
        if each.along_k is None or asked.schedule is None:
            continue
        if not schedule.block_scaled:
            raise ValueError(
                f"{schedule} has no place for scales that change along K; got scales of {each.name} per "
                f"{each.along_k} terms. Take fp.schedules.deepgemm(), cutlass_blockwise() or "
                "cublas(family='block_scaled')."
            )
        check_blocks(schedule, unit, each.along_k, plan_of(schedule, unit, left.codes.shape[1]))
    if asked.beta is not None and c is None:
        raise ValueError("beta multiplies c; got no c. Pass c, or leave beta out.")
    tensor_scales = left.tensor_scale is not None or right.tensor_scale is not None
    if c is not None and tensor_scales:
        raise ValueError("c cannot join a sum that a tensor scale multiplies afterwards; add it to the result.")
    if unit.d.name == "f64" and any(x is not None for x in (asked.alpha, asked.beta, asked.bias, asked.out_format)):
        raise ValueError(f"alpha, beta, bias and out_format work on float32 sums; {unit.name} has float64 sums.")


def _scale_order(schedule: Schedule, left: Side, right: Side) -> str:
    """The order in which scales are applied."""
    order = schedule.epilogue.scale_order
    if order != "one_dimensional_first":
        return order
    if left.factors is None or left.one_dimensional:
        return "a_first"
    return "b_first" if right.factors is None or right.one_dimensional else "product"


def _own_dtype(
    schedule: Schedule, plan: Plan, unit: MatrixUnit, left: Side, right: Side, asked: Request, c: Any
) -> np.dtype[Any]:
    """The dtype of the result where no output format is asked for."""
    has_epilogue = any(x is not None for x in (asked.alpha, asked.beta, asked.bias, left.factors, right.factors))
    has_epilogue |= c is not None and schedule.epilogue.adds_c
    plain = isinstance(schedule.sums, Chain) and not plan.promoted and len(plan.slices) == 1
    return DTYPES[unit.d.fmt] if plain and not has_epilogue else np.dtype(np.float32)


def _block_scales(left: Side, right: Side, unit: MatrixUnit) -> tuple[Array, Array]:
    """The scale codes of both operands, (M, blocks) and (blocks, N)."""
    (m, k), n = left.codes.shape, right.codes.shape[1]
    of_a = scales(left.block_scales, (m,), k, unit, "scale_a")
    return of_a, scales(right.block_scales, (n,), k, unit, "scale_b", blocks_first=True)


def _factors(left: Side, right: Side, starts: Array, mode: int) -> Factors:
    """The float32 factors of the partial sums that begin at these terms of K."""
    rows, columns = np.arange(left.codes.shape[0]), np.arange(right.codes.shape[1])
    one = np.float32(1)
    of_rows = np.full((rows.size, starts.size), one) if left.factors is None else (
        left.factors[rows[:, None] // left.tile[0], starts // left.tile[1]]
    )  # fmt: skip
    of_columns = np.full((starts.size, columns.size), one) if right.factors is None else (
        right.factors[starts[:, None] // right.tile[0], columns // right.tile[1]]
    )  # fmt: skip
    return Factors(np.ascontiguousarray(of_rows), np.ascontiguousarray(of_columns), mode)


# ---- sums and epilogue


def _epilogue(
    sums: Sums, left: Side, right: Side, scale_order: str, c: Any, asked: Request, work: Array | None
) -> Array:
    """The sums with their scales, alpha, bias and C; `work` may serve as the total."""
    schedule, unit = sums.schedule, sums.product.unit
    m, n = left.codes.shape[0], right.codes.shape[1]
    single = isinstance(schedule.sums, Chain) and len(sums.plan.slices) == 1
    scaled = not schedule.block_scaled and not (left.factors is None and right.factors is None)
    if asked.beta == 0:
        c = None  # it need not be valid then, and is not read (cuBLAS manual, 2.7.1; CUTLASS, is_source_needed)
    belongs_to_sum = c is not None and asked.beta is None and not schedule.epilogue.adds_c
    starts = belongs_to_sum and single and asked.alpha is None and not scaled
    finish = _finish(sums, left, right, scale_order if scaled else "", None if starts else c, asked)
    dtype = np.dtype(np.float64) if unit.d.name == "f64" else np.dtype(np.float32)
    order = AT_START if belongs_to_sum else schedule.epilogue
    if work is not None and finish.c is not None and np.may_share_memory(work, finish.c):
        work = None  # C is read when the sums are there
    if single:
        total = np.empty((m, n), dtype) if work is None else work
        total[...] = _start(c, unit, (m, n)) if starts else _zero(sums)
        chained(total, sums)
    elif schedule.slicing.merge == "in_place" and len(sums.plan.slices) > 1:
        return _in_place(sums, finish, (m, n), dtype)
    else:
        total = merged(sums, (m, n), dtype)
    with np.errstate(all="ignore"):
        total = finished(total, order, finish)
        tensor_scales = [each.tensor_scale for each in (left, right) if each.tensor_scale is not None]
        if tensor_scales:
            total *= np.prod(tensor_scales, dtype=np.float32)
    return total


def _zero(sums: Sums) -> float:
    """What a total starts at: -0 leaves the first partial sum as it is."""
    chain = sums.schedule.sums
    return -0.0 if isinstance(chain, Chain) and chain.first_as_is and sums.plan.promoted and sums.plan.k else 0.0


def _in_place(sums: Sums, finish: Finish, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Slices that each end with the epilogue, whose C is the output so far."""
    bare = finish._replace(bias=None)

    def join(part: Array, total: Array | None) -> Array:
        each = bare if total is None else bare._replace(c=total, beta=ONE)
        return finished(part, sums.schedule.epilogue, each)

    with np.errstate(all="ignore"):
        total = merged(sums._replace(join=join), shape, dtype)
        return total if finish.bias is None else np.add(total, finish.bias)


def _finish(sums: Sums, left: Side, right: Side, scale_order: str, c: Any, asked: Request) -> Finish:
    """What the epilogue works with; scale_order: "" where scales belong to the sums."""
    shape = left.codes.shape[0], right.codes.shape[1]
    scale_a = scale_b = None
    if scale_order:
        factors = _factors(left, right, np.zeros(1, np.int64), ADD)
        scale_a, scale_b = factors.rows, factors.columns
    bias = None if asked.bias is None else _bias(asked.bias, shape)
    source = None if c is None else _source(c, sums.product.unit, shape)
    alpha, beta = _number(asked.alpha, "alpha"), _number(asked.beta, "beta")
    return Finish(scale_a, scale_b, scale_order or "product", alpha, bias, source, beta, sums.out_format)


def _start(c: Any, unit: MatrixUnit, shape: tuple[int, int]) -> Array:
    """c as the floats of its values."""
    codes = accumulator(c, unit)
    if codes.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {codes.shape}.")
    values = codes.view(DTYPES[unit.d.fmt])
    return values if values.dtype == np.float64 else values.astype(np.float32, copy=False)


def _source(c: Any, unit: MatrixUnit, shape: tuple[int, int]) -> Array:
    """The epilogue's C as float32: of any narrower float dtype, or codes of the accumulator's format."""
    array = from_torch(c) if is_torch(c) else c
    fmt = format_of(array.dtype) if isinstance(array, np.ndarray) else None
    if fmt is None or fmt in (unit.d.fmt, FP64):
        return _start(c, unit, shape)
    if array.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {array.shape}.")
    return np.asarray(array.astype(np.float32))


def _bias(bias: Any, shape: tuple[int, int]) -> Array:
    """A bias of every column, as float32."""
    array = from_torch(bias) if is_torch(bias) else np.asarray(bias)
    fmt = format_of(array.dtype)
    if fmt is None or fmt == FP64:
        raise TypeError(f"bias must be an array of float32, float16 or bfloat16; got {array.dtype}.")
    if array.shape not in ((shape[1],), (1, shape[1])):
        raise ValueError(f"bias must have one number per column, shape ({shape[1]},); got {array.shape}.")
    return array.astype(np.float32)


def _number(value: float | None, name: str) -> np.float32:
    """alpha or beta at the door."""
    if value is None:
        return ONE
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, which float32 holds; got {value!r}.")
    return np.float32(value)


# ---- the result


def _as_result(total: Array, unit: MatrixUnit, own: np.dtype[Any], fmt: Format | None) -> Array:
    """Sums in the dtype of the result, NaN as the unit gives it."""
    if fmt is not None and fmt != FP32:
        codes = cast_codes(total, fmt)
        if fmt.nan_code is not None:  # NVIDIA's conversions give the NaN of all ones, where that is one
            all_ones = fmt.top_magnitude > max(fmt.max_code, fmt.infinity_code or 0)
            codes[np.isnan(total)] = fmt.top_magnitude if all_ones else fmt.nan_code
        return codes.view(DTYPES.get(fmt, codes.dtype))
    # sums of FP16 units that were promoted are float32
    kept = FP16 if own == np.float16 and fmt is None else FP32 if unit.d.name == "f16" else unit.d.fmt
    nan = unit.nan_code if kept == unit.d.fmt else kept.top_magnitude
    done = encode(total, FP16).view(np.float16) if kept == FP16 else total
    word = words(done).dtype.type
    infinity, sign = (word(code) for code in (kept.max_code + 1, kept.sign_bit))
    canonical_nan()(words(done).reshape(-1), infinity, sign, word(nan))
    return done
