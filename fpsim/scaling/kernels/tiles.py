"""CPU loops over tiles: amax (largest magnitude), scale and codes of a strip of a matrix while it is in the cache.

A matrix is processed in bands of one row of tiles, and a band in strips of 16 KiB to 2 MiB. Each strip is read
twice, first for the amax of its tiles, then, from the cache, for their codes. The second read prefetches the next
strip, because neither read alone prefetches far enough. Between the two, the scales of all tiles of the strip are
computed at once. Measured: docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.casts.loops import constants_of
from fpsim.core.decode import DecodeLayout, decode_fields
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.rounding import STOCHASTIC
from fpsim.runtime.compile import kernel
from fpsim.scaling.kernels.amax import SMALLEST_FOLD, amax_loop, float_words, specials_loop
from fpsim.scaling.kernels.elements import (
    DECODER,
    ElementRules,
    Elements,
    choice_words,
    element_loop,
    element_strips,
    random_words,
)

u64 = np.uint64


@cache
def quantize_strips(e: Elements, settle: Any) -> Any:
    """Return the loop that encodes a matrix piece by piece while each piece is cached: amax, scales, codes.

    Its arguments are (matrix, out, scales, codes, size, draws, layout, counts, plan). matrix: bit patterns of floats of
    e.width bits. out: filled with codes, or with float32 bit patterns if e.back. scales: filled with the decode scale
    of each tile. codes: filled with the code of each scale. size: rows and columns of a tile, and columns of a piece.
    draws: four uint64, the flat index of the matrix's start, the distance of that index to the next row's, and the
    seed's low and high word. layout: the constants of the elements' encoder, then of the decoder. counts: five int64,
    to which are added the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to the smallest
    one allowed, and with a scale lowered to the largest. plan: the last three arguments of `settle`, as
    ScalePlan.arguments returns them.

    e: the choices that are compiled in. settle: the loop of `settle_kernel`, from amaxes to scales.
    """
    word, real, _, infinity = float_words(e.width)
    largest = real(np.finfo(real).max)
    amax, elements = amax_loop(e.width, e.shape), element_loop(e)
    find_specials = specials_loop(e.width)
    careful_elements = element_strips(e._replace(careful=True, frozen=(None, None), choices=None))
    encode_constants = constants_of(EncodeLayout, word, e.frozen[0])
    decode_constants = constants_of(DecodeLayout, word, e.frozen[1])
    is_frozen = e.frozen[0] is not None
    how = choice_words(e)
    mode, kind, applied, integer = how
    stochastic = mode == STOCHASTIC

    def quantize(
        matrix: Any, out: Any, scales: Any, codes: Any, size: Any, draws: Any, layout: Any, counts: Any, plan: Any
    ) -> None:
        rows, columns, strip = size
        first, stride, k0, k1 = draws[0], draws[1], draws[2], draws[3]
        numbers, scale_rules, scale_layout = plan
        f = encode_constants if is_frozen else encode_fields(layout)
        g = decode_constants if is_frozen else decode_fields(layout[DECODER:])
        rules, choices, part_draws = ElementRules(f, g, how), np.empty(4, np.int64), draws.copy()
        choices[0], choices[1], choices[2], choices[3] = mode, kind, applied, integer
        height, width = matrix.shape
        tiles = (min(strip, width) + columns - 1) // columns
        all_tops = np.empty((1, tiles), matrix.dtype)
        all_specials = np.empty((1, tiles), np.uint8)
        all_factors = np.empty((1, tiles), real)
        space = np.empty(min(strip, width) // SMALLEST_FOLD, matrix.dtype)
        all_words = np.empty(min(strip, width) + 8 if stochastic else 0, np.uint32)
        ahead = rows * width if strip >= width else strip  # to the same place in the next strip
        for band in range((height + rows - 1) // rows):
            top, bottom = band * rows, min((band + 1) * rows, height)
            for left in range(0, width, strip):
                right = min(left + strip, width)
                first_tile, last_tile = left // columns, (right + columns - 1) // columns
                tops, factors = all_tops[0, : last_tile - first_tile], all_factors[0, : last_tile - first_tile]
                tile_scales, tile_codes = scales[band, first_tile:last_tile], codes[band, first_tile:last_tile]
                tops[:] = word(0)
                for r in range(top, bottom):
                    amax(matrix[r, left:right], tops, columns, space)
                highest = word(0)
                for j in range(tops.size):
                    highest = max(highest, tops[j])
                finite = highest < infinity
                specials = all_specials[0, : 0 if finite else tops.size]
                if not finite:
                    specials[:] = 0
                    find_specials(
                        matrix[top:bottom, left:right], all_tops[:, : tops.size], all_specials[:, : tops.size], rows,
                        columns,
                    )  # fmt: skip
                settle(
                    tops, specials, tile_scales, tile_codes, factors, counts, numbers, scale_rules, scale_layout
                )  # fmt: skip
                strange = 0
                for j in range(tops.size):
                    strange += int((factors[j] == real(0)) | (factors[j] > largest))
                plain = finite and strange == 0
                if plain:
                    for r in range(top, bottom):
                        words = all_words
                        if stochastic:
                            words = random_words(
                                all_words, u64(first + u64(u64(r) * stride + u64(left))), right - left, k0, k1
                            )
                        elements(
                            matrix[r, left:right], factors, tile_scales, out[r, left:right], columns, ahead, words,
                            rules,
                        )  # fmt: skip
                else:
                    part_draws[0] = u64(first + u64(u64(top) * stride + u64(left)))
                    careful_elements(
                        matrix[top:bottom, left:right], out[top:bottom, left:right],
                        scales[band : band + 1, first_tile:last_tile], all_factors[:, : last_tile - first_tile], rows,
                        columns, part_draws, layout, choices,
                    )  # fmt: skip

    return kernel(quantize)
