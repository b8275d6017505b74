"""The function fp.analysis.diagnose: which layers of a model can use few bits, which cannot, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Unpack, cast

from fpsim.analysis.studies.arguments import require_positive
from fpsim.analysis.studies.diagnosis.report import Diagnosis
from fpsim.analysis.studies.sensitivity.sensitivity import MEASURING, MeasuringKeywords
from fpsim.display.optional import load
from fpsim.display.progress import bar
from fpsim.errors import require_integer
from fpsim.files import path_of
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.recipes.hardware import Hardware
from fpsim.recipes.look_up import LinearLikes

if TYPE_CHECKING:
    import torch

LIMIT = 0.1  # relative error of a product, and of the gradients; `limit` below says why


@with_keywords(MeasuringKeywords, cast("dict[str, Any]", MEASURING), last=True)
def diagnose(
    model: torch.nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Any] | None = None,
    *,
    recipes: LinearLikes | None = None,
    on: Hardware = "H100",
    bits: float | None = None,
    limit: float = LIMIT,
    **keywords: Unpack[MeasuringKeywords],
) -> Diagnosis:
    """Find which layers of a model can use formats of few bits without changes, which cannot and why, and what to do
    about these.

    The diagnosis records the products of the first two batches and splits their errors by cause, in each recipe on the
    hardware. Then it runs the model with one product at a time in each recipe, and plans from the products that fit
    (docs/diagnose.md). A product fits if its relative error is at most `limit`, and that of its single rows and columns
    at most three times `limit`. Moreover, this product alone must change the gradients of all parameters by at most
    `limit`. Only measured recipes are recommended.

    Without a loss only forward products and outputs are judged; no backward pass runs. To save time, products are then
    measured alone, and errors split by cause, only where a recommendation depends on it.

    Args:
      model: a torch.nn.Module on the CPU with linear layers or convolutions; it is not changed.
      batches: a list of batches, each a second argument of the loss; better two or more, since one batch says nothing
        about others.
      loss: called as loss(model, batch) with a copy of the model; returns one value with a gradient. Or a criterion of
        torch, such as torch.nn.CrossEntropyLoss(), for batches of (input, target). None for inference: the model is
        called as model(*batch) for a tuple or list, model(**batch) for a mapping, else model(batch).
      recipes: one or several names, `fp.torch.LinearRecipe` or `fp.train.Recipe`, or a dictionary of these; None for
        BF16, FP8_TENSOR, DEEPSEEK_V3 and MXFP8, as far as the hardware has units for them. If none has 16 bits or more,
        BF16 is added for products that fit no other recipe.
      on: the hardware that adds, as in `fp.analysis.budget`: "H100", "B200", "H100 cuBLAS"; None for the units of the
        recipes themselves.
      bits: largest mean bits per operand value, as in `fp.analysis.plan`; None for one low-precision recipe, and as few
        bits as `limit` admits.
      limit: the largest accepted relative error. The default is 2.7 times the error of a product whose operands are
        rounded to E4M3 (2.65 % each), and twice the gradients' error in FP8 recipes that train as well as BF16.
      layers: a shell pattern or several for the names of linear layers and convolutions.
      seed: seed of the random draws of the first batch; the next batches count up from it.
      out: a folder that stores each measurement as soon as it is made, so that the same call continues where it
        stopped; or None.
      progress: called with (share of the work done, text on the present measurement); None draws a bar if stderr is a
        terminal.
    Returns:
      A Diagnosis: `answer` as text, `recording`, `budgets`, `sensitivity`, `plan`, and `page(path)`.
    Raises:
      TypeError: an argument has another type.
      ValueError: a model without such layers, compiled, on the meta device or a GPU; a loss with several values,
        without a gradient, or that does not call the model; a batch that does not fit the model; unknown recipes,
        hardware or layers; fewer bits than any recipe takes; a folder of another model, loss or data.
      ImportError: torch, or a package that plans need, is not installed.

    Example:
      >>> import torch
      >>> _ = torch.manual_seed(0)
      >>> model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
      >>> batches = [torch.randn(128, 128) for _ in range(2)]
      >>> report = fp.analysis.diagnose(model, batches, lambda model, x: model(x).square().mean(), recipes="FP8_TENSOR")
      >>> print(report.sentences[0])  # doctest: +ELLIPSIS
      All 2 linear layers can use FP8_TENSOR on H100 as they are: no product is off by more than ...
      >>> report.plan["0", "wgrad"].recipe
      'FP8_TENSOR'
    """
    load("torch", "diagnose")
    from fpsim.analysis.models.losses import loss_of, refuse_swapped
    from fpsim.analysis.studies.diagnosis.outputs import OutputStages
    from fpsim.analysis.studies.diagnosis.stages import Stages
    from fpsim.analysis.studies.sensitivity import request

    check_keywords(diagnose, keywords, MEASURING)
    how: MeasuringKeywords = {**MEASURING, **keywords}
    seed, out, progress = how["seed"], how["out"], how["progress"]
    refuse_swapped(model, batches, loss)
    chosen = request.product_layers(request.model_checked(model), how["layers"])
    loss = None if loss is None else loss_of(loss)
    batches = request.batches_listed(batches)
    require_integer("seed", seed, 0)
    require_positive("limit", limit)
    if bits is not None:
        require_positive("bits", bits)
    folder = None if out is None else path_of(out, "out")
    stages = (Stages if loss is not None else OutputStages)(model, batches, loss, chosen, recipes, on, seed, folder)
    with bar("diagnose") if progress is None else nullcontext(progress) as report:
        return stages.run(bits, float(limit), how["layers"], report)
