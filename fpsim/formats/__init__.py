"""What a number looks like, and the words of a cast: `fp.formats`."""

from __future__ import annotations

from fpsim.formats.named import (
    ALIASES,
    BF16,
    DTYPES,
    E2M1,
    E2M3,
    E3M2,
    E3M4,
    E4M3,
    E4M3_IEEE,
    E4M3B11FNUZ,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FP16,
    FP32,
    FP64,
    NAMED,
    TF32,
    Format,
    format,
    names,
    p3109,
)

__all__ = [
    "ALIASES", "BF16", "DTYPES", "E2M1", "E2M3", "E3M2", "E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FNUZ", "E4M3_IEEE", "E5M2",
    "E5M2FNUZ", "E8M0", "FP16", "FP32", "FP64", "NAMED", "TF32", "Format", "format", "names", "p3109",
]  # fmt: skip
