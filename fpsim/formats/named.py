"""Formats as data: a format is a row of facts with its source; everything else is derived from the row."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.formats.float_format import DTYPES as DTYPES
from fpsim.formats.float_format import Format as Format

IEEE = "IEEE 754-2019"
OFP8 = "OCP OFP8 v1.0"
MX = "OCP Microscaling Formats v1.0"
FNUZ = "AMD CDNA3 ISA, arXiv:2206.02915"
P3109 = "IEEE P3109 (github.com/P3109/Public)"

E4M3 = Format("E4M3", 4, 3, infinities=False, nan="top", source=OFP8)
E5M2 = Format("E5M2", 5, 2, source=OFP8)
FP16 = Format("FP16", 5, 10, source=IEEE)
BF16 = Format("BF16", 8, 7, source="Google Brain bfloat16")
TF32 = Format("TF32", 8, 10, source="NVIDIA A100 architecture white paper")
FP32 = Format("FP32", 8, 23, source=IEEE)
FP64 = Format("FP64", 11, 52, source=IEEE)
E2M1 = Format("E2M1", 2, 1, infinities=False, nan="none", source=MX)
E2M3 = Format("E2M3", 2, 3, infinities=False, nan="none", source=MX)
E3M2 = Format("E3M2", 3, 2, infinities=False, nan="none", source=MX)
E8M0 = Format("E8M0", 8, 0, signed=False, infinities=False, nan="top", subnormals=False, source=MX)
E3M4 = Format("E3M4", 3, 4, source="ml_dtypes float8_e3m4")
E4M3_IEEE = Format("E4M3_IEEE", 4, 3, source="ml_dtypes float8_e4m3")
E4M3FNUZ = Format("E4M3FNUZ", 4, 3, bias=8, infinities=False, nan="negative_zero", source=FNUZ)
E5M2FNUZ = Format("E5M2FNUZ", 5, 2, bias=16, infinities=False, nan="negative_zero", source=FNUZ)
E4M3B11FNUZ = Format(
    "E4M3B11FNUZ", 4, 3, bias=11, infinities=False, nan="negative_zero", source="ml_dtypes float8_e4m3b11fnuz"
)

NAMED: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        E4M3, E5M2, FP16, BF16, FP32, FP64, TF32, E2M1, E2M3, E3M2, E8M0, E3M4,
        E4M3_IEEE, E4M3FNUZ, E5M2FNUZ, E4M3B11FNUZ,
    )
}  # fmt: skip

DTYPES.update(
    (fmt, np.dtype(scalar))
    for fmt, scalar in {
        E4M3: ml_dtypes.float8_e4m3fn,
        E5M2: ml_dtypes.float8_e5m2,
        FP16: np.float16,
        BF16: ml_dtypes.bfloat16,
        FP32: np.float32,
        FP64: np.float64,
        E2M1: ml_dtypes.float4_e2m1fn,
        E2M3: ml_dtypes.float6_e2m3fn,
        E3M2: ml_dtypes.float6_e3m2fn,
        E8M0: ml_dtypes.float8_e8m0fnu,
        E3M4: ml_dtypes.float8_e3m4,
        E4M3_IEEE: ml_dtypes.float8_e4m3,
        E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
        E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
        E4M3B11FNUZ: ml_dtypes.float8_e4m3b11fnuz,
    }.items()
)

# Every key is in the form that _key() gives: lower case, no separators.
ALIASES: dict[str, Format] = {
    **{name.lower().replace("_", ""): fmt for name, fmt in NAMED.items()},
    **{dtype.name.lower().replace("_", ""): fmt for fmt, dtype in DTYPES.items()},
    **{f"fp8{name.lower()}": NAMED[name] for name in ("E4M3", "E5M2", "E3M4", "E4M3FNUZ", "E5M2FNUZ", "E4M3B11FNUZ")},
    "e4m3fn": E4M3, "fp8e4m3fn": E4M3, "e2m1fn": E2M1, "e2m3fn": E2M3, "e3m2fn": E3M2, "e8m0fnu": E8M0,
    "fp4": E2M1, "fp4e2m1": E2M1, "fp4e2m1fn": E2M1, "mxfp4e2m1": E2M1,
    "fp6e2m3": E2M3, "fp6e3m2": E3M2, "mxfp6e2m3": E2M3, "mxfp6e3m2": E3M2, "mxfp8e4m3": E4M3, "mxfp8e5m2": E5M2,
    "ue8m0": E8M0, "binary16": FP16, "half": FP16, "f16": FP16, "binary32": FP32, "single": FP32, "float": FP32,
    "f32": FP32, "binary64": FP64, "double": FP64, "f64": FP64, "bfloat": BF16, "brain": BF16, "tensorfloat32": TF32,
    "e5m10": FP16, "e8m7": BF16, "e8m10": TF32, "e8m23": FP32, "e11m52": FP64,
}  # fmt: skip

# What people call several formats at once.
AMBIGUOUS = {
    **dict.fromkeys(("fp8", "float8", "f8", "mxfp8"), "'E4M3' or 'E5M2'"),
    **dict.fromkeys(("fp6", "float6", "f6", "mxfp6"), "'E2M3' or 'E3M2'"),
}

_P3109_NAME = re.compile(r"(?:p3109k|binary)(\d+)p(\d+)([su])([ef])")


def _key(name: str) -> str:
    """Spelling without case, separators and the module it came from: 'torch.float8_e4m3fn' -> 'float8e4m3fn'."""
    return re.sub(r"[\s_\-]", "", name.strip().lower().removeprefix("torch."))


@cache
def p3109(bits: int, precision: int, *, signed: bool = True, extended: bool = True) -> Format:
    """The IEEE P3109 format of a width and precision.

    Args:
      bits: width K, 3 to 16.
      precision: significand bits P with the hidden one: 1 to K - 1, or to K where unsigned.
      signed: with a sign bit (s) or without (u).
      extended: with infinities (e) or finite (f).

    Raises:
      ValueError: no such format, or its values reach beyond float64.

    Source: IEEE P3109 working group, github.com/P3109/Public.

    Example:
      >>> import fpsim as fp
      >>> fp.formats.p3109(8, 4).max, fp.formats.p3109(8, 4, extended=False).max
      (224.0, 240.0)
    """
    name = f"p3109_k{bits}p{precision}{'s' if signed else 'u'}{'e' if extended else 'f'}"
    widest = bits - 1 if signed else bits
    if not 3 <= bits <= 16 or not 1 <= precision <= widest:
        raise ValueError(
            f"no format {name}: P3109 formats have 3 to 16 bits and a precision of 1 to bits - 1 (bits if unsigned)."
        )
    exponent_bits = bits - precision + int(not signed)
    return Format(
        name,
        exponent_bits,
        precision - 1,
        bias=2 ** (exponent_bits - 1),
        signed=signed,
        infinities=extended,
        nan="negative_zero" if signed else "top",
        negative_zero=False,
        ties_to_even_code=True,
        source=P3109,
    )


def format(spec: str | Format | npt.DTypeLike | Any) -> Format:
    """Find a format by name or alias, by NumPy / ml_dtypes / torch dtype, or pass one through.

    Raises:
      ValueError: nothing has that name; the message gives the nearest ones.

    Example:
      >>> import fpsim as fp
      >>> fp.format("float8_e4m3fn") is fp.E4M3, fp.format(np.float16) is fp.FP16
      (True, True)
      >>> fp.format("p3109_k8p4sf").max
      240.0
    """
    if isinstance(spec, Format):
        return spec
    if isinstance(spec, str):
        found = _by_name(spec)
        if found is not None:
            return found
    elif str(spec).startswith("torch."):  # a torch dtype, without importing torch
        key = _key(str(spec).removesuffix("_x2"))
        if key in ALIASES:
            return ALIASES[key]
    elif spec is not None:
        try:
            dtype = np.dtype(spec)
        except TypeError:
            dtype = None
        for fmt, known in DTYPES.items():
            if dtype is not None and dtype.newbyteorder("=") == known:
                return fmt
    names = [*NAMED, "p3109_k8p4se"]
    text = spec if isinstance(spec, str) else str(spec)
    near = difflib.get_close_matches(_key(text), list(ALIASES), n=1, cutoff=0.7)
    hint = f" Did you mean {ALIASES[near[0]].name!r}?" if near else ""
    hint = f" Did you mean {AMBIGUOUS[_key(text)]}?" if _key(text) in AMBIGUOUS else hint
    raise ValueError(
        f"format must be one of {', '.join(names)} (any p3109_k<bits>p<precision><s|u><e|f>), "
        f"a dtype of one, or an fp.Format; got {text!r}.{hint}"
    )


def _by_name(name: str) -> Format | None:
    """A named, aliased or P3109 format, or None."""
    key = _key(name)
    if key in ALIASES:
        return ALIASES[key]
    match = _P3109_NAME.fullmatch(key)
    if match is None:
        return None
    bits, precision, sign, domain = match.groups()
    return p3109(int(bits), int(precision), signed=sign == "s", extended=domain == "e")


def names() -> list[str]:
    """Names of the built-in formats, without the P3109 family.

    Example:
      >>> import fpsim as fp
      >>> fp.formats.names()[:4]
      ['E4M3', 'E5M2', 'FP16', 'BF16']
    """
    return list(NAMED)
