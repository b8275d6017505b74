"""A log of whole tensors of a run, in memory or in a file; recordings hold statistics of tensors instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.models.file import loaded, stored
from fpsim.analysis.tensors.files import no_floats, read_stored
from fpsim.analysis.tensors.tensor import dtype_of
from fpsim.arrays import Array, as_array, float_array, without_gradient
from fpsim.display.optional import load as load_package
from fpsim.display.wording import plural
from fpsim.errors import require_integer, require_kind, shown
from fpsim.files import path_of
from fpsim.scaling.file import ScaledFileError, load, save

if TYPE_CHECKING:
    import torch

KIND = "tensor log"
Key = tuple[int, str, str]  # step, layer, tensor


class TensorLog:
    """A log of whole tensors by step, layer and name, in the order of adding, for `fp.analysis.compare_runs`.

    Example:
      >>> import fpsim as fp
      >>> log = fp.analysis.TensorLog()
      >>> log.add(1, "head", "output", np.float32([[0.5, 2.0]]))
      >>> log
      <tensor log: 1 tensor, 1 step>
    """

    def __init__(self) -> None:
        self.tensors: dict[Key, Array] = {}

    def add(self, step: int, layer: str, tensor: str, values: npt.ArrayLike) -> None:
        """Add a copy of a tensor of floats; a name that is taken at that step and layer gets a number ("output 2").

        Raises:
          TypeError: values are not floats, or names are not strings.
          ValueError: step is negative.
        """
        require_integer("step", step, 0)
        for name, text in (("layer", layer), ("tensor", tensor)):
            require_kind(name, text, str, "a text")
        array, _ = float_array(as_array(without_gradient(values)), "values")
        name, number = tensor, 1
        while (int(step), layer, name) in self.tensors:
            number += 1
            name = f"{tensor} {number}"
        self.tensors[int(step), layer, name] = array.astype(array.dtype.newbyteorder("="))  # a copy, for `save`

    @contextmanager
    def watch(self, model: torch.nn.Module, step: int = 1) -> Iterator[TensorLog]:
        """Log the outputs of all modules of a torch model, in the order of computing, inside a `with` block.

        The first call of the model in the block has the number `step`, each further call the next number. Layers are
        named as in `model.named_modules()`, the model itself "".

        Raises:
          TypeError: model is not a torch.nn.Module.
        """
        torch = load_package("torch", "watching a model")
        from fpsim.analysis.models.floats import floats_of

        require_kind("model", model, torch.nn.Module, "a torch.nn.Module")
        require_integer("step", step, 0)
        current = [int(step)]
        handles = []

        def hook(name: str) -> Any:
            def see(_module: Any, _inputs: Any, output: Any) -> None:
                for tensor in floats_of(output):
                    self.add(current[0], name, "output", tensor.detach())
                if name == "":
                    current[0] += 1

            return see

        for name, module in model.named_modules():
            handles.append(module.register_forward_hook(hook(name)))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tensors into one file, .npz or .safetensors, whole or not at all.

        Raises:
          ValueError: the path ends in neither .npz nor .safetensors, or the log holds no tensor.
          OSError: the file cannot be written.
        """
        if not self.tensors:
            raise ValueError("a tensor log to save must hold a tensor; got none. Add some with log.add(...).")
        arrays: dict[str, Array] = {}
        keys = stored("t", self.tensors, arrays)
        save(path, arrays, {"kind": KIND, "keys": keys})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TensorLog:
        """Load a log that `save` wrote, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or does not hold a TensorLog.
        """
        arrays, header = load(path)
        if header.get("kind") != KIND:
            raise ScaledFileError(f"{path}: wanted a tensor log, got a file of another kind. Save one with log.save().")
        log = TensorLog()
        try:
            log.tensors = loaded("t", header["keys"], arrays)
        except (KeyError, TypeError, ValueError):
            raise ScaledFileError(f"{path}: wanted a tensor log as save() wrote it. Save it again.") from None
        return log

    @staticmethod
    def of_file(path: str | os.PathLike[str]) -> TensorLog:
        """Return a log of the arrays in a .npz or .safetensors file of any program, named "step/layer/tensor".

        "layer/tensor" means step 1, and "layer" the output of that layer at step 1. Arrays that do not hold floats are
        left out.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file has another ending, or holds no floats.
        """
        where = path_of(path)
        if where.suffix.lower() not in (".npz", ".safetensors"):
            raise ValueError(f"a file of tensors must end in .npz or .safetensors; got {shown(where.name)}.")
        where.stat()  # raises the error of a missing file
        stored, notes = read_stored(where)
        log = TensorLog()
        for x in stored:
            parts = x.name.split("/")
            step = int(parts.pop(0)) if len(parts) > 2 and parts[0].isdecimal() else 1
            layer, tensor = ("/".join(parts[:-1]), parts[-1]) if len(parts) > 1 else (parts[0], "output")
            if x.left_out:
                notes.append(x.left_out)
            else:
                chunks = [np.zeros(0, dtype_of(x.dtype)), *x.chunks()]
                log.add(step, layer, tensor, np.concatenate(chunks).reshape(x.shape))
        if not log.tensors:
            raise no_floats(where, notes)
        return log

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        steps = len({key[0] for key in self.tensors})
        return f"<tensor log: {plural(len(self), 'tensor')}, {plural(steps, 'step')}>"
