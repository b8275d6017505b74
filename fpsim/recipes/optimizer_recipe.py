"""The optimizer as data: AdamW, its learning-rate schedule and clipping, and the formats of its state."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from fpsim.casts.cast import refuse_unless_held
from fpsim.errors import integer_fields, require_integer, require_kind, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.portable import cosine
from fpsim.reload import reloadable

SCHEDULES = ("constant", "cosine")
UPDATES = ("nearest_even", "stochastic", "kahan")
KEPT = ("first_moment", "second_moment", "weights")  # what is stored between steps


@reloadable
@dataclass(frozen=True)
class OptimizerRecipe:
    """The settings of the optimizer, AdamW, as data.

    Attributes:
      lr: the largest learning rate.
      betas: decay of the two moments, each >= 0 and < 1.
      eps: added to the root of the second moment.
      weight_decay: every step subtracts lr * weight_decay * w from the weights w of two axes or more, not from vectors.
      warmup: number of steps over which the learning rate grows linearly to lr.
      schedule: the learning rate after warmup: "constant", or "cosine", which falls to final_lr_share * lr at the end.
      final_lr_share: the learning rate at the end as a share of lr, 0 to 1.
      clip_norm: the largest norm of all gradients together, as torch.nn.utils.clip_grad_norm_; None for no limit.
      clip_value: the largest magnitude of a gradient's element, applied before the norm; None for no limit.
      first_moment, second_moment: the format in which a moment is stored between steps, by name, dtype or object; None
        for float32. The step that computes a moment uses it before it is rounded.
      moment_rounding: the rounding mode of moments, any mode of `fpsim.encode`.
      weights: the format of the weights that the model computes with; None for float32.
      masters: True to keep float32 master weights as well; False to keep none and round each updated weight into
        the format of the weights.
      update_rounding: the rounding of updated weights without masters: "nearest_even", "stochastic", or "kahan", which
        rounds to nearest even and keeps the rounding error in a compensation of the same format.
      lr_follows_error: the learning rate is divided by 1 + lr_follows_error * e, where e is the relative quantisation
        error of the weights, passed to `AdamW.step`; 0 for off.
      seed: the seed of stochastic modes.

    Raises:
      TypeError, ValueError: a field has another type or value than those above, or update_rounding is set although no
        updated weights are rounded.

    Source: Loshchilov and Hutter, arXiv:1711.05101; Zamirai et al., arXiv:2010.06192, for updates without masters;
      DeepSeek-V3, arXiv:2412.19437, 3.3.3, keeps both moments in BF16.

    Example:
      >>> from fpsim.recipes.optimizer_recipe import OptimizerRecipe
      >>> recipe = OptimizerRecipe(first_moment="bf16", second_moment="bf16", warmup=10, schedule="cosine")
      >>> [round(recipe.lr_at(step, 100), 6) for step in (0, 9, 10, 55, 100)]
      [0.0003, 0.003, 0.003, 0.0015, 0.0]
      >>> OptimizerRecipe(weights="bf16", masters=False, update_rounding="kahan").format_of("weights").name
      'BF16'
    """

    lr: float = 3e-3  # fits models of a third of a million weights; large models need a tenth of it or less
    betas: tuple[float, float] = (0.9, 0.95)  # GPT-3's and DeepSeek-V3's
    eps: float = 1e-8  # torch's
    weight_decay: float = 0.0  # 250 steps are too few to need it
    warmup: int = 0  # and constant after it, so that a loss curve shows rounding, not a schedule
    schedule: str = "constant"
    final_lr_share: float = 0.0
    clip_norm: float | None = 1.0  # GPT-3's and DeepSeek-V3's
    clip_value: float | None = None
    first_moment: FormatLike | None = None  # float32, like all that a recipe does not set
    second_moment: FormatLike | None = None
    moment_rounding: str | Rounding = "nearest_even"
    weights: FormatLike | None = None
    masters: bool = True  # without masters small updates are lost, as BF16_WEIGHTS_NEAREST shows
    update_rounding: str = "nearest_even"
    lr_follows_error: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "lr_follows_error"):
            require_number(name, getattr(self, name))
        require_number("final_lr_share", self.final_lr_share, highest=1.0)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), positive=True)
        object.__setattr__(self, "betas", _checked_betas(self.betas))
        integer_fields(self, "warmup", "seed", lowest=0)
        require_word("schedule", self.schedule, SCHEDULES)
        require_kind("masters", self.masters, bool, "True or False")
        require_word("update_rounding", self.update_rounding, UPDATES)
        object.__setattr__(self, "moment_rounding", rounding_mode(self.moment_rounding).name.lower())
        for name in KEPT:
            self.format_of(name)
        if self.update_rounding != "nearest_even" and (self.format_of("weights") is None or self.masters):
            raise ValueError(
                f"update_rounding={self.update_rounding!r} needs weights in a small format and masters=False; got "
                f"weights={shown(self.weights)} and masters={self.masters}."
            )
        for name in KEPT:
            object.__setattr__(self, name, self.format_of(name))

    def lr_at(self, step: int, steps_total: int) -> float:
        """Return the learning rate of a step, counted from 0, in a run of `steps_total` steps.

        During warmup it is lr * (step + 1) / warmup. With the schedule "cosine" it then falls along half a cosine
        towards final_lr_share * lr, the value at step number `steps_total`, the first after the run.
        """
        require_integer("step", step, 0)
        require_integer("steps_total", steps_total, 0)
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.lr
        done = min((step - self.warmup) / max(steps_total - self.warmup, 1), 1.0)
        return self.lr * (self.final_lr_share + (1 - self.final_lr_share) * (1 + cosine(math.pi * done)) / 2)

    def format_of(self, kind: str) -> Format | None:
        """Return the format of "weights", "first_moment" or "second_moment"; None for float32."""
        require_word("kind", kind, KEPT)
        return kept_format(kind, getattr(self, kind))


# ---- checks


def require_number(name: str, value: object, *, highest: float = math.inf, positive: bool = False) -> None:
    """Raise a TypeError or ValueError unless a value is a finite number in 0 to highest (above 0 if `positive`).

    name: the argument's name in the message.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number; got {shown(value)}.")
    if not (value > 0 or (value == 0 and not positive)) or not value <= min(highest, sys.float_info.max):
        bounds = f" up to {highest:g}" if highest < math.inf else ""
        raise ValueError(f"{name} must be a finite number {'> 0' if positive else '>= 0'}{bounds}; got {shown(value)}.")


def _checked_betas(betas: Any) -> tuple[float, float]:
    """Return betas, a list or tuple, as two floats, after checking that each is >= 0 and < 1."""
    pair = tuple(betas) if isinstance(betas, (list, tuple)) else ()
    numbers = [x for x in pair if isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < 1]
    if len(pair) != 2 or len(numbers) != 2:
        raise ValueError(f"betas must be two numbers >= 0 and < 1, such as (0.9, 0.95); got {shown(betas)}.")
    return float(pair[0]), float(pair[1])


def kept_format(name: str, word: FormatLike | None) -> Format | None:
    """Return the format in which weights, moments or gradients are stored between steps; None for float32.

    name: the field, such as "second_moment"; word: the format by name, dtype or object, or None.

    Raises:
      ValueError: there is no such format, float32 cannot represent its values, or it lacks a zero or a needed sign.
    """
    if word is None:
        return None
    fmt = find_format(word)
    refuse_unless_held(fmt, FP32, "take one of up to 32 bits")
    if not fmt.has_zero or not (fmt.signed or name == "second_moment"):
        wanted = "a zero" if name == "second_moment" else "a zero and a sign"
        raise ValueError(f"{name} needs a format with {wanted}; got {fmt}. Use BF16, say.")
    return None if fmt == FP32 else fmt
