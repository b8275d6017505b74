"""Checks quantizers with scales: codes, scales and the axis along which these lie; and names their recipe."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array, format_of, is_torch, without_gradient, words
from fpsim.casts.cast import decode
from fpsim.errors import shown
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, E4M3, E8M0, FP32
from fpsim.formats.rounding import Rounding
from fpsim.scaling.recipes import ROWS, scaling_of
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling, scaling_fields
from fpsim.scaling.tiling import tile_sizes, tiling
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import CalledQuantizer, QuantizerMisbehaved, read
from fpsim.testing.quantizers.family import UNROUNDED
from fpsim.testing.quantizers.report import Broken, QuantizerReport, broken_at
from fpsim.testing.quantizers.rounder import Words, words_of
from fpsim.testing.quantizers.scaled_faults import Case, RightEncoding, explained

BRIEF = 1 << 14  # elements of a matrix
LISTED = 8  # rivals that a report keeps
FINALISTS = 32  # recipes that are held against every matrix
CARRIED = 6  # the best of them, of which others are tried that differ in one choice
BLOCKS = (
    (-1, -1), (1, -1), (-1, 1), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (16, 1), (32, 1), (64, 1), (128, 1),
    (16, 16), (32, 32), (64, 64), (128, 128),
)  # fmt: skip
RULES: tuple[dict[str, Any], ...] = (
    {}, {"quotient": "amax*(1/max)"}, {"quotient": "1/(max/amax)"}, {"scale_rule": "floor"}, {"scale_rule": "ceil"},
    {"scale_rule": "even"}, {"scale_rule": "rceil"}, {"scale_rule": "rceil", "quotient": "amax*(1/max)"},
    {"scale_rule": "nearest"}, {"scale_rounding": "down"}, {"scale_rounding": "up"},
)  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "division": ("divide", "multiply"), "amax_floor": (0.0, 1e-12, 1e-10, 1e-8, 1e-4), "nan": ("tile", "element"),
    "infinity": ("skip", "propagate", "one"), "zero_scale": ("one", "smallest"),
    "overflow": ("saturate_finite", "saturate", "nonfinite"),
    "tensor_scale": (False, True), "smallest_scale": (None, 2.0**-6),
    "scale_rounding": ("nearest_even", "nearest_away", "down", "up"),
}  # fmt: skip


@dataclass(frozen=True)
class ScalingIdentity:
    """The recipe of scales that a quantizer follows, as far as an array tells.

    Attributes:
      scaling: the `fp.Scaling` that gives all codes and scales, or that differs least.
      names: rows of `fp.scalings` that give them too.
      exact: whether it gives all; differ, of: how many codes and scales it does not give, of how many.
      layout: "tiles" (one scale per tile in the shape of the grid), "transposed", "reciprocal" (scales that multiply),
        both joined by " ", or "values" where only values came back.
      rivals: other scalings that this array does not tell from it.
      excluded: how many of those tried differ.
    """

    scaling: Scaling
    names: tuple[str, ...]
    exact: bool
    differ: int
    of: int
    layout: str
    rivals: tuple[Scaling, ...] = field(repr=False)
    excluded: int = 0

    @property
    def block(self) -> tuple[int, ...]:
        """Of its tiles."""
        return self.scaling.block

    @property
    def scale_rule(self) -> str:
        """How it finds scales."""
        return self.scaling.scale_rule

    def __str__(self) -> str:
        name = f"fp.scalings.{self.names[0]}" if self.names else repr(self.scaling)
        if not self.exact:
            return (
                f"None of {self.excluded:,} recipes; nearest {name}, which differs in {self.differ:,} of {self.of:,}."
            )
        more = f" {len(self.rivals):,} more give the same on this array (.rivals)." if self.rivals else ""
        return f"{name}, scales as {self.layout}; {self.excluded:,} others differ.{more}"


class ReturnedParts:
    """What a quantizer with scales returned: values, or codes as values of the format with their scales."""

    def __init__(self, got: Any, x: Array, fmt: Element) -> None:
        self.scales: Array | None = None
        if isinstance(got, Scaled):
            elements, self.scales = got.codes, np.asarray(got.scales, np.float32)
        elif isinstance(got, (tuple, list)) and len(got) >= 2:
            elements, self.scales = got[0], _scales(got[1], x)
        else:
            elements = got
        if isinstance(fmt, Format):
            self.elements = read(elements, x, fmt).words if self.scales is not None else _values(elements, x)
        else:
            array = np.asarray(as_array(without_gradient(elements), "codes"))
            if array.shape != x.shape:
                raise QuantizerMisbehaved(
                    "shape", f"fn must return the shape of its input, {x.shape}; got {array.shape}.", x
                )
            self.elements = words_of(array.ravel().astype(np.float64))


def _values(elements: Any, x: Array) -> Words:
    array = as_array(without_gradient(elements), "the result")
    if array.shape != x.shape or format_of(array.dtype) is None:
        raise QuantizerMisbehaved(
            "returns", f"fn must return an fp.Scaled, (codes, scales) or values; got {shown(elements)}.", x
        )  # fmt: skip
    return words_of(np.asarray(array.ravel().astype(np.float64)))


def _scales(scales: Any, x: Array) -> Array:
    """Scales as float32; those in bytes are codes of E8M0."""
    array = as_array(without_gradient(scales), "scales")
    if array.dtype == np.uint8:
        array = decode(array, E8M0)
    if format_of(array.dtype) is None:
        raise QuantizerMisbehaved("scales", f"fn must return scales as floats or codes of E8M0; got {array.dtype}.", x)
    return np.asarray(array, np.float32)


def _call(fn: Callable[..., Any], x: Array, fmt: Element) -> ReturnedParts:
    """One call, on NumPy's array or, where fn wants it, on a torch tensor."""
    import sys

    before = x.tobytes()
    try:
        with np.errstate(all="ignore"):
            got = fn(x)
    except Exception as first:
        torch = sys.modules.get("torch")
        if torch is None:
            raise QuantizerMisbehaved(
                "runs", f"fn raised {type(first).__name__}: {first} on shape {x.shape}.", x
            ) from first
        try:
            got = fn(torch.from_numpy(x))
        except Exception as second:
            raise QuantizerMisbehaved(
                "runs", f"fn raised {type(first).__name__}: {first} on an array of NumPy, and {type(second).__name__}: "
                f"{second} on a torch tensor, of shape {x.shape}.", x,
            ) from second  # fmt: skip
    if x.tobytes() != before:
        raise QuantizerMisbehaved("leaves its input alone", f"fn writes into its input of shape {x.shape}.", x)
    if is_torch(got) and got.device.type != "cpu":
        raise QuantizerMisbehaved(
            "device", f"fn must return what it was given, on the CPU; got a tensor on {got.device}.", x
        )
    return ReturnedParts(got, x, fmt)


def _wanted(x: Array, fmt: Element, scaling: Scaling, cast: dict[str, Any], values: bool) -> tuple[Words, Array]:
    """Elements and scales that a scaling gives; values: whether values take the place of elements."""
    q = encode_scaled(x, fmt, scaling, **cast)
    if values:
        return words_of(np.asarray(q.decode().ravel().astype(np.float64))), q.scales
    if isinstance(fmt, Format):
        return _words_of_codes(fmt)[q.codes.ravel()], q.scales
    return words_of(q.codes.ravel().astype(np.float64)), q.scales


@functools.lru_cache(maxsize=16)
def _words_of_codes(fmt: Format) -> Words:
    """The pattern of every code's value."""
    return words_of(fmt.table())


def _layouts(scales: Array, grid: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Every reading of an array of scales as one per tile."""
    squeezed = tuple(size for size in grid if size != 1)
    if scales.shape == grid or (
        scales.size == int(np.prod(grid)) and _flat(scales.shape) in (squeezed, (scales.size,))
    ):
        yield "tiles", scales.reshape(grid)
    if len(grid) == 2 and scales.shape == grid[::-1]:
        yield "transposed", scales.T


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _same_scales(got: Array, want: Array) -> Any:
    return (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))


# ---- identify


def identify_scaling(fn: Callable[..., Any], fmt: Any, x: Any, **cast: Any) -> ScalingIdentity:
    """The recipe of scales of a quantizer: its tiles, their axis, the rule, and how scales are laid out.

    Args:
      fn: takes a matrix and returns an `fp.Scaled`, (codes, scales), or values.
      fmt: the element format.
      x: a float32 matrix that tells recipes apart: several tiles along both axes, of different size. An Inf, a NaN and
        a tile of zeros tell how these are treated.
      cast: rounding and subnormals of the elements, as in `fpsim.encode`.

    Returns:
      A record: `.scaling`, `.names`, `.exact`, `.block`, `.layout`, `.rivals`.

    Raises:
      ValueError: an unknown format, another shape than a matrix, or a function that raises or returns no result.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
      >>> found = fp.testing.identify_scaling(lambda x: fp.encode_scaled(x, "e4m3", fp.scalings.MX_CEIL), "e4m3", x)
      >>> found.names[0], found.block, found.scale_rule, found.layout
      ('MX_CEIL', (1, 32), 'ceil', 'tiles')
    """
    element = element_format(fmt)
    array = np.asarray(x)
    if array.ndim != 2 or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"x must be a float32 matrix; got {shown(x)}.")
    try:
        parts = _call(fn, array.copy(), element)
    except QuantizerMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal
    return _identified([(array, parts)], element, cast)


def _identified(cases: list[tuple[Array, ReturnedParts]], fmt: Element, cast: dict[str, Any]) -> ScalingIdentity:
    seen: dict[Scaling, tuple[int, int, str]] = {}
    first = cases[1:2] or cases  # tells most recipes apart
    roughly = {scaling: _differing(first, fmt, scaling, cast)[0] for scaling in _candidates()}

    telling = cases[::-1]  # those with NaN, Inf and ties tell more recipes from the best than the first ones
    least: list[int] = []  # of what was seen, as many as are carried on

    def score(scaling: Scaling) -> None:
        if scaling not in seen:
            seen[scaling] = _differing(telling, fmt, scaling, cast, least[-1] if len(least) == CARRIED else None)
            least[:] = sorted([*least, seen[scaling][0]])[:CARRIED]

    for scaling in sorted(roughly, key=lambda scaling: roughly[scaling])[:FINALISTS]:
        score(scaling)
    best = sorted(seen, key=lambda scaling: seen[scaling][0])[:CARRIED]
    for _ in range(len(CHOICES)):  # one choice after the other, from the best so far
        further = [changed for scaling in best[:3] for changed in _choices(scaling)]
        for scaling in further:
            score(scaling)
        ranked = sorted(seen, key=lambda scaling: (seen[scaling][0], len(scaling_fields(scaling))))
        if ranked[:3] == best[:3]:
            break
        best = ranked[:CARRIED]
    differ = seen[best[0]][0]
    fits = [scaling for scaling in seen if seen[scaling][0] == differ]
    names = tuple(name for name, row in ROWS.items() if row in fits)
    chosen = ROWS[names[0]] if names else min(fits, key=lambda scaling: len(scaling_fields(scaling)))
    _, of, layout = seen[chosen]
    rivals = tuple(scaling for scaling in fits if scaling != chosen) if differ == 0 else ()
    return ScalingIdentity(
        chosen, names, differ == 0, differ, of, layout, rivals, len(roughly.keys() | seen.keys()) - len(fits)
    )


@functools.cache
def _candidates() -> tuple[Scaling, ...]:
    found = [
        _scaling(block=block, scale_format=scale_format, **rule)
        for block, scale_format, rule in itertools.product(BLOCKS, (FP32, E8M0, BF16, E4M3), RULES)
    ]
    return (*ROWS.values(), *(scaling for scaling in found if scaling is not None))


def _scaling(**fields: Any) -> Scaling | None:
    try:
        return Scaling(**fields)
    except ValueError:
        return None  # no such combination


def _choices(scaling: Scaling) -> Iterator[Scaling]:
    for name, values in CHOICES.items():
        for value in values:
            try:
                yield scaling.replace(**{name: value})
            except ValueError:
                continue


def _differing(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, scaling: Scaling, cast: dict[str, Any],
    enough: int | None = None,
) -> tuple[int, int, str]:  # fmt: skip
    """How many elements and scales a scaling does not give, of how many, and how scales are laid out.

    enough: where more differ, the rest is not looked at.
    """
    total, of, layouts = 0, 0, set()
    for x, parts in cases:
        if enough is not None and total > enough:
            break
        elements, scales = _wanted(x, fmt, scaling, cast, values=parts.scales is None)
        if parts.scales is None:
            total, of = total + int((parts.elements != elements).sum()), of + x.size
            layouts.add("values")
            continue
        of += x.size + scales.size
        wrong = int((parts.elements != elements).sum())
        best, layout = scales.size, "another shape"
        for name, read_scales in _layouts(parts.scales, scales.shape):
            with np.errstate(all="ignore"):
                forms = ((name, scales), (f"{name} reciprocal", np.float32(1) / scales))
            for form, these in forms:
                differ = int((~_same_scales(np.ascontiguousarray(read_scales), these)).sum())
                if differ < best:
                    best, layout = differ, form
        total += wrong + best
        layouts.add(layout)
    layouts -= {"tiles"} if len(layouts) > 1 else set()
    return total, of, " or ".join(sorted(layouts))


# ---- check


def cases_for(scaling: Scaling, fmt: Element) -> dict[str, Array]:
    """Matrices that a scaling has to think about, float32."""
    rng = np.random.default_rng(0)
    rows, columns = _shape(scaling)
    plain = rng.standard_normal((rows, columns))
    tiles = tiling((rows, columns), scaling.block).grid
    height, width = tile_sizes((rows, columns), scaling.block)

    def for_elements(of_tiles: Any) -> Any:
        return np.repeat(np.repeat(of_tiles, height, 0), width, 1)[:rows, :columns]

    spread = plain * for_elements(np.exp2(rng.integers(-12, 12, tiles)))
    largest = np.abs(spread).copy()
    powers = np.exp2(np.floor(np.log2(largest)))
    most = fmt.max if isinstance(fmt, Format) else 127.0
    edge = np.where(rng.random(plain.shape) < 0.5, powers, np.nextafter(powers.astype(np.float32), np.float32(0)))
    full = powers * most / 2.0 ** np.floor(np.log2(most))
    special = spread.copy()
    special[:height, :width] = 0
    special[-1, -1] = -0.0
    amax = _at_ties(scaling, most, rng, tiles)
    ties = np.clip(plain / 5, -0.9, 0.9) * for_elements(amax)
    ties[::height, ::width] = amax * rng.choice([-1, 1], amax.shape)
    outlier = plain.copy()
    outlier[min(height, rows) - 1, min(width, columns) - 1] = 3e4
    seams = _at_element_ties(spread.astype(np.float32), fmt, scaling, rng)
    with np.errstate(all="ignore"):
        found = {
            "ordinary tiles": plain, "tiles of different size": spread, "amax at a power of two": edge,
            "amax at the largest value times a power of two": full, "a tile of zeros": special,
            "constant tiles": np.full(plain.shape, 1.7), "an outlier at a tile's edge": outlier,
            "scales at ties": ties, "elements at ties": seams, "very small values": plain * 2.0**-120,
            "very large values": plain * 2.0**120,
        }  # fmt: skip
        return {name: np.asarray(x, np.float32) for name, x in found.items()}


def _at_ties(scaling: Scaling, most: float, rng: np.random.Generator, tiles: tuple[int, ...]) -> Any:
    """Largest magnitudes of tiles whose scales lie at ties of the scale format, or next to one.

    The first tile has the largest scale, so that a scale of the array is 1.
    """
    fmt = scaling.scale_format
    low, high = max(-6, fmt.min_exponent), min(6, math.frexp(fmt.max)[1] - 1)
    steps = 1 << min(fmt.mantissa_bits, 4)
    halves = (2 * np.arange(steps) + 1) / (2 * steps)
    ties = np.concatenate([(1 + halves) * 2.0**power for power in range(low, high)])
    if not fmt.mantissa_bits:
        ties = np.concatenate([ties, ties / 1.5 * 1.75, ties / 1.5 * 1.9375, ties / 1.5 * 1.25])
    amax = (rng.choice(ties, tiles) * most).astype(np.float32)
    toward = rng.choice([0, 1, 1, 2], tiles).astype(np.float32)
    amax = np.nextafter(amax, amax * toward, dtype=np.float32)
    amax.flat[0] = most * min(fmt.max, 2.0**60)
    return amax


def _at_element_ties(x: Array, fmt: Element, scaling: Scaling, rng: np.random.Generator) -> Array:
    """Ties of elements times scales, so that quotients lie next to ties; each tile keeps its largest magnitude."""
    height, width = tile_sizes(x.shape, scaling.block)
    scales = encode_scaled(x, fmt, scaling).scales
    spread = scales.repeat(height, 0)[: x.shape[0]].repeat(width, 1)[:, : x.shape[1]]
    values = np.arange(128.0) if not isinstance(fmt, Format) else fmt.table()[: fmt.max_code + 1]
    values = np.sort(values[np.isfinite(values) & (values >= 0)])
    with np.errstate(all="ignore"):
        found = (rng.choice((values[1:] + values[:-1]) / 2, x.shape) * spread).astype(np.float32)
    starts = [np.arange(0, size, step) for size, step in zip(x.shape, (height, width), strict=True)]
    amax = np.maximum.reduceat(np.maximum.reduceat(np.abs(x), starts[0], 0), starts[1], 1)
    found[::height, ::width] = amax
    return np.minimum(found, amax.repeat(height, 0)[: x.shape[0]].repeat(width, 1)[:, : x.shape[1]])


def _shape(scaling: Scaling) -> tuple[int, int]:
    """The rows and columns of matrices: three tiles one way where they are narrow, and as short as kernels are cold.

    A recipe has compiled loops of its own from 2**14 elements on, and hundreds are tried.
    """
    height, width = (size if size < 200 else 1 for size in _block(scaling))
    most = max(height, width, 1)
    both = height > 1 and width > 1
    long = max(49, (most if both else 2 * most) + most // 4 + 1)
    short = max(37, most + 5 if both else min(most + most // 4 + 1, BRIEF // long))
    return (long, short) if height > width else (short, long)


def _specials(plain: Array) -> dict[str, Array]:
    """Matrices with an Inf and a NaN, and one that is long where the others are short."""
    infinite, nan = plain.copy(), plain.copy()
    infinite[1, 1], nan[2, 2] = np.inf, np.nan
    return {"an Inf": infinite, "a NaN": nan, "a matrix of the other shape": np.ascontiguousarray(plain.T)}


def _block(scaling: Scaling) -> tuple[int, int]:
    block = scaling.block
    return (1, block[0]) if len(block) == 1 else (block[-2], block[-1])


def check_scaled(
    fn: Callable[..., Any], fmt: Any, scaling: Scaling | str, rounding: str | Rounding, overflow: str | None,
    subnormals: str, seed: int | None,
) -> QuantizerReport:  # fmt: skip
    """`check_quantizer` with a scaling."""
    scaling = scaling_of(scaling)
    element = element_format(fmt)
    box = CalledQuantizer(fn, element if isinstance(element, Format) else FP32)
    cast: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed}
    words_asked = {"scaling": scaling, **{name: value for name, value in cast.items() if value is not None}}
    encode_scaled(np.ones((1, 1), np.float32), element, scaling, **cast)  # refuses what cannot be asked
    held: dict[str, None] = {}
    broken: dict[str, Broken] = {}
    cases: list[tuple[Array, ReturnedParts]] = []
    wrong, of = 0, 0
    try:
        plain = cases_for(scaling, element)
        for name, x in {**plain, **_specials(plain["ordinary tiles"])}.items():
            parts = _call(fn, x.copy(), element)
            again = _call(fn, x.copy(), element)
            cases.append((x, parts))
            if not _same_parts(parts, again):
                broken["calls"] = Broken("calls", f"fn is not deterministic: the same call on {name} differs")
            here, size = _compare(box.name, name, x, parts, element, scaling, cast, held, broken)
            wrong, of = wrong + here, of + size
        held.update(dict.fromkeys(("leaves its input alone", "calls")))
    except QuantizerMisbehaved as refusal:
        broken[refusal.property] = Broken(refusal.property, refusal.sentence)
    fields: dict[str, Any] = {"differ": wrong, "of": of}
    if cases and "calls" not in broken and "runs" not in broken and "returns" not in broken:
        found = _identified(cases, element, {name: cast[name] for name in ("rounding", "subnormals", "seed")})
        others = tuple(repr(rival) for rival in found.rivals if rival != scaling)
        fields |= {"excluded": found.excluded, "rivals": others[:LISTED], "unexplained": found.differ if wrong else 0}
        if wrong and _unrounded(cases):
            fields |= {"causes": (UNROUNDED,), "unexplained": 0}
            fields["diagnosis"] = f"all have one cause: it {UNROUNDED} (0 differ from that)"
        elif wrong:
            fields |= _cause(found, scaling)
            if not found.exact:
                fields |= _fault(cases, element, [scaling, found.scaling], cast)
    elif "calls" in broken:
        fields |= _fault(cases, element, [scaling], cast)
    order = tuple(name for name in held if name not in broken)
    return QuantizerReport(box.name, element, words_asked, order, tuple(broken.values()), **fields)


def _compare(
    call: str, case: str, x: Array, parts: ReturnedParts, fmt: Element, scaling: Scaling, cast: dict[str, Any],
    held: dict[str, None], broken: dict[str, Broken],
) -> tuple[int, int]:  # fmt: skip
    """Note which of codes, scales and axis hold on one matrix; how many elements and scales differ, of how many."""
    elements, scales = _wanted(x, fmt, scaling, cast, values=parts.scales is None)
    shown_fmt = fmt if isinstance(fmt, Format) else FP32
    if parts.scales is None:
        differ = parts.elements != elements
        _elements("values", call, case, x, parts.elements, elements, differ, shown_fmt, held, broken)
        return int(differ.sum()), x.size
    wrong = 0
    differ = parts.elements != elements
    wrong += int(differ.sum())
    _elements("codes", call, case, x, parts.elements, elements, differ, shown_fmt, held, broken)
    readings = dict(_layouts(parts.scales, scales.shape))
    if "tiles" not in readings:
        turned = scales.shape[::-1] == parts.scales.shape
        why = f"scales have shape {parts.scales.shape}, want {scales.shape}"
        broken.setdefault("axis", Broken("axis", why + (": they lie along the other axis" if turned else "")))
        return wrong + scales.size, x.size + scales.size
    held.setdefault("axis", None)
    same = _same_scales(np.ascontiguousarray(readings["tiles"]), scales)
    if same.all():
        held.setdefault("scales", None)
    else:
        tile = tuple(int(i) for i in np.argwhere(~same)[0])
        got, want = readings["tiles"][tile], scales[tile]
        broken.setdefault(
            "scales",
            Broken(
                "scales", f"with {case}, the scale of tile {tile}", got=f"{float(got).hex()} ({float(got)!r})",
                want=f"{float(want).hex()} ({float(want)!r})", input=f"tile {tile} of a matrix of shape {x.shape}",
                count=int((~same).sum()), of=same.size,
            ),
        )  # fmt: skip
    return wrong + int((~same).sum()), x.size + scales.size


def _elements(
    name: str, call: str, case: str, x: Array, got: Words, want: Words, differ: Any, fmt: Format,
    held: dict[str, None], broken: dict[str, Broken],
) -> None:  # fmt: skip
    if not differ.any():
        held.setdefault(name, None)
        return
    at = int(np.argmax(differ))
    place = tuple(int(i) for i in np.unravel_index(at, x.shape))
    if name == "codes":
        one = broken_at(name, x.ravel()[[at]], got[at], want[at], fmt, call)
        shown_got, shown_want = one.got, one.want
    else:
        shown_got, shown_want = (repr(float(pattern.view(np.float64))) for pattern in (got[at], want[at]))
    broken.setdefault(
        name,
        Broken(
            name, f"with {case}, the element at {place}", input_bits=int(words(x.ravel())[at]),
            input=f"x[{place[0]}, {place[1]}] = {pasted(x.ravel()[at])}", got=shown_got, want=shown_want,
            count=int(differ.sum()), of=x.size,
        ),
    )  # fmt: skip


def _unrounded(cases: list[tuple[Array, ReturnedParts]]) -> bool:
    """Whether what came back is always the input."""
    return all(parts.scales is None and (parts.elements == _values(x, x)).all() for x, parts in cases)


def _cause(found: ScalingIdentity, scaling: Scaling) -> dict[str, Any]:
    if not found.exact:
        return {"diagnosis": f"no recipe that was tried explains all. {found}"}
    causes = _difference(found.scaling, scaling)
    if found.layout not in ("tiles", "values"):
        causes.append(f"lays its scales out as {found.layout}")
    name = f" = fp.scalings.{found.names[0]}" if found.names else ""
    text = f"all have one cause: it {'; it '.join(causes)}{name} (0 differ from that)"
    return {"causes": tuple(causes), "diagnosis": text, "unexplained": 0}


def _fault(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, scalings: list[Scaling], cast: dict[str, Any]
) -> dict[str, Any]:
    """The fault beside a recipe that explains everything, where one does."""
    seen: list[Case] = []
    for number, (x, parts) in enumerate(cases):
        scales = parts.scales
        if scales is not None:
            readings = dict(_layouts(scales, tiling(x.shape, scalings[0].block).grid))
            if "tiles" not in readings:
                return {}
            scales = readings["tiles"]
        seen.append(Case(x, parts.elements, scales, cases[number - 1][0] if number else None))
    for scaling in dict.fromkeys(scalings):
        if seen[0].scales is not None and tiling(seen[0].x.shape, scaling.block).grid != seen[0].scales.shape:
            continue
        found = explained(seen, RightEncoding(fmt, scaling, cast))
        if found:
            (words, treated), *others = found
            causes = (words, *_difference(treated, scalings[0]))
            whole = "all have one cause" if len(causes) == 1 else f"{len(causes)} causes together explain all"
            more = f" So would: it {'; it '.join(other for other, _ in others[:2])}." if others else ""
            text = f"{whole}: it {'; it '.join(causes)} (0 differ from that).{more}"
            rivals = tuple(other for other, _ in others)
            return {"causes": causes, "diagnosis": text, "unexplained": 0, "rivals": rivals}
    return {}


def _same_parts(one: ReturnedParts, other: ReturnedParts) -> bool:
    if (one.elements != other.elements).any():
        return False
    if one.scales is None or other.scales is None:
        return one.scales is other.scales
    return one.scales.shape == other.scales.shape and bool(_same_scales(one.scales, other.scales).all())


def _difference(found: Scaling, promised: Scaling) -> list[str]:
    """The fields in which a scaling differs from another, as clauses after "it"."""
    fields = ("block", "scale_format", "scale_rule", "scale_rounding", *CHOICES, "quotient", "tensor_scale")
    return [
        f"has {name}={_short(getattr(found, name))}, not {_short(getattr(promised, name))}"
        for name in dict.fromkeys(fields)
        if getattr(found, name) != getattr(promised, name)
    ]


def _short(value: Any) -> str:
    return value.name if isinstance(value, (Format, Rounding)) else repr(value)
