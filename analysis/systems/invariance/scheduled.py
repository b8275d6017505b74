"""A product with a weight whose order of additions depends on the batch size, as in libraries such as cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.cast import decode, encode
from fpsim.deprecation import renamed_arguments, warn_renamed
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.catalogue import named_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.schedules.schedule import FLAT, Schedule

Choice = Schedule | None | Callable[[int, int, int], Any]


class ScheduledProduct:
    """A product x @ w by a matrix unit, whose schedule a rule chooses from the shape (m, n, k) of each call.

    Args:
      w: float array (k, n), or None if each call passes its own: `product(x, w)`.
      unit: a matrix unit of floats, or its name.
      choose: a schedule; None to add over all of K with one accumulator; or a function (m, n, k) -> schedule, None, or
        (unit, schedule).
      out_fmt: the format of results; None for the result format of the unit.

    Raises:
      TypeError: w does not hold floats, or choose has another type.
      ValueError: an unknown unit, a unit of integers, or one with block scales.

    Example:
      >>> import fpsim as fp
      >>> w = np.ones((64, 8), np.float32)
      >>> split = lambda m, n, k: fp.schedules.cublas(split_k=4) if m <= 16 else None
      >>> layer = fp.analysis.ScheduledProduct(w, "hopper_bf16_f32", split)
      >>> layer(np.ones((2, 64))).shape, layer.describe(2), layer.describe(32)
      ((2, 8), "hopper_bf16_f32, cublas('sm_90', split_k=4)", 'hopper_bf16_f32, one chain')
    """

    @renamed_arguments(out_format="out_fmt")
    def __init__(
        self,
        w: npt.ArrayLike | None = None,
        unit: MatrixUnit | str = "hopper_bf16_f32",
        choose: Choice = None,
        out_fmt: FormatLike | None = None,
    ) -> None:
        self.w = None if w is None else float_array(without_gradient(w), "w")[0]
        if self.w is not None and self.w.ndim != 2:
            raise ValueError(f"w must be of shape (k, n); got {self.w.shape}.")
        self.unit = _without_scales(unit)
        if choose is not None and not isinstance(choose, Schedule) and not callable(choose):
            raise TypeError(
                f"choose must be a schedule, None or a function (m, n, k) -> schedule; got {shown(choose)}."
            )
        self.choose, self.out_fmt = choose, out_fmt

    @property
    def out_format(self) -> FormatLike | None:
        """Deprecated name of `out_fmt`; using it warns."""
        warn_renamed("ScheduledProduct.out_format", "ScheduledProduct.out_fmt")
        return self.out_fmt

    def chosen(self, m: int, n: int, k: int) -> tuple[MatrixUnit, Schedule]:
        """Return the matrix unit and the schedule for a product of shape (m, n, k).

        Raises:
          TypeError: `choose` returned something else than a schedule, None, or (unit, schedule).
          ValueError: `choose` returned an unknown unit, a unit of integers, or one with block scales.
        """
        answer = self.choose(m, n, k) if callable(self.choose) else self.choose
        unit, schedule = answer if isinstance(answer, tuple) and len(answer) == 2 else (self.unit, answer)
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(
                f"choose must return a schedule, None or (unit, schedule) for {m}, {n}, {k}; got {shown(answer)}."
            )
        return _without_scales(unit), FLAT if schedule is None else schedule

    def describe(self, m: int) -> str:
        """Return the names of the unit and the schedule for a batch of m rows, such as "hopper_bf16_f32, one chain".

        Without a stored w, the schedule is chosen for n = k = 1.
        """
        k, n = (1, 1) if self.w is None else self.w.shape
        unit, schedule = self.chosen(m, n, k)
        return f"{unit.name}, {'one chain' if schedule is FLAT else schedule}"

    def __call__(self, x: npt.ArrayLike, w: npt.ArrayLike | None = None) -> Array:
        """Return x (m, k) @ w (k, n), (m, n); both are rounded to the unit's input formats first.

        w: None for the stored w.

        Results in a format without a NumPy dtype, such as "tf32", are float32 (float64 if float32 cannot hold them).

        Raises:
          ValueError: there is no w, or shapes do not fit.
          TypeError: x or w does not hold floats.
        """
        right = self.w if w is None else float_array(without_gradient(w), "w")[0]
        if right is None:
            raise ValueError("w must be passed to a ScheduledProduct that was made without w: product(x, w).")
        left, _ = float_array(without_gradient(x))
        if left.ndim < 2 or right.ndim != 2 or left.shape[-1] != right.shape[0]:
            raise ValueError(f"x (m, k) and w (k, n) must agree in k; got {left.shape} and {right.shape}.")
        unit, schedule = self.chosen(len(left), right.shape[1], right.shape[0])
        options = {} if schedule is FLAT else {"schedule": schedule}
        product = np.asarray(
            matmul(
                encode(np.ascontiguousarray(left), unit.a.carrier), encode(np.ascontiguousarray(right), unit.b.carrier),
                accumulate=unit, strict=False, out_fmt=self.out_fmt, **options,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        if product.dtype.kind != "u":
            return product
        fmt = find_format(unit.d.fmt if self.out_fmt is None else self.out_fmt)
        return decode(product, fmt, np.float32 if FP32.holds(fmt) else np.float64)


def _without_scales(unit: MatrixUnit | str) -> MatrixUnit:
    """Return the matrix unit of a name, or the unit itself; raise ValueError if it needs block scales."""
    chosen = named_unit("unit", unit)
    if chosen.scale is not None:
        raise ValueError(
            f"unit must be one without block scales; got {chosen.name}. Take 'hopper_e4m3_f32', for example."
        )
    return chosen
