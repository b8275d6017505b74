"""torch.mm on this machine under a limit of instructions, for cancelling operands that every machine makes alike."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.schedules.shaped import Isa
from tests.kit.processes import ROOT

Array = npt.NDArray[Any]
FORMATS = {"bf16": fp.BF16, "fp16": fp.FP16, "fp32": fp.FP32}
LIMITS: dict[Isa, str] = {
    "avx512_fp16": "AVX512_CORE_FP16", "avx512_bf16": "AVX512_CORE_BF16", "avx512": "AVX512_CORE", "avx2": "AVX2"
}  # fmt: skip
NEEDED = {"amx": "amx-bf16", "avx512_fp16": "avx512fp16", "avx512_bf16": "avx512bf16", "avx512": "avx512f",
          "avx2": "avx2"}  # fmt: skip
TORCH = "2.13.0"  # the version that the rules name
LARGEST, LONGEST = 160, 4096  # M and N are uniform up to one, log2 K up to log2 of the other


class MmCase(NamedTuple):
    """A product of torch.mm: its shape and the format of its operands."""

    m: int
    n: int
    k: int
    fmt: str


def hashed(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return random 64-bit words, which no version of NumPy changes (SplitMix64)."""
    with np.errstate(over="ignore"):
        x: npt.NDArray[np.uint64] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.arange(
            1, count + 1, dtype=np.uint64
        )
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


def shapes(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Return random shapes (M, N, K)."""
    x = hashed(seed, 3 * count).reshape(count, 3).astype(np.float64) / 2.0**64
    sizes = 1 + np.floor(x[:, :2] * LARGEST).astype(int)
    terms = np.floor(2 ** (x[:, 2] * np.log2(LONGEST + 1))).astype(int)
    return [(int(m), int(n), int(k)) for (m, n), k in zip(sizes, terms, strict=True)]


def codes(seed: int, shape: tuple[int, int], fmt: fp.Format) -> Array:
    """Return codes of random signs and mantissas, with exponents from -5 to 4."""
    x = hashed(seed, shape[0] * shape[1]).reshape(shape)
    exponents = fmt.bias - 5 + (x >> np.uint64(40)) % np.uint64(10)
    mantissas = x & np.uint64((1 << fmt.mantissa_bits) - 1)
    signs = (x >> np.uint64(63)) << np.uint64(fmt.bits - 1)
    made: Array = (signs | exponents << np.uint64(fmt.mantissa_bits) | mantissas).astype(fmt.storage)
    return made


def operands(case: MmCase, seed: int) -> tuple[Array, Array]:
    """Return codes (M, K) and (K, N) whose exact products are 0, but for a small last term of an odd K.

    Half of the terms are the others' opposites, far away from them: what is left are the roundings on the way.
    """
    fmt, half = FORMATS[case.fmt], case.k // 2
    a, b = codes(seed, (case.m, case.k), fmt), codes(seed + 1, (case.k, case.n), fmt)
    order = np.argsort(hashed(seed + 2, case.k), kind="stable")
    first, second = order[:half], order[half : 2 * half]
    a[:, second], b[second] = a[:, first], b[first] ^ np.array(fmt.sign_bit, fmt.storage)
    if case.k % 2:  # 2**-5 of a term, which is no whole number of the others' last bits
        a[:, order[-1]] = (a[:, order[-1]] & np.array(fmt.top_magnitude >> 1 & fmt.sign_bit - 1, fmt.storage)) | 1
    return a, b


PROGRAM = """
    import sys
    import numpy as np, torch

    torch.set_num_threads(int(sys.argv[4]))
    if torch.__version__.split("+")[0] != sys.argv[3]:
        sys.exit("another torch")
    results = {}
    with np.load(sys.argv[1]) as arrays:
        for i in range(sum(name.endswith(".fmt") for name in arrays.files)):
            kind = str(arrays[f"{i}.fmt"])
            a, b = (torch.from_numpy(arrays[f"{i}.{name}"]) for name in "ab")
            if kind in ("bf16", "fp16"):
                dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
                a, b = a.view(dtype), b.view(dtype)
            layout = str(arrays[f"{i}.layout"])
            a = a.t().contiguous().t() if layout == "tn" else a
            b = b.t().contiguous().t() if layout == "nt" else b
            bias = arrays.get(f"{i}.bias")
            if bias is not None:
                product = torch.addmm(torch.from_numpy(bias).view(a.dtype), a, b)
            else:
                product = torch._int_mm(a, b) if kind == "int8" else torch.mm(a, b)
            results[str(i)] = product.view({2: torch.int16, 4: torch.int32}[product.element_size()]).numpy()
    np.savez(sys.argv[2], **results)
"""


def torch_products(
    cases: list[tuple[MmCase, Array, Array]], isa: Isa, threads: int = 1, layouts: list[str] | None = None,
    biases: list[Array] | None = None,
) -> list[Array] | None:  # fmt: skip
    """Return the codes of torch.mm's results (torch._int_mm's of INT8), in its own process; None with another torch.

    Args:
      cases: shapes, and codes of their operands.
      isa: the instructions to which oneDNN is limited; "amx" for all that the processor has.
      threads: threads of torch.
      layouts: the layout of each case, "nn" by default.
      biases: a bias (N,) of each case, which torch.addmm then adds.
    """
    signed = {1: np.int8, 2: np.int16, 4: np.float32}
    data: dict[str, Any] = {}
    for i, (case, a, b) in enumerate(cases):
        kind: Any = signed[a.dtype.itemsize]
        data |= {f"{i}.a": a.view(kind), f"{i}.b": b.view(kind), f"{i}.fmt": np.array(case.fmt)}
        data[f"{i}.layout"] = np.array(layouts[i] if layouts else "nn")
        if biases:
            data[f"{i}.bias"] = biases[i].view(kind)
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(inputs, **data)
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": LIMITS.get(isa, "ALL"), "OMP_NUM_THREADS": str(threads)}
        environment["OMP_WAIT_POLICY"] = "passive"  # threads may outnumber cores
        words = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(inputs), str(outputs), TORCH, str(threads)]
        done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if "another torch" in done.stderr:
            return None
        assert done.returncode == 0, done.stderr
        with np.load(outputs) as arrays:
            results = [arrays[str(i)] for i in range(len(cases))]
    return [x.view(f"u{x.dtype.itemsize}") for x in results]


def predicted(case: MmCase, a: Array, b: Array, isa: Isa) -> Array | None:
    """Return the codes that fpsim predicts, or None for a shape that it declines."""
    library = fp.schedules.torch_mm(isa, mkl_isa="avx512")  # which ONEDNN_MAX_CPU_ISA does not limit
    if library.declines(case.m, case.n, case.k, case.fmt):
        return None
    result = fp.matmul(a, b, schedule=library, fmt=FORMATS[case.fmt])
    return result.view(f"u{result.dtype.itemsize}")


def digest(x: Array) -> int:
    """Return a number of 32 bits that tells results apart."""
    return zlib.crc32(np.ascontiguousarray(x).tobytes())
