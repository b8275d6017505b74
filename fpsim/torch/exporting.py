"""Exports models and tensors in the layouts of quantised checkpoints, and measures the loss of quantising them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.analysis.tensors.checkpoint import CheckpointTensors
from fpsim.analysis.tensors.checkpoint import open as open_checkpoint
from fpsim.analysis.tensors.opening import dtype_name, from_mapping, integer_tensor
from fpsim.analysis.tensors.roles import with_roles
from fpsim.analysis.tensors.tensor import CODES, Tensor
from fpsim.analysis.tensors.writing.catalogue import EXPERTS, GGUF, LAYOUTS_WRITTEN, checked_options, layout_named
from fpsim.analysis.tensors.writing.container import GGUF_KINDS, GGUF_NAME, WORDS
from fpsim.analysis.tensors.writing.export import ExportJob, write_checkpoint
from fpsim.analysis.tensors.writing.misfits import keep_advice
from fpsim.analysis.tensors.writing.report import ExportReport
from fpsim.errors import require_kind, shown, texts_of
from fpsim.files import path_of

if TYPE_CHECKING:
    import torch

ALONE = "gpt-oss quantises experts alone"
FLOATS = ("float64", "float32", "float16", "bfloat16")
FAINTEST = 2.0**-100  # inputs that are smaller count as 0, since scales of all layouts must be float32 and above 0


def export(
    model_or_tensors: torch.nn.Module | Mapping[str, Any] | str | Path,
    *,
    layout: str,
    out: str | Path,
    keep: str | Sequence[str] = ("lm_head",),
    group_size: int | None = None,
    bits: int = 4,
    symmetric: bool = True,
    batch: object = None,
    config: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write a model as a quantised checkpoint in a library's layout, read it again, and measure its error.

    Weights are rounded to nearest by the rule of the layout's library, which would write the same bytes; its reader
    returns the values that `fp.analysis.open(out)` returns. Tensors are streamed: memory use stays within 1 GiB plus
    the largest tensor. All files appear at the end, or none.

    Args:
      model_or_tensors: a torch.nn.Module, whose linear layers' weights are quantised; or a mapping of names to arrays
        or tensors, or the path of a checkpoint that `fp.analysis.open` reads, whose matrices are quantised by name and
        shape.
      layout: such as "deepseek_fp8", "compressed-tensors:nvfp4", "modelopt:fp8", "gptq", "gptq_v2", "awq", "mxfp4"
        (gpt-oss), "torchao:mxfp8", "bitsandbytes:nf4", "hqq:int4", "gguf:Q8_0"; docs/layouts.md lists all.
      out: a folder, created if needed; or a file name ending in .safetensors or .gguf, to write no configuration.
      keep: shell patterns of layers or tensors that are not quantised; embeddings, norms, biases and routers never are.
      group_size: inputs that share a scale in compressed-tensors' INT4, GPTQ, AWQ and HQQ; None for 128 (HQQ: 64).
      bits: the width of GPTQ's codes, 4 or 8.
      symmetric: True if GPTQ's zero points are the middle code.
      batch: inputs of the model (a tensor, a tuple of arguments or a dict of keywords), for which outputs before and
        after are compared, and input scales computed if the layout has them; None for neither.
      config: the content of config.json apart from its quantisation; None for the model's own, or the checkpoint's.

    Returns:
      An ExportReport with `.sqnr_db`, `.worst`, `.weights`, `.output_error`, `.stored_bytes`, `.notes`; print it.

    Raises:
      ValueError: an unknown layout; weights of a shape that it cannot store, or with NaN or Inf; inputs with these, if
        the layout has scales of inputs; no weight to quantise; or a folder that holds another model.
      TypeError: the first argument is neither a model, nor a mapping, nor a path.
      OSError: the files cannot be written; no partial file is left.

    Example:
      >>> import tempfile, torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     report = fp.torch.export(model, layout="deepseek_fp8", out=folder, batch=torch.ones(4, 64))
      ...     weights = fp.analysis.open(folder)
      ...     print(report.layout, sorted(weights), 25 < report.sqnr_db < 40, report.output_error < 0.1)
      deepseek_fp8 ['0.bias', '0.weight', '2.bias', '2.weight'] True True
    """
    full = layout_named(layout)
    options = checked_options(full, group_size, bits, symmetric)
    patterns: Sequence[str] = texts_of("keep", keep, "shell patterns such as ['lm_head'], [] for none")
    target = path_of(out, "out")
    wanted = ".gguf" if full.startswith(GGUF) else ".safetensors"
    if target.suffix in {".gguf", ".safetensors"} - {wanted}:
        raise ValueError(f"{full} is written into a folder or a {wanted} file; got {shown(str(target))}.")
    model: Any = model_or_tensors if _is_module(model_or_tensors) else None
    if batch is not None and model is None:
        raise TypeError("batch needs a torch.nn.Module to call; got tensors. Pass the model, or no batch.")
    require_kind("config", config, (Mapping, type(None)), "a dict, the content of config.json, or None")
    companions, model_config = None, dict(config or {})
    if isinstance(model_or_tensors, (str, os.PathLike)):
        checkpoint = open_checkpoint(path_of(model_or_tensors))
        companions, model_config = _folder_and_config(path_of(model_or_tensors), target, model_config, config is None)
        model_or_tensors = checkpoint
    tensors, notes = _tensors(model_or_tensors)
    kinds = GGUF_KINDS if full.startswith(GGUF) else {dtype.name for dtype in WORDS}
    container = "GGUF" if full.startswith(GGUF) else "safetensors"
    left_out = {one.name: one.dtype for one in tensors if not one.layout and one.dtype not in kinds}
    notes += [f"{name} left out, {container} has no type for {dtype}." for name, dtype in left_out.items()]
    tensors = [one for one in tensors if one.name not in left_out]
    patterns = [pattern for pattern in patterns if not any(_matches(pattern, name) for name in left_out)
                or any(_matches(pattern, one.name) for one in tensors)]  # fmt: skip
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)  # of a model of transformers
    if callable(to_dict) and config is None:
        model_config = dict(to_dict())
    linear = None
    if model is not None:
        import torch

        named = model.named_modules()
        linear = {f"{name}.weight".removeprefix(".") for name, module in named if isinstance(module, torch.nn.Linear)}
    quantised, kept = _chosen(tensors, linear, patterns, full)
    if not quantised:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(kept.items())[:3])
        raise ValueError(f"there is no weight to quantise in {full}: {reasons or 'no matrix of floats'}.")
    patterns = [pattern for pattern in patterns if any(_matches(pattern, one.name) for one in tensors)]
    _refuse_names(full, quantised, [one.name for one in tensors], patterns)
    modules = [
        name.removesuffix(".weight") for name, why in kept.items()
        if why.startswith(("keep", "a router", ALONE)) and name.endswith(".weight")
    ]  # fmt: skip
    run = _Run(model, batch, quantised) if model is not None and batch is not None else None
    inputs = run.measured(LAYOUTS_WRITTEN[full].takes_inputs) if run else {}
    job = ExportJob(full, options, tensors, quantised, kept, modules, inputs, model_config, companions, patterns)
    report = write_checkpoint(job, target, run.losses if run else None)
    return replace(report, notes=(*report.notes, *notes))


def _is_module(model: Any) -> bool:
    """Return whether an object is a torch.nn.Module; torch is not imported for builtins and NumPy arrays."""
    if type(model).__module__.partition(".")[0] in ("builtins", "numpy"):
        return False
    import torch

    return isinstance(model, torch.nn.Module)


def _tensors(source: Any) -> tuple[list[Tensor], list[str]]:
    """Return (the tensors of `source`, sentences on those that are left out).

    source: a model, a mapping of names to arrays or tensors, or an open checkpoint.
    """
    if isinstance(source, CheckpointTensors):
        return [source.tensor(name) for name in source], list(source.notes)
    if _is_module(source):
        source = source.state_dict()
    if not isinstance(source, Mapping):
        raise TypeError(
            f"export takes a torch.nn.Module, a mapping of names to tensors or a path; got {shown(source)}."
        )
    if not source:
        raise ValueError("export takes tensors; got an empty mapping.")
    floats, notes = from_mapping(source)
    tensors = {one.name: one for one in floats}
    for name, x in source.items():  # integers that are not codes are buffers, which are exported too
        left_out = f"{name} left out, it holds "
        if dtype_name(x) in CODES and any(note.startswith(left_out) for note in notes):
            tensors[str(name)] = integer_tensor(str(name), x)
            notes = tuple(note for note in notes if not note.startswith(left_out))
    return [tensors[name] for name in map(str, source) if name in tensors] or list(floats), list(notes)


def _chosen(
    tensors: Sequence[Tensor], linear: set[str] | None, keep: Sequence[str], layout: str
) -> tuple[list[str], dict[str, str]]:
    """Return (names of the weights to quantise, {name of any other tensor: why it is not quantised}).

    linear: names of linear layers' weights, or None without a model. keep: shell patterns of layers or tensors that are
    not to be quantised; one that matches nothing (except "lm_head") raises a ValueError. layout: the layout's name.
    """
    quantised: list[str] = []
    kept: dict[str, str] = {}
    used: set[str] = set()
    experts = {one.name for one in tensors if layout == EXPERTS and len(one.shape) == 3 and "expert" in one.name}
    for one in with_roles(tensors):
        matches = [pattern for pattern in keep if _matches(pattern, one.name)]
        used |= set(matches)
        if (len(one.shape) != 2 and one.name not in experts) or not (one.dtype in FLOATS or one.layout):
            kept[one.name] = "no matrix of floats"
        elif not one.size:
            kept[one.name] = "no values"
        elif matches:
            kept[one.name] = f"keep={matches[0]!r}"
        elif one.role == "router":
            kept[one.name] = "a router"
        elif one.name in experts:
            quantised.append(one.name)
        elif linear is not None and one.name not in linear:
            kept[one.name] = "no weight of a linear layer"
        elif experts:
            kept[one.name] = ALONE
        elif linear is None and one.role != "matrix":
            kept[one.name] = f"a tensor of the role {one.role}"
        else:
            quantised.append(one.name)
    unused = [pattern for pattern in keep if pattern not in used and pattern != "lm_head"]
    if unused:
        names = ", ".join(one.name for one in tensors[:3])
        raise ValueError(f"keep must name layers or tensors; {unused[0]!r} matches none of {names}, ...")
    return quantised, kept


def _matches(pattern: str, name: str) -> bool:
    """Return whether a shell pattern equals or matches one of the names of a tensor.

    These are the tensor's name ("mlp.up.weight"), its layer's name ("mlp.up"), and the last part of that ("up").
    """
    module = name.removesuffix(".weight")
    return any(word == pattern or fnmatchcase(word, pattern) for word in (module, name, module.rpartition(".")[2]))


def _refuse_names(layout: str, quantised: Sequence[str], names: Sequence[str], keep: Sequence[str]) -> None:
    """Raise a ValueError if a layout cannot store tensors of these names.

    quantised: names of the weights to quantise. names: names of all tensors. keep: the patterns of tensors that are not
    to be quantised, for the message.
    """
    if layout.startswith(GGUF):
        long = [name for name in names if len(name.encode()) > GGUF_NAME]
        if long:
            raise ValueError(f"GGUF keeps names of at most {GGUF_NAME} bytes; got {long[0]!r}. Rename it.")
        return
    odd = [name for name in quantised if name != "weight" and not name.endswith(".weight")]
    if odd and layout != EXPERTS:
        raise ValueError(
            f"{layout} names the tensors of a weight after its layer, such as 'up.weight'; got {odd[0]!r}. "
            f"Rename it, or pass {keep_advice(odd, quantised, keep)}."
        )


def _folder_and_config(path: Path, out: Path, config: dict[str, Any], read: bool) -> tuple[Path | None, dict[str, Any]]:
    """Return (the folder of a checkpoint to export, the configuration of its model).

    path: the folder of the checkpoint or a file in it. out: the path of the export. The configuration is that in the
    config.json of the folder if `read` is True and the file exists, else `config`.

    Raises:
      ValueError: `out` is that folder or `path`, or config.json is not JSON.
    """
    folder = path if path.is_dir() else path.parent
    if out.resolve() == folder.resolve() or out.resolve() == path.resolve():
        raise ValueError(f"out must be another folder than the checkpoint's; got {shown(str(out))}.")
    file = folder / "config.json"
    if read and file.is_file():
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(f"{file} is no JSON. Mend it, or pass config=.") from None
        config = content if isinstance(content, dict) else {}
    return folder, config


class _Run:
    """The outputs of a model on a batch before its export, with which `losses` compares those after the export."""

    def __init__(self, model: Any, batch: Any, quantised: Sequence[str]) -> None:
        import torch

        self._model, self._batch = model, batch
        parameters = dict(model.named_parameters(remove_duplicate=False))
        self._weights = {name: parameters[name] for name in quantised if name in parameters}
        layers_of: dict[int, list[Any]] = {}  # id of a weight -> every layer that uses it
        for one in model.modules():
            layers_of.setdefault(id(one._parameters.get("weight")), []).append(one)
        self._layers = {name: layers_of.get(id(weight), []) for name, weight in self._weights.items()}
        self._inputs: dict[str, float] = {}  # name of a weight to quantise -> largest magnitude of its layers' inputs
        handles = []
        for name, layers in self._layers.items():

            def see(module: Any, arguments: Any, keywords: Any, name: str = name) -> None:
                for x in [*arguments, *keywords.values()][:1]:
                    if isinstance(x, torch.Tensor) and x.numel():
                        largest = float(x.detach().abs().max())
                        self._inputs[name] = float(np.maximum(self._inputs.get(name, 0.0), largest))  # keeps NaN

            handles += [layer.register_forward_pre_hook(see, with_kwargs=True) for layer in layers]
        try:
            self._outputs = self._called()
        finally:
            for handle in handles:
                handle.remove()

    def measured(self, for_scales: bool) -> dict[str, float]:
        """Return {name of a weight to quantise: largest magnitude of its layers' inputs} for layers that were called.

        for_scales: True to leave out layers that read zeros alone, and to raise a ValueError for inputs of NaN or Inf.
        """
        broken = [name for name, largest in self._inputs.items() if for_scales and not np.isfinite(largest)]
        if broken:
            raise ValueError(f"batch must give layers finite inputs; those of {broken[0]} hold NaN or Inf. Change it.")
        return {name: largest for name, largest in self._inputs.items() if largest >= FAINTEST or not for_scales}

    def losses(self, checkpoint: CheckpointTensors) -> dict[str, Any]:
        """Run the model with a checkpoint's weights, and return {"output_error": ..., "output_kl": ...} of its outputs.

        output_error: the norm of the change of all outputs, relative to the outputs before. output_kl: the mean of
        KL(softmax before || softmax after) of the first output whose last axis is longer than 1, in nats, or None. A
        weight is loaded while its layer runs, or throughout if the layer's forward is not called, as in
        torch.nn.MultiheadAttention.
        """
        always = set(self._weights) - set(self._inputs)
        with _weights_from(checkpoint, self._weights, self._layers, always):
            after = self._called()
        pairs = list(zip(after, self._outputs, strict=True))
        with np.errstate(invalid="ignore"):  # where both are -Inf, as in masked logits, nothing changed
            difference = np.sqrt(sum(float(np.sum(np.where(a == b, 0.0, a - b) ** 2)) for a, b in pairs))
            norm = np.sqrt(sum(float(np.sum(b[np.isfinite(b)] ** 2)) for _, b in pairs))
            kl = [_kl(b, a) for a, b in pairs if a.ndim and a.shape[-1] > 1]
        return {"output_error": float(difference / norm) if norm else float(difference),
                "output_kl": kl[0] if kl else None}  # fmt: skip

    def _called(self) -> list[np.ndarray[Any, Any]]:
        """Return the model's float outputs on the batch, in evaluation mode, as float64 arrays; ValueError if none."""
        import torch

        modes = {module: module.training for module in self._model.modules()}
        self._model.eval()
        try:
            batch = self._batch
            with torch.no_grad():
                if isinstance(batch, Mapping):
                    result = self._model(**batch)
                else:
                    result = self._model(*(batch if isinstance(batch, (tuple, list)) else (batch,)))
        finally:
            for module, mode in modes.items():
                module.training = mode
        outputs = [x.detach().double().cpu().numpy() for x in _floats(result)]
        if not outputs:
            raise ValueError("the model must return tensors of floats for the batch; it returned none.")
        return outputs


def _floats(result: Any) -> Iterator[Any]:
    """Yield the floating-point tensors of a model's output, nested in dicts, lists and tuples, or in its `logits`."""
    import torch

    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, (Mapping, list, tuple)):
        for value in result.values() if isinstance(result, Mapping) else result:
            yield from _floats(value)
    elif hasattr(result, "logits"):
        yield result.logits


@contextmanager
def _weights_from(
    checkpoint: CheckpointTensors, weights: Mapping[str, Any], layers: Mapping[str, Sequence[Any]], always: set[str]
) -> Iterator[None]:
    """Make a model use a checkpoint's weights in a `with` block; weights: {name: the model's parameter}.

    A weight is set while one of its layers, `layers[name]`, runs, or all the time if its name is in `always`.
    """
    import torch

    handles = []
    held: dict[str, Any] = {}

    def put(name: str) -> None:
        weight = weights[name]
        held[name] = weight.data
        weight.data = torch.from_numpy(checkpoint[name]).to(weight)

    def take(name: str) -> None:
        if name in held:
            weights[name].data = held.pop(name)

    try:
        for name, owners in layers.items():
            if name in always:
                put(name)
                continue
            for layer in owners:
                handles.append(layer.register_forward_pre_hook(lambda *_, name=name: put(name)))
                handles.append(layer.register_forward_hook(lambda *_, name=name: take(name), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name in list(held):
            take(name)


def _kl(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> float:
    """Return the mean of KL(softmax(before) || softmax(after)) over the last axis, in nats; 0 log 0 counts as 0."""
    logs = [x - x.max(-1, keepdims=True) for x in (before, after)]
    logs = [x - np.log(np.sum(np.exp(x), -1, keepdims=True)) for x in logs]
    shares = np.exp(logs[0])
    return max(float(np.mean(np.sum(np.where(shares == 0, 0.0, shares * (logs[0] - logs[1])), -1))), 0.0)
