"""The function `fp.analysis.record`, which records the products of a model while the model runs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from fpsim.analysis.models.measuring import FORMATS, SAMPLE, Measure
from fpsim.analysis.models.monitors import HasScale
from fpsim.analysis.models.recording import SMALLEST, Recording
from fpsim.analysis.models.selection import Selection
from fpsim.display.optional import load
from fpsim.display.wording import plural
from fpsim.errors import is_integer, require_integer, require_kind, shown
from fpsim.formats.element import ElementLike

if TYPE_CHECKING:
    import torch


def record(
    model: torch.nn.Module,
    *,
    every: int | Collection[int] = 1,
    layers: str | Sequence[str] = ("*",),
    keep: int = 0,
    formats: Sequence[ElementLike] = FORMATS,
    sample: int | None = SAMPLE,
    seed: int = 0,
    start: int = 1,
    scaler: HasScale | None = None,
    outputs: bool = False,
) -> AbstractContextManager[Recording]:
    """Record the products of a model while it trains or infers: operands, results and gradients.

    The recording has one row for each recorded step, layer (linear, convolution, embedding, attention) and tensor:
    input, weight, output, output gradient and weight gradient, in the dtypes that the product read and wrote, under
    autocast too. The model's results keep their bits.

    A step ends when a torch optimizer has updated weights of the model; micro-batches before that are merged. A forward
    pass without gradients is a step by itself, unless the model is trained: then it is a validation, and not recorded.
    `r.step()` ends a step by hand, for loops without a torch optimizer.

    Args:
      model: a torch.nn.Module that runs eagerly.
      every: the steps to record: n for the steps 1, 1 + n, 1 + 2 n, ..., or the numbers of the steps.
      layers: one or several shell patterns of layer names, such as "blocks.*.mlp.*"; the products of queries, keys and
        values in a module are its layer "attention".
      keep: number of steps whose operands are kept in memory, for `r.study()`; the seed selects them.
      formats: float formats whose error is measured; those of up to 8 bits have one scale per tensor, from its amax.
      sample: number of elements of each tensor whose error is measured, in blocks of 2048 successive ones; None for
        all. Ranges are of all elements.
      seed: seed of the choice of steps whose operands are kept.
      start: the number of the first step, for a training run that is continued.
      scaler: a torch.amp.GradScaler, to record its scale and the steps that it skipped; or None.
      outputs: whether to keep the model's complete output of every recorded step in `r.outputs`, and in files that
        `r.save` writes: the `logits` of the output if it has any, else its first float tensor.
        `fp.analysis.compare_runs` compares the outputs of two recordings.
    Returns:
      A context manager for a `Recording`, which is filled while the block runs.
    Raises:
      TypeError: model is not a torch.nn.Module, or another argument has a wrong type.
      ValueError: the model has no products, is compiled, or is on the meta device or a missing device; a pattern
        matches no layer; a format is unknown; or a number is out of range.
      ImportError: torch is not installed.

    Warns:
      UserWarning: nothing was recorded; most of the model was not seen; or a layer had inputs of fewer than 1,000
        values, whose shares mean little.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> with fp.analysis.record(model, every=2, keep=1) as r:
      ...     for _ in range(4):
      ...         optimizer.zero_grad()
      ...         model(torch.ones(64, 32)).square().mean().backward()
      ...         optimizer.step()
      >>> r.steps, r.layers, r[1, "2", "output_gradient"].shape
      ((1, 3), ('0', '2'), (64, 8))
    """
    torch = load("torch", "recording a model")
    check_model(torch, model)
    selection = Selection(model, layers)
    for name, value, lowest in (("keep", keep, 0), ("start", start, 1), ("seed", seed, 0)):
        require_integer(name, value, lowest)
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, or have its get_scale(); got {shown(scaler)}.")
    require_kind("outputs", outputs, bool, "True or False")
    is_recorded = _recorded(every, start)
    measure = Measure(formats, sample)
    parameters = repr([(name, tuple(p.shape)) for name, p in model.named_parameters()])
    described = f"{type(model).__name__} {hashlib.sha256(parameters.encode()).hexdigest()[:12]}"
    recording = Recording(described, measure.names, measure.sample, int(keep), int(seed))
    return _recording(model, recording, selection, measure, is_recorded, int(start), scaler, outputs)


@contextmanager
def _recording(model: Any, recording: Recording, *settings: Any) -> Iterator[Recording]:
    """Return a context manager that records a model into `recording`, and at its end warns of what is missing.

    model: a torch.nn.Module. settings: the arguments of `Watch` after model and recording: the layers, the function
    that measures tensors, the recorded steps, the first step's number, the loss scaler, and whether to keep outputs.
    There are warnings of unrecorded products, of missing parts of the model, and of layers with few inputs.
    """
    from fpsim.analysis.models.watching.watch import Watch

    watch = Watch(model, recording, *settings)
    watch.open()
    try:
        yield recording
    finally:
        watch.close()
    said = watch.warnings
    for note in said:
        warnings.warn(note, stacklevel=3)
    if recording.steps and recording.coverage.headline and not said:
        warnings.warn(recording.coverage.headline, stacklevel=3)
    elif not len(recording) and not said:
        warnings.warn(
            "nothing was recorded: no forward pass of the model ran in a step to record. Call the model itself.",
            stacklevel=3,
        )
    few = recording.too_few()
    if few:
        layer = min(few, key=lambda name: few[name])
        warnings.warn(
            f"{plural(len(few), 'layer')} had inputs of fewer than {SMALLEST:,} values in all, whose shares mean "
            f"little, such as {layer!r} with {few[layer]:,}. Record more steps or larger batches.",
            stacklevel=3,
        )


def check_model(torch: Any, model: Any, verb: str = "recorded") -> None:
    """Raise an error unless a model is a torch.nn.Module that runs eagerly on a device of this machine.

    torch: the module. verb: the participle in errors, such as "recorded"; only "recorded" rejects modules whose
    compile() was called, and a single TransformerEncoderLayer.

    Raises:
      TypeError: model is not a torch.nn.Module.
      ValueError: model is compiled or scripted, on the meta device, on a GPU that is missing, or a lazy module that has
        not run.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {shown(model)}.")
    kind = type(model).__name__
    if kind == "OptimizedModule" or isinstance(model, torch.jit.ScriptModule):
        raise ValueError(f"model must run eagerly to be {verb}; got a compiled one ({kind}). Pass what it was made of.")
    if verb == "recorded" and getattr(model, "_compiled_call_impl", None) is not None:
        raise ValueError(
            f"model must run eagerly to be {verb}; got one whose compile() was called ({kind}). Record it before that, "
            "or torch.nn.Sequential(model), which says what it hides."
        )
    if verb == "recorded" and isinstance(model, torch.nn.TransformerEncoderLayer):
        raise ValueError(
            f"model must not be a {kind} itself, whose path in one piece no hook may touch. "
            "Record torch.nn.Sequential(layer)."
        )
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"model must have weights to be {verb}; {name!r} has none before the model has run. Run it."
            )
        device = parameter.device.type
        if device == "meta":
            raise ValueError(f"model must have weights to be {verb}; got {name!r} on the meta device. Load them first.")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"model must be on a device of this machine; got {name!r} on cuda, without a GPU.")


def _recorded(every: Any, start: int) -> Callable[[int], bool]:
    """Return a function that takes a step's number and returns whether the step is recorded.

    every: n for the steps 1, 1 + n, 1 + 2 n, ... from `start` on, or a collection of the steps' numbers. start: the
    number of the first step.

    Raises:
      TypeError, ValueError: every is neither a positive integer nor one or more numbers of steps from 1 on.
    """
    if is_integer(every):
        require_integer("every", every, 1)
        return lambda step: step >= start and (step - 1) % every == 0
    if isinstance(every, str) or not isinstance(every, Collection) or not all(map(is_integer, every)):
        raise TypeError(f"every must be an integer, or the numbers of the steps to record; got {shown(every)}.")
    steps = frozenset(every)
    if not steps or min(steps) < 1:
        raise ValueError(f"every must hold one or more numbers of steps >= 1; got {shown(every)}.")
    return lambda step: step in steps
