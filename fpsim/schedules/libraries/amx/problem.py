"""The inputs and the result of oneDNN's choice of blocks for AMX: product, caches, and segments of K."""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "oneDNN 3.12, src/cpu/x64/matmul: amx_blocking_heuristics.cpp, brgemm_matmul_utils.cpp, brgemm_matmul.cpp"
BLOCK = 32  # terms of an instruction, and columns of two tiles
TILE, LINE, PAGE = 16, 64, 4096  # rows of a tile; bytes of a cache line and of a page
WAYS = 16  # of L2
BYTES, FLOATS = 2, 4  # of a number of 16 bits and of a float32 sum
SMALL_A = 126  # bytes of a block of a up to which AMX is not worth its overhead
LONGEST_STRIDE = 2**31 - 1  # bytes between the first and the last row of a block of b in memory


class Caches(NamedTuple):
    """Sizes of a core's L1 and L2 data caches in bytes."""

    l1: int
    l2: int

    @property
    def l1_budget(self) -> int:
        """Bytes of the L1 cache that oneDNN allows its blocks to fill."""
        return 5 * self.l1 // 6

    @property
    def l2_budget(self) -> int:
        """Bytes of the L2 cache that oneDNN allows its blocks to fill."""
        return 3 * self.l2 // 4


class AmxProduct(NamedTuple):
    """A product of a (M, K) and b (K, N) in BF16 or FP16, for which oneDNN's segments of K are to be found.

    Attributes:
      m, n, k: the sizes M, N and K.
      a_turned, b_turned: True if the operand is the transpose of an array in C order.
      threads: number of threads that may share the product.
      caches: sizes of a core's caches.
      is_half: True for FP16, False for BF16.
    """

    m: int
    n: int
    k: int
    a_turned: bool
    b_turned: bool
    threads: int
    caches: Caches
    is_half: bool = False


class KBlocks(NamedTuple):
    """The segments into which oneDNN cuts K of a product by AMX.

    Attributes:
      lengths: number of terms of each segment, from the first term of K on.
      parts: number of segments that each thread adds, if threads share K; else ().
      equal: how instructions, which have at most 32 terms, divide a segment. True: into as few as possible that all
        have the same even number of terms (66 terms are 22 + 22 + 22). False: into instructions of 32 terms, and one
        for the remaining terms (66 terms are 32 + 32 + 2).
      takes_amx: False if oneDNN multiplies without AMX after all; see the function `takes_amx`.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, ...]
    equal: bool
    takes_amx: bool


def takes_amx(product: AmxProduct, a_bytes: int, terms: int) -> bool:
    """Return whether oneDNN uses AMX for a product with the given blocks.

    It does not if the operands are BF16 and a_bytes is at most SMALL_A, or if the rows of a block of b span more than
    LONGEST_STRIDE bytes of memory. a_bytes: bytes of the rows of a that a block has, each with all K terms, or, if
    oneDNN copies a, with the terms of one block and their padding. terms: number of terms of K in a block.
    """
    along = product.k if product.b_turned else product.n
    return (product.is_half or a_bytes > SMALL_A) and terms * along * BYTES <= LONGEST_STRIDE


def ceiling(size: int, part: int) -> int:
    """Return size / part, rounded up to an integer."""
    return -(-size // part)


def rounded_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


def lines(columns: int) -> int:
    """Return the bytes of the whole cache lines that hold a row of `columns` numbers of 16 bits."""
    return rounded_up(columns * BYTES, LINE)


def shares(count: int, threads: int) -> tuple[int, ...]:
    """Return the numbers of chunks that threads get if `count` chunks are shared: 7 among 3 threads give (3, 2, 2)."""
    return tuple(count // threads + (i < count % threads) for i in range(threads))


def divides(terms: int) -> bool:
    """Return whether `terms` terms are divided evenly among ceil(terms / 32) instructions, with an even number each.

    66 terms are (22 each); 34 terms are not (17 each).
    """
    return terms % (2 * ceiling(terms, BLOCK)) == 0
