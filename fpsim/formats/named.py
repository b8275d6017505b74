"""The built-in formats as data: fields and source of each, from which all else is derived, and look-up by name."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.errors import is_integer, nearest, shown, unknown
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.float_format import DTYPES as DTYPES
from fpsim.formats.float_format import Format as Format
from fpsim.formats.table_format import refuse_table, table_format

__all__ = [
    "ALIASES", "BF16", "DTYPES", "E2M1", "E2M3", "E3M2", "E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FNUZ", "E4M3_IEEE", "E5M2",
    "E5M2FNUZ", "E8M0", "FP16", "FP32", "FP64", "NAMED", "TF32", "Format", "format", "names", "p3109",
]  # fmt: skip

IEEE = "IEEE 754-2019"
OFP8 = "OCP OFP8 v1.0"
MX = "OCP Microscaling Formats v1.0"
CDNA3 = "AMD CDNA3 ISA, arXiv:2206.02915"
P3109 = "IEEE P3109 (github.com/P3109/Public)"

NAMED: dict[str, Format] = {}
ALIASES: dict[str, Format] = {}  # name or alias, as _key() returns it -> format
AMBIGUOUS: dict[str, list[str]] = {}  # a name that stands for several formats -> their names
_FP8, _FP6 = "fp8 float8 f8 mxfp8", "fp6 float6 f6 mxfp6"


def _key(name: str) -> str:
    """Return a name in lower case, without separators and "torch.": 'torch.float8_e4m3fn' -> 'float8e4m3fn'."""
    return re.sub(r"[\s_\-]", "", name.strip().lower().removeprefix("torch."))


def _row(
    name: str, exponent_bits: int, mantissa_bits: int, *, dtype: Any = None, aliases: str = "", ambiguous: str = "",
    **fields: Any,
) -> Format:  # fmt: skip
    """Return a new built-in format, registered under its name and its aliases.

    exponent_bits, mantissa_bits, fields: fields of `Format`. dtype: NumPy's or ml_dtypes' dtype of its values, or None.
    aliases: further names, separated by spaces. ambiguous: names that other formats have as well, separated by spaces;
    `format` refuses these with a list of the formats.
    """
    fmt = NAMED[name] = Format(name, exponent_bits, mantissa_bits, **fields)
    if dtype is not None:
        DTYPES[fmt] = np.dtype(dtype)
        aliases = f"{aliases} {DTYPES[fmt].name}"
    for word in (name, *aliases.split()):
        assert ALIASES.setdefault(_key(word), fmt) is fmt, f"{word} names {ALIASES[_key(word)].name} already"
    for word in ambiguous.split():
        AMBIGUOUS.setdefault(_key(word), []).append(name)
    return fmt


_FINITE: dict[str, Any] = {"infinities": False, "nan": "none"}
_FNUZ: dict[str, Any] = {"infinities": False, "nan": "negative_zero"}

E4M3 = _row(
    "E4M3", 4, 3, infinities=False, nan="top", dtype=ml_dtypes.float8_e4m3fn, source=OFP8,
    aliases="e4m3fn fp8_e4m3 fp8_e4m3fn mxfp8_e4m3", ambiguous=_FP8,
)  # fmt: skip
E5M2 = _row(
    "E5M2", 5, 2, dtype=ml_dtypes.float8_e5m2, source=OFP8, aliases="fp8_e5m2 mxfp8_e5m2", ambiguous=_FP8
)  # fmt: skip
FP16 = _row("FP16", 5, 10, dtype=np.float16, source=IEEE, aliases="binary16 half f16 e5m10")
BF16 = _row(
    "BF16", 8, 7, dtype=ml_dtypes.bfloat16, source="Google Brain bfloat16", aliases="bfloat brain e8m7"
)  # fmt: skip
FP32 = _row("FP32", 8, 23, dtype=np.float32, source=IEEE, aliases="binary32 single float f32 e8m23")
FP64 = _row("FP64", 11, 52, dtype=np.float64, source=IEEE, aliases="binary64 double f64 e11m52")
TF32 = _row("TF32", 8, 10, source="NVIDIA A100 architecture white paper", aliases="tensorfloat32 e8m10")
E2M1 = _row(
    "E2M1", 2, 1, **_FINITE, dtype=ml_dtypes.float4_e2m1fn, source=MX,
    aliases="e2m1fn fp4 fp4_e2m1 fp4_e2m1fn mxfp4_e2m1",
)  # fmt: skip
E2M3 = _row(
    "E2M3", 2, 3, **_FINITE, dtype=ml_dtypes.float6_e2m3fn, source=MX, aliases="e2m3fn fp6_e2m3 mxfp6_e2m3",
    ambiguous=_FP6,
)  # fmt: skip
E3M2 = _row(
    "E3M2", 3, 2, **_FINITE, dtype=ml_dtypes.float6_e3m2fn, source=MX, aliases="e3m2fn fp6_e3m2 mxfp6_e3m2",
    ambiguous=_FP6,
)  # fmt: skip
E8M0 = _row(
    "E8M0", 8, 0, signed=False, infinities=False, nan="top", subnormals=False, dtype=ml_dtypes.float8_e8m0fnu,
    source=MX, aliases="e8m0fnu ue8m0",
)  # fmt: skip
E3M4 = _row("E3M4", 3, 4, dtype=ml_dtypes.float8_e3m4, source="ml_dtypes float8_e3m4", aliases="fp8_e3m4")
E4M3_IEEE = _row("E4M3_IEEE", 4, 3, dtype=ml_dtypes.float8_e4m3, source="ml_dtypes float8_e4m3")
E4M3FNUZ = _row(
    "E4M3FNUZ", 4, 3, bias=8, **_FNUZ, dtype=ml_dtypes.float8_e4m3fnuz, source=CDNA3, aliases="fp8_e4m3fnuz"
)  # fmt: skip
E5M2FNUZ = _row(
    "E5M2FNUZ", 5, 2, bias=16, **_FNUZ, dtype=ml_dtypes.float8_e5m2fnuz, source=CDNA3, aliases="fp8_e5m2fnuz"
)  # fmt: skip
E4M3B11FNUZ = _row(
    "E4M3B11FNUZ", 4, 3, bias=11, **_FNUZ, dtype=ml_dtypes.float8_e4m3b11fnuz, aliases="fp8_e4m3b11fnuz",
    source="ml_dtypes float8_e4m3b11fnuz",
)  # fmt: skip

_P3109_NAME = re.compile(r"(?:p3109k|binary)([0-9]{1,4})p([0-9]{1,4})([su])([ef])")


def p3109(bits: int, precision: int, *, signed: bool = True, extended: bool = True) -> Format:
    """Return the IEEE P3109 format with this width and precision; equal arguments return the same object.

    Args:
      bits: width K, 3 to 16.
      precision: significand bits P with the hidden one: 1 to K - 1, or to K where unsigned.
      signed: whether the format has a sign bit ("s" in its name) or not ("u").
      extended: whether the format has infinities ("e" in its name) or only finite values ("f").

    Raises:
      ValueError: there is no such format, or its values reach beyond float64.
      TypeError: bits or precision are not integers, signed or extended not True or False.

    Source: IEEE P3109 working group, github.com/P3109/Public.

    Example:
      >>> import fpsim as fp
      >>> fp.formats.p3109(8, 4).max, fp.formats.p3109(8, 4, extended=False).max
      (224.0, 240.0)
    """
    for argument, number in (("bits", bits), ("precision", precision)):
        if not is_integer(number):
            raise TypeError(f"{argument} must be an integer, such as 8; got {shown(number)}.")
    for argument, flag in (("signed", signed), ("extended", extended)):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"{argument} must be True or False; got {shown(flag)}.")
    return _p3109(int(bits), int(precision), bool(signed), bool(extended))


@cache
def _p3109(bits: int, precision: int, signed: bool, extended: bool) -> Format:
    """Return the P3109 format of the width `bits` and of `precision` significand bits with the hidden one; cached.

    signed: whether it has a sign bit. extended: whether it has infinities.
    """
    for argument, number in (("bits", bits), ("precision", precision)):
        if number.bit_length() > 16:  # too long for a name
            raise ValueError(f"{argument} must be at most 16; got {shown(number)}.")
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
    """Return the format with a name, alias or NumPy / ml_dtypes / torch dtype; return a Format unchanged.

    Raises:
      ValueError: no float format has that name; the message gives the nearest ones.

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
        fmt = find_by_name(spec)
        if fmt is not None:
            return fmt
    elif is_torch(spec):
        key = _key(str(spec).removesuffix("_x2"))
        if key in ALIASES:
            return ALIASES[key]
    elif spec is not None:
        dtype = dtype_of(spec)
        for fmt, known in DTYPES.items():
            if dtype is not None and dtype.newbyteorder("=") == known:
                return fmt
    named = isinstance(spec, (str, np.dtype)) or type(spec).__module__.startswith("fpsim.formats.")
    named = named or is_torch(spec)
    text = spec.__name__ if isinstance(spec, type) else str(spec) if named else shown(spec)
    if re.fullmatch(r"u?int[48]|logfmt\W?\d+", text.lower().removeprefix("torch.")):
        raise ValueError(
            f"format must be a float format; got {text!r}, whose values need scales. Use fp.encode_scaled, or a float "
            "format such as E4M3."
        )
    table = table_format(spec)
    if table is not None:
        refuse_table(table)
    near = nearest(_key(text), ALIASES, cutoff=0.7)
    refusal = unknown(
        "format", text if named or isinstance(spec, type) else spec, list(NAMED),
        {alias: fmt.name for alias, fmt in ALIASES.items()},
        listing="fp.formats.names() or `fpsim formats`",
        meant=AMBIGUOUS.get(_key(text)) or ([ALIASES[near].name] if near else []),
        others="any p3109_k<bits>p<precision><s|u><e|f>, a dtype of one, or an fp.Format",
    )  # fmt: skip
    if isinstance(spec, (bool, int, float, complex, list, tuple)) or (hasattr(spec, "shape") and not named):
        raise ValueError(f"{refusal} Values come before their format, as in fpsim.encode(x, 'e4m3').")
    if callable(spec) and not isinstance(spec, type):
        raise ValueError(f"{refusal} A function comes before the format.")
    raise refusal


def is_torch(spec: object) -> bool:
    """Return whether an argument is an object of torch, such as a dtype, without importing torch."""
    return not isinstance(spec, (int, float)) and str(spec).startswith("torch.")


def format_argument(name: str, spec: Any) -> Format:
    """Return the format that a caller passed as an argument, by name, dtype or object.

    name: name of the argument, for the error. spec: its value.

    Raises:
      ValueError: no float format has that name; the message begins with `name`.
    """
    try:
        return format(spec)
    except ValueError as refusal:
        raise ValueError(re.sub(r"^format\b", name, str(refusal))) from None


@lru_cache(maxsize=4096)
def find_by_name(name: str) -> Format | None:
    """Return the built-in or P3109 format with this name or alias in any spelling, or None; cached."""
    key = _key(name)
    if key in ALIASES:
        return ALIASES[key]
    match = _P3109_NAME.fullmatch(key)
    if match is None:
        return None
    bits, precision, sign, domain = match.groups()
    return p3109(int(bits), int(precision), signed=sign == "s", extended=domain == "e")


def names() -> list[str]:
    """Return the names of the built-in formats, without the P3109 family.

    Example:
      >>> import fpsim as fp
      >>> fp.formats.names()[:4]
      ['E4M3', 'E5M2', 'FP16', 'BF16']
    """
    return list(NAMED)
