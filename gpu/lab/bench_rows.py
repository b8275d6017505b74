"""The list of calls that the GPU benchmark times: a BenchWork for each function of `fpsim.gpu`, format and mode.

Many calls have a target, the speed that they should reach: a share of the bandwidth of a copy, or, for matrix products,
multiply-adds per second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# More than caches hold (50 MB on an H200), and so many that a call keeps the GPU busy for longer than the CPU takes to
# launch the next one, 0.1 to 0.5 ms: elements of three bytes at 4 TB/s take 0.8 ms.
ELEMENTS = 1 << 30
SMALL_ELEMENTS = 1 << 22
# Sides of square products: 64 small ones take about the time of a large one, launches included.
SIDE, SMALL_SIDE = 4096, 1024
SHARE = 0.7  # target of casts and arithmetic, as a share of the copy bandwidth
FP8_RATE = 1e12  # target of the emulated FP8 product, in multiply-adds per second
COPY = "copy"


class BenchWork(NamedTuple):
    """A call to measure, the bytes that it moves, and its target.

    Attributes:
      part, name: the benchmark's part, such as "casts", and the name of the measurement.
      function: name of a function of `fpsim.gpu`, or "copy" or "cublas".
      operands: for each operand "float32", "bfloat16", or the name of a format for its codes.
      options: keyword arguments of the function; `scaling` is a name in `fpsim.scalings`.
      moved: bytes read and written per element; 0 for matrix products.
      wanted: target, as a share of the copy bandwidth, or for products multiply-adds per second; 0 for none.
      beside: name of the measurement that this one is compared with.
    """

    part: str
    name: str
    function: str
    operands: tuple[str, ...]
    options: dict[str, Any]
    moved: float
    wanted: float = 0.0
    beside: str = COPY

    @property
    def is_product(self) -> bool:
        """True if the call multiplies square matrices, so that its size is the side of a matrix."""
        return not self.moved

    def count(self, size: int) -> int:
        """Return the number of elements that a call of this size processes, or of multiply-adds in a matrix product."""
        return size**3 if self.is_product else size


BYTES = {"E4M3": 1, "E5M2": 1, "E2M1": 1, "FP16": 2, "BF16": 2}
STOCHASTIC = {"rounding": "stochastic", "seed": 7}


def _casts() -> list[BenchWork]:
    """Return the benchmark's calls of encode and decode for several formats."""
    rows = []
    for fmt, size in BYTES.items():
        for words, options in (("", {}), (" stochastic", STOCHASTIC)):
            keywords = {"fmt": fmt, **options}
            rows.append(BenchWork("casts", f"encode {fmt}{words}", "encode", ("float32",), keywords, 4 + size, SHARE))
        rows.append(BenchWork("casts", f"decode {fmt}", "decode", (fmt,), {"fmt": fmt}, size + 4, SHARE))
    return [*rows, BenchWork("casts", "encode E4M3 from bfloat16", "encode", ("bfloat16",), {"fmt": "E4M3"}, 3, SHARE)]


def _arithmetic() -> list[BenchWork]:
    """Return the benchmark's calls of arithmetic on codes, and of softmax along rows, which has no target."""
    rows = [
        BenchWork("arithmetic", f"{name} {fmt}", name, (fmt,) * count, {"fmt": fmt}, (count + 1) * BYTES[fmt], SHARE)
        for name, count in (("add", 2), ("multiply", 2), ("fma", 3))
        for fmt in ("E4M3", "FP16", "BF16")
    ]
    return [*rows, BenchWork("arithmetic", "softmax BF16", "softmax", ("BF16",), {"fmt": "BF16"}, 2 * BYTES["BF16"])]


def _scaled() -> list[BenchWork]:
    """Return the benchmark's calls of `encode_scaled`."""
    # a code is stored in one byte, also for E2M1
    plans = (("E4M3", "TILE_1X128", 4 / 128), ("E4M3", "MX", 1 / 32), ("E2M1", "NVFP4", 1 / 16))
    return [
        BenchWork("scaling", f"encode_scaled {fmt} {scaling}", "encode_scaled", ("float32",),
             {"fmt": fmt, "scaling": scaling}, 5 + scales, SHARE)
        for fmt, scaling, scales in plans
    ]  # fmt: skip


def _products() -> list[BenchWork]:
    """Return the benchmark's calls of matrix products; the products by cuBLAS come first."""
    plans: tuple[tuple[str, str, int | None, float], ...] = (
        ("E4M3", "hopper_e4m3_f32", 128, FP8_RATE), ("E4M3", "hopper_e4m3_f32", None, FP8_RATE),
        ("FP16", "hopper_f16_f32", 128, 0.0), ("BF16", "hopper_bf16_f32", 128, 0.0),
    )  # fmt: skip
    peers = [BenchWork("products", f"cuBLAS {fmt}", "cublas", (fmt, fmt), {}, 0) for fmt in ("E4M3", "FP16", "BF16")]
    return peers + [
        BenchWork("products", f"matmul {unit}" + (f" promote {promote}" if promote else ""), "matmul", (fmt, fmt),
             {"accumulate": unit, "promote": promote}, 0, wanted, f"cuBLAS {fmt}")
        for fmt, unit, promote, wanted in plans
    ]  # fmt: skip


# The copy and cuBLAS come before the calls that are compared with them.
WORKS: tuple[BenchWork, ...] = (
    BenchWork(COPY, COPY, COPY, ("float32",), {}, 8), *_casts(), *_arithmetic(), *_scaled(), *_products(),
)  # fmt: skip
SHORT = ("encode E4M3", "decode E4M3", "encode BF16", "add E4M3", "fma FP16", "encode_scaled E4M3 TILE_1X128",
         "cuBLAS E4M3", "matmul hopper_e4m3_f32 promote 128")  # fmt: skip
