"""The kernels that cuBLASLt's heuristic chose for the shapes of transformer layers, recorded on a GPU.

`python -m fpsim.gpu choices` records them, in the file cublas_choices.npz beside this module.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FILE = "cublas_choices.npz"
# The fields of an algorithm that decide the order of additions: algo, split_k, reduction, option, stages
COLUMNS = (0, 2, 3, 5, 6)
NVJET = 66  # CUBLASLT_ALGO_CONFIG_ID of the kernels whose options do not change the order of additions
NOT_ASKED = np.uint16(0xFFFF)  # in place of a kernel's number: cuBLASLt does not support the shape

# Sizes of the recorded products. Tokens: rows of activations. Sides: sizes of hidden layers of published models.
TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
          16384, 32768)  # fmt: skip
SIDES = (64, 128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048, 2304, 2560, 2880, 3072, 3584,
         3840, 4096, 4608, 4864, 5120, 5632, 6144, 6400, 7168, 7680, 8192, 8960, 9216, 9728, 10240, 11008, 12288,
         13824, 14336, 15360, 16384, 17408, 18432, 18944, 20480, 21504, 22016, 24576, 25600, 27648, 28672, 29568,
         32768, 36864, 49152, 53248, 65536)  # fmt: skip
VOCABULARIES = (32000, 32064, 50257, 50304, 51200, 100352, 102400, 128256, 129280, 151936, 152064, 200064, 201088,
                256000, 262144)  # fmt: skip
HIDDEN = range(512, 16384 + 1)  # sides that meet a vocabulary


class CublasCall(NamedTuple):
    """The kind of a recorded product: formats, layout, and which of its sizes counts tokens.

    Attributes:
      a, b, out: names of formats in lower case.
      layout: "nn", "nt" or "tn", as for `fpsim.schedules.cublas_choice`.
      fast_accum: whether FP8's fast accumulation is on.
      tokens: "m" if M counts tokens, as in the products of a forward pass; "k" if K does, as in weight gradients.
    """

    a: str
    b: str
    out: str
    layout: str
    fast_accum: bool
    tokens: str


def calls() -> list[CublasCall]:
    """Return the kinds of recorded products, in the order of the first axis of `CublasTable.numbers`."""
    rows = []
    for kind in ("bf16", "fp16"):
        rows += [CublasCall(kind, kind, kind, layout, False, "m") for layout in ("nt", "nn")]
        rows.append(CublasCall(kind, kind, "fp32", "nt", False, "m"))
        rows += [CublasCall(kind, kind, out, "tn", False, "k") for out in (kind, "fp32")]
    for a, out, fast, tokens in product(("e4m3", "e5m2"), ("bf16", "fp32"), (False, True), ("m", "k")):
        rows.append(CublasCall(a, "e4m3", out, "nt", fast, tokens))
    return rows + [CublasCall("e4m3", "e5m2", out, "nt", False, "k") for out in ("bf16", "fp32")]


def sides() -> list[tuple[int, int]]:
    """Return the pairs of the two sizes that do not count tokens: two widths of layers, or a width and a vocabulary.

    A pair is (N, K) where M counts tokens, and (M, N) where K does.
    """
    mixed = list(product(VOCABULARIES, (side for side in SIDES if side in HIDDEN)))
    return [*product(SIDES, SIDES), *mixed, *((side, vocabulary) for vocabulary, side in mixed)]


class CublasTable(NamedTuple):
    """The kernels that cuBLASLt chose for the recorded products.

    Attributes:
      about: the GPU and the version of cuBLASLt, as a text.
      kernels: int32 (kernels, 5), a row for each distinct kernel: the fields that COLUMNS names.
      numbers: uint16 (calls, tokens, sides): the row of `kernels` for each product, or NOT_ASKED if cuBLASLt does not
        support it. The axes are in the order of `calls()`, TOKENS (numbers of tokens) and `sides()`.
    """

    about: str
    kernels: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.uint16]


@cache
def table() -> CublasTable:
    """Return the recorded kernels, read from the package's file cublas_choices.npz at the first call."""
    with np.load(Path(__file__).with_name(FILE)) as arrays:
        return CublasTable(str(arrays["about"]), arrays["kernels"], arrays["numbers"])


@cache
def _places() -> tuple[dict[CublasCall, int], dict[int, int], dict[tuple[int, int], int]]:
    """Return three dicts, one for each axis of `CublasTable.numbers`, which give the index on that axis for a key.

    The keys are CublasCalls for the first axis, numbers of tokens for the second, and pairs of sides for the third.
    """
    keys: tuple[Any, Any, Any] = (calls(), TOKENS, sides())
    first, second, third = ({key: place for place, key in enumerate(axis)} for axis in keys)
    return first, second, third


def recorded_kernel(
    shape: tuple[int, int, int], formats: tuple[str, str, str], layout: str, fast_accum: bool
) -> tuple[int, ...] | None:
    """Return (algo, split_k, reduction, option, stages) of the kernel that cuBLASLt chose for a product.

    None if its choice was not recorded. shape: (M, N, K). formats: names of the formats of a, b and the result, in
    lower case. layout, fast_accum: as for `fpsim.schedules.cublas_choice`.

    Example:
      >>> from fpsim.schedules.libraries.cublas_table import recorded_kernel
      >>> recorded_kernel((64, 2048, 16384), ("bf16", "bf16", "bf16"), "nt", False)[:2]
      (66, 4)
    """
    m, n, k = shape
    of_call, of_tokens, of_sides = _places()
    for tokens, count, pair in (("m", m, (n, k)), ("k", k, (m, n))):
        call = CublasCall(*formats, layout, fast_accum, tokens)
        if call in of_call and count in of_tokens and pair in of_sides:
            number = table().numbers[of_call[call], of_tokens[count], of_sides[pair]]
            if number != NOT_ASKED:
                return tuple(int(field) for field in table().kernels[number])
    return None


def packed(answers: npt.NDArray[np.int32], about: str) -> CublasTable:
    """Return the CublasTable of recorded algorithms, with only the fields that affect the order of additions.

    answers: int32 (calls, tokens, sides, 9). An entry has the nine fields of the algorithm for one product, all
    negative if cuBLASLt returned none; the first three axes are in the order of `calls()` (kinds of products), TOKENS
    (numbers of tokens) and `sides()` (pairs of the other two sizes). about: text on the GPU and cuBLASLt's version.
    """
    kept = answers[..., COLUMNS]
    nvjet = kept[..., 0] == NVJET
    kept[..., 3][nvjet] = 0
    kept[..., 2][nvjet & (kept[..., 1] <= 1)] = 0
    kernels, numbers = np.unique(kept.reshape(-1, len(COLUMNS)), axis=0, return_inverse=True)
    places: npt.NDArray[np.uint16] = numbers.reshape(answers.shape[:3]).astype(np.uint16)
    places[answers[..., 0] < 0] = NOT_ASKED
    return CublasTable(about, kernels.astype(np.int32), places)
