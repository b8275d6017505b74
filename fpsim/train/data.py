"""Data to train on: a text, digits, or a synthetic set; a batch depends only on seed, step and micro-batch number."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fpsim.display.optional import load
from fpsim.errors import require_integer, shown
from fpsim.files import path_of

Pair = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

VALIDATION = 10  # one tenth of the data is for validation
FEATURES = 128  # a multiple of 128, so that tiles of 1x128 are whole
CLASSES = 10
EXAMPLES = 8192  # vectors of the synthetic set
HIDDEN = 64  # hidden units of the network that assigns its classes
WORD = 1 << 64  # seeds, steps and micro-batch numbers are below it, as the generator takes 64 bits of each
BATCHES, PERMUTATION, TEACHER, INPUTS, WEIGHTS = range(5)  # streams of random numbers


class Data(Protocol):
    """The attributes and methods that a training loop requires of a data set."""

    @property
    def kind(self) -> str:
        """Name of the data set: "text", "digits" or "teacher_student"."""

    @property
    def digest(self) -> str:
        """SHA-256 of the data set in hexadecimal; a run cannot be resumed with data of another digest."""

    def batch(self, seed: int, step: int, micro: int = 0, *, batch: int, context: int) -> Pair:
        """Return (inputs, targets) of micro-batch `micro` of a step; they depend only on the arguments.

        For a text they are int64 (batch, context): passages of `context` tokens, and for each token the next one. For
        vectors they are float32 (batch, 128) and int64 classes (batch,).
        """

    def validation(self, batches: int, batch: int, context: int) -> Sequence[Pair]:
        """Return `batches` pairs (inputs, targets) from the data kept for validation, the same at each call.

        batch, context: the number of passages or vectors in each pair, and of tokens in each passage.
        """


# ---- texts


@dataclass(frozen=True)
class Corpus:
    """A text as one integer token per character: nine tenths to train with, the last tenth for validation.

    digest: SHA-256 of the text in UTF-8. vocabulary: the different characters, sorted; token i is the i-th one. train,
    held_out: tokens of both parts, int64 (tokens,).

    Example:
      >>> from fpsim.train.data import corpus
      >>> text = corpus(None)
      >>> inputs, targets = text.batch(0, 7, batch=8, context=64)
      >>> inputs.shape, (inputs[:, 1:] == targets[:, :-1]).all()
      ((8, 64), np.True_)
    """

    kind: str
    digest: str
    vocabulary: str
    train: Integers = field(repr=False)
    held_out: Integers = field(repr=False)

    def batch(self, seed: int, step: int, micro: int = 0, *, batch: int, context: int) -> tuple[Integers, Integers]:
        """Return random passages of the training text, which depend only on the arguments and may overlap.

        Args:
          seed, step, micro: integers in 0 .. 2**64 - 1; `micro` counts micro-batches of the step over all processes.
          batch, context: the number of passages, and of tokens in each.
        Returns:
          Two int64 arrays (batch, context): tokens, and for each token the one that follows it.
        Raises:
          TypeError, ValueError: an argument is no integer or out of range, or the text's last tenth, `held_out`, has at
            most `context` tokens, so that it has no passage for validation.
        """
        self._require(context, 1)
        places = indices(seed, step, micro, batch, len(self.train) - context)
        return _passages(self.train, places, context)

    def validation(self, batches: int, batch: int, context: int) -> list[tuple[Integers, Integers]]:
        """Return passages spread evenly over the last tenth of the text, the same at each call.

        Args:
          batches, batch, context: the number of batches, of passages in each, and of tokens in each passage.
        Returns:
          A list of pairs like those that `batch` returns, in the order of the text.
        Raises:
          TypeError, ValueError: an argument is not a positive integer, or the text has fewer different passages.
        """
        count = _product(batches, batch)
        self._require(context, count)
        places = _spread(count, len(self.held_out) - context)
        return [_passages(self.held_out, some, context) for some in places.reshape(batches, batch)]

    def _require(self, context: int, passages: int) -> None:
        """Raise a ValueError if the held-out text has fewer than `passages` different passages of `context` tokens."""
        require_integer("context", context, 1)
        if len(self.held_out) < context + passages:
            raise ValueError(
                f"text must have at least {VALIDATION * (context + passages)} characters for passages of {context}: "
                f"its last tenth must hold {passages} of them for validation; got "
                f"{len(self.train) + len(self.held_out)}. Take a longer text, or a smaller context or batch."
            )


def corpus(text: object = None) -> Corpus:
    """Return the characters of a text file as a `Corpus` of integer tokens.

    Args:
      text: path of a file in UTF-8, whose characters are not changed; None for the help topics that come with
        Python (pydoc_data.topics, sorted by name), which differ between versions of Python, as does `Corpus.digest`.
    Raises:
      TypeError: `text` is not a path.
      ValueError: the file cannot be read, is not UTF-8, or is empty.
      ImportError: this Python comes without its help topics.

    Example:
      >>> from fpsim.train.data import corpus
      >>> len(corpus(None).vocabulary) < 128
      True
    """
    characters = _help_topics() if text is None else _read(text)
    codes = np.frombuffer(characters.encode("utf-32-le"), np.uint32)
    characters_used = np.flatnonzero(np.bincount(codes))  # sorting half a million characters takes ten times as long
    token_of = np.zeros(characters_used[-1] + 1, np.int64)
    token_of[characters_used] = np.arange(len(characters_used))
    tokens = token_of[codes]
    first = len(tokens) - len(tokens) // VALIDATION
    digest = hashlib.sha256(characters.encode()).hexdigest()
    return Corpus("text", digest, "".join(map(chr, characters_used)), _fixed(tokens[:first]), _fixed(tokens[first:]))


def _help_topics() -> str:
    """Return Python's help topics, sorted by name, as one text; raise an ImportError if this Python lacks them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ImportError(
            "the default text is pydoc_data.topics, which this Python comes without: pass text=, a path of your own"
        ) from None
    return "\n".join(topics[name] for name in sorted(topics))


def _read(text: object) -> str:
    """Return the characters of the file at path `text`; raise a ValueError if it is unreadable, empty or not UTF-8."""
    path = path_of(text, "text")
    where = shown(str(path))
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as reason:  # a null byte in a path is a ValueError
        said = getattr(reason, "strerror", None) or str(reason)
        raise ValueError(f"text must be a file that can be read; got {where}: {said}. Name another.") from None
    if not data:
        raise ValueError(f"text must be a file of some characters; got {where}, which is empty. Name another.")
    try:
        return data.decode()
    except UnicodeDecodeError as reason:
        raise ValueError(
            f"text must be a file in UTF-8; got {where}, where byte {reason.start} (0x{data[reason.start]:02x}) is "
            "invalid. Convert it, for example with iconv."
        ) from None


def _passages(tokens: Integers, places: Integers, context: int) -> tuple[Integers, Integers]:
    """Return two arrays (len(places), context): the tokens from each index in `places` on, and their next tokens."""
    passages = tokens[places[:, None] + np.arange(context + 1)]  # (batch, context + 1)
    return passages[:, :-1].copy(), passages[:, 1:].copy()


# ---- vectors with a class


@dataclass(frozen=True)
class Examples:
    """Vectors of 128 numbers, each with one of 10 classes: nine tenths to train with, one tenth for validation.

    Attributes:
      kind: "digits" or "teacher_student".
      digest: SHA-256, in hex, of all vectors in little-endian float32, then all classes in little-endian int64.
      train, held_out: the vectors for training and for validation, float32 (examples, 128).
      train_classes, held_out_classes: their classes, int64 (examples,).
    """

    kind: str
    digest: str
    train: Floats = field(repr=False)
    train_classes: Integers = field(repr=False)
    held_out: Floats = field(repr=False)
    held_out_classes: Integers = field(repr=False)

    def batch(self, seed: int, step: int, micro: int = 0, *, batch: int, context: int = 0) -> tuple[Floats, Integers]:
        """Return vectors and classes drawn at random with replacement, which depend only on the arguments.

        Args:
          seed, step, micro: integers in 0 .. 2**64 - 1, `micro` the micro-batch's number; `context` is ignored.
          batch: the number of examples.
        Returns:
          Inputs, float32 (batch, 128), and classes, int64 (batch,).
        Raises:
          TypeError, ValueError: an argument is not an integer or out of range.

        Example:
          >>> from fpsim.train.data import teacher_student
          >>> inputs, classes = teacher_student(0).batch(0, 7, batch=32)
          >>> inputs.shape, inputs.dtype, classes.shape
          ((32, 128), dtype('float32'), (32,))
        """
        places = indices(seed, step, micro, batch, len(self.train))
        return self.train[places], self.train_classes[places]

    def validation(self, batches: int, batch: int, context: int = 0) -> list[tuple[Floats, Integers]]:
        """Return `batches` pairs (vectors, classes) spread evenly over the validation set, `batch` vectors in each.

        context: ignored.

        Raises:
          TypeError, ValueError: an argument is not a positive integer, or the validation set has fewer vectors.
        """
        count = _product(batches, batch)
        if count > len(self.held_out):
            raise ValueError(
                f"batches * batch must be at most {len(self.held_out)}, the {self.kind} kept for validation; got "
                f"{batches} * {batch}. Take fewer."
            )
        places = _spread(count, len(self.held_out)).reshape(batches, batch)
        return [(self.held_out[some], self.held_out_classes[some]) for some in places]


def examples(seed: int = 0) -> Examples:
    """Return the data set `digits(seed)`, or `teacher_student(seed)` if scikit-learn is not installed.

    Example:
      >>> from fpsim.train.data import examples
      >>> examples(0).kind in ("digits", "teacher_student")
      True
    """
    try:
        return digits(seed)
    except ImportError:
        return teacher_student(seed)


def digits(seed: int = 0) -> Examples:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels as a data set.

    The seed permutes them, and the last tenth is for validation. Each pixel is standardised by its mean and standard
    deviation over the training digits, or 0 if constant in them. They follow from exact integer sums, so the bits
    are the same on every machine. The 64 numbers are features 0 .. 63 and again features 64 .. 127, because 64 zeros in
    their place would make half of all products zero.

    Raises:
      TypeError, ValueError: the seed is not an integer in 0 .. 2**64 - 1.
      ImportError: scikit-learn is not installed.
    """
    order_of = random_words(seed, PERMUTATION, 0, 0)
    table = _table_of_digits()
    table = table[np.argsort(order_of.random_raw(len(table)), kind="stable")]
    pixels, classes = table[:, :-1], table[:, -1]
    seen = pixels[: len(pixels) - len(pixels) // VALIDATION]
    count, total, squares = len(seen), seen.sum(0), (seen * seen).sum(0)
    spread = np.sqrt((count * squares - total * total).astype(np.float64))  # count * standard deviation
    standard = (count * pixels - total) / np.where(spread > 0, spread, np.inf)
    return _split("digits", np.tile(standard, 2).astype(np.float32), classes)


@cache
def _table_of_digits() -> Integers:
    """Return scikit-learn's digits as int64 (1797, 65): 64 pixels and the class.

    Their file is read directly, as importing scikit-learn takes a second; if it is not found, scikit-learn is imported.
    """
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as rows:
                return np.loadtxt(rows, np.int64, delimiter=",")
    loaded = load("sklearn.datasets", "the data set of digits").load_digits()
    return np.column_stack([loaded.data, loaded.target]).astype(np.int64)


def teacher_student(seed: int = 0) -> Examples:
    """Return 8,192 random vectors, each with the class that a random network (128-64-10 units, ReLU) assigns.

    Each number is (set bits among 64 random bits - 32) / 4: nearly normal, with standard deviation 1. The network's
    weights are drawn the same way, and it computes with integers. From each of its ten outputs the mean over all
    vectors is subtracted; the largest is the class. So every machine and every NumPy creates the same set.

    Raises:
      TypeError, ValueError: the seed is not an integer in 0 .. 2**64 - 1.

    Example:
      >>> from fpsim.train.data import teacher_student
      >>> data = teacher_student(0)
      >>> data.train.shape, data.held_out.shape, data.digest[:8]
      ((7373, 128), (819, 128), '80652bfe')
    """
    teacher = random_words(seed, TEACHER, 0, 0)
    first, second = _counts(teacher, FEATURES, HIDDEN), _counts(teacher, HIDDEN, CLASSES)
    inputs = _counts(random_words(seed, INPUTS, 0, 0), EXAMPLES, FEATURES)
    outputs = np.maximum(inputs @ first, 0) @ second  # (examples, classes)
    classes = np.argmax(EXAMPLES * outputs - outputs.sum(0), axis=1)
    return _split("teacher_student", (inputs / 4).astype(np.float32), classes)


def _counts(generator: np.random.Philox, *shape: int) -> Integers:
    """Draw int64 numbers of a shape: set bits among 64 bits from `generator`, minus 32 (nearly normal, deviation 4)."""
    words = generator.random_raw(int(np.prod(shape)))
    return np.bitwise_count(words).astype(np.int64).reshape(shape) - 32


def _split(kind: str, inputs: Floats, classes: Integers) -> Examples:
    """Return a data set of vectors (examples, 128) and classes (examples,), named `kind`; hold out the last tenth."""
    digest = hashlib.sha256(inputs.astype("<f4").tobytes() + classes.astype("<i8").tobytes()).hexdigest()
    first = len(inputs) - len(inputs) // VALIDATION
    inputs.flags.writeable = False
    classes = _fixed(classes)
    return Examples(kind, digest, inputs[:first], classes[:first], inputs[first:], classes[first:])


# ---- random numbers: functions of the seed by NumPy's Philox, the same everywhere


def indices(seed: int, step: int, micro: int, count: int, below: int) -> Integers:
    """Return random int64 (count,) in 0 to below - 1 that depend only on the arguments.

    Integer i is (w // 2**32) * below // 2**32, where w is 64-bit number i of NumPy's generator Philox(key=[seed, 0],
    counter=[0, 0, micro, step]). NumPy guarantees these 64-bit numbers in all versions, but not the results of
    functions such as `integers`. Each integer has probability 1 / below, up to a relative error of below / 2**32.

    Args:
      seed, step, micro: integers in 0 .. 2**64 - 1, else a TypeError or ValueError is raised.
      count: the number of integers, at least 1.
      below: the end of their range, in 1 .. 2**31.

    Example:
      >>> from fpsim.train.data import indices
      >>> indices(0, 7, 0, 4, 1000)
      array([782, 755,  49, 270])
    """
    generator = random_words(seed, BATCHES, step, micro)
    require_integer("batch", count, 1)
    if below > 1 << 31:
        raise ValueError(f"a text may have at most 2**31 starts of passages; got {below}. Use a part of it.")
    words = generator.random_raw(int(count)) >> np.uint64(32)
    return (words * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def random_words(seed: int, stream: int, step: int, micro: int) -> np.random.Philox:
    """Return a NumPy Philox generator whose 64-bit numbers depend only on the four arguments.

    stream: a number for the purpose, such as BATCHES. The others must be in 0 .. 2**64 - 1, else an error is raised.
    """
    for name, value in (("seed", seed), ("step", step), ("micro", micro)):
        require_integer(name, value, 0)
        if value >= WORD:
            raise ValueError(f"{name} must be an integer in 0 .. 2**64 - 1; got {shown(value)}.")
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, micro, step], np.uint64)
    return np.random.Philox(key=key, counter=counter)


# ---- places


def _product(batches: int, batch: int) -> int:
    """Return batches * batch, after checking that both are positive integers."""
    require_integer("batches", batches, 1)
    require_integer("batch", batch, 1)
    return batches * batch


def _spread(count: int, places: int) -> Integers:
    """Return `count` <= places different integers, spread evenly from 0 to places - 1, both included."""
    return np.arange(count) * (places - 1) // max(1, count - 1)


def _fixed(tokens: npt.NDArray[np.integer]) -> Integers:
    """Return integers as a read-only int64 copy."""
    fixed = tokens.astype(np.int64)
    fixed.flags.writeable = False
    return fixed
