"""The report of a diagnosis: the answer as text, and the evidence as tables, pictures and a page."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fpsim.analysis.studies.diagnosis.diagnosed import Diagnosed
from fpsim.analysis.studies.diagnosis.recommendation import joint_sentences, recommendation_sentences, rival_sentences
from fpsim.analysis.studies.diagnosis.remedies import layer_sentences
from fpsim.analysis.studies.diagnosis.unplanned import alone_sentences, overflow_sentences, unjudged_sentences
from fpsim.analysis.studies.table import MISSING, csv_text
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import aligned, html_paragraphs, html_table
from fpsim.display.wording import plural, short
from fpsim.files import path_of, require_folder, write_whole

PAGE, TABLE, PLAN = "report.html", "products.csv", "plan.toml"
LONGEST = 32  # characters of a layer's name in tables


@dataclass(frozen=True)
class Diagnosis(Diagnosed):
    """A diagnosis: which layers of a model can use few bits without changes, which cannot, why, and what to do.

    Attributes:
      recording: the recording of the first batches, with the operands of their products.
      budgets: recipe -> the errors of the products in it, by cause.
      sensitivity: the errors that each product alone, in each recipe, causes in the gradients and outputs.
      plan: the recommended plan.
      verdicts: a Verdict for each layer, product and recipe, in the model's order.
      low: the recipe of fewer than 16 bits that fits best, by which `answer` judges layers; "" if there is none.
      high: the recipe of 16 bits or more for products that do not fit `low`.
      joint: the errors of the model, a SensitivityRow, if products follow `low` where it fits, and `high` otherwise;
        None without `low`.
      missed: the requested bits per value if every plan of products that fit needs more; else None.
      pays: whether the best plan with `low` needs at least a tenth fewer bits than `high` for all products; if it does
        not, and no bits were requested, `high` is recommended.
      promoted: (layer, product, recipe) -> relative error if sums are added to a float32 total every 128 terms; for
        products that do not fit because of their sums.
      limit: the largest accepted relative error.
      on: the hardware, as text.
      budgeted: the number of batches that were recorded and split by cause.
      notes: sentences on parts that were left out, and on effects that a user might not expect.
      unseen: layers with weights, such as recurrent ones, that stay exact and were not recorded.
      alone: Verdicts of products that no recipe of linear layers names, judged by their own errors: attention, the
        projections of nn.MultiheadAttention, and weights multiplied outside of layers. In all other measurements these
        products are exact.
    """

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The answer as sentences: layers that cannot use the recipe `low`, the recommendation, parts not judged."""
        coverage = self.coverage
        first = [*filter(None, [coverage.headline]), *overflow_sentences(self)]
        if self.low:
            middle = [*layer_sentences(self), *joint_sentences(self), *recommendation_sentences(self)]
            middle += rival_sentences(self)
        else:
            none = f"No recipe below 16 bits was measured on {self.on}, so all layers stay in {self.high}."
            middle = [none, *recommendation_sentences(self)]
        last = [*alone_sentences(self), *coverage.sentences, *unjudged_sentences(self)]
        if not self.sensitivity.has_loss:
            last.append("No loss was given: outputs alone were judged.")
        return (*first, *middle, *last)

    @property
    def answer(self) -> str:
        """The answer as one text: all of `sentences`."""
        return " ".join(self.sentences)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each verdict; column `chosen` says if the plan uses the recipe.

        Without a loss, the columns gradient_error and gradient_spread are left out.
        """
        chosen = self.plan.assignment
        table = frame([
            dataclasses.asdict(verdict) | {"chosen": chosen.get((verdict.layer, verdict.product)) == verdict.recipe}
            for verdict in self.verdicts
        ])  # fmt: skip
        return table if self.sensitivity.has_loss else table.drop(columns=["gradient_error", "gradient_spread"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each product by cause, in the recipe `low` (`high` if there is no `low`); return the axes.

        `ax`: the axes to draw into; None for new ones.
        """
        return self.budget.plot(ax)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, one HTML file that needs no other files, to `path`, and return that path.

        If writing fails, no half-written file is left.

        Raises:
          ImportError: jinja2 is not installed.
          OSError: the file cannot be written.
        """
        from fpsim.analysis.studies.diagnosis.page import page

        file = path_of(path)
        write_whole(file, page(self, self.sentences))
        return file

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write report.html, products.csv and plan.toml into a folder, and return their paths.

        The folder is created if missing. plan.toml is the recommendation, which `fp.train` and
        `fp.torch.quantize_linears` read. If writing fails, no half-written file is left. In products.csv, an apostrophe
        is written before text that looks like a formula, such as the layer name "=w".

        Raises:
          ImportError: jinja2, pandas or tomli-w is not installed.
          ValueError: the folder cannot be written to.
        """
        place = require_folder(path_of(folder, "folder"))
        columns = self.to_frame().to_dict("list")
        filled = {name: [MISSING if x != x else x for x in values] for name, values in columns.items()}
        write_whole(place / TABLE, csv_text(filled))
        self.plan.to_toml(place / PLAN)
        return [self.page(place / PAGE), place / TABLE, place / PLAN]

    def __str__(self) -> str:
        """Return the answer, a table with a row for each layer, and the notes."""
        table = [self.heads, *((short(name, LONGEST), *rest) for name, *rest in self.rows())]
        return "\n".join([self.answer, "", *aligned(table, texts=len(self.heads)), *self.notes])

    def __repr__(self) -> str:
        names = ", ".join(self.sensitivity.recipes)
        return f"<diagnosis of {self.model}: {plural(len(self.layers), 'layer')}, {names} on {self.on}>"

    def _repr_html_(self) -> str:
        """Return the answer, the notes and the table as HTML for notebooks."""
        text = html_paragraphs((self.answer, *self.notes))
        return f"{text}{html_table(self.heads, self.rows())}"
