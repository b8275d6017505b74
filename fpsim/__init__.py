"""fpsim: low-precision floating point, emulated bit for bit at the speed of the machine."""

from __future__ import annotations

from fpsim.cast import cast, decode, encode, quantize
from fpsim.formats import (
    BF16,
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
    TF32,
    Format,
    format,
)
from fpsim.policies import policy
