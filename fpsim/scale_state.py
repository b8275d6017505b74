"""Scales that last over steps: delayed, recalibrated every N steps and online, each with counts and a state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.element import Element, element_format
from fpsim.errors import unknown
from fpsim.facts import element_facts, element_from, scaling_facts, scaling_from
from fpsim.log_format import LogFMT
from fpsim.scale_counts import ScaleCounts
from fpsim.scaled import Scaled
from fpsim.scaled_cast import checked, encode_scaled, quantize_scaled
from fpsim.scaling import Scaling
from fpsim.scalings import TENSOR
from fpsim.tiling import tiling

if TYPE_CHECKING:
    from fpsim import scale_steps as steps

AMAX = ("max", "most_recent")
ZERO_AMAX = ("roll", "skip")
CAST_WORDS = ("rounding", "overflow", "subnormals", "seed", "random_bits")
LARGEST = np.finfo(np.float32).max
LARGEST_MARGIN = 126  # 2**-margin stays a normal float32


class _ScaleState:
    """What the three kinds share: one step of encoding, its counts, and a state that saves and resumes."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()  # names of the constructor's options, which are attributes as well
    ARRAYS: ClassVar[tuple[str, ...]] = ()  # names of the state's arrays per tile

    def __init__(self, fmt: Any, scaling: Scaling = TENSOR) -> None:
        element = element_format(fmt)
        checked(np.float32(0), element, scaling)
        kind = type(self).__name__
        if isinstance(element, LogFMT) or not scaling.symmetric:
            raise ValueError(
                f"{kind} needs elements that a scale alone places; got {element} with {scaling!r}. "
                "Use a float format, fp.INT8 or fp.INT4 and a symmetric scaling, or fp.encode_scaled."
            )
        self.fmt: Element = element
        self.scaling = scaling
        self._arithmetic = scaling  # how factors reach elements
        self._counts = ScaleCounts()
        self._last = ScaleCounts()
        self._arrays: dict[str, Array] = {}  # by the names in ARRAYS; none before the first step

    @property
    def counts(self) -> ScaleCounts:
        """Counts of all steps."""

        return self._counts

    @property
    def last(self) -> ScaleCounts:
        """Counts of the last step."""
        return self._last

    def encode(self, x: npt.ArrayLike, **cast: Any) -> Scaled:
        """One step: encode with the scales of the state, then update it.

        An array without elements is no step, and changes nothing.

        Args:
          x: floats, as for `fpsim.encode_scaled`.
          cast: rounding, overflow, subnormals, seed and random_bits, as there; a seed holds for one call.

        Returns:
          A Scaled array; `scales` holds the decode scales that were used.

        Raises:
          ValueError: x has other tiles than at the first step, or a word that is not possible. The state is as before.
          TypeError: x is not an array of floats, or another keyword.
        """
        from fpsim.kernels.native import under_ieee

        result: Scaled = under_ieee(self._step)(x, cast, back=False)
        return result

    def quantize(self, x: npt.ArrayLike, **cast: Any) -> Array:
        """One step, to float32 values: `encode(x).decode()`, where possible in one pass.

        Args, Raises: as for `encode`.

        Returns:
          float32 array of x's shape.
        """
        from fpsim.kernels.native import under_ieee

        result: Array = under_ieee(self._step)(x, cast, back=True)
        return result

    def _step(self, x: npt.ArrayLike, cast: dict[str, Any], *, back: bool) -> Any:
        from fpsim import scale_steps as steps

        strange = cast.keys() - set(CAST_WORDS)
        if strange:
            raise TypeError(f"a step takes {', '.join(CAST_WORDS)}; got {', '.join(sorted(strange))}.")
        keywords = self._keywords(cast)
        _, source, source_fmt = checked(x, self.fmt, self.scaling)
        if not source.size:
            return (quantize_scaled if back else encode_scaled)(x, self.fmt, self.scaling, **keywords)
        self._refuse_other_tiles(source.shape)
        options = steps.element_options(self.fmt, self.scaling, keywords)
        step = steps.Step(source, source_fmt, self.fmt, self._arithmetic, options, keywords)
        result, factors, arrays, recalibrated = self._run(step, back=back)
        saturated, underflowed = steps.count(step, factors)
        # nothing can fail from here on, so that a step happens as a whole or not at all
        self._arrays = arrays
        self._last = ScaleCounts(source.size, saturated, underflowed, 1, int(recalibrated))
        self._counts = self._counts.merge(self._last)
        return result

    def _keywords(self, cast: dict[str, Any]) -> dict[str, Any]:
        """The keywords of this kind's cast."""
        return cast

    def _run(self, step: steps.Step, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        """(codes or values, factors of the tiles, arrays of the next step, whether scales were computed)."""
        raise NotImplementedError

    def _refuse_other_tiles(self, shape: tuple[int, ...]) -> None:
        grid, known = tiling(shape, self.scaling.block).grid, self._grid
        if known is not None and grid != known:
            raise ValueError(
                f"x must have the tiles of the first step, {known} of block {self.scaling.block}; got shape {shape} "
                f"with {grid}. Use a {type(self).__name__} of its own for each tensor."
            )

    @property
    def _grid(self) -> tuple[int, ...] | None:
        """Shape of the tiles, once there are any."""
        return self._arrays[self.ARRAYS[-1]].shape if self._arrays else None

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, and the counts: texts, numbers and copies of arrays.

        `counts` and `last` are int64 arrays in the order of `ScaleCounts`. Arrays per tile exist after the first step.

        Example:
          >>> import fpsim as fp
          >>> state = fp.DelayedScaling("e4m3", history=2)
          >>> y = state.quantize(np.float32([1.0, -2.0]))
          >>> {name: x.tolist() for name, x in state.state_dict().items() if isinstance(x, np.ndarray)}
          {'counts': [2, 0, 0, 1, 1], 'last': [2, 0, 0, 1, 1], 'amax_history': [[0.0], [2.0]], 'encode_scales': [224.0]}
        """
        return {
            "class": type(self).__name__,
            "fmt": element_facts(self.fmt),
            "scaling": scaling_facts(self.scaling),
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "counts": np.array(astuple(self._counts), np.int64),
            "last": np.array(astuple(self._last), np.int64),
            **{name: array.copy() for name, array in self._arrays.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; every later bit and count is as if nothing had happened in between.

        Raises:
          ValueError: the state is of another class, format, scaling or options, or its arrays do not fit. This object
            is as before then.
        """
        kind = type(self).__name__
        wanted = self.state_dict()
        names = {"class", "fmt", "scaling", "options", "counts", "last"}
        if not isinstance(state, Mapping) or not names <= state.keys():
            got = f"one without {', '.join(sorted(names - set(state)))}" if isinstance(state, Mapping) else repr(state)
            raise ValueError(f"the state must be a dict that {kind}.state_dict returned; got {got}.")
        for name in ("class", "fmt", "options"):
            if state[name] != wanted[name]:
                raise ValueError(
                    f"the state's {name} must be {wanted[name]!r}, as here; got {state[name]!r}. "
                    "Load it into an object that was made in the same way, or use its load(path)."
                )
        if scaling_from(state["scaling"]) != self.scaling:
            raise ValueError(
                f"the state's scaling must be {self.scaling!r}, as here; got {scaling_from(state['scaling'])!r}."
            )
        counts, last = _checked_counts(state["counts"], "counts"), _checked_counts(state["last"], "last")
        held = [name for name in state if name not in names]
        if held and set(held) != set(self.ARRAYS):
            raise ValueError(f"the state's arrays must be {', '.join(self.ARRAYS) or 'none'}; got {', '.join(held)}.")
        if bool(held) != (counts.steps > 0 and bool(self.ARRAYS)):
            raise ValueError(f"the state must hold arrays after its first step only; got {held} and {counts}.")
        arrays = {name: _checked_tiles(state[name], name) for name in self.ARRAYS if held}
        if held:
            self._check_arrays(arrays)
        self._arrays, self._counts, self._last = arrays, counts, last

    def _check_arrays(self, arrays: dict[str, Array]) -> None:
        """A ValueError unless arrays of a state have numbers and shapes that steps can lead to."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a .npz or .safetensors file, which is complete or as it was before.

        Raises:
          ValueError: another ending.
          ImportError: safetensors is not installed.
          OSError: the file cannot be written.
        """
        from fpsim.scaled_file import save

        state = self.state_dict()
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        save(path, arrays, {name: value for name, value in state.items() if name not in arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A new object that goes on where `save` was called.

        Raises:
          FileNotFoundError: no such file.
          ValueError: the file is damaged, or of something else.
          ImportError: safetensors is not installed.

        Example:
          >>> import fpsim as fp, pathlib, tempfile
          >>> state = fp.PeriodicScaling(fp.E4M3, every=16)
          >>> y = state.quantize(np.float32([1.0, -2.0]))
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     state.save(pathlib.Path(folder) / "state.npz")
          ...     fp.PeriodicScaling.load(pathlib.Path(folder) / "state.npz")
          <PeriodicScaling to E4M3, fp.scalings.TENSOR, every=16: 1 step>
        """
        from fpsim.scaled_file import load

        arrays, header = load(path)
        if header.get("class") != cls.__name__:
            raise ValueError(
                f"{os.fspath(path)} must hold what {cls.__name__}.save wrote; "
                f"got {header.get('class', 'something else')}. Load it with the class that saved it."
            )
        try:
            found = cls(element_from(header["fmt"]), scaling_from(header["scaling"]), **header["options"])
            found.load_state_dict({**header, **arrays})
        except (KeyError, TypeError, ValueError) as reason:
            raise ValueError(
                f"{os.fspath(path)} must hold what {cls.__name__}.save wrote; it lacks or contradicts it: {reason}"
            ) from reason
        return found

    def __repr__(self) -> str:
        options = "".join(f", {name}={getattr(self, name)!r}" for name in self.OPTIONS)
        plural = "" if self._counts.steps == 1 else "s"
        what = f"{type(self).__name__} to {self.fmt}, {self.scaling!r}{options}"
        return f"<{what}: {self._counts.steps} step{plural}>"


class DelayedScaling(_ScaleState):
    """Scales from the amax of earlier steps, as Transformer Engine's DelayedScaling recipe computes them.

    Every tile starts with the encode scale e = 1 and a history of zeros. A step encodes x * e, in float32 (float64 for
    float64 x), saturating; the decode scale is 1 / e in float32. Then, all in float32,

    1. the step's amax, NaN aside, is put at the end of the history, and what stood at its start goes;
    2. a is the largest entry of these, or with amax="most_recent" the last one;
    3. where a is finite and not 0, e = (max * 2^-margin) / a, at most the largest float32. Otherwise e stays.

    So an Inf in x stops the scale from changing for as long as the history holds it. The first entry of the history is
    set to 0 after step 2, where the source collects the next amax. The scale is per tile of the scaling's block, of
    which nothing else is used but its block; overflow is "saturate" unless a call gives another.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: gives the block; fp.scalings.TENSOR or another one of plain FP32 scales.
      history: entries, at least 1.
      amax: "max" or "most_recent".
      margin: integer; max is halved so many times.
      zero_amax: what a step does in whose tile every element is 0 or NaN. "roll": as any other, which is what the
        kernel for one tensor and JAX do; "skip": history and scale stay, as in the kernel for many tensors, PyTorch's.

    Raises:
      ValueError: a scaling, word or number that is not possible.

    Source: Transformer Engine, transformer_engine/common/recipe/delayed_scaling.cu (kernel, kernel_bulk), __init__.py.

    Example:
      >>> import fpsim as fp
      >>> state = fp.DelayedScaling(fp.E4M3)
      >>> [state.encode(np.float32([1, 1000, -7])).scales.item() for _ in range(3)]
      [1.0, 2.232142686843872, 2.232142686843872]
      >>> state.counts.saturated
      1
    """

    OPTIONS = ("history", "amax", "margin", "zero_amax")
    ARRAYS = ("amax_history", "encode_scales")

    def __init__(
        self,
        fmt: Any,
        scaling: Scaling = TENSOR,
        *,
        history: int = 1024,
        amax: str = "max",
        margin: int = 0,
        zero_amax: str = "roll",
    ) -> None:
        super().__init__(fmt, scaling)
        if not _plain(scaling):
            raise ValueError(
                "DelayedScaling computes one FP32 scale per tile in its own way and takes the block of the scaling "
                f"alone; got {scaling!r}. Use fp.scalings.TENSOR or another one of plain FP32 scales."
            )
        for name, word, valid in (("amax", amax, AMAX), ("zero_amax", zero_amax, ZERO_AMAX)):
            if not isinstance(word, str) or word not in valid:
                raise unknown(name, word, valid)
        self.history = _integer("history", history, 1)
        self.amax = amax
        self.margin = _integer("margin", margin, -LARGEST_MARGIN, LARGEST_MARGIN)
        self.zero_amax = zero_amax
        self._arithmetic = scaling.replace(division="multiply")
        assert not isinstance(self.fmt, LogFMT)
        with np.errstate(over="ignore"):
            self._scaled_max = np.float32(self.fmt.max) * np.float32(2.0**-self.margin)
        if not 0 < self._scaled_max <= LARGEST:
            raise ValueError(
                f"margin must leave the largest value of {self.fmt} a float32 greater than 0; got {margin}."
            )

    @property
    def scales(self) -> Array | None:
        """Decode scales of the next step, float32; None before the first one, which uses 1."""
        from fpsim import scale_steps as steps

        return steps.inverse(self._arrays["encode_scales"]) if self._arrays else None

    @property
    def amax_history(self) -> Array | None:
        """float32 (history, *tiles), the newest amax last, as the source has it after an update; None at first."""
        return self._arrays["amax_history"].copy() if self._arrays else None

    def _keywords(self, cast: dict[str, Any]) -> dict[str, Any]:
        return cast if cast.get("overflow") is not None else {**cast, "overflow": "saturate"}

    def _run(self, step: steps.Step, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        from fpsim import scale_steps as steps

        grid = tiling(step.source.shape, self.scaling.block).grid
        factors = self._arrays["encode_scales"] if self._arrays else np.ones(grid, np.float32)
        history = self._arrays["amax_history"] if self._arrays else np.zeros((self.history, *grid), np.float32)
        run = steps.quantize_with_factors if back else steps.encode_with_factors
        result = run(step.source, self.fmt, self.scaling, steps.inverse(factors), factors, **step.keywords)
        newest = steps.newest(*steps.look(step)).reshape(grid)
        history, encode_scales, computed = self._updated(history, factors, newest)
        return result, factors, {"amax_history": history, "encode_scales": encode_scales}, computed

    def _updated(self, history: Array, encode_scales: Array, newest: Array) -> tuple[Array, Array, bool]:
        """(history, encode scales, whether a scale was computed) after a step with these amaxes."""
        from fpsim.kernels.native import ieee_arithmetic

        rolled = np.concatenate([history[1:], newest[np.newaxis]])  # (history, *tiles)
        amax = rolled.max(axis=0) if self.amax == "max" else newest
        rolled[0] = 0
        stays = (newest == 0) & (self.zero_amax == "skip")
        rolled[:, stays] = history[:, stays]
        computes = np.isfinite(amax) & (amax > 0) & ~stays
        with ieee_arithmetic(), np.errstate(all="ignore"):
            computed = np.minimum(self._scaled_max / amax, LARGEST, dtype=np.float32)
        return rolled, np.where(computes, computed, encode_scales), bool(computes.any())

    def _check_arrays(self, arrays: dict[str, Array]) -> None:
        history, encode_scales = arrays["amax_history"], arrays["encode_scales"]
        if history.shape != (self.history, *encode_scales.shape):
            raise ValueError(
                f"amax_history must have shape {(self.history, *encode_scales.shape)}, history and tiles; "
                f"got {history.shape}."
            )
        if not (np.all(history >= 0) and np.all((encode_scales >= 0) & np.isfinite(encode_scales))):
            raise ValueError("amax_history must be at least 0, and encode_scales finite as well; got another number.")


class PeriodicScaling(_ScaleState):
    """Scales that are found every N steps, as the scaling finds them, and used unchanged in between.

    Steps 0, N, 2N, ... are those of `fpsim.encode_scaled(x, fmt, scaling)`; the steps after them are those of
    `fpsim.encode_scaled(x, fmt, scaling, scales=scales)`. Whatever the scales are is used for N steps: NaN, where
    nan="tile" and the tile had one, or 1, where it was all zeros.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: how scales are found.
      every: N, at least 1.

    Raises:
      ValueError: a number or combination that is not possible.

    Example:
      >>> import fpsim as fp
      >>> state = fp.PeriodicScaling(fp.E4M3, every=2)
      >>> [state.quantize(np.float32([n])).item() for n in (1, 2, 4)]
      [1.0, 1.0, 4.0]
      >>> state.counts
      ScaleCounts(elements=3, saturated=1, underflowed=0, steps=3, recalibrations=2)
    """

    OPTIONS = ("every",)
    ARRAYS = ("scales",)

    def __init__(self, fmt: Any, scaling: Scaling = TENSOR, *, every: int = 1000) -> None:
        super().__init__(fmt, scaling)
        self.every = _integer("every", every, 1)

    @property
    def scales(self) -> Array | None:
        """Decode scales found last, float32; None before the first step."""
        return self._arrays["scales"].copy() if self._arrays else None

    def _run(self, step: steps.Step, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        from fpsim import scale_steps as steps

        if self._counts.steps % self.every == 0:
            result, scales, factors = steps.found(step, back=back)
            return result, factors, {"scales": scales}, True
        scales = self._arrays["scales"]
        run = quantize_scaled if back else encode_scaled
        result = run(step.source, self.fmt, self.scaling, scales=scales, **step.keywords)
        return result, steps.given_factors(step, scales), self._arrays, False

    def _check_arrays(self, arrays: dict[str, Array]) -> None:
        scales = arrays["scales"]
        if not np.all((scales > 0) | np.isnan(scales)):
            raise ValueError(f"scales must be positive; got {scales[~(scales > 0)][0]}.")


class OnlineScaling(_ScaleState):
    """Scales from the array itself, at every step: `fpsim.encode_scaled` with counts.

    Arrays may have any shape, as nothing but counts lasts from one step to the next.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: how scales are found.

    Raises:
      ValueError: a combination that is not possible.

    Example:
      >>> import fpsim as fp
      >>> state = fp.OnlineScaling(fp.E2M1, fp.scalings.MX)
      >>> state.quantize(np.float32([0.1, 0.2, 0.3, 7.0]))
      array([0. , 0. , 0.5, 6. ], dtype=float32)
      >>> state.last.underflowed, state.last.saturated
      (2, 1)
    """

    def _run(self, step: steps.Step, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        from fpsim import scale_steps as steps

        result, _, factors = steps.found(step, back=back)
        return result, factors, {}, True


def _plain(scaling: Scaling) -> bool:
    """Whether scales are FP32, of one level, and without a floor."""
    default = Scaling()
    free = ("block", "quotient", "division", "overflow", "nan", "infinity", "zero_scale")
    return scaling.replace(**{name: getattr(default, name) for name in free}) == default


def _integer(name: str, value: Any, lowest: int, highest: int | None = None) -> int:
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not number or value < lowest or (highest is not None and value > highest):
        valid = f"of at least {lowest}" if highest is None else f"in {lowest} .. {highest}"
        raise ValueError(f"{name} must be an integer {valid}; got {value!r}.")
    return int(value)


def _checked_counts(values: Any, name: str) -> ScaleCounts:
    array = np.asarray(values)
    if array.dtype != np.int64 or array.shape != (len(fields(ScaleCounts)),) or np.any(array < 0):
        raise ValueError(
            f"the state's {name} must be {len(fields(ScaleCounts))} int64 numbers of at least 0; got {values!r}."
        )
    return ScaleCounts(*(int(value) for value in array))


def _checked_tiles(values: Any, name: str) -> Array:
    """A copy of an array of a state."""
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise ValueError(f"the state's {name} must be float32; got {array.dtype}.")
    return array.copy()
