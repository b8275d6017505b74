"""The settings of a training run, each with the reason for its default; settings of arithmetic belong to recipes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict

from fpsim.deprecation import renamed_arguments, warn_renamed
from fpsim.display.wording import bytes_in_words, listed
from fpsim.errors import require_integer, require_word, shown
from fpsim.formats.keywords import with_keywords
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.reload import reloadable
from fpsim.torch.operators import torch
from fpsim.torch.plan import BACKENDS
from fpsim.train.operations import WORDS

MODELS = ("transformer", "perceptron")
BY = ("layer", "m", "n", "k")
LARGEST = ("gate_up", "first", "second")  # layers whose results are computed again unless a Recompute names others
WIDTHS, HEAD = 128, 32  # a width is a multiple of 128, and an attention head has 32 features
SEEDS = 1 << 64  # seeds are below it, as torch's generators and `data.py` require

MEMORY = Path("/proc/meminfo")  # Linux's table of memory, in KiB

# ---- settings that all runs share

VALIDATION_BATCHES = 8  # more tokens than one batch has, for the time of 8 forward passes
SAVED_EVERY = 10.0  # seconds that a killed run loses at most; writing a checkpoint takes much less
DIVERGED_ABOVE = 10.0  # a run diverged if its loss exceeds so many times the first step's, that of a random guess
# A run stops after so many skipped steps in a row: other batches do not help a fixed loss scale, and a scale that was
# halved that often is too small for any gradient.
FRUITLESS_FIXED, FRUITLESS = 10, 64


class ModelKeywords(TypedDict, total=False):
    """The keyword arguments of every function that trains a small model.

    model: "transformer" or "perceptron". text: path of the training text, None for the default text. batch: sequences
    or vectors in a micro-batch, None for the default. context: tokens in a sequence. width: the transformer's width.
    micro_batches: micro-batches in a step.
    """

    model: str
    text: str | os.PathLike[str] | None
    batch: int | None
    context: int
    width: int
    micro_batches: int


class RunKeywords(ModelKeywords, total=False):
    """The keyword arguments that `fpsim.train.run` and `fpsim.train.compare` share, besides those of the model.

    steps: steps of the optimizer. backend: the backend that multiplies. arithmetic: "specified" or "torch". measure:
    steps from one measurement of the rounding of operands to the next, 0 for none. recompute: share of the blocks that
    are computed again, or a `Recompute`. offload: share of the blocks whose activations wait in files.
    """

    steps: int
    backend: str
    arithmetic: str
    measure: int
    recompute: Any
    offload: float


MODEL_DEFAULTS: ModelKeywords = {
    "model": "transformer", "text": None, "batch": None, "context": 64, "width": 128, "micro_batches": 1,
}  # fmt: skip
RUN_DEFAULTS: RunKeywords = {
    "steps": 250, **MODEL_DEFAULTS, "backend": "emulated", "arithmetic": "specified", "measure": 25,
    "recompute": 0.0, "offload": 0.0,
}  # fmt: skip
with_model_keywords = with_keywords(ModelKeywords, MODEL_DEFAULTS, last=True)
with_run_keywords = with_keywords(RunKeywords, RUN_DEFAULTS)


@reloadable
@dataclass(frozen=True)
class Recompute:
    """The activations of a model that the backward pass computes again instead of storing them.

    By "layer", only the input of a whole block is stored; the perceptron is one block. By slices ("m", "n" or "k"), the
    results of `layers` are not stored, nor are tensors that the next operation would store. Both are computed again
    from the layer's input, slice by slice. Slices of "m" (tokens) and "n" (features) have the bits of the whole
    product, because operands are quantised whole and each element is summed in the same order. Slices of "k" (terms of
    each sum) are added in float32, one after another, which changes the bits. SwiGLU consumes each slice of "m" or "n"
    of `mlp.gate_up` before the next one is computed; slices of other results are joined.

    Args:
      share: the share of the blocks, 0 to 1, rounded up to whole blocks, counted from the first block.
      by: "layer", "m", "n" or "k".
      slices: number of slices, for "m", "n" and "k".
      layers: shell patterns of linear layers in these blocks, or of the last parts of their names, for "m", "n" and
        "k"; "head" belongs to every block. None for the largest results: "gate_up", or the perceptron's "first" and
        "second".

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> from fpsim.train import Recompute
      >>> Recompute(0.5).blocks(3), Recompute(1.0, "m", slices=4).keeps_bits, Recompute(1.0, "k", slices=4).keeps_bits
      (2, True, False)
    """

    share: float = 1.0
    by: str = "layer"
    slices: int = 1
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_number("share", self.share, highest=1.0)
        require_word("by", self.by, BY)
        require_integer("slices", self.slices, 1)
        object.__setattr__(self, "share", float(self.share))
        object.__setattr__(self, "slices", int(self.slices))
        if self.by == "layer" and self.slices != 1:
            raise ValueError(
                f"slices are for by='m', 'n' or 'k'; got {self.slices} with by='layer'. Leave them out, or choose one."
            )
        if self.layers is not None:
            listed = (self.layers,) if isinstance(self.layers, str) else self.layers
            if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, str) for one in listed):
                raise TypeError(f"layers must be patterns of linear layers, such as ['qkv']; got {shown(self.layers)}.")
            object.__setattr__(self, "layers", tuple(listed))
            if self.by == "layer":
                raise ValueError("layers are for by='m', 'n' or 'k'; by='layer' computes whole blocks again.")

    @property
    def keeps_bits(self) -> bool:
        """True if training has the same bits as without recomputation."""
        return self.by != "k" or not self.share or self.slices == 1

    def named(self, layers: Iterable[str], blocks: int) -> list[str]:
        """Return the names of the layers in the first blocks whose results are computed again in slices.

        Args:
          layers: names of all linear layers of a model.
          blocks: number of the model's blocks; 1 for the perceptron.

        Raises:
          ValueError: a pattern matches no layer.

        Example:
          >>> from fpsim.train import Recompute
          >>> names = ["blocks.0.attn.qkv", "blocks.0.mlp.gate_up", "blocks.1.attn.qkv", "head"]
          >>> Recompute(0.5, "m", 2, layers=("qkv",)).named(names, 2)
          ['blocks.0.attn.qkv']
        """
        if self.by == "layer" or not self.share:
            return []
        names, again = list(layers), self.blocks(blocks)
        for pattern in self.layers or ():
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(f"layers of recompute must name linear layers; {pattern!r} matches none of {names}.")
        patterns = LARGEST if self.layers is None else self.layers
        return [
            name for name in names
            if any(_matches(name, pattern) for pattern in patterns)
            and int(name.split(".")[1] if name.startswith("blocks.") else 0) < again
        ]  # fmt: skip

    def blocks(self, layers: int) -> int:
        """Return the number of blocks that are computed again, for a model with `layers` blocks; rounded up."""
        return whole_blocks(self.share, layers)


def _matches(name: str, pattern: str) -> bool:
    """Return whether a shell pattern matches a layer's dotted name, or the last part of it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


def whole_blocks(share: float, blocks: int) -> int:
    """Return the number of blocks in a share, 0 to 1, of `blocks` blocks, rounded up."""
    return math.ceil(round(share * blocks, 9))  # 1 - 0.9 of 10 blocks is one block


NOTHING = Recompute(0.0)


def recompute_of(value: Any) -> Recompute:
    """Return a `Recompute` for a share of whole blocks, a number in 0 to 1; return a `Recompute` unchanged.

    Raises:
      TypeError, ValueError: value is neither a Recompute nor a number in 0 to 1.

    Example:
      >>> from fpsim.train.settings import recompute_of
      >>> recompute_of(0.25)
      Recompute(share=0.25, by='layer', slices=1, layers=None)
    """
    if isinstance(value, Recompute):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"recompute must be a share of the blocks, or an fp.train.Recompute; got {shown(value)}.")
    require_number("recompute", value, highest=1.0)
    return Recompute(float(value))


@dataclass(frozen=True)
class Settings:
    """The settings of a training run: everything that decides it, apart from its recipe.

    Args:
      steps: the number of steps of the optimizer.
      seed: the seed of the weights, of the batches, and of random draws; 0 .. 2**64 - 1.
      model: "transformer" on text, or "perceptron" on vectors.
      text: a file of text for the transformer; None for Python's help topics.
      backend: the backend that multiplies: "emulated" on the CPU; "float32", torch in place of every unit; "gpu", the
        emulation on a GPU; "hardware", a GPU's tensor cores; "cpu", this processor's matrix instructions.
      arithmetic: "specified", operations whose bits are the same on every machine, or "torch", torch's own.
      batch, context: sequences in a micro-batch (vectors, for the perceptron), and tokens in a sequence.
      width: the transformer's width, a multiple of 128; its SwiGLU has twice as many units, its heads 32 features each.
      micro_batches: micro-batches in a step, for each process; gradients are added in the format `Recipe.gradients`.
      measure: number of steps from one measurement of the rounding of every product's operands to the next; 0 for none.
      recompute: share of the blocks whose activations are computed again in the backward pass, or a `Recompute`.
      offload: share of the blocks whose activations wait for the backward pass in temporary files.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.
    """

    steps: int = 250  # recipes that fail have failed by then, and it takes a minute or two on one core
    seed: int = 0  # equal for all recipes that are compared: they start from one model and see the same batches

    model: str = "transformer"  # has all that low precision must survive; "perceptron" trains in a second
    text: Any = None  # Python's help topics: a download could change or fail

    backend: str = "emulated"  # the bits of a chip without the chip; the others are for comparison
    arithmetic: str = "specified"  # one digest on every machine; torch's bits depend on the processor

    batch: int = 8  # 8 x 64 tokens: weight gradients sum over 512 of them, whole blocks of 128 as FP8 recipes need
    context: int = 64  # long enough for attention to matter; its cost grows with the square
    width: int = 128  # the smallest with whole tiles of 1 x 128; 512 takes a second per step
    micro_batches: int = 1  # more than 1 show the error of adding gradients in 16 bits

    measure: int = 25  # 10 measurements of 250 steps draw a curve for each operand, and take little time
    recompute: Any = NOTHING  # saves memory, which a model of this size does not need
    offload: float = 0.0  # for the same reason

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "width", "micro_batches", "seed", "measure"):
            require_integer(name, getattr(self, name), 0 if name in ("seed", "measure") else 1)
            object.__setattr__(self, name, int(getattr(self, name)))  # NumPy's integers become Python's, for JSON
        if self.seed >= SEEDS:
            raise ValueError(f"seed must be an integer in 0 .. 2**64 - 1; got {shown(self.seed)}.")
        object.__setattr__(self, "recompute", recompute_of(self.recompute))
        require_number("offload", self.offload, highest=1.0)
        if isinstance(self.model, torch.nn.Module):
            raise ValueError(_own_model(self.model))
        require_word("model", self.model, MODELS)
        require_word("backend", self.backend, BACKENDS)
        require_word("arithmetic", self.arithmetic, WORDS)
        if self.width % WIDTHS:
            raise ValueError(f"width must be a multiple of {WIDTHS}, the blocks of the FP8 recipes; got {self.width}.")
        for name, is_given in (("width", self.width != WIDTHS), ("text", self.text is not None)):
            if is_given and self.model != "transformer":
                raise ValueError(f"{name} is for the transformer; got it for the {self.model}. Leave it out.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled object from its fields; in old pickles the field `micro_batches` is named `accumulate`."""
        names = {"accumulate": "micro_batches"}
        self.__dict__.update({names.get(name, name): value for name, value in state.items()})

    @property
    def accumulate(self) -> int:
        """Old name of `micro_batches`; reading it warns."""
        warn_renamed("Settings.accumulate", "Settings.micro_batches")
        return self.micro_batches

    def to_plain(self) -> dict[str, Any]:
        """Return the settings as a dict of plain values, for JSON.

        Example:
          >>> from fpsim.train import Recompute, Settings
          >>> Settings(recompute=Recompute(1.0, "m", 2, layers=("qkv",))).to_plain()["recompute"]["layers"]
          ['qkv']
        """
        fields = asdict(self)
        layers = fields["recompute"]["layers"]
        fields["recompute"]["layers"] = None if layers is None else list(layers)
        fields["text"] = None if self.text is None else str(self.text)
        return fields

    @property
    def least_bytes(self) -> int:
        """Bytes that training certainly needs: float32 weights of transformer blocks, and one linear layer's input."""
        weights = 20 * self.width**2 if self.model == "transformer" else 0  # two blocks of ten width x width matrices
        return 4 * (weights + self.tokens * self.width)

    @property
    def specified(self) -> bool:
        """True if `arithmetic` is "specified", so that all operations of a step have the same bits on every machine."""
        return self.arithmetic == "specified"

    @property
    def tokens(self) -> int:
        """Number of rows of a linear layer's input in a micro-batch: tokens, or vectors for the perceptron."""
        return self.batch * (self.context if self.model == "transformer" else 1)


def refuse_beyond_memory(settings: Settings) -> None:
    """Raise a ValueError if training certainly takes more memory than this machine has, swap included.

    Nothing is refused where the operating system does not state its memory in /proc/meminfo.
    """
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        memory = 1024 * sum(int(lines[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        return
    if settings.least_bytes > memory:
        names = ("batch", "context", "width") if settings.model == "transformer" else ("batch",)
        raise ValueError(
            f"training with {listed([f'{name}={getattr(settings, name)}' for name in names])} needs more than "
            f"{bytes_in_words(settings.least_bytes)} of memory; this machine has {bytes_in_words(memory)}. Take a "
            f"smaller {' or '.join(names)}."
        )


def _own_model(model: Any) -> str:
    """Return the error text for a user's own model, which names the first module that torch's operations compute.

    model: a torch module. Torch's operations do not have the same bits on every machine. torch.nn.Linear, Embedding and
    ReLU are not named, because fpsim has operations for them with the same bits everywhere.
    """
    specified = (torch.nn.Linear, torch.nn.Embedding, torch.nn.ReLU)
    leaves = [(name, part) for name, part in model.named_modules() if not any(part.children())]
    name, part = next(((name, part) for name, part in leaves if not isinstance(part, specified)), ("", model))
    place = f"{type(part).__name__} {name!r}" if name else type(part).__name__
    return (
        f"model must be one of {', '.join(MODELS)}, whose operations are specified; got {type(model).__name__}, where "
        f"{place} would have torch's bits. Train it in your own loop with fp.torch.quantize_linears."
    )


setattr(Settings, "__init__", renamed_arguments(accumulate="micro_batches")(Settings.__init__))  # noqa: B010


def settings_of(*, model: str = "transformer", batch: int | None = None, **fields: Any) -> Settings:
    """Return the settings of a run from keyword arguments; `batch` None means 8, or 128 for the perceptron.

    fields: the other fields of `Settings`.

    Raises:
      TypeError, ValueError: `Settings` refuses an argument.
    """
    if batch is None:
        batch = 128 if model == "perceptron" else 8
    return Settings(model=model, batch=batch, **fields)
