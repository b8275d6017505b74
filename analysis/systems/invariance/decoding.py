"""`fp.analysis.decoding`, which compares two decoders of one prompt, and a small decoder in any arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fpsim.analysis.measures.log_probabilities import divergence, log_softmax
from fpsim.analysis.systems.invariance.results import DecodingReport, DecodingRow
from fpsim.arrays import Array, as_array, float_array, without_gradient
from fpsim.casts.cast import quantize
from fpsim.errors import require_integer, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format

Step = Callable[[Array], Any]
MOST_STEPS = 1 << 20  # tokens to decode, and rows of a batch: more than any model's context
MOST_WEIGHTS = 1 << 30  # of a RandomDecoder: 8 GiB while they are drawn


def decoding(
    first: Step, second: Step, prompt: Sequence[int], *, steps: int = 64, follow: str = "first"
) -> DecodingReport:
    """Decode one prompt by two decoders, and measure the difference of their next-token probabilities after each token.

    Args:
      first, second: functions of all tokens so far, an int64 array (length,), that return the logits (vocabulary,) of
        the next token: a `fp.analysis.RandomDecoder`, or a model of any library.
      prompt: the tokens with which both begin, integers.
      steps: number of tokens to decode, 1 to 2**20.
      follow: "first": both read the tokens that the first decoder chooses, so that only arithmetic makes a difference;
        "own": each reads the tokens that it chooses.

    Returns:
      A DecodingReport, one row for each decoded token. Tokens are chosen greedily; of equal logits the lowest index is
      chosen.

    Raises:
      ValueError: the prompt is empty or holds no integers of 64 bits, steps is out of range, or logits have other
        shapes.
      TypeError: a decoder cannot be called, or does not return floats.

    Source: docs/batch-invariance.md.

    Example:
      >>> import fpsim as fp
      >>> split = fp.analysis.ScheduledProduct(None, "hopper_bf16_f32", fp.schedules.cublas(split_k=4))
      >>> chain = fp.analysis.ScheduledProduct(None, "hopper_bf16_f32")
      >>> report = fp.analysis.decoding(*(fp.analysis.RandomDecoder(p) for p in (chain, split)), [1, 2, 3], steps=8)
      >>> report.mean_kl > 0, len(report.rows), report.rows[0].length
      (True, 8, 3)
    """
    for name, step in (("first", first), ("second", second)):
        if not callable(step):
            raise TypeError(f"{name} must be a function of tokens that returns logits; got {shown(step)}.")
    _require_size("steps", steps)
    require_word("follow", follow, ("first", "own"))
    tokens = _tokens("prompt", prompt)
    mine, others = tokens, tokens
    rows = []
    for _ in range(steps):
        p, q = _log_probabilities(first(mine), "first"), _log_probabilities(second(others), "second")
        if p.shape != q.shape:
            raise ValueError(f"logits must have one shape; got {p.shape} and {q.shape}.")
        chosen, other = int(np.argmax(p)), int(np.argmax(q))
        with np.errstate(invalid="ignore"):
            kl, differences = float(divergence(p, q)), np.abs(p - q)
        known = differences[~np.isnan(differences)]
        apart = float(known.max()) if known.size else math.nan
        rows.append(DecodingRow(len(mine), chosen, other, float(p[chosen]), float(q[chosen]), kl, apart))
        mine = np.append(mine, chosen)
        others = np.append(others, chosen if follow == "first" else other)
    return DecodingReport(tuple(rows), follow, len(tokens))


def _require_size(name: str, value: object, lowest: int = 1) -> None:
    """Raise an error unless the argument `name` is an integer in `lowest` .. 2**20."""
    require_integer(name, value, lowest)
    if int(value) > MOST_STEPS:  # type: ignore[call-overload]  # an integer
        raise ValueError(f"{name} must be at most 2**20; got {shown(value)}.")


def _tokens(name: str, tokens: Any) -> Array:
    """Return one or more tokens as an int64 array (length,).

    name: the argument's name, for errors.

    Raises:
      ValueError: the tokens are not a sequence of one or more integers that int64 holds.
    """
    try:
        array = np.asarray(tokens)
    except ValueError:  # rows of several lengths
        array = np.zeros(0)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must be one or more tokens, integers of 64 bits in one row; got {shown(tokens)}.")
    return array.astype(np.int64)


def _log_probabilities(logits: Any, name: str) -> Array:
    """Return the float64 log-probabilities of the logits (vocabulary,) that a decoder returned.

    name: the decoder's name in errors. Raises ValueError for another shape, TypeError for logits that are not floats.
    """
    array, _ = float_array(as_array(without_gradient(logits)), f"the logits of {name}")
    if array.ndim != 1 or array.size < 2:
        raise ValueError(f"{name} must return logits of shape (vocabulary,); got {array.shape}.")
    return log_softmax(array)


class RandomDecoder:
    """A transformer with random weights that decodes token by token, with a cache of keys and values.

    It shows the effect of orders of addition on logits: weights and results of layers are rounded to a format, and
    `product` computes every product with weights. Attention and norms are computed in float64, rounded to float32.

    Args:
      product: a function (x (m, k), w (k, n)) -> (m, n): a `fp.analysis.ScheduledProduct` without w, or np.matmul.
      batch: the number of rows m of products, 1 to 2**20: this request and batch - 1 copies of it are decoded together.
      fmt: the format of weights and of results of layers.
      vocabulary: number of tokens. width: length of a token's vector, a multiple of `heads`.
      heads, layers: numbers of attention heads of a layer, and of layers. Together at most 2**30 weights.
      seed: seed of the weights, an integer >= 0.

    Raises:
      ValueError: sizes that do not fit or are too large, or a negative seed.
      TypeError: product cannot be called.

    Example:
      >>> import fpsim as fp
      >>> decoder = fp.analysis.RandomDecoder(np.matmul)
      >>> decoder(np.array([1, 2, 3])).shape
      (256,)
    """

    def __init__(
        self, product: Callable[[Array, Array], Any], *, batch: int = 1, fmt: FormatLike = "bf16",
        vocabulary: int = 256, width: int = 256, heads: int = 4, layers: int = 4, seed: int = 0,
    ) -> None:  # fmt: skip
        if not callable(product):
            raise TypeError(f"product must be a function of x and w; got {shown(product)}.")
        sizes = {"batch": batch, "vocabulary": vocabulary, "width": width, "heads": heads, "layers": layers}
        for name, size in sizes.items():
            _require_size(name, size, 2 if name == "vocabulary" else 1)
        require_integer("seed", seed, 0)
        vocabulary, width, layers = int(vocabulary), int(width), int(layers)
        if width % heads:
            raise ValueError(f"heads must divide width; got {heads} and {width}.")
        weights = 2 * vocabulary * width + 12 * layers * width**2
        if weights > MOST_WEIGHTS:
            raise ValueError(f"a decoder has at most 2**30 weights; got {weights}. Take smaller sizes.")
        self._product, self._batch, self._fmt, self._heads = product, int(batch), find_format(fmt), int(heads)
        draws = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> Array:
            drawn = draws.standard_normal((rows, columns)) * (2.0 / np.sqrt(rows))
            return np.asarray(quantize(drawn.astype(np.float32), self._fmt))

        self._embedding = matrix(vocabulary, width) * np.float32(np.sqrt(vocabulary) / 2)
        self._blocks = [
            (matrix(width, 3 * width), matrix(width, width), matrix(width, 4 * width), matrix(4 * width, width))
            for _ in range(layers)
        ]
        self._head = matrix(width, vocabulary)
        self._tokens = np.zeros(0, np.int64)
        self._caches: list[list[tuple[Array, Array]]] = [[] for _ in range(layers)]
        self._logits = np.zeros(vocabulary, np.float32)

    def __call__(self, tokens: Any) -> Array:
        """Return the logits (vocabulary,), float32, of the token after `tokens`, a sequence of integers.

        If `tokens` begin with those of the last call, only the additional ones are computed.

        Raises:
          ValueError: there is no token, or one is not an integer in 0 .. vocabulary - 1.
        """
        read = _tokens("tokens", tokens)
        if read.min() < 0 or read.max() >= len(self._embedding):
            raise ValueError(f"tokens must be in 0 .. {len(self._embedding) - 1}; got {shown(tokens)}.")
        known = len(self._tokens)
        if len(read) < known or not np.array_equal(read[:known], self._tokens):
            known, self._caches = 0, [[] for _ in self._blocks]
        try:
            for token in read[known:]:
                self._logits = self._next(int(token))
        except BaseException:  # the caches hold keys and values of a part of the tokens
            self._tokens, self._caches = np.zeros(0, np.int64), [[] for _ in self._blocks]
            raise
        self._tokens = read.copy()
        return self._logits.copy()  # callers may change theirs

    def _next(self, token: int) -> Array:
        """Append one token to the caches, and return the logits of the token after it."""
        x = self._embedding[token]
        for (qkv, out, up, down), cache in zip(self._blocks, self._caches, strict=True):
            q, k, v = np.split(self._times(_normed(x), qkv), 3)
            cache.append((k, v))
            x = self._round(x + self._times(self._attended(q, cache), out))
            hidden = self._times(_normed(x), up)
            x = self._round(x + self._times(np.maximum(hidden, 0), down))
        return self._times(_normed(x), self._head)

    def _times(self, x: Array, w: Array) -> Array:
        """Return x (k,) @ w (k, n), computed as one of `batch` equal rows, and rounded to the format."""
        batch = np.repeat(self._round(x)[None], self._batch, axis=0)
        return self._round(np.asarray(self._product(batch, w), np.float32)[0])

    def _round(self, x: Array) -> Array:
        """Return x rounded to the decoder's format."""
        return np.asarray(quantize(x.astype(np.float32), self._fmt))

    def _attended(self, q: Array, cache: list[tuple[Array, Array]]) -> Array:
        """Return the attention (width,) of a query q (width,) over `cache`, a (key, value) for each token so far."""
        keys, values = (np.stack([pair[i] for pair in cache]) for i in (0, 1))  # (length, width)
        result = np.empty_like(q)
        for head in np.split(np.arange(len(q)), self._heads):
            scores = keys[:, head].astype(np.float64) @ q[head] / np.sqrt(len(head))
            weights = np.exp(scores - scores.max())
            result[head] = (weights / weights.sum()) @ values[:, head]
        return result


def _normed(x: Array) -> Array:
    """Return x / sqrt(mean of x^2 over all elements + 1e-6), computed in float64 and rounded to float32."""
    return np.asarray(x / np.sqrt(np.mean(np.square(x.astype(np.float64))) + 1e-6), np.float32)
