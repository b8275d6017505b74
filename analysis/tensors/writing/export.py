"""The export of a model: its checkpoint is written in a library's layout, replaces older files, and is read again."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.tensors.checkpoint import CheckpointTensors
from fpsim.analysis.tensors.checkpoint import open as open_checkpoint
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.analysis.tensors.writing.catalogue import EXPERTS, GGUF, LAYOUTS_WRITTEN
from fpsim.analysis.tensors.writing.configurations import modelopt_file, quantization_config
from fpsim.analysis.tensors.writing.container import (
    GGUF_ALIGNMENT,
    WORDS,
    PlacedTensor,
    TensorFile,
    gguf_header,
    safetensors_header,
)
from fpsim.analysis.tensors.writing.losses import losses
from fpsim.analysis.tensors.writing.misfits import keep_advice, misfit, refuse_misfits, refuse_tiny
from fpsim.analysis.tensors.writing.report import ExportReport
from fpsim.analysis.tensors.writing.weights import (
    HALVES,
    LayoutOptions,
    ScaleRangeError,
    WeightToWrite,
    WrittenWeight,
    amax_of,
    bands_of,
    largest_of,
)
from fpsim.arrays import Array
from fpsim.files import replacing, require_folder
from fpsim.runtime.threads import over_tasks

SHARD = 5_000_000_000  # the largest number of bytes of a shard, as in transformers
REPORT = "fpsim_export.json"
PLAIN_TENSOR = '{"_type": "Tensor"}'  # torchao's metadata of tensors that are not quantised
# Files in the folder of a model that are copied with it.
COMPANIONS = re.compile(r"(?i)(tokenizer|vocab|merges|special_tokens|added_tokens|generation_config|chat_template|"
                        r"preprocessor|processor|modeling|configuration).*|.*\.(tiktoken|jinja|model)")  # fmt: skip
SIBLINGS = (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("w1", "w3"))  # servers read them as one matrix


class ExportJob(NamedTuple):
    """The inputs of an export: the tensors, the layout with its options, and the configuration.

    Attributes:
      layout: the full name of the layout.
      options: group size, bits and symmetry of the codes.
      tensors: all tensors of the model.
      quantised: the names of the tensors that are quantised.
      kept: the name of each other tensor -> the reason why it is not quantised.
      modules: the linear layers that stay unquantised.
      inputs: the name of a weight -> the largest magnitude of its layer's inputs; without weights whose inputs were not
        measured.
      config: the content of config.json without quantisation settings.
      companions: the folder whose tokenizer files are copied; None for none.
      patterns: the caller's patterns of tensors to leave unquantised, without those that match no tensor.
    """

    layout: str
    options: LayoutOptions
    tensors: Sequence[Tensor]
    quantised: Sequence[str]
    kept: Mapping[str, str]
    modules: Sequence[str]
    inputs: Mapping[str, float]
    config: Mapping[str, Any]
    companions: Path | None = None
    patterns: Sequence[str] = ()


def write_checkpoint(
    job: ExportJob, out: Path, measure: Callable[[CheckpointTensors], dict[str, Any]] | None = None
) -> ExportReport:
    """Write a checkpoint into a folder or file, read it again, and return a report with the errors of its weights.

    Args:
      job: the inputs of the export.
      out: a folder, or for a single file a path that ends in .safetensors or .gguf.
      measure: called with the written checkpoint; returns further fields of the report, name -> value. None adds none.

    Raises:
      ValueError: the layout cannot store a weight, a weight contains NaN or Inf, or the folder contains another model.
      OSError: a file cannot be written, for example on a full disk; drafts are removed.
    """
    names = set(job.quantised)
    to_quantise = {one.name: one for one in job.tensors if one.name in names}
    weights = {name: _weight(job, one, to_quantise) for name, one in to_quantise.items()}
    refuse_misfits(job.layout, weights, job.options, job.patterns)
    files = _planned(job, weights, out)
    _refuse_twice(job, files)
    with _drafts(out, files) as drafts:
        for file, tensors in files.items():
            _write_tensors(job, drafts / file, tensors)
        single = _is_file(out)
        if not single and not job.layout.startswith(GGUF):
            _write_settings(job, drafts, files)
        checkpoint = open_checkpoint(drafts if not single else drafts / out.name)
        more = measure(checkpoint) if measure is not None else {}
        source = math.fsum(one.size * one.stored_bits for one in job.tensors) / 8
        stored = sum((drafts / file).stat().st_size for file in files)
        report = ExportReport(
            job.layout, str(out), tuple(sorted(path.name for path in drafts.iterdir())),
            tuple(losses(checkpoint, weights, job.patterns)),
            {one.name: job.kept[one.name] for one in job.tensors if one.name in job.kept}, source, float(stored),
            notes=_notes(job), **more,
        )  # fmt: skip
        if not single:
            (drafts / REPORT).write_text(report.to_json(), encoding="utf-8")
    return report


def _weight(job: ExportJob, one: Tensor, to_quantise: Mapping[str, Tensor]) -> WeightToWrite:
    """Return a tensor of the model, `one`, as a weight to be written, in the order of axes that the layout stores.

    to_quantise: name -> each tensor that is quantised.
    """
    turned = one.exchanged != (job.layout == EXPERTS and len(one.shape) == 3)
    *lead, rows, columns = one.shape
    shape = (*lead, columns, rows) if turned else one.shape
    shared = [one]
    if LAYOUTS_WRITTEN[job.layout].shares:
        shared = [to_quantise[name] for name in _siblings(one.name) if name in to_quantise]
    dtype = one.dtype if one.dtype in HALVES else "float32"
    amax = cache(lambda: max(amax_of(other) for other in shared))
    advice = partial(keep_advice, [one.name], job.quantised, job.patterns)  # only errors need it
    if one.dtype == "float64":
        refuse_tiny(one, advice)
    bands = partial(_finite, one.name, advice, bands_of(one, turned))
    return WeightToWrite(one.name, tuple(shape), dtype, bands, amax, job.inputs.get(one.name))


def _finite(
    name: str, advice: Callable[[], str], bands: Callable[[int], Iterator[Array]], multiple: int
) -> Iterator[Array]:
    """Yield the bands (consecutive rows) of a weight, each after checking that it is finite.

    name: name of the weight. advice: advice() is the argument that leaves it unquantised. bands: bands(multiple) yields
    bands whose numbers of rows are a multiple of `multiple`.

    Raises:
      ValueError: a band contains NaN or Inf.
    """
    for band in bands(multiple):
        if not math.isfinite(largest_of(band)):
            raise ValueError(
                f"weights to export must be finite in float32; {name} holds NaN, Inf or larger values. Correct it, or "
                f"pass {advice()}."
            )
        yield band


def _siblings(name: str) -> list[str]:
    """Return the names of the weights that share a tensor scale with the weight called `name`, its own included.

    Example:
      >>> _siblings("l.0.q_proj.weight")
      ['l.0.q_proj.weight', 'l.0.k_proj.weight', 'l.0.v_proj.weight']
    """
    stem, _, end = name.removesuffix(".weight").rpartition(".")
    for group in SIBLINGS:
        if end in group:
            return [f"{stem}.{other}.weight".removeprefix(".") for other in group]
    return [name]


Planned = dict[str, list[tuple[Tensor, WrittenWeight | None]]]


def _planned(job: ExportJob, weights: Mapping[str, WeightToWrite], out: Path) -> Planned:
    """Return the files to write: file name -> [(tensor, its stored form, or None if unquantised)].

    There is one file, or shards of at most 5 GB (more only for a single tensor). weights: name -> weight to be written.
    out: the folder or file.
    """
    row = LAYOUTS_WRITTEN[job.layout]
    parts = [(one, row.write(weights[one.name], job.options) if one.name in weights else None) for one in job.tensors]
    if _is_file(out):
        return {out.name: parts}
    if job.layout.startswith(GGUF):
        return {"model.gguf": parts}
    shards: list[list[tuple[Tensor, WrittenWeight | None]]] = [[]]
    room = SHARD
    for one, written in parts:
        size = sum(placed.nbytes for placed in _placed(job, one, written))
        if shards[-1] and size > room:
            shards.append([])
            room = SHARD
        shards[-1].append((one, written))
        room -= size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards)}


def _refuse_twice(job: ExportJob, files: Planned) -> None:
    """Raise a ValueError if two stored tensors would have the same name.

    files: the result of `_planned`.
    """
    taken: set[str] = set()
    for parts in files.values():
        for one in (placed for tensor, written in parts for placed in _placed(job, tensor, written)):
            if one.name in taken:
                raise ValueError(
                    f"{job.layout} stores a tensor called {one.name}, and the model has another one of that name. "
                    "Rename it, or leave it out."
                )
            taken.add(one.name)


def _placed(job: ExportJob, one: Tensor, written: WrittenWeight | None) -> list[PlacedTensor]:
    """Return the header entries of the tensors that store `one`, a tensor of the model.

    written: its stored form in the layout; None to write it unquantised, as one tensor.
    """
    gguf = job.layout.startswith(GGUF)
    if written is None:
        dtype = _kept_dtype(job, one)
        kind = dtype.name if gguf else WORDS[dtype]
        shape = one.shape if not one.exchanged else (*one.shape[:-2], one.shape[-1], one.shape[-2])
        return [PlacedTensor(one.name, kind, shape, math.prod(shape) * dtype.itemsize)]
    placed = []
    for end, (dtype, shape) in written.tensors.items():
        size = math.prod(shape) * dtype.itemsize
        if gguf:
            placed.append(PlacedTensor(one.name, job.layout.removeprefix(GGUF), one.shape, size))
        else:
            placed.append(PlacedTensor(_prefix(job, one.name) + end, WORDS[dtype], shape, size))
    return placed


def _prefix(job: ExportJob, name: str) -> str:
    """Return the start of the names under which a layout stores a weight's tensors.

    It is the weight's name without a final "weight", or the name itself in gpt-oss's layout.
    """
    return name if job.layout == EXPERTS else name.removesuffix("weight")


def _kept_dtype(job: ExportJob, one: Tensor) -> np.dtype[Any]:
    """Return the dtype in which an unquantised tensor, `one`, is written.

    It is float32 if the tensor was decoded from a layout, or is a 16-bit vector in GGUF; otherwise the tensor's dtype.
    """
    if one.layout or (job.layout.startswith(GGUF) and len(one.shape) < 2 and one.dtype in HALVES):
        return np.dtype(np.float32)
    return dtype_of(one.dtype)


def _write_tensors(job: ExportJob, path: Path, parts: Sequence[tuple[Tensor, WrittenWeight | None]]) -> None:
    """Write the file of tensors at `path`.

    parts: pairs of a tensor and its stored form, or None to write it unquantised.
    """
    gguf = job.layout.startswith(GGUF)
    placed = [one for tensor, written in parts for one in _placed(job, tensor, written)]
    if gguf:
        header = gguf_header(placed, str(job.config.get("model_type", "unknown")), job.layout.removeprefix(GGUF))
    else:
        described = {one.name: PLAIN_TENSOR if written is None else written.metadata for one, written in parts}
        named = {"tensor_names": json.dumps(list(described))}
        header = safetensors_header(placed, described | named if job.layout.startswith("torchao:") else {})
    with TensorFile(path, header, placed, GGUF_ALIGNMENT if gguf else 1) as file:

        def write(i: int) -> None:
            one, written = parts[i]
            if written is None:
                dtype = _kept_dtype(job, one)
                pieces = one.chunks() if not one.exchanged else (band.reshape(-1) for band in bands_of(one, True)(1))
                for piece in pieces:
                    file.write(one.name, piece.astype(dtype, copy=False))
                return
            with np.errstate(all="ignore"):  # values that become Inf are refused when they are read
                try:
                    for end, piece in written.pieces():
                        file.write(one.name if gguf else _prefix(job, one.name) + end, piece)
                except ScaleRangeError:
                    advice = keep_advice([one.name], job.quantised, job.patterns)
                    raise ValueError(misfit(one.name, job.layout, amax_of(one), advice)) from None

        over_tasks(len(parts), write)


def _write_settings(job: ExportJob, drafts: Path, files: Planned) -> None:
    """Write config.json, ModelOpt's or GPTQ's separate configuration, the index of shards, and the tokenizer's files.

    drafts: the folder to write into. files: the result of `_planned`.
    """

    def write(name: str, content: Any) -> None:
        (drafts / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    config = {key: value for key, value in job.config.items() if key != "quantization_config"}
    measured = bool(job.inputs) and set(job.quantised) <= set(job.inputs)
    settings = quantization_config(job.layout, job.options, job.modules, measured)
    write("config.json", {**config, "quantization_config": settings})
    library, _, kind = job.layout.partition(":")
    if library == "modelopt":
        write("hf_quant_config.json", modelopt_file(kind, job.modules))
    if library.startswith("gptq"):  # readers before transformers had quantization_config look here
        write("quantize_config.json", settings)
    if len(files) > 1:
        places = {one.name: (file, one.nbytes) for file, parts in files.items() for tensor, written in parts
                  for one in _placed(job, tensor, written)}  # fmt: skip
        write("model.safetensors.index.json", {
            "metadata": {"total_size": sum(size for _, size in places.values())},
            "weight_map": {name: file for name, (file, _) in places.items()},
        })  # fmt: skip
    if job.companions is not None:
        for path in sorted(job.companions.iterdir()):
            if path.is_file() and COMPANIONS.fullmatch(path.name):
                shutil.copyfile(path, drafts / path.name)


def _notes(job: ExportJob) -> tuple[str, ...]:
    """Return sentences for the user of the checkpoint, on missing scales of inputs and on tensor names in GGUF."""
    notes = []
    if LAYOUTS_WRITTEN[job.layout].takes_inputs and not job.inputs:
        notes.append(
            f"{job.layout} stores a scale of each layer's inputs if they were measured: pass batch= to measure them. "
            "Without a batch, the configuration asks for dynamic scales, or for quantised weights only."
        )
    takes_inputs = LAYOUTS_WRITTEN[job.layout].takes_inputs and bool(job.inputs)
    missing = [name for name in job.quantised if takes_inputs and name not in job.inputs]
    if missing:
        more = f" and {len(missing) - 1} more, whose layers were" if len(missing) > 1 else ", whose layer was"
        notes.append(f"Scales of inputs are missing for {missing[0]}{more} not called, or only with zeros.")
    if job.layout.startswith(GGUF):
        notes.append(
            "Tensors have the model's names; llama.cpp expects its own, and permutes queries and keys of some models."
        )
    return tuple(notes)


def _is_file(out: Path) -> bool:
    """Return whether the path `out` of an export names a single file (.safetensors or .gguf), and not a folder."""
    return out.suffix in (".safetensors", ".gguf")


@contextmanager
def _drafts(out: Path, files: Planned) -> Iterator[Path]:
    """Yield a folder for drafts, whose files replace those at `out` at the end of the `with` block.

    After an error the drafts are removed. files: the result of `_planned`.

    Raises:
      ValueError: the folder contains another model.
    """
    if _is_file(out):
        folder = require_folder(out.parent)
        room = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=folder))
        try:
            yield room
            os.replace(room / out.name, out)
        finally:
            shutil.rmtree(room, ignore_errors=True)
        return
    folder = require_folder(out)
    models = [path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".gguf", ".bin", ".pt")]
    earlier: tuple[str, ...] = ()
    if (folder / REPORT).exists():
        earlier = (*ExportReport.load(folder / REPORT).files, REPORT)
    others = sorted(set(models) - set(earlier))
    if others:
        raise ValueError(
            f"out must be a new or empty folder, or the folder of an earlier export; {out} holds {others[0]}. Pass "
            "another folder."
        )
    settings = ("config.json", "hf_quant_config.json", "quantize_config.json", "model.safetensors.index.json")
    names = {*earlier, *files, REPORT, *settings}
    with replacing(folder, names) as drafts:
        yield drafts
