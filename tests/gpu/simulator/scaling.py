"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: scaled quantisation on a simulated GPU.

Results go to the file that is named; `tests.gpu.test_scaling` compares them with those of the CPU. These come from the
same process ("cpu ..."), where nothing is compiled: so many kernels would take minutes. Some are compared with compiled
ones besides; tests/scaling/ compares all of these with the oracle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.scaling.recipes import ANY_ELEMENT, ROWS

Array = npt.NDArray[Any]
PARTS = ("codes", "scales", "scale_codes", "zero_points", "tensor_scale")
ZERO_POINTS = ((np.int8, -3), (np.uint8, 200), (np.int16, -300), (np.int32, -3), (np.int64, -3), (np.int64, 300))
COUNTS = ("tiles", "zero_tiles", "nan_tiles", "infinite_tiles", "clamped_low", "clamped_high")


class Case(NamedTuple):
    """One encoding."""

    fmt: Any
    scaling: Any
    x: Array
    options: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it


def spoilt(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, spread: int = 30) -> Array:
    """Gaussian numbers of many magnitudes, with zeros and, in one place each, NaN, Inf and the smallest numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
    flat = x.reshape(-1)
    if flat.size > 16:
        flat[: flat.size // 5] = 0
        places = rng.integers(0, flat.size, 8)
        flat[places] = [np.nan, -np.inf, np.inf, -0.0, 2.0**-149, 3e38, -448, 1e-42]
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def cases(every: bool = True) -> dict[str, Case]:
    """Everything that is compared, by name; or, of products of several things, pairs that hold each of them."""
    found: dict[str, Case] = {}

    def add(name: str, fmt: Any, scaling: Any, x: Array, at: int = 0, **options: Any) -> None:
        """at: the sum of a case's places in a product, odd for those that are left out."""
        assert name not in found
        if every or at % 2 == 0:
            found[name] = Case(fmt, scaling, x, options)

    element = {"NVFP4": fp.E2M1, "TE_NVFP4": fp.E2M1, "TORCHAO_NVFP4": fp.E2M1, "MX": fp.E2M3, "ROW": fp.INT8}
    for i, (name, row) in enumerate(ANY_ELEMENT.items()):
        add(name, element.get(name, fp.E4M3), row, spoilt((3, 35), seed=i))
    base = fp.Scaling(block=(1, 16))
    words: dict[str, tuple[Any, ...]] = {
        "scale_rule": ("floor", "ceil", "even", "rceil", "nearest"), "quotient": ("amax*(1/max)", "1/(max/amax)"),
        "division": ("multiply",), "nan": ("element",), "infinity": ("propagate", "one"), "zero_scale": ("smallest",),
        "amax_floor": (1e-4,), "smallest_scale": (2.0**-9,),
    }  # fmt: skip
    for i, (field, values) in enumerate(words.items()):
        for value in values:
            scale_format = fp.E4M3 if field in ("zero_scale", "smallest_scale") else fp.E8M0
            scaling = base.replace(scale_format=scale_format, **{field: value})
            add(f"{field} {value}", fp.E5M2, scaling, spoilt((3, 32), seed=50 + i))
    for mode in ("up", "down", "nearest_away", "toward_zero", "odd"):
        scaling = base.replace(scale_format=fp.BF16, scale_rounding=mode)
        add(f"scale_rounding {mode}", fp.E4M3, scaling, spoilt((2, 32)))
        scaling = base.replace(scale_format=fp.E8M0, scale_rounding=mode, quotient="1/(max/amax)")
        add(f"encode scale {mode}", fp.E4M3, scaling, spoilt((2, 32)))
    eights: tuple[tuple[Any, Any, int], ...] = (
        (np.float32, fp.E4M3, 16), (np.float32, fp.E2M1, 32), (np.float32, fp.INT8, 32), (np.float16, fp.E5M2, 8),
        (ml_dtypes.bfloat16, fp.E4M3, 32), (ml_dtypes.float8_e4m3fn, fp.E2M1, 16), (np.float32, fp.FP16, 8),
        (np.float32, fp.format("p3109_k6p3se"), 16),
    )  # fmt: skip
    for i, (dtype, fmt, length) in enumerate(eights):
        for j, division in enumerate(("divide", "multiply")):
            scaling, x = fp.Scaling(block=(1, length), division=division), spoilt((3, 64), dtype, spread=6)
            add(f"short {np.dtype(dtype).name} {fmt.name} {division}", fmt, scaling, x, i + j)
    add("short two levels", fp.E2M1, fp.scalings.NVFP4, spoilt((3, 64)))
    add("short stochastic", fp.E4M3, fp.scalings.MX, spoilt((3, 64)), rounding="stochastic", seed=2**40 + 3)
    blocks = ((4, 4), (2, 3), (-1, 1), (1, -1), (-1,), (5,), (2, -1), (-1, -1), (1, 2, 3), (-1, -1, 2))
    for i, block in enumerate(blocks):
        for j, shape in enumerate(((3, 10), (2, 3, 7))):
            if len(block) <= len(shape):
                at = i + j if len(block) < 3 else 0
                add(f"block {block} of {shape}", fp.E4M3, fp.Scaling(block=block), spoilt(shape), at)
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (0, 5), (5, 0), (40,), (2, 2, 2, 5))
    for lengths in shapes:
        add(f"shape {lengths}", fp.E4M3, fp.Scaling(block=(1, 4)), spoilt(lengths))
        add(f"two levels, shape {lengths}", fp.E2M1, fp.scalings.NVFP4, spoilt(lengths))
    dtypes: tuple[Any, ...] = (
        np.float16, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
    )  # fmt: skip
    for i, dtype in enumerate(dtypes):
        name, x = np.dtype(dtype).name, spoilt((2, 40), dtype, spread=8)
        for j, preset in enumerate(("MX", "NVFP4", "TILE_128X1", "TE_TENSOR")):
            add(f"{name} {preset}", fp.E2M1, ROWS[preset], x, i + j)
        add(f"{name} zero point", fp.INT8, base.replace(symmetric=False), x, i)
    add("float64 tiny", fp.E4M3, base.replace(nan="element"), spoilt((2, 40), np.float64) * 2.0**-1000)
    add("float32 tiny", fp.E4M3, base, spoilt((2, 40), spread=3) * np.float32(2.0**-140))
    unit, deep = fp.Format("unit", 4, 3, bias=15, nan="none", infinities=False), np.array([1e-42, 0, 4e-44, -0.0])
    for rule in ("floor", "ceil", "even"):  # whose amax is subnormal
        how = fp.Scaling(block=(1, 4), scale_rule=rule, smallest_scale=2.0**-149, division="multiply")
        add(f"subnormal {rule}", unit, how, deep.astype(np.float32)[None])
        add(f"subnormal float64 {rule}", unit, how, deep[None] * 2.0**-900)
    for preset in ("NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"):  # float32 does not hold the largest scale times element
        wide = ROWS[preset].replace(scale_format=fp.BF16, block=(1, 4))
        for amax in (3e38, 1.0, 1e-42):
            x = np.array([[amax, -amax / 3, 0, 1e-44]], np.float32)
            add(f"two levels beyond float32, {preset} of {amax}", fp.E2M1, wide, x)
        low = fp.Format("low", 3, 3, bias=127)
        add(f"two levels of small elements, {preset}", low, ROWS[preset].replace(block=(1, 4)), spoilt((2, 8)))
    top = fp.Scaling(block=(1, 4), scale_format=fp.FP16, tensor_scale=True, tensor_top=19651.2)
    add("tensor_top", fp.Format("small", 3, 1, bias=21), top, np.array([[3e36, 1e20, 0, 1]], np.float32))
    add("given, smallest", fp.E2M1, base.replace(division="multiply"), spoilt((2, 40)), scales=np.float32(2.0**-149))
    for i, mode in enumerate(("up", "down", "nearest_away", "toward_zero", "odd", "stochastic")):
        keywords: dict[str, Any] = {"rounding": mode}
        if mode == "stochastic":
            keywords |= {"seed": 2**40 + 3, "random_bits": 12}
        elements: tuple[Any, ...] = (fp.E4M3, fp.INT4)
        for j, fmt in enumerate(elements):
            add(f"{mode} {fmt.name}", fmt, fp.scalings.MX, spoilt((2, 40)), i + j, subnormals="flush", **keywords)
        zero_point = base.replace(symmetric=False)
        add(f"{mode} zero point", fp.INT4, zero_point, spoilt((2, 40), spread=3), i, **keywords)
        add(f"{mode} column", fp.E2M1, fp.scalings.COLUMN, spoilt((20, 3), spread=3), i + 1, **keywords)
    for i, fmt in enumerate((fp.INT8, fp.INT4, fp.UINT8, fp.UINT4)):
        for j, division in enumerate(("divide", "multiply")):
            scaling = fp.Scaling(block=(2, 8), symmetric=False, division=division, scale_format=fp.BF16)
            add(f"{fmt.name} {division}", fmt, scaling, spoilt((5, 20), spread=4), i + j + 1)
    for other in ("p3109_k8p1se", "p3109_k8p4ue", "fp16", "e4m3fnuz"):
        add(f"elements {other}", fp.format(other), base, spoilt((2, 40), spread=5))
    scales = np.linspace(0.5, 2, 6, dtype=np.float32).reshape(2, 3)
    for fmt in (fp.E4M3, fp.INT8):
        add(f"given {fmt.name}", fmt, base, spoilt((2, 40), spread=3), scales=scales)
    add("given, with a zero point", fp.INT8, base.replace(symmetric=False), spoilt((2, 40), spread=3), scales=scales)
    for i, nan in enumerate(("tile", "element")):  # spoilt arrays have a NaN in one place
        for j, shape in enumerate(((2, 40), (1, 90))):
            x = np.concatenate([spoilt(shape, spread=3), np.zeros_like(spoilt(shape))])
            float64, how = x.astype(np.float64), base.replace(nan=nan)
            add(f"given, nan {nan}, {shape}", fp.INT8, how, x, i + j, scales=0.5)
            add(f"given, float64 nan {nan}, {shape}", fp.E4M3, how, float64, i + j + 1, scales=2.0)
            add(f"given, zero point, nan {nan}, {shape}", fp.UINT4, how.replace(symmetric=False), x, i + j, scales=0.5)
    add("given, broadcast", fp.E4M3, base.replace(division="multiply"), spoilt((2, 40), spread=3), scales=scales[:1])
    add("given, one", fp.E2M1, fp.scalings.NVFP4, spoilt((2, 40), spread=3), scales=np.float64(0.1))
    add("overflow", fp.E5M2, fp.scalings.TENSOR, spoilt((2, 40)), overflow="nonfinite", scales=np.float32(1e-3))
    return found


def stored(results: dict[str, Array], name: str, q: Any) -> None:
    """Everything that an encoding holds, on the CPU."""
    for part in PARTS:
        if getattr(q, part) is not None:
            results[f"{name}: {part}"] = np.asarray(getattr(q, part))
    results[f"{name}: report"] = np.array([getattr(q.report, count) for count in COUNTS])


def simulated(every: bool) -> dict[str, Array]:
    """Every result, by name; of some cases, every other one is quantised in one go, the others decoded to float64."""
    from numba import cuda

    from fpsim.gpu.scaling import short_tiles

    results: dict[str, Array] = {}
    for number, (name, (fmt, scaling, x, options)) in enumerate(cases(every).items()):
        source = cuda.to_device(x)
        q = fp.gpu.encode_scaled(source, fmt, scaling, **options)
        stored(results, name, q.cpu())
        results[f"{name}: decode"] = q.decode().copy_to_host()
        if every or number % 2:
            results[f"{name}: exact"] = q.decode(np.float64).copy_to_host()
        if every or number % 2 == 0:
            results[f"{name}: quantize"] = fp.gpu.quantize_scaled(source, fmt, scaling, **options).copy_to_host()
        exact, quantize = (f"{name}: {part}" in results for part in ("exact", "quantize"))
        results |= on_cpu(f"cpu {name}", Case(fmt, scaling, x, options), exact, quantize or cut(name))
    results["short tiles: kernels"] = np.array(short_tiles.short_tiles_kernel.cache_info().currsize)
    return results | in_parts(every) | reused()


def on_cpu(name: str, case: Case, exact: bool = True, quantize: bool = True) -> dict[str, Array]:
    """Return the same by the functions of the CPU."""
    fmt, scaling, x, options = case
    q = fp.encode_scaled(x, fmt, scaling, **options)
    results = {f"{name}: decode": q.decode()}
    if exact:
        results[f"{name}: exact"] = q.decode(np.float64)
    if quantize:
        results[f"{name}: quantize"] = fp.quantize_scaled(x, fmt, scaling, **options)
    stored(results, name, q)
    return results


def in_parts(every: bool) -> dict[str, Array]:
    """Return the same for some cases with tiles cut into parts for several blocks, as long ones are."""
    from numba import cuda

    from fpsim.gpu.scaling import areas, encode

    areas.TILE_PART, areas.LARGEST_AREA = 16, 24
    setattr(encode, "tile_threads_of", lambda tiles: 0)  # noqa: B010  # short tiles, too; mypy sees no such name there
    areas.areas_of.cache_clear()
    results: dict[str, Array] = {}
    for name, (fmt, scaling, x, options) in cases(every).items():
        if cut(name):
            source = cuda.to_device(x)
            stored(results, f"cut {name}", fp.gpu.encode_scaled(source, fmt, scaling, **options).cpu())
            rounded = fp.gpu.quantize_scaled(source, fmt, scaling, **options)
            results[f"cut {name}: quantize"] = rounded.copy_to_host()
    return results


def cut(name: str) -> bool:
    """Return whether a case is repeated with tiles cut into parts."""
    return name.startswith(("block", "shape", "stochastic", "infinity", "TE_", "quotient"))


def reused() -> dict[str, Array]:
    """Arrays that are filled again, taken apart, transposed, moved up and quantised again."""
    from numba import cuda

    results: dict[str, Array] = {}
    for name in ("TILE_1X128", "NVFP4", "INT8"):
        scaling = fp.Scaling(block=(1, 16), symmetric=False) if name == "INT8" else ROWS[name]
        fmt = fp.INT8 if name == "INT8" else fp.E2M1
        first, second = (cuda.to_device(spoilt((3, 40), seed=seed)) for seed in (1, 2))
        q = fp.gpu.encode_scaled(first, fmt, scaling)
        again = fp.gpu.encode_scaled(second, fmt, scaling, out=q)
        assert again.codes is q.codes
        assert again.scales is q.scales
        stored(results, f"again {name}", again.cpu())
        stored(results, f"transposed {name}", again.T.cpu())
        stored(results, f"blocks {name}", again.blocks[1:, 0].cpu())
        up = fp.gpu.Scaled.from_cpu(fp.encode_scaled(spoilt((3, 40), seed=2), fmt, scaling), like=first)
        stored(results, f"up {name}", up.cpu())
        results[f"up {name}: decode"] = up.decode().copy_to_host()
        values = cuda.device_array((3, 40), np.float32)
        assert again.decode(out=values) is values
        results[f"out {name}: decode"] = values.copy_to_host()
        assert fp.gpu.quantize_scaled(first, fmt, scaling, out=values) is values
        results[f"out {name}: quantize"] = values.copy_to_host()
    for points in ZERO_POINTS:
        codes, scales, fmt, scaling = affine(points)
        zeros = cuda.to_device(np.full((3, 2), points[1], points[0]))
        q = fp.gpu.Scaled(cuda.to_device(codes), cuda.to_device(scales), fmt, scaling, zero_points=zeros)
        for dtype in (np.float32, np.float64):
            results[f"zero points {points} {np.dtype(dtype)}"] = q.decode(dtype).copy_to_host()
    rows = fp.gpu.encode_scaled(cuda.to_device(spoilt((9, 40), spread=3)), fp.E4M3, fp.scalings.MX)
    stored(results, "requantized", rows.requantize(fp.scalings.TILE_128X1).cpu())
    return results


def affine(points: tuple[Any, int]) -> tuple[Array, Array, Any, fp.Scaling]:
    """Return codes, scales, format and scaling of an array with zero points of a given (dtype, number)."""
    fmt = fp.INT8 if points[0] == np.uint8 else fp.UINT4
    codes, scales = np.arange(3 * 20).reshape(3, 20) % 16, spoilt((3, 2))
    scales[0] = np.copysign(np.nan, -1), -np.inf
    return codes.astype(fmt.storage), scales, fmt, fp.Scaling(block=(1, 16), symmetric=False)


def main(file: str, every: str) -> None:
    """Write some or every result to a file."""
    np.savez(file, **simulated(every == "every"))  # type: ignore[arg-type]
