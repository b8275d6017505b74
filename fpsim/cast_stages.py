"""The stages of a cast: which kernels run, on which words. Loaded with numba at the first cast."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.cast import CastOptions, holds
from fpsim.formats import DTYPES, FP32, FP64, NAMED, Format
from fpsim.kernels.cast import decode_kernel, encode_kernel, stochastic_kernel
from fpsim.kernels.layout import decode_plan, encode_plan, source_width
from fpsim.kernels.stream import streamable
from fpsim.rounding import Rounding
from fpsim.stages import Array, Stage, run_stages

run = run_stages

LARGE = 1 << 22  # elements from which a kernel of a named format is compiled with its layout as constants
STREAM_BYTES = 1 << 23  # results from this size on would not stay in the caches


def encoding(source: Format, options: CastOptions) -> list[Stage]:
    """From words of the source's dtype to codes."""
    if source in (FP32, FP64):
        width = max(source.bits, source_width(options.fmt))
    else:
        width = source_width(options.fmt)
    stages = [] if source.bits == width else decoding(source, FP32 if width == 32 else FP64, source.storage)
    return [*stages, _encode_stage(width, *options)]


def _encode_stage(
    width: int, fmt: Format, rounding: Rounding, overflow: str, subnormals: str, seed: int | None, random_bits: int
) -> Stage:
    plan = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits)
    mode = int(rounding)

    def frozen(size: int) -> Any:
        return plan.frozen if size >= LARGE and NAMED.get(fmt.name) == fmt else None

    if rounding is Rounding.STOCHASTIC:
        assert seed is not None
        low, high = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)

        def run_stochastic(bits: Array, codes: Array, first: int) -> None:
            stochastic_kernel(width, plan.kind, frozen(bits.size))(bits, codes, plan.layout, np.uint64(first), low, high)

        return Stage(run_stochastic, fmt.storage)

    def run_encode(bits: Array, codes: Array, first: int) -> None:
        _stream(lambda streamed: encode_kernel(width, mode, plan.kind, frozen(bits.size), streamed), bits, codes, plan.layout)

    return Stage(run_encode, fmt.storage)


def _stream(kernel: Any, source: Array, target: Array, layout: Array) -> None:
    """Run a kernel, around the caches where the target is too large for them."""
    middle = streamable(target) if target.nbytes >= STREAM_BYTES else slice(0, 0)
    if middle.start < middle.stop:
        kernel(False)(source[: middle.start], target[: middle.start], layout)
        kernel(True)(source[middle], target[middle], layout)
    kernel(False)(source[middle.stop :], target[middle.stop :], layout)


def decoding(fmt: Format, target: Format, codes: np.dtype[Any]) -> list[Stage]:
    """From codes in a dtype to words of the target's dtype, which holds the format."""
    stages = []
    if codes != fmt.storage:
        stages.append(Stage(_convert, fmt.storage))
    if target in (FP32, FP64):
        return [*stages, _decode_stage(fmt, target)]
    middle = FP32 if holds(FP32, fmt) else FP64
    exact = CastOptions(target, Rounding.NEAREST_EVEN, "nonfinite", "keep", None, 32)
    return [*stages, _decode_stage(fmt, middle), *encoding(middle, exact)]


def _convert(source: Array, target: Array, first: int) -> None:
    """Codes in another integer dtype, known to be in range."""
    np.copyto(target, source, casting="unsafe")


def _decode_stage(fmt: Format, target: Format) -> Stage:
    width = target.bits
    plan = decode_plan(fmt, width)
    if plan is None:
        table = _table(fmt, width)

        def look_up(codes: Array, bits: Array, first: int) -> None:
            table.take(codes, out=bits, mode="clip")  # codes are in range; clip spares a copy

        return Stage(look_up, target.storage)

    def run_decode(codes: Array, bits: Array, first: int) -> None:
        frozen = plan.frozen if codes.size >= LARGE and NAMED.get(fmt.name) == fmt else None
        _stream(lambda streamed: decode_kernel(width, frozen, streamed), codes, bits, plan.layout)

    return Stage(run_decode, target.storage)


@lru_cache(maxsize=64)
def _table(fmt: Format, width: int) -> Array:
    """The bit pattern of every code's value."""
    values = fmt.table().astype(DTYPES[FP32 if width == 32 else FP64])
    return values.view(np.uint32 if width == 32 else np.uint64)
