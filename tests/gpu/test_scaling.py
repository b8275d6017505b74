"""Scaled quantisation on the GPU: the simulator gives the CPU's bits and counts, and refusals are clear sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.tiling import tiling
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import scaling as simulator
from tests.kit.processes import assert_refused, simulate

Array = npt.NDArray[Any]
without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")


@pytest.fixture(scope="module", params=["some", pytest.param("every", marks=pytest.mark.slow)])
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """Return results of the simulator by name: of pairs of formats, scalings and options, or of all combinations."""
    file = tmp_path_factory.mktemp("gpu") / "results.npz"
    return simulate("tests.gpu.simulator.scaling", file, request.param) | {"every": np.array(request.param == "every")}


def compare(name: str, want: dict[str, Array], found: dict[str, Array]) -> None:
    """Everything that an encoding holds; want: by part."""
    parts = {key.rpartition(": ")[2] for key in found if key.rpartition(": ")[0] == name}
    assert parts <= set(want), name
    assert {part for part in want if part in simulator.PARTS} <= parts, name
    for part in parts:
        try:
            assert_bits_equal(found[f"{name}: {part}"], want[part])
        except AssertionError as error:
            raise AssertionError(f"{name}, {part}: {error}") from None


def parts_of(name: str, results: dict[str, Array]) -> dict[str, Array]:
    """Return what was stored under a name, by part."""
    return {key.rpartition(": ")[2]: array for key, array in results.items() if key.rpartition(": ")[0] == name}


def parts_of_encoding(q: fp.Scaled) -> dict[str, Array]:
    """Return the parts of an encoding of the CPU, by name."""
    results: dict[str, Array] = {}
    simulator.stored(results, "q", q)
    return parts_of("q", results) | {"decode": q.decode()}


def test_codes_scales_counts_and_values_are_those_of_the_cpu(simulated: dict[str, Array]) -> None:
    every = bool(simulated["every"])
    names = list(simulator.cases(every))
    assert len(names) > (150 if every else 100)
    for name in names:
        want = parts_of(f"cpu {name}", simulated)
        assert {"codes", "scales", "report", "decode"} <= set(parts_of(name, simulated))
        compare(name, want, simulated)
    for part in ("quantize", "exact"):
        assert sum(f"{name}: {part}" in simulated for name in names) >= len(names) // (1 if every else 2)


def test_short_tiles_take_their_own_kernel(simulated: dict[str, Array]) -> None:
    assert simulated["short tiles: kernels"] >= (
        36 if simulated["every"] else 18
    )  # codes and values of the cases that are named so


@pytest.mark.parametrize("name", ["TILE_1X128", "NVFP4", "INT8 multiply"])
def test_compiled_kernels_of_the_cpu_give_the_same(name: str, simulated: dict[str, Array]) -> None:
    want = simulator.on_cpu("q", simulator.cases()[name])
    compare(name, parts_of("q", want), simulated)


def test_tiles_that_are_cut_into_parts_give_the_same(simulated: dict[str, Array]) -> None:
    names = [name for name in simulator.cases(bool(simulated["every"])) if simulator.cut(name)]
    assert len(names) > (30 if simulated["every"] else 25)
    for name in names:
        compare(f"cut {name}", parts_of(f"cpu {name}", simulated), simulated)


@pytest.mark.parametrize("name", ["TILE_1X128", "NVFP4", "INT8"])
def test_arrays_are_filled_again_transposed_and_moved(name: str, simulated: dict[str, Array]) -> None:
    scaling = fp.Scaling(block=(1, 16), symmetric=False) if name == "INT8" else getattr(fp.scalings, name)
    fmt = fp.INT8 if name == "INT8" else fp.E2M1
    first, second = (simulator.spoilt((3, 40), seed=seed) for seed in (1, 2))
    q = fp.encode_scaled(second, fmt, scaling)
    for way in ("again", "up"):
        compare(f"{way} {name}", parts_of_encoding(q), simulated)
    compare(f"transposed {name}", parts_of_encoding(q.T), simulated)
    compare(f"blocks {name}", parts_of_encoding(q.blocks[1:, 0]), simulated)
    assert_bits_equal(simulated[f"out {name}: decode"], q.decode())
    assert_bits_equal(simulated[f"out {name}: quantize"], fp.quantize_scaled(first, fmt, scaling))


def test_requantizing_decodes_and_encodes_again(simulated: dict[str, Array]) -> None:
    rows = fp.encode_scaled(simulator.spoilt((9, 40), spread=3), fp.E4M3, fp.scalings.MX)
    compare("requantized", parts_of_encoding(rows.requantize(fp.scalings.TILE_128X1)), simulated)


# ---- who works on what

SHAPES = [(3, 40), (1, 1), (7, 1), (1, 300), (130, 3), (2, 3, 50), (5, 0), (0, 5), (300,), (21, 33)]
LARGE = [(130, 70), (64, 64)]  # several tiles of 128 rows or many of all others, in plain Python
BLOCKS = [(1, 16), (1, 128), (128, 1), (4, 4), (2, 3), (-1, 1), (1, -1), (-1, -1), (128, 128)]


THREADS = [1, 4, 32, 256]


def tiled(kind: str, threads: int, cut: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes with blocks of a test; of the pairs, each shape with a third of the blocks, others at other times.

    With 256 threads, most of which have nothing to do, a sixth.
    """
    place, part = THREADS.index(threads) + cut, 6 if threads == 256 else 3
    shapes = LARGE if kind == "large" else SHAPES
    return [
        (shape, block) for i, shape in enumerate(shapes) for j, block in enumerate(BLOCKS)
        if kind != "pairs" or (i + j + place) % part == 0
    ]  # fmt: skip


def test_every_shape_meets_every_block_among_the_pairs() -> None:
    pairs = {pair for threads in THREADS for pair in tiled("pairs", threads, cut=False)}
    assert pairs == set(tiled("small", 1, cut=False))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "kind", ["pairs", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("small", "large"))]
)
def test_threads_share_every_element_of_a_tile_once(
    kind: str, threads: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpsim.gpu.scaling import areas

    monkeypatch.setattr(areas, "TILE_PART", 64)
    areas.areas_of.cache_clear()
    for shape, block in tiled(kind, threads, cut):
        tiles = tiling(shape, block)
        g = areas.areas_of(tiles, threads, cut=cut)
        assert g.across * g.threads_x * g.threads_y <= threads
        seen, tile_of = np.zeros(tiles.shape, int).reshape(-1), np.full(int(np.prod(shape)), -1)
        for area in range(g.count):
            for thread in range(threads):
                part = areas.part_of(np.int64(area), np.int64(thread), g)
                w = areas.walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    assert part.is_tile
                    *batch, i, c = areas.batch_of(i, c, left, w)
                    for k, place in enumerate(batch):
                        seen[place] += k < left
                        tile_of[place] = part.tile
                    left -= areas.BATCH
        assert (seen == 1).all(), (shape, block)
        batch, row, column = np.indices(tiles.shape)
        want = (batch * tiles.tiles[1] + row // tiles.tile_rows) * tiles.tiles[2] + column // tiles.tile_columns
        assert (tile_of == want.reshape(-1)).all(), (shape, block)
    areas.areas_of.cache_clear()


# ---- bad input


@without_gpu
@pytest.mark.parametrize("name", ["encode_scaled", "quantize_scaled"])
def test_without_a_gpu_they_say_so(name: str) -> None:
    with pytest.raises(fp.gpu.GpuError, match="found no CUDA device"):
        getattr(fp.gpu, name)(np.ones(1, np.float32), "e4m3")


@without_gpu
def test_without_a_gpu_nothing_moves_up() -> None:
    with pytest.raises(fp.gpu.GpuError, match="found no CUDA device"):
        fp.gpu.Scaled.from_cpu(fp.encode_scaled(np.ones(1, np.float32), "e4m3"))


@pytest.mark.parametrize("points", simulator.ZERO_POINTS, ids=str)
def test_zero_points_may_have_any_dtype_of_integers(points: tuple[Any, int], simulated: dict[str, Array]) -> None:
    codes, scales, fmt, scaling = simulator.affine(points)
    want = fp.Scaled(codes, scales, fmt, scaling, zero_points=np.full((3, 2), points[1], points[0]))
    for dtype in (np.float32, np.float64):
        result, word = simulated[f"zero points {points} {np.dtype(dtype)}"], f"u{np.dtype(dtype).itemsize}"
        assert_bits_equal(result.view(word), want.decode(dtype).view(word))  # of NaNs, the sign too


SETUP = """
x, codes = cuda.to_device(np.ones((2, 32), np.float32)), cuda.to_device(np.zeros((2, 32), np.uint8))
MX = fp.scalings.MX
q = fp.gpu.encode_scaled(x, "e4m3", MX)
scales = cuda.to_device(np.ones((2, 1), np.float32))
packed = cuda.to_device(np.full((2, 32), 0x37, np.uint8))
wide = cuda.to_device(np.full((2, 32), 512, np.uint16))
tangled = fp.gpu.Scaled(codes, x.reshape(64)[:2].reshape(2, 1), "e4m3", fp.scalings.ROW)
"""
CALLS = {
    "fp.gpu.encode_scaled(np.ones(3, np.float32), 'e4m3')": r"TypeError x must be an array on the GPU: .*got ndarray",
    "fp.gpu.quantize_scaled(codes, 'e4m3')": r"TypeError x must be an array of floats on the GPU; got uint8",
    "fp.gpu.encode_scaled(x, 'e4m33')": r"ValueError .*e4m33",
    "fp.gpu.encode_scaled(x, 'e4m3', 'mxfp8')": r"ValueError scaling must be .*Did you mean 'MX'\?",
    "fp.gpu.encode_scaled(x, 'e4m3', 'mx', out=x)": r"ValueError out must be a Scaled .* with fp.scalings.MX",
    "fp.gpu.encode_scaled(x, 'logfmt-8')": r"ValueError LogFMT-8 is not on the GPU, whose log2 .* Use the functions of",
    "fp.gpu.encode_scaled(x, 'nf4')": r"ValueError NF4, a table of values, is not on the GPU",
    "fp.gpu.encode_scaled(x, 'e2m1', 'NVFP4_46')": r"ValueError fp.scalings.NVFP4_46 chooses by tile, which is not on",
    "fp.gpu.Scaled.from_cpu(fp.encode_scaled(np.ones(64), 'hif4', 'HIF4'))": r"ValueError HIF4, a table of values, is",
    "fp.gpu.quantize_scaled(x, 'logfmt-8')": r"ValueError LogFMT-8 is not on the GPU",
    "fp.gpu.Scaled.from_cpu(fp.encode_scaled(np.ones(3), 'logfmt-8'))": r"ValueError LogFMT-8 is not on the GPU",
    "fp.gpu.Scaled.from_cpu(q)": r"TypeError scaled must be an fpsim.Scaled; got an fpsim.gpu.Scaled",
    "fp.gpu.encode_scaled(x, 'uint8', MX)": r"ValueError UINT8 needs a zero point",
    "fp.gpu.encode_scaled(x, 'e4m3', rounding='stochastic')": r"ValueError stochastic rounding needs a seed",
    "fp.gpu.encode_scaled(x, 'e4m3', MX, scales=np.ones(3))": r"ValueError scales must be one per tile, shape \(2, 1\)",
    "fp.gpu.encode_scaled(x, 'e4m3', MX, scales=-1.0)": r"ValueError scales must be positive and finite .*got -1.0",
    "fp.gpu.encode_scaled(x, 'e4m3', MX, out=x)": r"ValueError out must be a Scaled of the GPU, of shape \(2, 32\)",
    "fp.gpu.encode_scaled(x, 'e4m3', MX, out=q.cpu())": r"ValueError out must be .*; got fpsim.Scaled",
    "fp.gpu.quantize_scaled(x, 'e4m3', MX, out=x)": r"ValueError out must not share memory with the input",
    "tangled.decode(out=x)": r"ValueError out must not share memory with the input",
    "fp.gpu.encode_scaled(x, 'e4m3', fp.scalings.ROW, out=tangled)": r"ValueError out must not share memory with the",
    "fp.gpu.encode_scaled(x, 'e5m2', MX, out=q)": r"ValueError out must be a Scaled .*in E5M2 with .*; got <",
    "fp.gpu.quantize_scaled(x, 'e4m3', MX, out=codes)": r"ValueError out must be a .* of float32 and shape",
    "q.decode(np.float16)": r"ValueError dtype must be np.float32 or np.float64; got",
    "q.decode(out=codes)": r"ValueError out must be a .* of float32 and shape",
    "fp.gpu.encode_scaled(x.reshape(64), 'e4m3', MX).T": r"ValueError only a matrix can be transposed; got .*64",
    "fp.gpu.Scaled(codes, scales, 'e4m3', fp.scalings.NVFP4)": r"ValueError scales must have one element per tile",
    "fp.gpu.Scaled(x, scales, 'e4m3', MX)": r"TypeError codes of E4M3 must be uint8; got float32",
    "fp.gpu.Scaled(codes, codes, 'e4m3', MX)": r"TypeError scales must be float32; got uint8",
    "fp.gpu.Scaled(packed, scales, 'e2m1', MX)": r"ValueError codes must lie in 0 .. 0xf, the codes of E2M1; got 0x37",
    "fp.gpu.Scaled(wide, scales, 'p3109_k9p3sf', MX)": r"ValueError codes must lie in 0 .. 0x1ff, the codes of .*0x200",
    "fp.gpu.Scaled(packed.view(np.int8), scales, 'int4', MX)": r"ValueError codes must lie in -8 .. 7, the codes of",
}


def test_bad_input_says_what_was_wanted() -> None:
    assert_refused(SETUP, CALLS)
