"""Float operations that the processor has as one instruction: rounding to integers and fused multiply-adds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.runtime.vectors import call

if numba.config.DISABLE_JIT:

    def toward_zero(x: Any) -> Any:
        """Return the integer part of x, a float64, as a float64."""
        return np.trunc(x)

    def nearest_integer(x: Any) -> Any:
        """Return the integer nearest to x, a float64, ties to even, as a float64."""
        return np.rint(x)

    def down(x: Any) -> Any:
        """Return the largest integer that does not exceed x, a float64, as a float64."""
        return np.floor(x)

    def up(x: Any) -> Any:
        """Return the smallest integer that is not below x, a float64, as a float64."""
        return np.ceil(x)

    def fused(x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z of three floats of one type, float32 or float64, rounded once to that type."""
        if np.isfinite(x) and np.isfinite(y) and not np.isfinite(z):
            return z  # Inf or NaN, although the product alone may be beyond the range
        plain = x * y + z
        if not np.isfinite(x) or not np.isfinite(y):
            return plain
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            return plain
        try:
            near = float(exact)
        except OverflowError:
            return type(z)(np.copysign(np.inf, float(exact > 0) - 0.5))
        if isinstance(z, np.float64):
            return np.float64(near)
        if Fraction(near) != exact:  # rounded to odd, so that the second rounding equals one of the exact value
            bits = np.float64(near).view(np.int64)
            grows = (exact > Fraction(near)) == (near > 0)
            near = np.int64(bits if bits & 1 else bits + (1 if grows else -1)).view(np.float64)
        return np.float32(near)

else:

    def _unary(name: str) -> Any:
        """Return a function of one float64 for kernels, which calls the LLVM intrinsic `name` and returns a float64."""

        def typing(_typing: Any, x: Any) -> Any:
            def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
                return call(builder, name, args[0].type, *args)

            return types.float64(types.float64), build

        return intrinsic(typing)

    toward_zero = _unary("llvm.trunc.f64")
    nearest_integer = _unary("llvm.rint.f64")
    down = _unary("llvm.floor.f64")
    up = _unary("llvm.ceil.f64")

    @intrinsic  # type: ignore[untyped-decorator]
    def fused(_typing: Any, x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z of three floats of one type, float32 or float64, rounded once to that type.

        _typing: numba's typing context, not used.
        """

        def build(_context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = "llvm.fma.f32" if sig.return_type == types.float32 else "llvm.fma.f64"
            return call(builder, name, args[0].type, *args)

        return z(z, z, z), build
