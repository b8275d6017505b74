"""Matrix products by any schedule, with the matrix instructions executed on the tensor cores of this GPU."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.keywords import given_keywords
from fpsim.gpu.device import device
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.instructions import BLOCK, TILE, dot, scaled_dot
from fpsim.matrix_units.catalogue import float_unit
from fpsim.matrix_units.chips import find
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.cpu import Cpu
from fpsim.products.matmul import DEFAULTS
from fpsim.products.pipeline import multiplied
from fpsim.products.request import Request
from fpsim.products.unit_product import ADD, PRODUCT, ROWS_FIRST, UnitProduct, add_part

KINDS = {"e4m3": "e4m3", "e5m2": "e5m2", "f16": "fp16", "bf16": "bf16", "tf32": "tf32"}
TERMS = {"e4m3": 128, "e5m2": 128, "fp16": 64, "bf16": 64, "tf32": 32}  # block_k of `dot`
A_FIRST = {ADD: False, PRODUCT: False, ROWS_FIRST: True}  # mode of factors -> a_first of `scaled_dot`


class TensorCores(Cpu):
    """A backend of matrix products that multiplies on the tensor cores of this GPU.

    The GPU computes sums of consecutive matrix instructions, and sums of 128 terms with their scales. Sums over several
    slices of K, partial sums of other lengths, and epilogues are float32 operations on the CPU.
    """

    @property
    def merges_slices(self) -> bool:
        """False: the backend computes each slice of K as a separate product, and the caller adds the slices."""
        return False

    @staticmethod
    def add_product(total: Array, product: UnitProduct) -> None:
        """Add a @ b of a product to `total`, (M, N) float32, in place.

        product: codes a (M, K) and b (K, N), their matrix unit, the number of terms after which a partial sum is added
        to `total` in float32 (0: one sum), and the scales of the partial sums.
        """
        k = product.a.shape[1]
        if k == 0 or total.size == 0:
            return
        if not product.promote:
            total[...] = _chain(total, product)
        elif product.promote == BLOCK and product.factors.mode in A_FIRST:
            total[...] = _scaled_chains(total, product)
        else:
            for part, start in enumerate(range(0, k, product.promote)):
                terms = product.part(start, min(start + product.promote, k))
                partial = _chain(np.zeros_like(total), terms)
                with np.errstate(all="ignore"):
                    add_part(total, partial, product.factors, part)

    def lane_product(self, *parts: Any) -> NoReturn:
        """Raise ValueError, whatever the arguments: a schedule that adds in lanes does not use tensor cores."""
        raise ValueError("the schedule adds in lanes, without tensor cores. Take fp.gpu.matmul.")


@in_one_sentence
def chain_matmul(a: Any, b: Any, c: Any = None, *, accumulate: str | MatrixUnit, **keywords: Any) -> Any:
    """Multiply as `fpsim.matmul` does, with this GPU's matrix instructions in place of the emulated matrix unit.

    Consecutive matrix instructions, each starting from the sum of the one before, are a Triton loop of `tl.dot`.
    Slices, promotions, scales and epilogues follow the schedule, in float32.

    Args:
      a, b, c: matrices on the CPU, as for `fpsim.matmul`.
      accumulate: a matrix unit of this GPU with float32 sums, by wgmma or its successors, or its name.
      keywords: schedule, promote, scale_a, scale_b, scale_order, bias, alpha, beta, out_fmt and strict, as for
        `fpsim.matmul`.

    Returns:
      (M, N) array of the dtype that `fpsim.matmul` returns.

    Raises:
      GpuError: there is no GPU, or Triton is not installed.
      ValueError: the GPU has no such unit, the schedule adds without tensor cores, or as for `fpsim.matmul`.

    Source: docs/gpu.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     x = np.full((16, 160), 0x38, np.uint8)
      ...     print(fp.gpu.hardware.chain_matmul(x, x.T, accumulate="hopper_e4m3_f32", promote=32)[0, 0])
    """
    unit = float_unit(accumulate)
    device.require_device()
    capability = ".".join(map(str, device.capability()))
    named = find(capability)
    has = "units that are not known" if named is None else f"those of {named.chip.arch}"
    if named is None or named.chip.arch != unit.arch:
        raise ValueError(
            f"this GPU, of compute capability {capability}, has no {unit.name} but {has}. Take fp.gpu.matmul, or "
            "backend='gpu'."
        )
    pair = unit.a.name if unit.a.name == unit.b.name else f"{unit.a.name}x{unit.b.name}"
    if not {unit.a.name, unit.b.name} <= set(KINDS) or unit != float_unit(f"{unit.arch}_{pair}_f32"):
        raise ValueError(
            f"tl.dot takes {', '.join(KINDS)} by wgmma or its successors, and adds in float32; got {unit.name}. Take "
            "fp.gpu.matmul, or backend='gpu'."
        )
    request = Request(**given_keywords(chain_matmul, keywords, DEFAULTS))
    return multiplied(a, b, c, unit, request, None, None, TensorCores())


def _chain(start: Array, product: UnitProduct) -> Array:
    """Return start + a @ b as (M, N) float32, computed by consecutive matrix instructions on the GPU.

    start: (M, N) float32. product: codes a (M, K) and b (K, N) with their matrix unit; its scales and partial sums are
    ignored.
    """
    m, n = start.shape
    pair = KINDS[product.unit.a.name], KINDS[product.unit.b.name]
    terms = TERMS[pair[0]]
    a, b = _padded(product.a, TILE, terms), _padded(product.b, terms, TILE)
    words = dot(a, b, _padded(start, TILE, TILE), pair, block_k=terms)
    return np.asarray(words).view(np.float32)[:m, :n]


def _scaled_chains(start: Array, product: UnitProduct) -> Array:
    """Return start + a @ b as (M, N) float32, with each sum of 128 terms multiplied by its scales before it is added.

    start: (M, N) float32. product: codes a (M, K) and b (K, N), their matrix unit, and the scales of the partial sums.
    """
    m, n = start.shape
    pair = KINDS[product.unit.a.name], KINDS[product.unit.b.name]
    a, b, factors = _padded(product.a, TILE, BLOCK), _padded(product.b, BLOCK, TILE), product.factors
    of_a = _padded(factors.rows, TILE, 1) if factors.mode != ADD else np.float32(1)
    of_b = _padded(factors.columns, 1, TILE) if factors.mode != ADD else np.float32(1)
    words = scaled_dot(a, b, pair, of_a, of_b, _padded(start, TILE, TILE), a_first=A_FIRST[factors.mode])
    return np.asarray(words).view(np.float32)[:m, :n]


def _padded(x: Array, rows: int, columns: int) -> Array:
    """Return the matrix x padded with zeros to a multiple of `rows` rows and of `columns` columns."""
    room = [(0, -size % block) for size, block in zip(x.shape, (rows, columns), strict=True)]
    return np.pad(x, room) if any(after for _, after in room) else x
