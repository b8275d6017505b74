"""The function fp.analysis.sensitivity, which measures one product of one layer at a time in low precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.display.optional import load
from fpsim.display.progress import Progress, bar
from fpsim.errors import require_integer, require_word
from fpsim.files import path_of
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.recipes.look_up import LinearLikes

if TYPE_CHECKING:
    import torch


class MeasuringKeywords(TypedDict, total=False):
    """The keyword arguments shared by functions that measure the layers of a model one at a time.

    Attributes:
      layers: a shell pattern or several for the names of the layers to measure; ("*",) by default.
      seed: seed of the random draws of the first batch; 0 by default.
      out: a folder that stores each measurement, or None, the default.
      progress: called with (share of the work done, text); None, the default, draws a bar if stderr is a terminal.
    """

    layers: str | Sequence[str]
    seed: int
    out: str | Path | None
    progress: Progress | None


MEASURING: MeasuringKeywords = {"layers": ("*",), "seed": 0, "out": None, "progress": None}


@with_keywords(MeasuringKeywords, cast("dict[str, Any]", MEASURING), last=True)
def sensitivity(
    model: torch.nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    recipes: LinearLikes,
    products: str | Sequence[str] = ("fprop", "dgrad", "wgrad"),
    backend: str = "emulated",
    **keywords: Unpack[MeasuringKeywords],
) -> Sensitivity:
    """Measure how each product of each layer, alone in low precision, changes the loss, the outputs and the gradients.

    Exact products are torch's own, bit for bit, in the model's dtype. The product in low precision is computed as by
    `fp.torch.QuantLinear`; a convolution is computed as a product of its patches. A copy of the model runs; the model
    itself is not changed. Each batch runs from the same state and with the same draws of torch, NumPy and random, so
    that dropout and batch norm do not count as errors. torch works on one thread meanwhile, so that metrics have the
    same bits whatever number of threads it is set to use.

    Args:
      model: a torch.nn.Module on the CPU with linear layers or convolutions, in the mode (train or eval) to measure in.
      batches: the batches, each a second argument of the loss; a list, or an iterable of at most 1,000.
      loss: called as loss(model, batch) with the copy; returns one value with a gradient, such as lambda model, batch:
        cross_entropy(model(batch[0]), batch[1]). A criterion of torch, such as torch.nn.CrossEntropyLoss(), does just
        that for batches of (input, target). With None no backward pass runs: rows are of forward products, and all
        their metrics but those of outputs are NaN. The model is then called as model(*batch) for a tuple or list,
        model(**batch) for a mapping, else model(batch).
      recipes: one or several names ("DEEPSEEK_V3"), `fp.torch.LinearRecipe` or `fp.train.Recipe` (of which the
        attribute `linear` is used), or a dictionary of these by names of your own.
      layers: a shell pattern or several for the names of layers, such as "blocks.*.mlp.*".
      products: one or several of "fprop", "dgrad" and "wgrad"; without a loss only "fprop".
      seed: seed of the random draws of the first batch; the next batches count up from it.
      backend: the backend that multiplies products in low precision, as in `fp.torch.QuantLinear`.
      out: a folder that stores each measurement as soon as it is made, so that the same call continues where it
        stopped, also with more recipes or layers; or None.
      progress: called with (share of the work done, text on the present measurement); None draws a bar if stderr is a
        terminal.
    Returns:
      A Sensitivity with a row for each layer, product and recipe. There is no row for layers that the loss does not
      call, and for products that do not exist (dgrad of a layer whose input needs no gradient). Neither is there one
      for products that cannot be computed in a recipe. `notes` lists these products, and the layers not called.
    Raises:
      TypeError: an argument has another type, or the loss returns no tensor.
      ValueError: a model without such layers, compiled, on the meta device or a GPU; a loss with several values,
        without a gradient, or that does not call the given model; a batch that does not fit the model; unknown recipes,
        layers or products; a folder of another model, loss or data.
      ImportError: torch is not installed.

    Example:
      >>> import torch
      >>> _ = torch.manual_seed(0)
      >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
      >>> batches = [torch.randn(128, 64) for _ in range(2)]
      >>> report = fp.analysis.sensitivity(model, batches, lambda model, x: model(x).square().mean(),
      ...                                 recipes=["FP8_TENSOR"])
      >>> [(row.layer, row.product) for row in report.rows]
      [('0', 'fprop'), ('0', 'wgrad'), ('2', 'fprop'), ('2', 'dgrad'), ('2', 'wgrad')]
      >>> row = report["0", "wgrad", "FP8_TENSOR"]
      >>> row.loss_change, row.output_error, 0.02 < row.weight_gradient_error < 0.04
      (0.0, 0.0, True)
    """
    load("torch", "sensitivity")
    from fpsim.analysis.models.compiled import judged_eagerly
    from fpsim.analysis.models.losses import loss_of, refuse_swapped
    from fpsim.analysis.studies.sensitivity import request
    from fpsim.analysis.studies.sensitivity.content import run_content
    from fpsim.analysis.studies.sensitivity.measuring import Measurer, sensitivity_of
    from fpsim.analysis.studies.sensitivity.outputs import OutputMeasurer
    from fpsim.analysis.studies.sensitivity.twin import Twin
    from fpsim.torch.plan import BACKENDS

    check_keywords(sensitivity, keywords, MEASURING)
    how: MeasuringKeywords = {**MEASURING, **keywords}
    layers, seed, out, progress = how["layers"], how["seed"], how["out"], how["progress"]
    refuse_swapped(model, batches, loss)
    chosen = request.product_layers(request.model_checked(model), layers)
    loss = None if loss is None else loss_of(loss)
    named, wanted = request.recipes_named(recipes), request.products_named(products, loss is not None)
    batches = request.batches_listed(batches)
    require_integer("seed", seed, 0)
    require_word("backend", backend, BACKENDS)
    folder = None if out is None else path_of(out, "out")
    content = run_content(model, batches, loss, seed, backend)
    measures = Measurer if loss is not None else OutputMeasurer
    measurer = measures(Twin(model, list(chosen), loss, seed, backend), batches, named, wanted, content, folder)
    with bar("sensitivity") if progress is None else nullcontext(progress) as report:
        single = measurer.single(report)
        if not single.rows:
            raise ValueError(_no_rows(measurer, single.notes))
        joint = tuple(
            measurer.joint({(r.layer, r.product): named[name] for r in single.rows if r.recipe == name}, name)
            for name in named
        )
        report(1.0, "all products at once")
    notes = judged_eagerly(model, measurer.coverage)
    return sensitivity_of(measurer, model, layers, chosen, single, joint, notes)


def _no_rows(measurer: Any, notes: Sequence[str]) -> str:
    """Return the error message that says why no product could be measured.

    `measurer`: the Measurer that tried. `notes`: sentences on what was not measured.
    """
    if measurer.refused:
        return f"recipes must allow a product of the layers; none does: {notes[-1]}"
    if measurer.elements:
        return (
            f"products must exist in the chosen layers; got {', '.join(measurer.products)}, which none of them has. "
            "Use 'fprop', or let weights require gradients."
        )
    if measurer.idle:
        return "batches must have values; all chosen layers were called with empty inputs."
    if measurer.twin.loss is None:
        return "layers must be called by model(batch), which called none of the chosen layers."
    return (
        "loss must call the model that it is given, loss(model, batch), which is a copy; it called none of the chosen "
        "layers."
    )
