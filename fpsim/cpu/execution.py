"""Runs an instruction of this processor on arrays of bit patterns, in vector registers or tile registers (AMX)."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array, as_array
from fpsim.cpu.availability import require
from fpsim.cpu.instructions import AnyInstruction, TileInstruction, named
from fpsim.cpu.machine_code import compiled
from fpsim.display.wording import plural
from fpsim.errors import shown
from fpsim.runtime.processor import ieee_arithmetic

SIDE = 16  # rows of a tile, and 32-bit words of a row
SETTINGS_ROWS = 48  # offset of the numbers of rows in the tile configuration (Intel SDM volume 1, 18.3)


def run(instruction: str, *operands: Array) -> Array:
    """Run an instruction of this processor N times, for N independent results.

    Args:
      instruction: a name of `fp.cpu.available()`, such as "VCVTPS2PH up".
      operands: the instruction's operands as arrays of N bit patterns, factors before the addend: uint8 for INT8,
        uint16 for 16-bit formats, uint32 for float32 and INT32, uint64 for float64. Shape (N,); (N, 2) for the pairs
        of VDPBF16PS and for complex numbers (real, imaginary); (N, 4) for the bytes of VNNI; (N, terms) for the factors
        of AMX.

    Returns:
      (N,) bit patterns of the results, (N, 2) for complex numbers. NaNs keep the processor's payload.

    Raises:
      CpuError: this processor does not have the instruction.
      ValueError: there is no such instruction, or operands have another number, dtype or shape.

    Source: docs/cpu.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if "VCVTPS2PH up" in fp.cpu.available():
      ...     codes = fp.cpu.run("VCVTPS2PH up", np.float32([1 + 2**-20]).view(np.uint32))
      ...     assert codes == fp.encode(np.float32([1 + 2**-20]), fp.FP16, rounding="up")
    """
    row = named(instruction)
    wanted = 3 if isinstance(row, TileInstruction) else len(row.operands)
    if len(operands) != wanted:
        raise ValueError(f"{row.name} takes {plural(wanted, 'operand')}; got {len(operands)}.")
    return execute(row, tuple(as_array(x, f"operand {i}") for i, x in enumerate(operands)))


def execute(row: AnyInstruction, operands: tuple[Array, ...]) -> Array:
    """Check the dtypes and shapes of operands, run an instruction on them, and return its N results.

    row: the instruction. operands: arrays of bit patterns, as for `run`. The result is an array of bit patterns, too. A
    CpuError or ValueError is raised as by `run`.
    """
    require(row)
    if isinstance(row, TileInstruction):
        return _on_tiles(row, operands)
    count = operands[0].shape[0] if operands[0].ndim else -1
    blocks = -(-count // row.lanes)
    padded = []
    for i, (x, register) in enumerate(zip(operands, row.operands, strict=True)):
        shape = (count, register.words) if register.words > 1 else (count,)
        if x.dtype != register.dtype or x.shape != shape or count < 0:
            wanted = f"(N, {register.words})" if register.words > 1 else "(N,)"
            raise _refusal(row, i, f"{register.dtype} of shape {wanted}", x)
        memory = np.zeros(blocks * row.lanes * register.words, register.dtype)
        memory[: x.size] = x.reshape(-1)
        padded.append(memory)
    result = np.zeros(blocks * row.lanes * row.result.words, row.result.dtype)
    with ieee_arithmetic():
        compiled(row.name)(result.ctypes.data, *(x.ctypes.data for x in padded), blocks)
    rows = result[: count * row.result.words]
    return rows.reshape(count, row.result.words) if row.result.words > 1 else rows


def _refusal(row: AnyInstruction, i: int, wanted: str, x: Array) -> ValueError:
    """Return the ValueError for an operand of an instruction with a wrong dtype or shape.

    row: the instruction. i: number of the operand. wanted: the dtype and shape that it must have, as text. x: the
    operand.
    """
    return ValueError(f"operand {i} of {row.name} must be an array of {wanted}; got {shown(x)}: {x.dtype}, {x.shape}.")


def _on_tiles(row: TileInstruction, operands: tuple[Array, ...]) -> Array:
    """Return c + sum of a * b for each of N rows, (N,) bit patterns, computed by an AMX instruction.

    row: the instruction. operands: a and b (N, terms) in row.dtype, c (N,) uint32. Tile a holds 16 rows of a, and tile
    b holds the same 16 rows of b as its columns. The results are the diagonals of the 16 x 16 products of such tiles.
    Raises a ValueError for operands of other dtypes or shapes.
    """
    a, b, c = operands
    count, terms = a.shape if a.ndim == 2 else (-1, 0)
    for i, x in enumerate((a, b)):
        if x.dtype != row.dtype or x.shape != (count, terms) or not 0 < terms <= row.terms:
            raise _refusal(row, i, f"{row.dtype} of shape (N, terms), with 1 to {row.terms} terms", x)
    if c.dtype != np.uint32 or c.shape != (count,):
        raise _refusal(row, 2, "uint32 of shape (N,)", c)
    tiles, groups = -(-count // SIDE), -(-terms // row.group)
    left, right = packed(a, tiles, groups, row), packed(b, tiles, groups, row)
    right = np.ascontiguousarray(right.transpose(0, 2, 1, 3))  # a row of tile b holds one group of every column
    places = np.arange(SIDE)
    sums = np.zeros((tiles, SIDE), np.uint32)
    sums.reshape(-1)[:count] = c
    start = np.zeros((tiles, SIDE, SIDE), np.uint32)
    start[:, places, places] = sums
    result = multiply_tiles(row, left, right, start, groups)
    return np.ascontiguousarray(result[:, places, places].reshape(-1)[:count])


def packed(x: Array, tiles: int, groups: int, row: TileInstruction) -> Array:
    """Return the rows of x as tiles, padded with zeros: shape (tiles, 16 rows, 16 groups, elements of a group).

    x: (N, terms) bit patterns in row.dtype, the dtype of the result. A group is the consecutive terms that share 32
    bits. tiles: ceil(N / 16). groups: ceil(terms / elements of a group), asserted to hold all terms. row: the
    instruction.
    """
    memory = np.zeros((tiles * SIDE, SIDE * row.group), row.dtype)
    memory[: len(x), : x.shape[1]] = x
    assert x.shape[1] <= groups * row.group
    return memory.reshape(tiles, SIDE, SIDE, row.group)


def multiply_tiles(row: TileInstruction, a: Array, b: Array, c: Array, groups: int) -> Array:
    """Return c + a @ b for every tile, (tiles, 16 rows, 16 columns) of 32-bit patterns.

    A group is the consecutive terms of K that share 32 bits: 2 of 16 bits, or 4 of 8 bits.

    Args:
      row: the instruction.
      a: (tiles, 16 rows, 16 groups, elements of a group), bit patterns in row.dtype.
      b: (tiles, 16 groups, 16 columns, elements of a group), bit patterns in row.dtype.
      c: (tiles, 16 rows, 16 columns) of 32-bit patterns.
      groups: number of groups of K to multiply, up to 16; further ones are ignored.
    """
    result = np.zeros_like(c)
    settings = tile_settings(groups)
    with ieee_arithmetic():
        compiled(row.name)(*(x.ctypes.data for x in (result, a, b, c, settings)), len(c))
    return result


def tile_settings(groups: int) -> Array:
    """Return the 64 bytes that configure tile registers 0 (c), 1 (a) and 2 (b) of AMX.

    groups: number of 32-bit words in a row of a, 1 to 16; it is also the number of rows of b.

    Example:
      >>> from fpsim.cpu.execution import tile_settings
      >>> tile_settings(5)[[0, 16, 18, 20, 48, 49, 50]]
      array([ 1, 64, 20, 64, 16, 16,  5], dtype=uint8)
    """
    settings = np.zeros(64, np.uint8)
    settings[0] = 1  # palette
    settings[[16, 18, 20]] = 4 * SIDE, 4 * groups, 4 * SIDE  # bytes of a row, 16 bits each
    settings[SETTINGS_ROWS : SETTINGS_ROWS + 3] = SIDE, SIDE, groups
    return settings
