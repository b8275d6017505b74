"""The base class of scales that persist over training steps: encoding a step, counting, saving and loading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.errors import is_integer, shown
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.cast_options import DEFAULTS, ElementKeywords, with_element_keywords
from fpsim.formats.element import Element, element_format
from fpsim.formats.keywords import check_keywords
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import TableFormat
from fpsim.scaling.arguments import checked, element_options_of
from fpsim.scaling.recipes import TENSOR, scaling_of
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.scaled import Scaled, encode_scaled, quantize_scaled
from fpsim.scaling.scaling import Scaling, scaling_fields, scaling_from
from fpsim.scaling.tiling import tiling

if TYPE_CHECKING:
    from fpsim.scaling.states import steps

AMAX = ("max", "most_recent")
ZERO_AMAX = ("roll", "skip")
LARGEST = np.finfo(np.float32).max
LONGEST_HISTORY = 1 << 20  # steps; 4 MiB for every tile
LARGEST_MARGIN = 126  # 2**-margin stays a normal float32


class _ScaleState:
    """Base of DelayedScaling, PeriodicScaling and OnlineScaling: a step of encoding, its counts, saving and loading.

    OPTIONS: names of the constructor's options, which are attributes as well. ARRAYS: names of the arrays, with one
    entry or history per tile, that a step passes to the next. Subclasses set both as they need. fmt, scaling: as
    in the subclasses.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()  # names of the constructor's options, which are attributes as well
    ARRAYS: ClassVar[tuple[str, ...]] = ()  # names of the state's arrays per tile

    def __init__(self, fmt: Any, scaling: Scaling | str = TENSOR) -> None:
        element, scaling = element_format(fmt), scaling_of(scaling)
        checked(np.float32(0), element, scaling)
        kind = type(self).__name__
        if isinstance(element, (LogFMT, TableFormat)) or not scaling.symmetric or scaling.adaptive:
            raise ValueError(
                f"{kind} needs elements that a scale alone places; got {element} with {scaling!r}. "
                "Use a float format, fp.INT8 or fp.INT4 and a symmetric scaling, or fp.encode_scaled."
            )
        self.fmt: Element = element
        self.scaling = scaling
        self._arithmetic = scaling  # scaling that says whether factors divide or multiply
        self._counts = ScaleCounts()
        self._last = ScaleCounts()
        self._arrays: dict[str, Array] = {}  # by the names in ARRAYS; none before the first step

    @property
    def counts(self) -> ScaleCounts:
        """Counts of elements and scales over all steps."""
        return self._counts

    @property
    def last(self) -> ScaleCounts:
        """Counts of elements and scales in the last step; all 0 before the first."""
        return self._last

    @with_element_keywords
    def encode(self, x: npt.ArrayLike, **cast: Unpack[ElementKeywords]) -> Scaled:
        """Encode an array with the state's scales, then update scales and counts: one step.

        An array without elements is not a step and changes nothing.

        Args:
          x: floats, as for `fpsim.encode_scaled`.
          rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode_scaled`; a seed is used for one call.

        Returns:
          A Scaled array; its `scales` are the decode scales that were used.

        Raises:
          ValueError: x has other tiles than at the first step, or an option is unknown. The state is unchanged then.
          TypeError: x is not an array of floats, or a keyword is unknown.
        """
        check_keywords(self.encode, cast, DEFAULTS)
        result: Scaled = self._step(x, cast, back=False)
        return result

    @with_element_keywords
    def quantize(self, x: npt.ArrayLike, **cast: Unpack[ElementKeywords]) -> Array:
        """Quantise an array to float32 values, the result of `encode(x).decode()`, where possible in one pass.

        Scales and counts are updated as by `encode`.

        Args, Raises: as for `encode`.

        Returns:
          float32 array of x's shape.
        """
        check_keywords(self.quantize, cast, DEFAULTS)
        result: Array = self._step(x, cast, back=True)
        return result

    def _step(self, x: npt.ArrayLike, cast: ElementKeywords, *, back: bool) -> Any:
        """Encode x, or quantise it if `back`, as one step: update the counts and scales of this object.

        cast: the keywords of the elements' cast. Returns a Scaled, or a float32 array if `back`. An array without
        elements changes nothing.

        Raises:
          ValueError: x has other tiles than at the first step, or an option is unknown. The state is unchanged then.
        """
        from fpsim.runtime.processor import ieee_arithmetic
        from fpsim.scaling.states import steps

        with ieee_arithmetic():
            keywords = self._keywords(cast)
            _, source, source_fmt = checked(x, self.fmt, self.scaling)
            if not source.size:
                return (quantize_scaled if back else encode_scaled)(x, self.fmt, self.scaling, **keywords)
            grid = tiling(source.shape, self.scaling.block).grid
            earlier = self._arrays[self.ARRAYS[-1]].shape if self._arrays else grid
            if grid != earlier:
                raise ValueError(
                    f"x must have the tiles of the first step, {earlier} of block {self.scaling.block}; got shape "
                    f"{source.shape} with {grid}. Use a {type(self).__name__} of its own for each tensor."
                )
            options = element_options_of(self.fmt, self.scaling, keywords)
            step = steps.EncodingStep(source, source_fmt, self.fmt, self._arithmetic, options, keywords)
            result, factors, arrays, recalibrated = self._run(step, back=back)
            saturated, underflowed = steps.count(step, factors)
        # nothing can fail from here on, so that a step happens as a whole or not at all
        self._arrays = arrays
        self._last = ScaleCounts(source.size, saturated, underflowed, 1, int(recalibrated))
        self._counts = self._counts.merge(self._last)
        return result

    def _keywords(self, cast: ElementKeywords) -> ElementKeywords:
        """Return the keywords of a step's cast, `cast`; subclasses may add defaults of their own."""
        return cast

    def _run(self, step: steps.EncodingStep, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        """Encode a step's array without changing this object; each subclass implements it.

        step: the array and the options of its cast. back: True for values instead of codes.

        Returns:
          The Scaled array (float32 values if `back`); the factors that elements were divided by or multiplied with, one
          per tile; a dict of the arrays that the next step needs, by the names in ARRAYS; and True if this step
          computed at least one scale from an amax, so that `ScaleCounts.recalibrations` counts it.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later steps depend on, and the counts: text, numbers and copies of arrays.

        `counts` and `last` are int64 arrays in the order of the fields of `ScaleCounts`. Arrays per tile are included
        after the first step.

        Example:
          >>> import fpsim as fp
          >>> state = fp.DelayedScaling("e4m3", history=2)
          >>> y = state.quantize(np.float32([1.0, -2.0]))
          >>> {name: x.tolist() for name, x in state.state_dict().items() if isinstance(x, np.ndarray)}
          {'counts': [2, 0, 0, 1, 1], 'last': [2, 0, 0, 1, 1], 'amax_history': [[0.0], [2.0]], 'encode_scales': [224.0]}
        """
        return {
            "class": type(self).__name__,
            "fmt": element_fields(self.fmt),
            "scaling": scaling_fields(self.scaling),
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "counts": np.array(astuple(self._counts), np.int64),
            "last": np.array(astuple(self._last), np.int64),
            **{name: array.copy() for name, array in self._arrays.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; later steps are bit for bit those of an uninterrupted sequence.

        Raises:
          ValueError: the state is of another class, format, scaling or options, or its arrays do not fit. This object
            is unchanged then.
        """
        kind = type(self).__name__
        expected = self.state_dict()
        names = {"class", "fmt", "scaling", "options", "counts", "last"}
        if not isinstance(state, Mapping) or not names <= state.keys():
            got = f"one without {', '.join(sorted(names - set(state)))}" if isinstance(state, Mapping) else shown(state)
            raise ValueError(f"the state must be a dict that {kind}.state_dict returned; got {got}.")
        for name in ("class", "fmt", "options"):
            if state[name] != expected[name]:
                raise ValueError(
                    f"the state's {name} must be {expected[name]!r}, as here; got {shown(state[name])}. "
                    "Load it into an object that was made in the same way, or use its load(path)."
                )
        if scaling_from(state["scaling"]) != self.scaling:
            raise ValueError(
                f"the state's scaling must be {self.scaling!r}, as here; got {shown(scaling_from(state['scaling']))}."
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
        """Accept any arrays of a saved state; subclasses raise a ValueError for those that no step produces.

        arrays: the arrays by the names in ARRAYS.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a .npz or .safetensors file, completely or not at all.

        Raises:
          ValueError: the path ends in neither .npz nor .safetensors.
          ImportError: safetensors is not installed.
          OSError: the file cannot be written.
        """
        from fpsim.scaling.file import save

        state = self.state_dict()
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        save(path, arrays, {name: value for name, value in state.items() if name not in arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a new object with the state that `save` wrote.

        path: a file whose name ends in .npz or .safetensors, which decides the kind of file.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the name has another ending, the file is damaged, or it was saved by another class.
          ImportError: the file is a .safetensors file, and the package safetensors is not installed.

        Example:
          >>> import fpsim as fp, pathlib, tempfile
          >>> state = fp.PeriodicScaling(fp.E4M3, every=16)
          >>> y = state.quantize(np.float32([1.0, -2.0]))
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     state.save(pathlib.Path(folder) / "state.npz")
          ...     fp.PeriodicScaling.load(pathlib.Path(folder) / "state.npz")
          <PeriodicScaling to E4M3, fp.scalings.TENSOR, every=16: 1 step>
        """
        from fpsim.scaling.file import load

        arrays, header = load(path)
        if header.get("class") != cls.__name__:
            other = "Scaled" if "report" in header else "something else"
            raise ValueError(
                f"{os.fspath(path)} must hold what {cls.__name__}.save wrote; "
                f"got {header.get('class', other)}. Load it with the class that saved it."
            )
        try:
            state = cls(element_from(header["fmt"]), scaling_from(header["scaling"]), **header["options"])
            state.load_state_dict({**header, **arrays})
        except (KeyError, TypeError, ValueError) as reason:
            raise ValueError(
                f"{os.fspath(path)} must hold what {cls.__name__}.save wrote; it lacks or contradicts it: {reason}"
            ) from reason
        return state

    def __repr__(self) -> str:
        options = "".join(f", {name}={getattr(self, name)!r}" for name in self.OPTIONS)
        plural = "" if self._counts.steps == 1 else "s"
        description = f"{type(self).__name__} to {self.fmt}, {self.scaling!r}{options}"
        return f"<{description}: {self._counts.steps} step{plural}>"


def _plain(scaling: Scaling) -> bool:
    """Return whether a scaling has FP32 scales of one level, no zero points, no amax floor and no smallest scale.

    Its block and its treatment of quotients, overflow, NaN, Inf and zeros may be any.
    """
    default = Scaling()
    free = ("block", "quotient", "division", "overflow", "nan", "infinity", "zero_scale")
    return scaling.replace(**{name: getattr(default, name) for name in free}) == default


def _integer(name: str, value: Any, lowest: int, highest: int | None = None) -> int:
    """Return `value`, an argument, as an int, or raise a ValueError unless it is an integer in lowest .. highest.

    name: the argument's name, for the message. highest: None for no limit.
    """
    if not is_integer(value) or value < lowest or (highest is not None and value > highest):
        valid = f"of at least {lowest}" if highest is None else f"in {lowest} .. {highest}"
        raise ValueError(f"{name} must be an integer {valid}; got {shown(value)}.")
    return int(value)


def _checked_counts(values: Any, name: str) -> ScaleCounts:
    """Return the counts in `values`, an int64 array of a saved state, in the order of the fields of `ScaleCounts`.

    name: the array's name, for the message.

    Raises:
      ValueError: the array has another dtype or shape, or holds a negative number.
    """
    array = np.asarray(values)
    if array.dtype != np.int64 or array.shape != (len(fields(ScaleCounts)),) or np.any(array < 0):
        raise ValueError(
            f"the state's {name} must be {len(fields(ScaleCounts))} int64 numbers of at least 0; got {shown(values)}."
        )
    return ScaleCounts(*(int(value) for value in array))


def _checked_tiles(values: Any, name: str) -> Array:
    """Return a copy of `values`, an array of a saved state, or raise a ValueError if it is not float32.

    name: the array's name, for the message.
    """
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise ValueError(f"the state's {name} must be float32; got {array.dtype}.")
    return array.copy()
