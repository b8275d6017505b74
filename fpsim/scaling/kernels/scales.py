"""CPU loop that turns the amax (largest magnitude) of every tile into its scale and the factor of its elements.

Small blocks make many tiles, so the loop must vectorise: rules and formats are compiled in, there are no
branches, and each operation on a tile has its own loop, of which only the last looks up a table. Tiles with NaN
or Inf, which are rare, are recomputed one by one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_fields
from fpsim.core.tile_scale import (
    CHOICES,
    CLAMPED_HIGH,
    CLAMPED_LOW,
    COUNTERS,
    EXACT,
    TABLE,
    ZERO_TILES,
    ScaleChoices,
    choice_words,
    scale_choices,
    scale_numbers,
    scale_rules,
)
from fpsim.core.tile_settler import tile_settler
from fpsim.runtime.compile import kernel
from fpsim.scaling.kernels.amax import float_words

i64, f64 = np.int64, np.float64

NO_CHOICES = ScaleChoices(0, 0, 0, 0, 0, 0, False, False)


@cache
def settle_kernel(width: int, encodes: bool, fixed: ScaleChoices | None) -> Any:
    """Return the loop that computes scales from the amax (largest magnitude) of tiles.

    Its arguments are (tops, specials, scales, codes, factors, counts, numbers, rules, layout), the first five 1-D with
    one entry per tile. tops: bit patterns of the finite amax, in floats of `width` bits. specials: uint8, sums of the
    flags HAS_NAN and HAS_INFINITY, or empty if no tile has any. scales: float32 decode scales, filled. codes: filled
    with the code of each scale (untouched for FP32 scales). factors: filled with what elements are divided by or
    multiplied with. counts: five int64, to which are added the numbers of tiles with an amax of 0, with NaN, with Inf,
    with a scale raised to the smallest one allowed, and with a scale lowered to the largest. numbers: the fields of
    ScaleNumbers, then the values of the scale format's codes, with 0 for NaN. rules: int64, the fields of ScaleRules
    and of ScaleChoices, and the bits of two float64: the largest element, and the value to which a smaller amax is
    raised. layout: the constants (EncodeLayout) of the encoder to the scale format.

    width: bits, 32 or 64, of the float in which elements are divided by scales. encodes: True if the rule computes
    encode scales, max / amax. fixed: choices to compile in; None reads them from `rules`, so that one slower loop
    serves all scalings of a width.
    """
    word, real, _, _ = float_words(width)
    quotient_of, code_of, scale_of, settle_tile = tile_settler(width, encodes)
    is_fixed = fixed is not None
    constants = choice_words(fixed or NO_CHOICES)
    plain, no_code, no_value = np.uint8(0), word(0), real(0)

    def settle(
        tops: Any, specials: Any, scales: Any, codes: Any, factors: Any, counts: Any, numbers: Any, rules: Any,
        layout: Any,
    ) -> None:  # fmt: skip
        s = constants if is_fixed else scale_choices(rules[CHOICES:])
        is_single = s.is_single != 0
        n, r, f, table = scale_numbers(numbers), scale_rules(rules), encode_fields(layout), numbers[TABLE:]
        exact = i64(rules[EXACT]).view(f64), i64(rules[EXACT + 1]).view(f64)
        zeros = lows = highs = 0
        for j in range(tops.size):
            factors[j], cut = quotient_of(tops[j], plain, n, exact, r, s)  # holds the quotient for now
            lows += int(cut)
        if not is_single:
            for j in range(tops.size):
                codes[j] = code_of(factors[j], f, s)
        for j in range(tops.size):
            code, held = no_code, no_value
            if not is_single:
                code = word(codes[j])
                held = table[code]
            scales[j], code, factors[j], events = scale_of(tops[j], plain, factors[j], code, held, n, r, s)
            if not is_single:
                codes[j] = code
            zeros += (events >> ZERO_TILES) & 1
            lows += (events >> CLAMPED_LOW) & 1
            highs += (events >> CLAMPED_HIGH) & 1
        counts[ZERO_TILES] += zeros
        counts[CLAMPED_LOW] += lows
        counts[CLAMPED_HIGH] += highs
        for j in range(specials.size):
            if specials[j] != plain:
                _, _, _, counted = settle_tile(tops[j], plain, n, exact, r, f, table, s)
                scales[j], code, factors[j], events = settle_tile(tops[j], specials[j], n, exact, r, f, table, s)
                if not is_single:
                    codes[j] = code
                for k in range(COUNTERS):
                    counts[k] += ((events >> k) & 1) - ((counted >> k) & 1)

    return kernel(settle)
