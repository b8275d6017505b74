"""Long arrays: pieces, threads, gaps, and switches of the processor."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.casts.pipelines import LARGE
from fpsim.runtime.pipeline import PIECE
from fpsim.runtime.stream import STREAM_BYTES
from fpsim.runtime.threads import SMALLEST, thread_count
from fpsim.testing import assert_bits_equal
from tests.kit import processor
from tests.kit.processes import printed, python
from tests.kit.samples import float32_patterns, float64_patterns
from tests.kit.sweeps import each_once

Array = npt.NDArray[Any]


# ---- long arrays take other kernels: constants compiled in, stores around the caches, several threads


def in_pieces(function: Callable[[Array], Array], x: Array) -> Array:
    return np.concatenate([function(x[start : start + PIECE]) for start in range(0, x.size, PIECE)])


LONG: list[tuple[fp.Format, dict[str, Any]]] = [
    (fp.E4M3, {}),
    (fp.E4M3, {"rounding": "up", "overflow": "saturate_finite"}),
    (fp.FP16, {}),
    (fp.BF16, {"subnormals": "flush"}),
    (fp.E8M0, {"rounding": "toward_zero"}),
    (fp.E2M1, {"rounding": "odd"}),
    (fp.format("p3109_k8p3se"), {}),
]


@each_once("cast, start", LONG, [0, 1, 37], ids=str)
def test_a_long_array_encodes_as_its_pieces_do(cast: tuple[fp.Format, dict[str, Any]], start: int) -> None:
    fmt, words = cast
    size = max(LARGE, STREAM_BYTES // fmt.storage.itemsize) * 2 + 1_001  # for two threads, each beyond both limits
    x = np.tile(float32_patterns(2, 300_007), size // 300_007 + 1)[:size]
    space = np.zeros(size + 64, fmt.storage)
    out = space[start : start + size]
    fp.encode(x, fmt, out=out, **words)
    assert_bits_equal(out[: 2 * PIECE], fp.encode(x[: 2 * PIECE], fmt, **words))
    assert_bits_equal(out, in_pieces(lambda piece: fp.encode(piece, fmt, **words), x))
    assert not space[:start].any()
    assert not space[start + size :].any()


@each_once("fmt, start", [fp.E4M3, fp.BF16, fp.E8M0, fp.E4M3FNUZ], [0, 3], ids=str)
def test_a_long_array_decodes_as_its_pieces_do(fmt: fp.Format, start: int) -> None:
    size = 2 * LARGE + 1_001
    codes = np.tile(np.arange(1 << fmt.bits), size // (1 << fmt.bits) + 1)[:size].astype(fmt.storage)
    space = np.zeros(size + 64, np.float32)
    fp.decode(codes, fmt, out=space[start : start + size])
    assert_bits_equal(space[start : start + size], in_pieces(lambda piece: fp.decode(piece, fmt), codes))
    assert not space[:start].any()
    assert not space[start + size :].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_long_array_quantizes_as_its_pieces_do(dtype: type) -> None:
    with np.errstate(all="ignore"):
        x: Array = np.tile(float32_patterns(3, 99_991), 60).astype(dtype)
    assert_bits_equal(fp.quantize(x, fp.E4M3), in_pieces(lambda piece: fp.quantize(piece, fp.E4M3), x))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(float64_patterns(4, 40_009), SMALLEST // 40_009 + 2)
    want = in_pieces(lambda piece: fp.encode(piece, fp.FP16), x)
    monkeypatch.setenv("FPSIM_NUM_THREADS", str(threads))
    out = np.full(x.size, 0xAAAA, np.uint16)  # a new array could hold the right codes by chance
    assert_bits_equal(fp.encode(x, fp.FP16, out=out), want)


@pytest.mark.parametrize("shape", [(3, PIECE + 5), (PIECE // 3, 7), (2, 3, PIECE // 2), (PIECE + 1, 1, 2)])
def test_a_long_array_with_gaps_encodes_as_its_copy(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    x = np.tile(float32_patterns(5, 10_007), size // 10_007 + 1)[:size].reshape(shape)
    want = fp.encode(x, fp.E5M2)
    gaps = np.repeat(x, 2, axis=-1)[..., ::2]
    assert_bits_equal(fp.encode(gaps, fp.E5M2), want)
    assert_bits_equal(fp.encode(np.asfortranarray(x), fp.E5M2), want)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"FPSIM_NUM_THREADS must be an integer >= 1; got '{text}'"):
        thread_count()


def test_fpsims_number_of_threads_comes_before_openmps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    monkeypatch.delenv("FPSIM_NUM_THREADS", raising=False)
    assert thread_count() == 3
    monkeypatch.setenv("FPSIM_NUM_THREADS", "4")
    assert thread_count() == 4
    monkeypatch.setenv("FPSIM_NUM_THREADS", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert thread_count() >= 1


# ---- the processor's switches

DIGESTS = """
    import hashlib
    import numpy as np
    import fpsim as fp
    from tests.kit.processor import STATES, set_state

    set_state(STATES["flush both"] if {flush} else 0)
    patterns = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    patterns[:5000] &= 0x807FFFFF  # float32 subnormals
    wide = np.random.default_rng(1).integers(0, 1 << 64, 20_000, dtype=np.uint64)
    wide[:5000] &= 0x800FFFFFFFFFFFFF
    deep = fp.Format("deep", 5, 10, bias=1060)
    below = fp.Format("below", 8, 7, bias=135)
    for fmt in [*(fp.format(name) for name in fp.formats.names()), deep, below, fp.format("p3109_k8p1se")]:
        for name, x in (("float32", patterns.view(np.float32)), ("float64", wide.view(np.float64))):
            for rounding in ("nearest_even", "up", "stochastic"):
                codes = fp.encode(x, fmt, rounding=rounding, seed=1)
                print(fmt, name, rounding, hashlib.sha256(codes.tobytes()).hexdigest())
        if fmt.bits <= 16:
            codes = np.arange(1 << fmt.bits).astype(fmt.storage)
            for dtype, word in ((np.float32, np.uint32), (np.float64, np.uint64)):
                if dtype == np.float64 or fp.FP32.holds(fmt):
                    values = fp.decode(codes, fmt, dtype).view(word)
                    print(fmt, "decode", word.__name__, hashlib.sha256(values.tobytes()).hexdigest())
"""


@pytest.mark.skipif(not processor.IS_SUPPORTED, reason="sets the state of x86 processors")
def test_flushing_of_subnormals_by_the_processor_changes_nothing() -> None:
    flushed, kept = python(DIGESTS.format(flush=True)), printed(DIGESTS.format(flush=False))
    assert flushed.splitlines() == kept.splitlines()
    assert len(kept) > 1000


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("contiguous", [True, False])
def test_casts_allocate_nothing_of_the_inputs_size(dtype: Any, contiguous: bool) -> None:
    size = 1 << 23
    x = np.ones(size, dtype) if contiguous else np.ones(2 * size, dtype)[::2]
    codes, values = np.empty(size, np.uint8), np.empty(size, np.float64 if dtype == np.float64 else np.float32)
    peaks = []
    for _ in range(2):  # the first turn may compile
        tracemalloc.start()
        fp.encode(x, fp.E4M3, out=codes)
        fp.decode(codes, fp.E4M3, values.dtype, out=values)
        fp.quantize(x, fp.E4M3, rounding="stochastic", seed=1, out=values)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[-1] < size / 2


def test_a_long_out_at_an_odd_address_is_filled() -> None:
    size = STREAM_BYTES // 2 + 1000
    space = np.zeros(2 * size + 1, np.uint8)
    out = space[1:].view(np.uint16)
    assert not out.flags.aligned
    x = float32_patterns(11, size)
    fp.encode(x, fp.BF16, out=out)
    assert_bits_equal(out.copy(), fp.encode(x, fp.BF16))


def test_torch_tensors_of_every_float_dtype_are_read_in_place() -> None:
    torch = pytest.importorskip("torch", reason="torch makes the tensors")
    x = torch.tensor([1.0, 0.3, -2.5, 448.0])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = x.to(dtype)
        values = tensor.double().numpy()
        assert_bits_equal(
            fp.encode(tensor, fp.E3M2, overflow="saturate"), fp.encode(values, fp.E3M2, overflow="saturate")
        )
    with pytest.raises(TypeError, match=r"got int64\. Convert values with np\.asarray"):
        fp.encode(torch.tensor([1, 2]), fp.E4M3)
