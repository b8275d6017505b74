"""Policies: what each convention returns for the values that a format cannot hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.named import NAMED
from fpsim.formats.policies import OVERFLOWS, POLICIES, overflow_outcome
from fpsim.formats.rounding import ALIASES, NAMES, Rounding, rounding_mode
from fpsim.testing import assert_bits_equal
from tests.kit.samples import NARROW, P3109, STRANGE
from tests.kit.sweeps import in_turn
from tests.oracles import casts

INF, NAN = math.inf, math.nan
K8P4SE, K8P4SF = fp.format("p3109_k8p4se"), fp.format("p3109_k8p4sf")


def result(x: float, fmt: fp.Format, **words: Any) -> str:
    """The value that x becomes, as text, so that NaN and -0 are themselves."""
    return str(fp.decode(fp.encode(x, fmt, **words), fmt, np.float64))


# What a finite overflow, -Inf and NaN become: from the documents that the policies name.
OUTCOMES = [
    # IEEE 754: Inf; NaN where there is no Inf; the largest value where there is neither
    ("ieee", fp.E5M2, "inf", "-inf", "nan"),
    ("ieee", fp.E4M3, "nan", "nan", "nan"),
    ("ieee", fp.E4M3FNUZ, "nan", "nan", "nan"),
    ("ieee", fp.E2M1, "6.0", "-6.0", "6.0"),
    ("ieee", fp.E3M2, "28.0", "-28.0", "28.0"),
    ("ieee", K8P4SE, "inf", "-inf", "nan"),
    ("ieee", K8P4SF, "nan", "nan", "nan"),
    # ml_dtypes: the same, but NaN becomes -0 where there is no NaN
    ("ml_dtypes", fp.E5M2, "inf", "-inf", "nan"),
    ("ml_dtypes", fp.E4M3, "nan", "nan", "nan"),
    ("ml_dtypes", fp.E2M1, "6.0", "-6.0", "-0.0"),
    ("ml_dtypes", fp.E2M3, "7.5", "-7.5", "-0.0"),
    # torch from 2.12 on saturates E4M3 and nothing else
    ("torch", fp.E4M3, "448.0", "-448.0", "nan"),
    ("torch", fp.E5M2, "inf", "-inf", "nan"),
    ("torch", fp.E4M3FNUZ, "nan", "nan", "nan"),
    ("torch<2.12", fp.E4M3, "nan", "nan", "nan"),
    ("torch<2.12", fp.FP16, "inf", "-inf", "nan"),
    # CUDA's satfinite and OCP's saturating conversion: the largest value, for infinite input too
    ("cuda_satfinite", fp.E4M3, "448.0", "-448.0", "nan"),
    ("cuda_satfinite", fp.E5M2, "57344.0", "-57344.0", "nan"),
    ("cuda_satfinite", fp.E2M1, "6.0", "-6.0", "6.0"),
    ("ocp_saturating", fp.E4M3, "448.0", "-448.0", "nan"),
    ("ocp_saturating", fp.E5M2, "57344.0", "-57344.0", "nan"),
    ("ocp_nonsaturating", fp.E4M3, "nan", "nan", "nan"),
    ("ocp_nonsaturating", fp.E5M2, "inf", "-inf", "nan"),
    # P3109: SatFinite, SatPropagate, OvfInf
    ("p3109_satfinite", K8P4SE, "224.0", "-224.0", "nan"),
    ("p3109_satpropagate", K8P4SE, "224.0", "-inf", "nan"),
    ("p3109_satpropagate", K8P4SF, "240.0", "-240.0", "nan"),
    ("p3109_ovfinf", K8P4SE, "inf", "-inf", "nan"),
    ("p3109_ovfinf", K8P4SF, "240.0", "-240.0", "nan"),
]


@in_turn("name, fmt, overflow, infinite, nan", OUTCOMES)
def test_a_policy_returns_what_its_document_says(
    name: str, fmt: fp.Format, overflow: str, infinite: str, nan: str
) -> None:
    words = fp.policy(name)
    assert result(1e6, fmt, **words) == overflow
    assert result(-INF, fmt, **words) == infinite
    assert result(NAN, fmt, **words) == nan


# Unsigned formats: -1, -Inf, -0 and, where there is no zero, 0.
UNSIGNED = [
    ("nonfinite", fp.E8M0, ("nan", "nan", "nan", "nan")),
    ("ml_dtypes", fp.E8M0, ("nan", "nan", "nan", "nan")),
    ("saturate", fp.E8M0, (str(2.0**-127),) * 4),
    ("torch", fp.E8M0, ("1.0", "nan", str(2.0**-127), str(2.0**-127))),
    ("nonfinite", fp.format("p3109_k8p4ue"), ("nan", "nan", "0.0", "0.0")),
    ("saturate", fp.format("p3109_k8p4ue"), ("0.0", "0.0", "0.0", "0.0")),
    ("saturate_finite", fp.E8M0, (str(2.0**-127),) * 4),
    ("saturate_finite", fp.format("p3109_k8p4ue"), ("0.0", "0.0", "0.0", "0.0")),
    ("p3109_ovfinf", fp.format("p3109_k8p4uf"), ("0.0", "0.0", "0.0", "0.0")),
]


@in_turn("overflow, fmt, want", UNSIGNED)
def test_values_below_an_unsigned_format_become_what_the_policy_says(
    overflow: str, fmt: fp.Format, want: tuple[str, ...]
) -> None:
    assert tuple(result(x, fmt, overflow=overflow) for x in (-1.0, -INF, -0.0, 0.0)) == want


def test_a_negative_value_that_rounds_to_zero_is_zero_in_an_unsigned_format() -> None:
    fmt = fp.format("p3109_k8p4ue")
    tiny = -fmt.smallest_subnormal / 4
    assert [result(tiny, fmt, rounding=mode) for mode in ("nearest_even", "up", "toward_zero")] == ["0.0"] * 3
    assert result(tiny, fmt, rounding="down") == "nan"


INWARD = [
    ("toward_zero", 1e6, "448.0"),
    ("toward_zero", -1e6, "-448.0"),
    ("odd", 1e6, "448.0"),
    ("odd", -1e6, "-448.0"),
    ("up", 1e6, "nan"),
    ("up", -1e6, "-448.0"),
    ("down", 1e6, "448.0"),
    ("down", -1e6, "nan"),
    ("nearest_away", 1e6, "nan"),
    ("toward_zero", INF, "nan"),
    ("odd", -INF, "nan"),
    ("up", -INF, "nan"),
]


@in_turn("rounding, x, want", INWARD)
def test_a_mode_that_rounds_toward_zero_overflows_to_the_largest_value(rounding: str, x: float, want: str) -> None:
    assert result(x, fp.E4M3, rounding=rounding) == want
    assert result(x, fp.E5M2, rounding=rounding) == want.replace("nan", str(math.copysign(INF, x))).replace(
        "448", "57344"
    )


@in_turn(
    "x, want", [(464.0, "448.0"), (464.0 * (1 + 2.0**-52), "nan"), (-464.0, "-448.0"), (479.9, "nan"), (449.0, "448.0")]
)
def test_overflow_begins_where_rounding_without_a_limit_passes_the_largest_value(x: float, want: str) -> None:
    assert result(x, fp.E4M3) == want
    assert result(x, fp.E4M3, overflow="saturate") == ("-448.0" if x < 0 else "448.0")


@in_turn(
    "x, want",
    [
        (2.0**-6, "0.015625"),
        (-(2.0**-6), "-0.015625"),
        (2.0**-6 * 15 / 16, "0.015625"),  # rounds up to the smallest normal value
        (2.0**-6 * 7 / 8, "0.0"),
        (-(2.0**-9), "-0.0"),
    ],
)
def test_flush_turns_what_is_subnormal_after_rounding_into_a_zero_of_its_sign(x: float, want: str) -> None:
    assert result(x, fp.E4M3, subnormals="flush") == want


def test_flushing_leaves_no_negative_zero_where_there_is_none() -> None:
    assert result(-(2.0**-9), fp.E4M3FNUZ, subnormals="flush") == "0.0"


def test_formats_without_subnormals_have_nothing_to_flush() -> None:
    assert result(2.0**-127, fp.E8M0, subnormals="flush") == str(2.0**-127)


@pytest.mark.parametrize("sign", [1, -1])
@in_turn("fmt", [fmt for fmt in [*NARROW, *P3109, *STRANGE] if fmt.has_nan])
def test_nan_becomes_the_canonical_nan_with_its_sign(fmt: fp.Format, sign: int) -> None:
    want = casts.nan_result(fmt, "nonfinite", sign < 0)
    for overflow in OVERFLOWS:
        for bits in (0x7FC00000, 0x7F800001, 0x7FFFFFFF):
            x = np.uint32(bits | (0x80000000 if sign < 0 else 0)).view(np.float32)
            assert int(fp.encode(x, fmt, overflow=overflow)) == want


@in_turn("word", OVERFLOWS)
@in_turn("fmt", [*NAMED.values(), *P3109, *STRANGE])
def test_an_outcome_only_names_what_the_format_has(word: str, fmt: fp.Format) -> None:
    outcome = overflow_outcome(word, fmt)
    for beyond in (outcome.overflow, outcome.infinite):
        assert beyond == "max" or (fmt.has_infinity if beyond == "infinity" else fmt.has_nan)
    assert fmt.has_nan or outcome.below != "nan"


# ---- names


@in_turn("name", POLICIES)
def test_a_policy_is_a_set_of_cast_keywords_with_a_source(name: str) -> None:
    words = fp.policy(name)
    assert set(words) == {"rounding", "overflow", "subnormals"}
    assert POLICIES[name].source
    for fmt in (*NARROW, K8P4SE):
        assert fp.encode(np.array([1, 1e9, -INF], np.float32), fmt, **words).shape == (3,)


def test_the_keywords_of_a_policy_are_the_callers_own() -> None:
    fp.policy("ieee")["overflow"] = "saturate"
    assert fp.policy("ieee")["overflow"] == "nonfinite"


@in_turn(
    "name, near",
    [
        ("torch2", "torch"),
        ("iee", "ieee"),
        ("cuda", "cuda_satfinite"),
        ("mldtypes", "ml_dtypes"),
        ("ocp", "ocp_saturating"),
    ],
)
def test_an_unknown_policy_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=rf"policy must be one of ieee, ml_dtypes, .*got '{name}'\. Did you mean '{near}'\?"
    ):
        fp.policy(name)


@pytest.mark.parametrize(
    ("word", "near"), [("saturated", "saturate"), ("nonfinit", "nonfinite"), ("SATURATE", "saturate")]
)
def test_an_unknown_overflow_word_is_refused_with_the_nearest(word: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=rf"overflow must be one of nonfinite, .*got '{word}'\. Did you mean '{near}'\?"
    ):
        overflow_outcome(word, fp.E4M3)


@in_turn(
    "word, mode",
    [
        ("RNE", "nearest_even"), ("RNA", "nearest_away"), ("RTZ", "toward_zero"), ("RTP", "up"), ("RTN", "down"),
        ("RTO", "odd"), ("SR", "stochastic"), ("TiesToEven", "nearest_even"), ("TowardPositive", "up"),
        ("TowardNegative", "down"), ("TowardZero", "toward_zero"), ("TiesToAway", "nearest_away"),
        ("cudaRoundNearest", "nearest_even"), ("cudaRoundZero", "toward_zero"), ("cudaRoundPosInf", "up"),
        ("cudaRoundMinInf", "down"), ("roundTiesToEven", "nearest_even"), ("roundTowardPositive", "up"),
        ("rn", "nearest_even"), ("rz", "toward_zero"), ("rm", "down"), ("rp", "up"), ("rs", "stochastic"),
        ("Nearest Even", "nearest_even"), ("toward-zero", "toward_zero"),
    ],
)  # fmt: skip
def test_spellings_of_ieee_754_cuda_ptx_and_gfloat_are_understood(word: str, mode: str) -> None:
    assert rounding_mode(word) is Rounding[mode.upper()]
    assert rounding_mode(word) is rounding_mode(mode)


def test_an_alias_rounds_as_the_mode_that_it_names() -> None:
    x = np.linspace(-3, 3, 101)
    for alias, mode in ALIASES.items():
        assert_bits_equal(fp.encode(x, fp.E4M3, rounding=alias, seed=1), fp.encode(x, fp.E4M3, rounding=mode, seed=1))


@in_turn(
    "word, near",
    [
        ("nearest", "nearest_even"),
        ("towardzero!", "toward_zero"),
        ("stochastik", "stochastic"),
        ("downward", "down"),
        ("dwn", "down"),
    ],
)
def test_an_unknown_rounding_is_refused_with_the_nearest(word: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=rf"rounding must be one of {', '.join(NAMES)}; got '{word}'\. Did you mean '{near}'\?"
    ):
        rounding_mode(word)


@in_turn("word", ["", None, 0, object()])
def test_what_is_no_word_is_refused(word: Any) -> None:
    with pytest.raises(ValueError, match="rounding must be one of nearest_even, "):
        rounding_mode(word)
