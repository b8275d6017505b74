"""Matrix products by matrix units and accumulators, compared with NumPy's float32 product, mmaemu and mmasim."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fpsim as fp
from benchmarks.casts import on_one_thread
from benchmarks.race import Work, again
from benchmarks.row import RaceRow, load

SHAPE = (512, 512, 1024)  # M, N, K
MMAEMU_SHAPE = (64, 256, 512)  # where it is fastest
MMASIM_SHAPE = (128, 256, 256)  # it is a thousand times slower
TIMES = 8
GROWTH = (256, 512, 1024, 2048)  # 4096 is the row of the memory that a product takes
THIN = {"one row": (1, 4096, 4096), "one column": (4096, 1, 4096)}
TWO_UNITS = ("hopper_e4m3_f32", "hopper_f16_f32")
THIN_RATE = 2e9
INT8_RATE = 15e9
GEMM, FLAT, ONE = "float32 GEMM", "flat", "one product"
PROMOTED = {GEMM: 0.33, FLAT: 0.95}  # of what they reach

# Unit -> multiply-adds per second that are wanted, and the share of NumPy's float32 product.
UNITS: dict[str, tuple[float, float | None]] = {
    "hopper_e4m3_f32": (15e9, 0.35), "hopper_f16_f32": (11e9, None), "hopper_bf16_f32": (10e9, None),
    "hopper_tf32_f32": (0.5e9, None), "ampere_f16_f32": (9e9, None), "ampere_bf16_f32": (0.5e9, None),
    "ampere_tf32_f32": (0.5e9, None), "volta_f16_f32": (0.5e9, None), "volta_f16_f16": (0.5e9, None),
    "ada_e4m3_f32": (0.5e9, None), "hopper_f16_f16": (0.5e9, None), "hopper_e4m3_f16": (0.5e9, None),
    "blackwell_e4m3_f32": (0.5e9, None), "blackwell_e2m1_f32": (0.5e9, None), "hopper_mma_e4m3_f32": (0.5e9, None),
    "hopper_mma_e4m3_f16": (0.5e9, None), "blackwell_mxfp8_e4m3_f32": (5e9, None),
    "blackwell_mxfp4_block32_f32": (0.5e9, None), "blackwell_nvfp4_f32": (5e9, None), "ampere_f64_f64": (0.5e9, None),
    "cdna1_f16_f32": (5e9, None), "cdna1_bf16_f32": (5e9, None), "cdna2_f16_f32": (5e9, None),
    "cdna2_bf16_f32": (5e9, None), "cdna2_bf16_1k_f32": (5e9, None), "cdna3_f32_f32": (5e9, None),
    "cdna3_f16_f32": (5e9, None), "cdna3_bf16_f32": (5e9, None), "cdna3_xf32_f32": (5e9, None),
    "cdna3_fp8_f32": (5e9, None), "x86_avx512_bf16_f32": (10e9, None), "x86_amx_bf16_f32": (10e9, None),
}  # fmt: skip
SHARES = {  # of NumPy's float32 product that is wanted, beside those above
    "hopper_f16_f32": 0.25,
    "hopper_bf16_f32": 0.25,
    "ampere_f16_f32": 0.25,
    "ampere_bf16_f32": 0.25,
    "Sequential BF16": 0.2,
    "Sequential FP16": 0.2,
}
SLOW_SHAPE = (128, 256, 1024)  # of what makes less than a tenth of the others' rate
SLOW = ("cdna", "Pairwise", "Exact", "Sequential FP16, up", "Sequential FP16, stochastic")
ACCUMULATORS = {
    "Sequential FP32": (fp.Sequential(fp.FP32), fp.BF16, 15e9),
    "Sequential BF16": (fp.Sequential(fp.BF16), fp.BF16, 11e9),
    "Sequential FP16": (fp.Sequential(fp.FP16), fp.FP16, 7e9),
    "FusedMultiplyAdd FP32": (fp.FusedMultiplyAdd(fp.FP32), fp.BF16, None),
    "FusedMultiplyAdd BF16": (fp.FusedMultiplyAdd(fp.BF16), fp.BF16, None),
    "FusedMultiplyAdd FP16": (fp.FusedMultiplyAdd(fp.FP16), fp.FP16, None),
    "Chunked FP16": (fp.Chunked(fp.FP16), fp.FP16, None), "Pairwise FP16": (fp.Pairwise(fp.FP16), fp.FP16, 1e9),
    "Exact FP32": (fp.Exact(fp.FP32), fp.BF16, 1e9),
    "Sequential FP16, up": (fp.Sequential(fp.FP16, rounding="up"), fp.FP16, 1e9),
    "Sequential FP16, stochastic": (fp.Sequential(fp.FP16, rounding="stochastic", seed=0), fp.FP16, 1e9),
    "Pairwise FP16, stochastic": (fp.Pairwise(fp.FP16, rounding="stochastic", seed=0), fp.FP16, 1e9),
}  # fmt: skip


class ProductOperands(NamedTuple):
    """Codes of a product's operands, the scales of a block-scaled unit, and an array for the result."""

    a: Any
    b: Any
    scales: dict[str, Any]
    out: Any


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file on one core."""
    gemms = {shape: _gemm(shape) for shape in (SHAPE, SLOW_SHAPE)}
    gemm = gemms[SHAPE]
    for name, (rate, share) in UNITS.items():
        shape = _shape(name)
        contestants = {"fpsim": _by_unit(name, shape), GEMM: gemms[shape]}
        yield RaceRow(name, contestants, _share(name, share), rate, _size(shape), "MAC")
    flat = _by_unit("hopper_e4m3_f32", SHAPE)
    promoted = {"fpsim": _by_unit("hopper_e4m3_f32", SHAPE, promote=128), GEMM: gemm, FLAT: flat}
    yield RaceRow("hopper_e4m3_f32, promote=128", promoted, PROMOTED, None, _size(SHAPE), "MAC")
    yield RaceRow(
        "hopper_e4m3_f32, DeepGEMM scales", {"fpsim": _scaled(SHAPE), GEMM: gemm}, {}, None, _size(SHAPE), "MAC"
    )
    for name, (accumulator, fmt, wanted) in ACCUMULATORS.items():
        shape = _shape(name)
        contestants = {"fpsim": _by_accumulator(accumulator, fmt, shape), GEMM: gemms[shape]}
        yield RaceRow(f"{name} ({fmt} operands)", contestants, _share(name), wanted, _size(shape), "MAC")
    for title, shape in THIN.items():
        for name in TWO_UNITS:
            yield RaceRow(f"{name}, {title}", {"fpsim": _by_unit(name, shape)}, {}, THIN_RATE, _size(shape), "MAC")
    yield from stack_rows()
    yield from group_rows()
    yield from split_rows()
    yield from integer_rows()
    yield from peer_rows()
    for n in GROWTH:
        cube = (n, n, n)
        yield RaceRow(f"hopper_e4m3_f32, {n}^3", {"fpsim": _by_unit("hopper_e4m3_f32", cube)}, {}, None, n**3, "MAC")


def stack_rows() -> Iterator[RaceRow]:
    """Yield races of stacks of short products with one product of as many multiply-adds, and of attention's heads."""
    for name in (*TWO_UNITS, "hopper_bf16_f32"):
        contestants = {"fpsim": _stack(name, (64, 64, 64), 64), ONE: _by_unit(name, (256, 256, 256))}
        yield RaceRow(f"{name}, 64 x 64^3", contestants, {ONE: 0.6}, None, 256**3, "MAC")
        head = (64, 64, 32)
        yield RaceRow(f"{name}, 384 x {head}", {"fpsim": _stack(name, head, 384)}, {}, None, 384 * _size(head), "MAC")


def split_rows() -> Iterator[RaceRow]:
    """Yield races of float32 and float64 products made from narrow ones; rates count the wide multiply-adds."""
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256))
    left, right = a.astype(np.float32), b.astype(np.float32)
    for name in fp.splits.ROWS:
        work = partial(fp.split_matmul, left, right, split=name)
        yield RaceRow(f"split_matmul, {name}", {"fpsim": work}, {}, None, 256**3, "MAC")
    yield RaceRow("ozaki_matmul, 9 slices", {"fpsim": partial(fp.ozaki_matmul, a, b)}, {}, None, 256**3, "MAC")


def integer_rows() -> Iterator[RaceRow]:
    """Yield races of integer products: sums that wrap, that saturate, in saturating pairs, and with zero points."""
    gemm, (m, n, k) = _gemm(SHAPE), SHAPE
    rng = np.random.default_rng(0)
    a, u, b = (rng.integers(*ends, size, dtype) for ends, size, dtype in (
        ((-128, 128), (m, k), np.int8), ((0, 256), (m, k), np.uint8), ((-128, 128), (k, n), np.int8)
    ))  # fmt: skip
    end = np.full((m, n), 2**31 - 1, np.int32)  # where sums saturate
    work = {
        "hopper_s8_s32": (partial(fp.matmul, a, b, accumulate="hopper_s8_s32"), INT8_RATE),
        "x86_vnni_u8xs8_s32_sat": (partial(fp.matmul, u, b, end, accumulate="x86_vnni_u8xs8_s32_sat"), INT8_RATE),
        "hopper_s8_s32, W8A8 to BF16": (
            partial(fp.matmul, a, b, accumulate="hopper_s8_s32", scale_a=np.ones((m, 1), np.float32), out_fmt=fp.BF16),
            INT8_RATE,
        ),
        "onednn('avx2') INT8": (partial(fp.matmul, a, b, schedule=fp.schedules.onednn("avx2")), INT8_RATE),
        "matmul_integer, zero points": (partial(fp.matmul_integer, u, b, 128, 3), INT8_RATE),
    }
    for title, (few_m, few_n, few_k) in THIN.items():
        x, y = rng.integers(-128, 128, (few_m, few_k), np.int8), rng.integers(-128, 128, (few_k, few_n), np.int8)
        thin = partial(fp.matmul, x, y, accumulate="hopper_s8_s32")
        yield RaceRow(f"hopper_s8_s32, {title}", {"fpsim": thin}, {}, THIN_RATE, few_m * few_n * few_k, "MAC")
    for name, (call, rate) in work.items():
        yield RaceRow(name, {"fpsim": call, GEMM: gemm}, {}, rate, _size(SHAPE), "MAC")


def group_rows() -> Iterator[RaceRow]:
    """Yield races of grouped products, compared with one product of as many multiply-adds, and of a convolution."""
    unit, rng = fp.unit("hopper_bf16_f32"), np.random.default_rng(0)
    a = fp.encode(rng.standard_normal((1024, 256), np.float32), unit.a.fmt)
    b = fp.encode(rng.standard_normal((8, 256, 256), np.float32), unit.b.fmt)
    work = partial(fp.grouped_matmul, a, b, [128] * 8, accumulate=unit)
    one = partial(fp.matmul, a, b[0], accumulate=unit)
    yield RaceRow("hopper_bf16_f32, 8 groups", {"fpsim": work, ONE: one}, {ONE: 0.6}, None, 1024 * 256**2, "MAC")
    x, weight = a.reshape(-1)[: 8 * 32 * 28 * 28].reshape(8, 32, 28, 28), b.reshape(-1)[: 64 * 32 * 9]
    convolution = partial(fp.conv2d, x, weight.reshape(64, 32, 3, 3), accumulate=unit, padding=1)
    yield RaceRow("hopper_bf16_f32, conv2d", {"fpsim": convolution}, {}, None, 8 * 28 * 28 * 64 * 32 * 9, "MAC")


def _stack(name: str, shape: tuple[int, int, int], count: int) -> Work:
    """Return the work of a stack of products of one shape."""
    unit, (m, n, k) = fp.unit(name), shape
    rng = np.random.default_rng(0)
    a, b = (
        fp.encode(rng.standard_normal((count, *size), np.float32), fmt)
        for size, fmt in (((m, k), unit.a.carrier), ((k, n), unit.b.carrier))
    )
    return partial(fp.matmul, a, b, accumulate=name)


def _shape(name: str) -> tuple[int, int, int]:
    return SLOW_SHAPE if name.startswith(SLOW) else SHAPE


def _share(name: str, share: float | None = None) -> dict[str, float]:
    wanted = share or SHARES.get(name)
    return {GEMM: wanted} if wanted else {}


def peer_rows() -> Iterator[RaceRow]:
    """Yield races with the other emulators of the same bits, each in a shape that suits it."""
    name = "hopper_e4m3_f32"
    # so small a product is over before the caches are warm, so each does it several times
    contestants = {
        who: again(work, TIMES) for who, work in {"fpsim": _by_unit(name, MMAEMU_SHAPE), **_mmaemu()}.items()
    }
    yield RaceRow(f"{name}, beside mmaemu", contestants, {"mmaemu": 17.0}, None, TIMES * _size(MMAEMU_SHAPE), "MAC")
    targets: dict[str, dict[str, float]] = {name: {"mmasim": 1000.0}, "hopper_f16_f32": {}, "hopper_bf16_f32": {}}
    for name, wanted in targets.items():
        contestants = {"fpsim": _by_unit(name, MMASIM_SHAPE), **_mmasim(name)}  # which takes 0.4 s even so
        yield RaceRow(f"{name}, beside mmasim", contestants, wanted, None, _size(MMASIM_SHAPE), "MAC")


def thread_rows(threads: int) -> Iterator[RaceRow]:
    """Yield races of a product on all cores against the same product on one."""
    for name in TWO_UNITS:
        work = _by_unit(name, (512, 1024, 1024))
        wanted = {"one thread": 1.9} if threads == 2 else {}  # on an idle machine
        contestants = {"fpsim": work, "one thread": on_one_thread(work)}
        yield RaceRow(f"{name}, all cores", contestants, wanted, None, 512 * 1024**2, "MAC")


def _size(shape: tuple[int, int, int]) -> int:
    m, n, k = shape
    return m * n * k


def _values(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def _gemm(shape: tuple[int, int, int]) -> Work:
    x, y = _values(shape)
    return partial(np.matmul, x, y, out=np.empty((shape[0], shape[1]), np.float32))


def _codes(x: Any, fmt: fp.Format) -> Any:
    return x.astype(np.float64) if fmt == fp.FP64 else fp.encode(x, fmt)


def _operands(name: str, shape: tuple[int, int, int]) -> ProductOperands:
    unit, (x, y), (m, n, k) = fp.unit(name), _values(shape), shape
    scales = {}
    if unit.scale:
        rng, (low, high) = np.random.default_rng(1), (120, 130) if unit.scale == "ue8m0" else (48, 80)
        blocks = k // unit.block
        scales = {
            "scale_a": rng.integers(low, high, (m, blocks), np.uint8),
            "scale_b": rng.integers(low, high, (blocks, n), np.uint8),
        }
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[unit.d.name]
    return ProductOperands(_codes(x, unit.a.carrier), _codes(y, unit.b.carrier), scales, np.empty((m, n), dtype))


def _by_unit(name: str, shape: tuple[int, int, int], promote: int | None = None) -> Work:
    operands = _operands(name, shape)
    keywords = {"accumulate": name, "promote": promote, "out": operands.out, **operands.scales}
    return partial(fp.matmul, operands.a, operands.b, **keywords)


def _scaled(shape: tuple[int, int, int]) -> Work:
    """Return the work of an FP8 product with scales per 1 x 128 and per 128 x 128, promoted every 128 terms."""
    x, y = _values(shape)
    a = fp.encode_scaled(x, fp.E4M3, fp.scalings.DEEPGEMM_1X128)
    b = fp.encode_scaled(y, fp.E4M3, fp.scalings.DEEPGEMM_128X128)
    out = np.empty(shape[:2], np.float32)
    return partial(fp.matmul, a, b, accumulate="hopper_e4m3_f32", promote=128, out=out)


def _by_accumulator(accumulator: Any, fmt: fp.Format, shape: tuple[int, int, int]) -> Work:
    x, y = _values(shape)
    a, b = fp.cast(x, fmt), fp.cast(y, fmt)
    out = np.empty(shape[:2], accumulator.result_format.dtype)
    return partial(fp.matmul, a, b, accumulate=accumulator, out=out)


def _mmasim(name: str) -> dict[str, Work]:
    """Return mmasim's product: its arithmetic on all pairs of rows and columns at once."""
    torch, simulator = load("torch"), load("mmasim.arithmetic.fdpa")
    if torch is None or simulator is None:
        return {}
    unit, operands = fp.unit(name), _operands(name, MMASIM_SHAPE)
    rho = "RZ-E8M13" if unit.result_bits == 13 else "RZ-FP32"
    step = simulator.MMA_T_FDPA(unit.fraction_bits, rho, unit.terms, unit.floor_exponent, unit.a.name, unit.b.name)
    dtype = {"e4m3": torch.float8_e4m3fn, "f16": torch.float16, "bf16": torch.bfloat16}[unit.a.name]
    a, b = (torch.from_numpy(np.ascontiguousarray(x)).view(dtype) for x in (operands.a, operands.b.T))
    m, n, k = MMASIM_SHAPE
    pairs = a[:, None].expand(m, n, k), b[None].expand(m, n, k)
    return {"mmasim": partial(step.dpa, *pairs, torch.zeros(m, n))}


def _mmaemu() -> dict[str, Work]:
    """Return mmaemu's product on an H100, without split-K."""
    torch, emulator = load("torch"), load("mmaemu")
    if torch is None or emulator is None:
        return {}
    operands = _operands("hopper_e4m3_f32", MMAEMU_SHAPE)
    a, b = (torch.from_numpy(np.ascontiguousarray(x)).view(torch.float8_e4m3fn) for x in (operands.a, operands.b.T))

    def work() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return emulator.accumulate(a, b, use_fast_accum=True, splitk=1)

    return {"mmaemu": work}
