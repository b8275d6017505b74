"""The layouts that can be written: the functions that make their tensors, and the weights that they accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from fpsim.analysis.tensors.writing import bitsandbytes, gguf_blocks, hqq, mx, nvfp4, one_byte, packed
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight
from fpsim.errors import is_integer, nearest, shown, unknown

GGUF = "gguf:"
EXPERTS = "mxfp4"  # gpt-oss's layout, for matrices and for several experts in one tensor


class WrittenLayout(NamedTuple):
    """A layout that fpsim can write, and the shapes of weights that it accepts.

    Attributes:
      write: function (WeightToWrite, LayoutOptions) -> WrittenWeight, the stored tensors of a weight.
      inputs: the number of inputs of a weight must be a multiple of this; 0 stands for the group size.
      outputs: the number of outputs of a weight must be a multiple of this.
      shares: whether the gate and up projections of a layer must have the same tensor scale, and likewise its query,
        key and value projections.
      takes_inputs: whether the layout stores a scale of the layer's inputs.
    """

    write: Callable[[WeightToWrite, LayoutOptions], WrittenWeight]
    inputs: int = 1
    outputs: int = 1
    shares: bool = False
    takes_inputs: bool = False


LAYOUTS_WRITTEN: Mapping[str, WrittenLayout] = {
    "deepseek_fp8": WrittenLayout(one_byte.deepseek),
    "deepseek_fp8:ue8m0": WrittenLayout(one_byte.deepseek_ue8m0),
    "compressed-tensors:fp8_tensor": WrittenLayout(one_byte.compressed_tensor, takes_inputs=True),
    "compressed-tensors:fp8_channel": WrittenLayout(one_byte.compressed_channel),
    "compressed-tensors:fp8_block": WrittenLayout(one_byte.compressed_block),
    "compressed-tensors:int8": WrittenLayout(one_byte.compressed_int8),
    "compressed-tensors:int4": WrittenLayout(packed.compressed_int4, inputs=0),
    "compressed-tensors:int4_asym": WrittenLayout(packed.compressed_int4_asym, inputs=0),
    "compressed-tensors:nvfp4": WrittenLayout(nvfp4.compressed, inputs=16, shares=True, takes_inputs=True),
    "compressed-tensors:mxfp4": WrittenLayout(partial(mx.compressed, fmt="e2m1"), inputs=32),
    "compressed-tensors:mxfp8": WrittenLayout(partial(mx.compressed, fmt="e4m3"), inputs=32),
    "modelopt:fp8": WrittenLayout(one_byte.modelopt_fp8, takes_inputs=True),
    "modelopt:fp8_channel": WrittenLayout(one_byte.modelopt_fp8_channel),
    "modelopt:nvfp4": WrittenLayout(nvfp4.modelopt, inputs=16, shares=True, takes_inputs=True),
    "modelopt:mxfp8": WrittenLayout(mx.modelopt, inputs=32),
    "gptq": WrittenLayout(partial(packed.gptq, version=1), inputs=0, outputs=8),
    "gptq_v2": WrittenLayout(partial(packed.gptq, version=2), inputs=0, outputs=8),
    "awq": WrittenLayout(packed.awq, inputs=0, outputs=8),
    EXPERTS: WrittenLayout(mx.gpt_oss, inputs=32),
    "torchao:mxfp8": WrittenLayout(partial(mx.torchao, fmt="e4m3"), inputs=32),
    "torchao:mxfp4": WrittenLayout(partial(mx.torchao, fmt="e2m1"), inputs=32),
    "torchao:nvfp4": WrittenLayout(nvfp4.torchao, inputs=16),
    "torchao:mxfp8_swizzled": WrittenLayout(partial(mx.torchao, fmt="e4m3", swizzled=True), inputs=32),
    "torchao:mxfp4_swizzled": WrittenLayout(partial(mx.torchao, fmt="e2m1", swizzled=True), inputs=32),
    "torchao:nvfp4_swizzled": WrittenLayout(partial(nvfp4.torchao, swizzled=True), inputs=16),
    "bitsandbytes:nf4": WrittenLayout(bitsandbytes.nf4),
    "bitsandbytes:nf4_double": WrittenLayout(bitsandbytes.nf4_double),
    "bitsandbytes:int8": WrittenLayout(bitsandbytes.int8),
    **{f"hqq:int{bits}": WrittenLayout(partial(hqq.hqq, bits=bits), inputs=0) for bits in (8, 4, 2, 1)},
    **{f"{GGUF}{kind}": WrittenLayout(partial(gguf_blocks.write, kind=kind), inputs=32) for kind in gguf_blocks.BYTES},
}
# Short name -> full name.
SHORT = {
    "deepseek": "deepseek_fp8", "compressed-tensors": "compressed-tensors:fp8_channel", "modelopt": "modelopt:fp8",
    "gptq_v1": "gptq", "mxfp8": "torchao:mxfp8", "torchao": "torchao:mxfp8", "nvfp4": "compressed-tensors:nvfp4",
    "bitsandbytes": "bitsandbytes:nf4", "nf4": "bitsandbytes:nf4", "hqq": "hqq:int4", "gguf": f"{GGUF}Q8_0",
}  # fmt: skip


def layout_named(name: object) -> str:
    """Return the full name of the layout to write, given its full or short name in any case.

    Raises:
      ValueError: no layout has this name; the message suggests the nearest.

    Example:
      >>> layout_named("compressed-tensors"), layout_named("GGUF:q8_0")
      ('compressed-tensors:fp8_channel', 'gguf:Q8_0')
      >>> layout_named("gptqv2")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: layout must be one of the 37 that docs/layouts.md lists, such as gptq_v2, ...
    """
    words = {known.lower(): known for known in LAYOUTS_WRITTEN} | SHORT
    word = name.lower() if isinstance(name, str) else ""
    if word in words:
        return words[word]
    best = nearest(word, words)
    meant = [words[best]] if best else []
    raise unknown("layout", name, list(LAYOUTS_WRITTEN), SHORT, listing="docs/layouts.md", meant=meant)


def checked_options(layout: str, group_size: int | None, bits: int, symmetric: bool) -> LayoutOptions:
    """Return the options of a layout as `LayoutOptions`, if the layout has them and allows their values.

    layout: full name. group_size: values that share a scale; None for the layout's default. bits: bits of a code.
    symmetric: whether codes are symmetric about zero.

    Raises:
      ValueError: the layout does not have an option, or does not allow its value.
    """
    if group_size is not None and LAYOUTS_WRITTEN[layout].inputs:
        raise ValueError(f"group_size is an option of compressed-tensors' INT4, GPTQ, AWQ and HQQ, not of {layout!r}.")
    if group_size is not None and (not is_integer(group_size) or group_size < 8 or group_size % 8):
        raise ValueError(f"group_size must be a multiple of 8, such as 128 or 64; got {shown(group_size)}.")
    if not is_integer(bits) or bits not in (4, 8) or (bits == 8 and not layout.startswith("gptq")):
        raise ValueError(
            f"bits must be 4, or 8 for GPTQ; got {shown(bits)} for {layout!r}. compressed-tensors:int8 and hqq:int2 "
            "are layouts."
        )
    if not isinstance(symmetric, bool):
        raise ValueError(f"symmetric must be True or False; got {shown(symmetric)}.")
    if not symmetric and not layout.startswith("gptq"):
        raise ValueError(
            f"symmetric=False is an option of GPTQ, not of {layout!r}. int4_asym and awq always have zero points."
        )
    return LayoutOptions(None if group_size is None else int(group_size), int(bits), symmetric)
