"""The recorder of a running model; it touches the model's modules only while a recorded step's forward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock, get_ident
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fpsim.analysis.models import products as known
from fpsim.analysis.models.floats import logits_of
from fpsim.analysis.models.measuring import Measure
from fpsim.analysis.models.monitors import HasScale, Monitors, Update
from fpsim.analysis.models.products import RecordedProduct
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.models.rows import MASK, OPERANDS, TENSORS, RecordedRow
from fpsim.analysis.models.selection import Selection
from fpsim.analysis.models.watching.hooks import Hook, as_floats_of, in_backward
from fpsim.analysis.models.watching.modules import WatchedModules
from fpsim.analysis.models.watching.scale_history import ScaleHistory
from fpsim.analysis.models.watching.tally import Tally
from fpsim.analysis.models.watching.unseen import compiled_notes, unrecorded
from fpsim.analysis.models.watching.updates import Updates
from fpsim.arrays import from_torch

OTHER_THREADS = "Forward passes that began in another thread while one was running are not recorded."


class Watch:
    """The recorder of a model; see `fp.analysis.record`.

    A step ends when an optimizer has updated weights; without gradients, when the model's forward pass ends.

    Args:
      model: a torch.nn.Module.
      recording: the recording to fill.
      selection: the layers to record.
      measure: called with an array; returns its RangeReport and a tuple of ErrorReports, one for each format.
      is_recorded: called with a step's number; returns whether the step is recorded.
      start: number of the first step.
      scaler: an object with get_scale(), such as torch.amp.GradScaler, or None.
      outputs: whether to store the model's outputs.
    """

    def __init__(
        self, model: Any, recording: Recording, selection: Selection, measure: Measure,
        is_recorded: Callable[[int], bool], start: int, scaler: HasScale | None, outputs: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.recording, self.selection = model, recording, selection
        self.step = start
        self._measure, self._is_recorded, self._keeps_outputs = measure, is_recorded, outputs
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._updates = Updates(self._names)
        self._found: list[Update] = []
        self._scales = ScaleHistory(model, scaler)
        self._handles: list[Any] = []  # hooks on the model and on optimizers
        self._gradients: dict[int, Any] = {}  # id of a weight -> hook on its gradient, in the recorded step
        self._calls: dict[str, int] = {}  # layer -> calls in this step
        self._weights: set[tuple[str, int]] = set()  # weights measured in this step
        self._depth = 0
        self._lock = Lock()
        self._thread: int | None = None  # whose forward pass of the model is running
        self._with_gradients = False
        self._trains = False  # whether an optimizer is expected to end each step
        self._has_run = False  # whether the model ran since the last step ended
        self._keeps = False
        self._notes: dict[str, None] = {}
        self._tally = Tally(model)
        self._modules = WatchedModules(model, selection, self._tally, self._see, self._miss)
        self._missed: dict[str, dict[str, None]] = {}  # function -> the modules whose products by it are not recorded

    # ---- the life of a recording

    def open(self) -> None:
        """Add the hooks that watch the model's forward passes and optimizers' steps."""
        self._handles = [
            self.model.register_forward_pre_hook(Hook(self._before)),
            self.model.register_forward_hook(Hook(self._after), always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self.recording._end_step = self.end_by_hand

    def close(self) -> None:
        """Remove all hooks and wrappers from the model, and complete the recording."""
        self._modules.detach()
        self._forget()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._publish()
        if self._has_run and self._is_recorded(self.step):
            self.recording.tell(self.step)
        self.recording._end_step = None
        self._notes = self._modules.notes | dict.fromkeys(
            compiled_notes(self.recording.coverage, self._modules.compiled)
        )
        self.recording.notes = (*self._notes, *map(unrecorded, self._missed, self._missed.values()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes of the recording that become warnings: all but those on functions never recorded, such as "einsum"."""
        return tuple(self._notes)

    def end_by_hand(self) -> None:
        """End the current step, if the model has run since the last step ended."""
        if self._has_run:
            self.end_step()

    def end_step(self, *, skipped: bool = False) -> None:
        """End the current step; if it is recorded, add its scales and call the recording's listeners.

        skipped: True if overflow made the optimizer skip the update; the loss scale has been added already then.
        """
        if self._is_recorded(self.step):  # else nothing has changed
            if self._has_run:
                self._scales.add(self.step, with_loss=not skipped)
            self._publish()
            self.recording.tell(self.step)
        self.step += 1
        self._has_run = False

    def _publish(self) -> None:
        """Set the recording's monitors and coverage from the measurements so far."""
        self.recording.monitors = Monitors(tuple(self._found), tuple(self._scales.scales))
        chosen = self.selection.patterns != ("*",)
        self.recording.coverage = replace(self._tally.coverage, is_chosen=chosen)

    # ---- forward passes of the model

    def _before(self, module: Any, _: Any) -> None:
        """Begin a forward pass of the model, and a step if none has begun; torch calls this hook before the pass.

        If the loss scale fell since the last pass, the optimizer skipped an update, and its step ends first. Passes
        inside another pass of the model and a checkpoint's recomputations begin nothing. A pass without gradients of a
        model that is trained is a validation, and not recorded; nor is one that begins in another thread while one is
        running. module: the torch.nn.Module that runs; others than the model, such as copies of it, are ignored.
        """
        if module is not self.model or in_backward():
            return
        thread = get_ident()
        with self._lock:
            if self._thread not in (None, thread):
                self._modules.ignored.add(thread)
                self._modules.notes[OTHER_THREADS] = None
                return
            self._thread = thread
        self._depth += 1
        if self._depth > 1:
            return
        self._with_gradients = torch.is_grad_enabled()
        if self._with_gradients and self.model.training:
            self._trains = True
        if self._trains and not self._with_gradients:
            return  # a validation between steps
        if self._scales.skipped(self.step, self._has_run):
            self.end_step(skipped=True)
        is_recorded = self._is_recorded(self.step)
        if not self._has_run:
            self._has_run = True
            self._forget()
            if is_recorded:
                self.recording.steps = tuple(sorted({*self.recording.steps, self.step}))
                self._keeps = self.recording._keep_sample(self.step)
        if is_recorded:
            self._modules.attach()

    def _after(self, module: Any, _: Any, output: Any) -> None:
        """End a forward pass of the model, and the step if no optimizer will end it.

        torch calls this hook after the pass. module, output: the torch.nn.Module and its result, whose logits are
        stored if the recording keeps outputs.
        """
        if module is not self.model or in_backward():
            return
        if self._thread != get_ident():
            self._modules.ignored.discard(get_ident())
            return
        self._depth -= 1
        if self._depth:
            return
        self._modules.detach()
        self._thread = None
        validates = self._trains and not self._with_gradients
        if self._keeps_outputs and not validates and self._is_recorded(self.step):
            logits = logits_of(output)
            array = None if logits is None else as_floats_of(logits)
            if array is not None:  # there is no output after an error
                self.recording.keep_output(self.step, np.array(array))
        if self._has_run and not self._trains:
            self.end_step()

    def _forget(self) -> None:
        """Remove hooks that still wait for gradients of an earlier step, and reset the counts of the current step."""
        for handle in self._gradients.values():
            handle.remove()
        self._gradients = {}
        self._modules.forget()
        self._calls, self._weights = {}, set()

    # ---- products

    def _see(self, product: RecordedProduct) -> None:
        """Count a product's multiplications; if its layer is recorded, measure its tensors, and add gradient hooks.

        A product that a checkpoint recomputes in the backward pass only gets the hooks.
        """
        module = self._modules.running
        layer = self.selection.layer_of(module, product.weight, isinstance(module, known.LAYERS))
        replays = in_backward()
        if not replays and product.lookup:
            self._tally.looked_up(module, product.weight)
        elif not replays:
            seen = layer in self.selection and product.output.is_floating_point()  # other dtypes are not measured
            self._tally.saw(layer, module, product.weight, product.multiplications, seen)
        if layer not in self.selection:
            return
        if not replays:
            first = self._calls.get(layer, 0) == 0
            self._calls[layer] = self._calls.get(layer, 0) + 1
            self._add_operands(layer, product, first)
            self._add(layer, "output", product.output, False)
            if self._with_gradients and not torch.is_grad_enabled():
                self._modules.wait_for_recomputation()
        else:
            first = self._calls.get(layer) == 1
        self._await_gradients(layer, product, first)

    def _miss(self, function: str, multiplications: int) -> None:
        """Count the multiplications of a call of a torch function whose operands are not recorded.

        function: name of the function, such as "einsum"; the recording's notes name it, with the module that called it.
        """
        if in_backward():
            return
        module = self._modules.running
        name = self.selection.modules[id(module)]
        self._tally.missed(module, name, function, multiplications)
        self._missed.setdefault(function, {})[name or "the model"] = None

    def _add_operands(self, layer: str, product: RecordedProduct, first: bool) -> None:
        """Measure the operands of a product of a layer; a weight is measured only once in a step.

        first: whether it is the layer's first product in the step. If so, copies of its operands, settings and mask are
        stored, provided that the recording stores operands of this step.
        """
        if first and self._keeps and product.settings:
            self.recording.keep_settings(self.step, layer, product.settings)
            if product.mask is not None:
                self.recording.keep_operand((self.step, layer, MASK), from_torch(known.added_to_scores(product.mask)))
        for which, x in product.operands.items():
            if which == "weight":  # the same at every call of a step
                key = layer, x.data_ptr() if product.weight is None else product.weight.data_ptr()
                if key in self._weights:
                    continue
                self._weights.add(key)
            self._add(layer, which, x, first, "embedding" if which == "weight" and product.lookup else "")

    def _await_gradients(self, layer: str, product: RecordedProduct, first: bool) -> None:
        """Add hooks that measure the gradients of a product's result and weight when autograd has computed them.

        first: whether it is the layer's first product in this step. If so, a copy of the gradient of its result is
        stored, provided that the recording stores operands of this step.
        """
        step = self.step
        output: Any = product.output  # whose register_hook has no types
        weight: Any = product.weight
        if output.requires_grad:
            output.register_hook(lambda x: self._add(layer, "output_gradient", x, first, step=step))
        if weight is None or not weight.requires_grad or id(weight) in self._gradients:
            return
        owner = self.selection.owner(weight)
        row = layer if owner is None or owner not in self.selection else owner
        handle = weight.register_hook(lambda x: self._add(row, "weight_gradient", x, False, step=step))
        if weight.is_leaf:  # other weights exist for one forward pass only
            self._gradients[id(weight)] = handle

    def _add(
        self, layer: str, which: str, x: torch.Tensor, keep: bool, role: str = "", *, step: int | None = None
    ) -> None:
        """Measure a tensor and add its row to the recording; ignore tensors that are empty or not of floats.

        Of a `torch.sparse_coo` tensor only the stored values are measured; other sparse tensors are ignored.

        Args:
          layer: the layer's name.
          which: the tensor's name in the layer, such as "input" or "weight_gradient" (see `RecordedRow.tensor`).
          x: the tensor.
          keep: whether to store a copy if the tensor is an operand and operands of this step are stored.
          role: the row's role; "" for that of a tensor of this name, such as "activation" for "input".
          step: number of the step; None for the current step.
        """
        step = self.step if step is None else step
        array = as_floats_of(x)
        if array is None:
            return
        spread, errors = self._measure(array)
        dtype = str(x.dtype).removeprefix("torch.")
        row = RecordedRow(step, layer, which, role or TENSORS[which], tuple(x.shape), dtype, 1, spread, errors)
        self.recording.add(row)
        if keep and self._keeps and which in OPERANDS:
            self.recording.keep_operand(row.key, np.array(array))

    # ---- steps of optimizers

    def _of_model(self, optimizer: Any) -> bool:
        """Return whether an optimizer, a torch.optim.Optimizer, updates a parameter of the watched model."""
        return any(id(p) in self._names for group in optimizer.param_groups for p in group["params"])

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        """Copy the weights; torch calls this hook before the step of an optimizer, a torch.optim.Optimizer."""
        if self._depth:  # torch calls no hook after a forward pass that Ctrl-C ended
            self._modules.detach()
            self._depth, self._thread = 0, None
        if self._is_recorded(self._updated_step()) and self._of_model(optimizer):
            self._updates.before(optimizer)

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        """Compare the weights with their copies, and end the step; torch calls this hook after an optimizer's step.

        optimizer: a torch.optim.Optimizer; one that updates no weight of the model is ignored.
        """
        if not self._of_model(optimizer):
            return
        self._trains = True
        if self._is_recorded(self._updated_step()):
            self._found += self._updates.after(self._updated_step())
        if self._has_run:
            self.end_step()

    def _updated_step(self) -> int:
        """Return the number of the step to which an optimizer's update belongs.

        This is the current step, or the previous one if the model has not run since the previous step ended.
        """
        return self.step if self._has_run else self.step - 1
