"""The comparison of recipes in training: runs with equal seeds, and whether losses differ beyond chance."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fpsim.deprecation import renamed_arguments
from fpsim.display.optional import frame, load
from fpsim.errors import require_integer, require_word, shown
from fpsim.files import path_of, require_folder
from fpsim.formats.keywords import check_keywords
from fpsim.recipes.training_recipe import Recipe
from fpsim.train.comparisons.answer import Interval, interval
from fpsim.train.comparisons.gradient_probe import ALL, recipes_of, rows_over_seeds
from fpsim.train.comparisons.memory import Memory, memory_of
from fpsim.train.ranks import Ranks
from fpsim.train.runs import Progress, Run, require_progress
from fpsim.train.runs import run as train
from fpsim.train.settings import RUN_DEFAULTS, RunKeywords, settings_of, with_run_keywords

ENOUGH = 3  # least number of seeds with which recipes are told apart
PROBED = 120  # most steps in float32 before gradients are compared
BASELINES = ("BF16", "FP32")  # the first one that was passed; without them the first recipe
FOLDERS = re.compile(r"[^\w.^+-]+", re.ASCII)
SAME, HIGHER, LOWER, OPEN, UNKNOWN, DIVERGED = "same", "higher", "lower", "open", "unknown", "diverged"
WIDE = 0.1  # nats: with a larger half width an interval does not show that two losses are alike


@dataclass(frozen=True)
class Comparison:
    """Training runs of several recipes with the same seeds, as `fpsim.train.compare` returns them.

    Attributes:
      runs: the runs of all recipes, one for each recipe and seed.
      baseline: name of the recipe that the others are compared with.
      probed: rows of `fpsim.train.gradient_probe` with these seeds; empty if the probe was left out.
      memory: name of a recipe -> bytes of weights, moments and activations in its formats.
    """

    runs: tuple[Run, ...] = field(repr=False)
    baseline: str
    probed: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    memory: dict[str, Memory] = field(default_factory=dict, repr=False)

    @cached_property
    def by_recipe(self) -> dict[str, tuple[Run, ...]]:
        """Runs of each recipe, ordered by seed: {name of the recipe: runs}."""
        runs_of: dict[str, list[Run]] = {}
        for run in self.runs:
            runs_of.setdefault(run.recipe.name, []).append(run)
        return {name: tuple(sorted(runs, key=lambda one: one.settings.seed)) for name, runs in runs_of.items()}

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes, in the order in which they were passed."""
        return tuple(self.by_recipe)

    @property
    def seeds(self) -> int:
        """Number of seeds, and so of runs of each recipe."""
        return len(next(iter(self.by_recipe.values())))

    def final_loss(self, recipe: str) -> Interval:
        """Return a recipe's final loss in nats, the mean of a run's last 20 steps: mean over seeds and 95 % interval.

        Runs that stopped early or diverged are left out. `recipe` is a recipe's name.
        """
        return interval([run.final_loss for run in self.by_recipe[recipe] if not run.failed])

    def difference(self, recipe: str) -> Interval:
        """Return a recipe's final loss minus the baseline's, in nats: the mean over seeds, with its 95 % interval.

        Losses are subtracted seed by seed. Seeds for which either run stopped early or diverged are left out. `recipe`
        is a recipe's name.
        """
        pairs = zip(self.by_recipe[recipe], self.by_recipe[self.baseline], strict=True)
        return interval([a.final_loss - b.final_loss for a, b in pairs if not a.failed and not b.failed])

    def verdict(self, recipe: str) -> str:
        """Return the relation of a recipe's final loss to the baseline's, as one word.

        "diverged" if a run of the recipe diverged; else "unknown" with fewer than 3 seeds for which neither the
        recipe's run nor the baseline's stopped early or diverged; else "higher" or "lower" if the 95 % interval of the
        difference excludes 0; else "open" if that interval extends more than 0.1 nats to each side of the mean; else
        "same". `recipe` is a recipe's name.
        """
        if any(run.diverged for run in self.by_recipe[recipe]):
            return DIVERGED
        pairs = zip(self.by_recipe[recipe], self.by_recipe[self.baseline], strict=True)
        if sum(not a.failed and not b.failed for a, b in pairs) < ENOUGH:
            return UNKNOWN
        difference = self.difference(recipe)
        if difference.low <= 0 <= difference.high:
            return OPEN if difference.half > WIDE else SAME
        return HIGHER if difference.low > 0 else LOWER

    def rows(self) -> list[dict[str, Any]]:
        """Return a list of dicts, one for each recipe; the keys are the columns of `to_frame`."""
        return [self._row(name) for name in self.recipes]

    def _row(self, name: str) -> dict[str, Any]:
        """Return the row of `to_frame` for the recipe called `name`, as a dict."""
        runs = self.by_recipe[name]
        loss, difference = self.final_loss(name), self.difference(name)
        ended = [run for run in runs if not run.failed]
        memory = self.memory.get(name)
        error = next((row for row in self.probed if row["recipe"] == name and row["layer"] == ALL), {})
        times = (
            [row["seconds"] for run in self.by_recipe.get(which, ()) for row in run.rows] for which in (name, "FP32")
        )
        # medians, because the first steps include compilation
        of_recipe, of_fp32 = (float(np.median(seconds)) if seconds else math.nan for seconds in times)
        return {
            "recipe": name, "seeds": len(runs), "final_loss": loss.mean, "final_loss_low": loss.low,
            "final_loss_high": loss.high, "validation_loss": interval([run.validation_loss for run in ended]).mean,
            "difference": difference.mean, "difference_low": difference.low, "difference_high": difference.high,
            "verdict": self.verdict(name), "stopped": sum(bool(run.stopped) for run in runs),
            "diverged": sum(run.diverged for run in runs),
            "lost_updates": mean(row["lost_updates"] for run in runs for row in run.rows),
            "skipped_steps": mean(sum(row["skipped"] for row in run.rows) for run in runs),
            "seconds": mean(run.seconds for run in runs), "time_ratio": of_recipe / of_fp32,
            "weight_bytes": None if memory is None else memory.weights,
            "moment_bytes": None if memory is None else memory.moments,
            "activation_bytes": None if memory is None else memory.activations,
            "gradient_error": error.get("relative_error", math.nan),
            "gradient_error_low": error.get("relative_error_low", math.nan),
            "gradient_error_high": error.get("relative_error_high", math.nan),
        }  # fmt: skip

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each recipe.

        The columns are recipe, seeds, final_loss (nats, mean over the last 20 steps and the seeds), validation_loss,
        difference (to the baseline, paired by seed), verdict, stopped and diverged (numbers of runs), lost_updates
        (share of a step's updates, mean over steps), skipped_steps and seconds (means over runs), time_ratio (median
        time of a step divided by that of the recipe FP32), weight_bytes, moment_bytes, activation_bytes (None if
        unknown), and gradient_error (relative, from `gradient_probe`, NaN without it). final_loss, difference and
        gradient_error also have columns NAME_low and NAME_high, the ends of their 95 % intervals.
        """
        return frame(self.rows())

    def curves(self) -> Any:
        """Return a pandas frame with a row for each step of each run: recipe, seed, and the keys of `Run.rows`."""
        return frame(self.rows_of("rows"))

    def measurements(self) -> Any:
        """Return a pandas frame of the rounding errors of operands: recipe, seed, and the keys of `Run.measured`.

        It has a row for each operand of each matrix product that a run measured.
        """
        return frame(self.rows_of("measured"))

    def rows_of(self, field: str) -> list[dict[str, Any]]:
        """Return all rows of a field of all runs, `Run.rows` or `Run.measured`, with the keys recipe and seed added."""
        return [
            {"recipe": run.recipe.name, "seed": run.settings.seed, **row}
            for run in self.runs for row in getattr(run, field)
        ]  # fmt: skip

    def run_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dict for each run, with the columns of runs.parquet.

        They are recipe, seed, steps, final_loss, validation_loss (nats), seconds, stopped (the reason, or "" if it
        trained to the end) and diverged.
        """
        for run in self.runs:
            yield {
                "recipe": run.recipe.name, "seed": run.settings.seed, "steps": len(run.losses),
                "final_loss": run.final_loss, "validation_loss": run.validation_loss, "seconds": run.seconds,
                "stopped": run.stopped, "diverged": run.diverged,
            }  # fmt: skip

    def plot(self, ax: Any = None) -> Any:
        """Draw each recipe's loss over the steps, averaged over seeds, with its 95 % interval; return the axes.

        Losses are smoothed by the running mean m = 0.9 m + 0.1 loss, divided by the sum of its weights.

        Args:
          ax: matplotlib axes to draw on; None for the axes of a new figure.
        """
        from fpsim.train.comparisons.figures import loss_axes

        return loss_axes(self, ax)

    @property
    def answer(self) -> str:
        """Summary of the comparison as text; with fewer than 3 seeds it does not tell recipes apart."""
        from fpsim.train.comparisons.answer import answer

        return answer(self)

    def to_html(self) -> str:
        """Return the report of the comparison as an HTML page.

        Raises:
          ImportError: jinja2 is not installed.
        """
        from fpsim.train.comparisons.page import page

        return page(self)

    def save(self, out: str | os.PathLike[str]) -> list[Path]:
        """Write the page and the tables into a folder, replacing those of an earlier comparison together or not at all.

        The files are report.html, recipes.parquet, runs.parquet, curves.parquet, measured.parquet and probe.parquet.

        Args:
          out: a folder, created if it does not exist; other files in it do not change.

        Returns:
          The paths of the files written; a table without rows is not written.

        Raises:
          ImportError: jinja2 or pyarrow is not installed.
          ValueError: the folder cannot be written to.
        """
        from fpsim.train.comparisons.page import save

        return save(self, require_folder(out))

    def _repr_html_(self) -> str:
        from fpsim.train.comparisons.page import summary_table

        return summary_table(self)

    def __str__(self) -> str:
        return self.answer


@renamed_arguments(accumulate="micro_batches")
@with_run_keywords
def compare(
    recipes: Sequence[Recipe | str],
    *,
    seeds: int = 3,
    out: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    gradients: bool = True,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    **keywords: Unpack[RunKeywords],
) -> Comparison:
    """Train with several recipes and seeds, and compare the recipes' losses.

    With equal seeds, all recipes begin with the same weights and see the same batches, so losses are subtracted seed by
    seed. With `out`, every run is saved to out/runs/<recipe>-<seed> while it trains. The same call again loads finished
    runs and continues unfinished ones. The page and the tables are written at the end.

    Args:
      recipes: a recipe or several, as for `fpsim.train.run`, each with a different name.
      seeds: the number of seeds, which are 0, 1, 2, ...; with fewer than 3, verdicts are "unknown" or "diverged".
      out: the folder for runs, page and tables; None to save nothing.
      steps, model, text, backend, arithmetic, batch, context, width, micro_batches, measure, recompute, offload, ranks:
        as for `fpsim.train.run`.
      baseline: the name of the recipe that the others are compared with; None for BF16, else FP32, else the first.
      gradients: whether to run `fpsim.train.gradient_probe` as well, for every seed, at weights after 120 steps or
        `steps` if fewer; it has no effect for the perceptron.
      progress: called with the finished share of the work, 0 to 1, and a text.

    Returns:
      A Comparison.

    Raises:
      ValueError: an unknown recipe, two recipes of one name, no seeds, or as for `fpsim.train.run`; where possible,
        raised before the first step of any run.
      ImportError: safetensors, pyarrow or jinja2 is not installed, with `out`.

    Example:
      >>> comparison = fp.train.compare(["BF16", "FP8_RAW"], seeds=2, steps=3, model="perceptron")
      >>> comparison.recipes, comparison.seeds, len(comparison.curves()), comparison.verdict("FP8_RAW")
      (('BF16', 'FP8_RAW'), 2, 12, 'unknown')
    """
    check_keywords(compare, keywords, RUN_DEFAULTS)
    require_progress(progress)
    chosen = recipes_of(recipes)
    names = [recipe.name for recipe in chosen]
    require_integer("seeds", seeds, 1)
    if baseline is None:
        baseline = next((name for name in BASELINES if name in names), names[0])
    require_word("baseline", baseline, names)
    ranks = Ranks.single() if ranks is None else ranks
    target = None if out is None else path_of(out, "out")
    folders = _folders(target, chosen)
    if target is not None and ranks.rank == 0:
        for package in ("pyarrow", "jinja2"):
            load(package, "a comparison with out=")
        require_folder(target)
    settings = settings_of(**keywords)
    # raises an error for a recipe that cannot be trained, before the first run
    memory = {recipe.name: memory_of(recipe, settings) for recipe in chosen}
    probes = gradients and settings.model == "transformer" and ranks.rank == 0
    share = _Share(progress, len(chosen) * seeds + probes)
    runs = []
    for seed in range(seeds):
        for recipe, folder in zip(chosen, folders, strict=True):
            place = None if folder is None else Path(f"{folder}-{seed}")
            share.begin(f"{recipe.name}, seed {seed}")
            runs.append(train(recipe, seed=seed, out=place, progress=share, ranks=ranks, **keywords))
    rows: Sequence[dict[str, Any]] = ()
    if probes:
        share.begin("")
        rows = rows_over_seeds(
            chosen, range(seeds), steps=min(PROBED, settings.steps), text=settings.text, backend=settings.backend,
            progress=share,
        )  # fmt: skip
    runs.sort(key=lambda run: names.index(run.recipe.name))
    comparison = Comparison(tuple(runs), baseline, tuple(rows), memory)
    if out is not None and ranks.rank == 0:
        comparison.save(out)
    share.begin("finished")
    return comparison


def _folders(out: Path | None, chosen: list[Recipe]) -> list[Path | None]:
    """Return the path out/runs/NAME of each recipe, to which callers append "-SEED"; None for each if `out` is None.

    chosen: the recipes. Characters of a name that do not suit a path become "_".

    Raises:
      ValueError: two recipes' names make the same folder.
    """
    if out is None:
        return [None] * len(chosen)
    folders: list[Path | None] = [out / "runs" / FOLDERS.sub("_", recipe.name) for recipe in chosen]
    lower = [str(folder).lower() for folder in folders]  # some file systems ignore case
    for recipe, name in zip(chosen, lower, strict=True):
        if lower.count(name) > 1:
            raise ValueError(
                f"recipes' names must lead to different folders; got {shown([one.name for one in chosen])}, where "
                f"{recipe.name!r} and another name have the same one. Rename it by recipe.replace(name='mine')."
            )
    return folders


class _Share:
    """A progress callback for work in several equal parts, such as the runs of a comparison.

    Call the object with the finished share of the present part, 0 to 1, and a text. The object calls `progress` with
    the finished share of the whole work, (finished parts + share) / parts, and "NAME OF THE PART: TEXT". Call `begin`
    before each part.

    Args:
      progress: the callback for the whole work; None to report nothing.
      parts: the number of parts.
    """

    def __init__(self, progress: Progress | None, parts: int) -> None:
        self._progress, self._parts, self._done, self._part = progress, parts, -1, ""

    def begin(self, part: str) -> None:
        """Begin the next part of the work, and report its progress as 0.

        part: the name of the part, put before the text of each progress report; "" for none.
        """
        self._done, self._part = self._done + 1, part
        self(0.0, "")

    def __call__(self, share: float, text: str) -> None:
        if self._progress is not None:
            self._progress((self._done + share) / self._parts, ": ".join(filter(None, (self._part, text))))


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none.

    Example:
      >>> from fpsim.train.comparisons.comparison import mean
      >>> mean([1.0, float("nan"), 2.0])
      1.5
    """
    kept = [value for value in values if not math.isnan(value)]
    return math.fsum(kept) / len(kept) if kept else math.nan
