"""The stored tensors of one quantised weight, and the weight that they represent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.layouts.unpacking import values_of
from fpsim.analysis.tensors.operand import pieces_of
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.arrays import FORMAT_OF, Array

LONGEST = 1 << 62  # limit of stated lengths, such as those of blocks, which int64 indices are divided by
Decoder = Callable[[Array, int], Array]  # (rows of codes, the number of the first one) -> rows of float32 values


class LayoutError(ValueError):
    """The error raised if the tensors of a quantised weight do not fit each other; the message says why."""


def whole(one: Tensor) -> Array:
    """Return all elements of a small tensor as one array of the tensor's shape."""
    pieces = list(one.chunks())
    return (np.concatenate(pieces) if pieces else np.empty(0, np.float32)).reshape(one.shape)


@dataclass(frozen=True)
class WeightParts:
    """The stored tensors of one quantised weight: codes, and the tensors that accompany them.

    Attributes:
      name: name of the weight in the unquantised model.
      codes: the tensor of codes.
      beside: key -> another tensor of the weight, such as {"scale": ..., "zero_point": ...}.
      settings: settings of the checkpoint's configuration, such as {"checkpoint_format": "gptq_v2"}.
      minus_zero: whether the library that wrote the weight reads the code of -0 as -0, and not as +0.
    """

    name: str
    codes: Tensor
    beside: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    minus_zero: bool = True

    @cached_property
    def stored_bits(self) -> float:
        """Number of bits of all stored tensors of the weight together."""
        return math.fsum(one.size * one.stored_bits for one in (self.codes, *self.beside.values()))

    def array(self, key: str) -> Array:
        """Return the tensor that accompanies the codes under this key, `beside[key]`, as an array of its dtype."""
        return whole(self.beside[key])

    def floats(self, key: str) -> Array:
        """Return the tensor that accompanies the codes under this key, `beside[key]`, as an array of float32 values."""
        return values_of(self.array(key), FORMAT_OF.get(dtype_of(self.beside[key].dtype)))

    def text(self, key: str) -> str:
        """Return the text whose UTF-8 bytes are the elements of `beside[key]`; raise a LayoutError if they are not."""
        try:
            if self.beside[key].dtype == "uint8":
                return self.array(key).tobytes().decode()
        except UnicodeDecodeError:
            pass
        raise LayoutError(f"its {key} is not a text in UTF-8, with a byte for each element")

    def number(self, key: str) -> float:
        """Return the only element of `beside[key]`, a tensor that accompanies the codes.

        Raises:
          LayoutError: the tensor has another number of elements.
        """
        if self.beside[key].size != 1:
            raise LayoutError(f"its {key} has the shape {self.beside[key].shape}; wanted one value")
        return float(np.asarray(self.array(key), np.float32).reshape(-1)[0])

    def weight(
        self, shape: Sequence[int], words: str, load: Callable[[], Decoder], outputs_last: bool | None = None
    ) -> Tensor:
        """Return the weight as a tensor whose values are decoded in chunks, some rows of codes at a time.

        Args:
          shape: shape of the weight.
          words: text on the format and scales, used in place of a dtype's name.
          load: reads the scales, and returns a function of (rows of codes as stored, index of the first row) that
            returns the rows' values, converted to float32 if they are not.
          outputs_last: whether the weight's last axis is that of the outputs; None if unknown.
        """
        codes = self.codes
        width = codes.shape[-1] if codes.shape else 1
        rows = max(codes.size // max(width, 1), 1)
        at_once = max(CHUNK // max(math.prod(shape) // rows, 1), 1)

        def bands() -> Iterator[Array]:
            decode, first = load(), 0
            for part in codes.chunks(at_once * max(width, 1)):
                band = part.reshape(-1, width)
                yield np.ascontiguousarray(decode(band, first), np.float32).reshape(-1)
                first += len(band)

        return self.weight_of(shape, words, bands, outputs_last)

    def weight_of(
        self, shape: Sequence[int], words: str, bands: Callable[[], Iterator[Array]], outputs_last: bool | None = None
    ) -> Tensor:
        """Return the weight as a tensor of this shape, whose values are the flat float32 arrays that `bands()` yields.

        words: text on the format and scales, used in place of a dtype's name. outputs_last: whether the weight's last
        axis is that of the outputs; None if unknown.
        """
        return replace(
            self.codes, name=self.name, shape=tuple(shape), dtype=words, left_out="", outputs_last=outputs_last,
            read=lambda wanted: pieces_of(bands(), wanted), bits=self.stored_bits / max(math.prod(shape), 1),
        )  # fmt: skip
