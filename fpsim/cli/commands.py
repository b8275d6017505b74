"""The commands of `fpsim`: each reads its arguments, calls the library and prints."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import fpsim
from fpsim.cli.exit_codes import BAD_INPUT, INTERRUPTED
from fpsim.cli.functions import function_at
from fpsim.errors import unknown
from fpsim.matrix_units.matrix_unit import Rule

app = typer.Typer(
    name="fpsim",
    help="Low-precision floating point, emulated bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fpsim {fpsim.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Low-precision floating point, emulated bit for bit."""


HARDEST = 12  # tensors in the terminal; report.html has them all


def command(to: typer.Typer = app, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command, of `fpsim` or of a group of commands."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> None:
            try:
                function(*arguments, **keywords)
            except KeyboardInterrupt:  # typer would make it exit code 1
                typer.echo("fpsim: Interrupted.", err=True)
                raise typer.Exit(INTERRUPTED) from None

        to.command(**settings)(run)
        return function

    return register


@command()
def study(
    tensors: Annotated[
        list[Path] | None,
        typer.Argument(help="Files (.npy .npz .safetensors .pt) or folders; none: a small transformer is trained."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and the tables.")] = Path(
        "out/study"
    ),
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help="Format; repeat for several. [default: those of the 13 candidates]"),
    ] = None,
    scalings: Annotated[
        list[str] | None,
        typer.Option("--scaling", help="none, amax or a name of fp.scalings, such as MX; repeat for several."),
    ] = None,
    roundings: Annotated[
        list[str] | None,
        typer.Option("--rounding", "-r", help="Repeat for several. [default: nearest_even toward_zero stochastic]"),
    ] = None,
    min_sqnr: Annotated[float, typer.Option(help="dB that a recommendation has at least.")] = 25.0,
    max_lost: Annotated[float, typer.Option(help="Share of the energy that may become zero.")] = 1e-3,
    budget_bits: Annotated[
        float | None, typer.Option(help="Bits per value that a recommendation takes at most, scales included.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a dask scheduler, whose workers study the files.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training and of stochastic rounding.")] = 0,
) -> None:
    """Measure how tensors survive in low-precision formats, and recommend one for each."""
    from fpsim.analysis.studies.study import ROUNDINGS
    from fpsim.analysis.studies.study import study as run_study
    from fpsim.analysis.studies.summaries import folded
    from fpsim.analysis.tensors.tensor import TensorFileError

    _refuse_bad_folder(out)
    errors = Console(stderr=True)
    try:
        with _client(scheduler) as client, _progress(errors) as bar:
            task = bar.add_task("starting", total=1.0)
            report = run_study(
                tensors or None,
                formats=formats,
                scalings=[_scaling(word) for word in scalings] if scalings else None,
                roundings=roundings or ROUNDINGS,
                min_sqnr=min_sqnr,
                max_lost=max_lost,
                budget_bits=budget_bits,
                seed=seed,
                progress=lambda share, activity: bar.update(task, completed=share, description=_shown(activity, 34)),
                client=client,
            )
            bar.update(task, completed=1.0, description="writing the report")
            files, notes = report.save(out)
    except TensorFileError as nothing:
        for line in (*nothing.problems, "there is nothing to study."):
            typer.echo(f"fpsim: {_shown(line)}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    for line in report.problems:
        typer.echo(f"fpsim: {_shown(line)}", err=True)
    console = Console()
    _print_study(console, report)
    for line in (*folded(report.notes), *notes):
        console.print(Text(_shown(line), style="dim"))
    pages = [file for file in files if file.suffix == ".html"]
    for file in pages:
        console.print(Text(f"{_shown(str(file))}: the report", style="bold"), soft_wrap=True)
    tables = ", ".join(file.name for file in files if file not in pages)
    console.print(Text(f"{_shown(str(out))}: {tables}"), soft_wrap=True)
    if report.problems:
        raise typer.Exit(BAD_INPUT)


def _scaling(word: str) -> Any:
    """A scaling by its word: none, amax, or the name of a recipe in any case."""
    from fpsim.errors import unknown

    if word.lower() in ("none", "amax"):
        return None if word.lower() == "none" else "amax"
    names = [name for name in dir(fpsim.scalings) if name.isupper()]
    if word.upper() not in names:
        spellings = {name.lower(): name for name in names}
        raise unknown("scaling", word, ["none", "amax", *names], spellings, listing="docs/scaling.md")
    return getattr(fpsim.scalings, word.upper())


def _client(scheduler: str | None) -> Any:
    """A client of a dask scheduler, for a `with` block; None without an address."""
    from fpsim.display.optional import load

    if scheduler is None:
        return contextlib.nullcontext()
    return load("distributed", "--scheduler").Client(scheduler)


def _refuse_bad_folder(out: Path) -> None:
    """Find out before the work that its result cannot be kept."""
    there = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--out must be a folder; got {out}, where {there} is a file. Choose another.")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out must be a folder that can be written; got {out}. Choose another.")


def _progress(console: Console, quiet: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _shown(text: str, width: int = 10_000) -> str:
    """Untrusted text for a terminal."""
    from fpsim.display.wording import short

    return short(text, width)


BESIDE = 58  # columns that a tensor's name leaves to its figures


def _print_study(console: Console, report: Any) -> None:
    """The answer, the recommendations with equal ones folded, and the tensors that are hardest to store."""
    from fpsim.analysis.studies.candidates import short_name
    from fpsim.analysis.studies.summaries import hardest, specials
    from fpsim.display.wording import decibels, percent, plural

    console.print(Text(report.answer, style="bold"))
    table = _study_table("tensors", "choice", "SQNR", "bits", "values")
    for group in report.groups:
        bits = sum(row.values * row.bits_per_value for row in group.rows) / group.values if group.values else 0.0
        kept = not group.met and group.rows[0].operand
        choice = Text(group.choice, style=_style(group.met, kept))
        table.add_row(group.title, choice, _figure(decibels, group.sqnr_db), f"{bits:.4g}", f"{group.values:,}")
    console.print(table)
    odd = [name for name in report.ranges_of if any(specials(report, name))]
    if odd:
        names = ", ".join(_shown(name, 40) for name in odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")
        console.print(Text(f"NaN or Inf in {plural(len(odd), 'tensor')}: {names}", style="yellow"))
    rows = hardest(report)
    if not rows:
        return
    table = _study_table("hardest", "choice", "SQNR", "deficit", "lost energy")
    for row in rows[:HARDEST]:
        short = short_name(row.format, row.scaling) if row.met else f"keep {row.choice}"
        name = _shown(row.tensor, min(max(console.width - BESIDE, 16), 60))
        figures = _figure(decibels, row.sqnr_db), _figure(decibels, row.deficit_db), percent(row.lost_energy)
        table.add_row(Text(name), Text(short, style=_style(row.met, not row.met)), *figures)
    console.print(table)
    if len(rows) > HARDEST:
        console.print(Text(f"The hardest {HARDEST} of {len(rows)} operands; the report has them all.", style="dim"))


def _study_table(first: str, second: str, *numbers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    table.add_column(second, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _style(met: bool, kept: bool) -> str:
    return "green" if met else "yellow" if kept else "dim"


def _figure(words: Callable[[float], str], value: float) -> str:
    """A figure in words; a dash where there is none."""
    return "–" if math.isnan(value) else words(value)


@command()
def train(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of recipes, such as DEEPSEEK_V3, or TOML files. [default: BF16 FP16_DYNAMIC DEEPSEEK_V3]"
        ),
    ] = None,
    more: Annotated[str | None, typer.Option("--recipes", help="The same in one word: a,b,c.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each recipe; 3 or more tell recipes apart.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html, the tables and the runs.")] = Path(
        "out/train"
    ),
    steps: Annotated[int, typer.Option(help="Of each run.")] = 250,
    model: Annotated[str, typer.Option(help="transformer or perceptron.")] = "transformer",
    text: Annotated[Path | None, typer.Option(help="A file of text; none: Python's help topics.")] = None,
    backend: Annotated[str, typer.Option(help="emulated, float32, gpu or hardware.")] = "emulated",
    batch: Annotated[
        int | None, typer.Option(help="Sequences of a micro-batch. [default: 8; 128 vectors of the perceptron]")
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Micro-batches of a step.")] = 1,
    baseline: Annotated[
        str | None, typer.Option(help="The recipe that others are compared with. [default: BF16, FP32 or the first]")
    ] = None,
) -> None:
    """Train a small model by recipes, and say which of them differ. The same call goes on where one was stopped."""
    from fpsim.train import Ranks, compare
    from fpsim.train.runs import find_recipe

    with Ranks.from_environment() as ranks, _silent(ranks.rank > 0), warnings.catch_warnings():
        _refuse_bad_folder(out)
        words = [word for text in (*(recipes or []), more or "") for word in text.split(",") if word]
        chosen = [find_recipe(word) for word in words or TRAINED]
        warnings.simplefilter("ignore", RuntimeWarning)  # a run that was stopped is in the table
        with _progress(Console(stderr=True), ranks.rank > 0) as bar:
            task = bar.add_task("starting", total=1.0)
            found = compare(
                chosen, seeds=seeds, out=out, steps=steps, model=model, text=text, backend=backend, batch=batch,
                accumulate=accumulate, baseline=baseline, ranks=ranks,
                progress=lambda share, activity: bar.update(task, completed=share, description=_shown(activity, 60)),
            )  # fmt: skip
    if ranks.rank == 0:
        _print_comparison(Console(), found, out)


@contextlib.contextmanager
def _silent(quiet: bool) -> Iterator[None]:
    """What is refused ends this process without a word, where another one says it."""
    try:
        yield
    except (ValueError, TypeError, ImportError, OSError):
        if quiet:
            raise typer.Exit(BAD_INPUT) from None
        raise


TRAINED = ("BF16", "FP16_DYNAMIC", "DEEPSEEK_V3")


def _print_comparison(console: Console, found: Any, out: Path) -> None:
    """A row a recipe, and the answer."""
    from fpsim.display.wording import percent
    from fpsim.train.comparisons.answer import signed

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("recipe", overflow="fold")
    for head in ("loss", f"above {found.baseline}", "gradients", "lost", "skipped", "stopped", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    colors = {"higher": "red", "lower": "green", "same": "", "open": "yellow", "unknown": "dim"}
    for row in found.rows():
        name = row["recipe"]
        above = "–" if name == found.baseline else signed(found.difference(name))
        table.add_row(
            Text(_shown(name)), _figure("{:.3f}".format, row["final_loss"]), Text(above, style=colors[row["verdict"]]),
            _figure("{:.1e}".format, row["gradient_error"]), percent(row["lost_updates"]),
            f"{row['skipped_steps']:.3g}", str(row["stopped"]), f"{row['seconds']:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(Text(_shown(found.answer), style="bold"))
    console.print(Text(f"{_shown(str(out / 'report.html'))}: the report"), soft_wrap=True)


@command()
def formats(
    name: Annotated[str | None, typer.Argument(help="A format, such as e4m3; none: list the built-in ones.")] = None,
) -> None:
    """List the formats, or describe one."""
    from fpsim.display.wording import power_of_two

    console = Console()
    if name is not None:
        _print_format(console, fpsim.format(name))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("format", no_wrap=True)
    for head in ("bits", "layout", "bias", "max", "normal from", "smallest", "Inf", "NaN"):
        table.add_column(head, justify="right", no_wrap=True)
    for known in fpsim.formats.names():
        fmt = fpsim.format(known)
        table.add_row(
            fmt.name, str(fmt.bits), f"{int(fmt.signed)}+{fmt.exponent_bits}+{fmt.mantissa_bits}", str(fmt.bias),
            f"{fmt.max:.3g}" if fmt.max >= 1e6 else f"{fmt.max:g}", power_of_two(fmt.smallest_normal),
            power_of_two(fmt.smallest_subnormal), "yes" if fmt.has_infinity else "no", "yes" if fmt.has_nan else "no",
        )  # fmt: skip
    console.print(table)
    console.print(
        Text(
            "Layout: sign, exponent and mantissa bits. Every IEEE P3109 format has a name too, such as p3109_k8p4sf.",
            style="dim",
        )
    )


TABLE_BITS = 6  # formats up to this width have few enough values to list


def _print_format(console: Console, fmt: fpsim.Format) -> None:
    typer.echo(repr(fmt))
    if fmt.bits <= TABLE_BITS:
        values = sorted({value for value in fmt.table().tolist() if value >= 0})
        typer.echo("values " + ", ".join(f"{value:g}" for value in values))


@command()
def units(
    arch: Annotated[
        str | None,
        typer.Argument(help="volta, turing, ampere, ada, hopper, blackwell, cdna1, cdna2 or cdna3; none: all of them."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="A row for every pair of operands.")] = False,
) -> None:
    """List the matrix units: how the instructions of GPUs multiply, align, add and round."""
    found = fpsim.units(arch.lower() if arch else None)
    sources = list(dict.fromkeys(unit.source for unit in found))
    rows = [[unit] for unit in found] if every else _alike(found)
    console = Console()
    wide = console.width >= WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("unit", no_wrap=wide)
    for head in ("terms", "bits"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("result", "scale", "evidence"):
        table.add_column(head, no_wrap=True)
    if wide:
        table.add_column("instruction")
    for before, row in zip([None, *rows], rows, strict=False):
        unit = row[0]
        if before is not None and before[0].arch != unit.arch:
            table.add_section()
        name = _names(row, [] if wide else [unit.instruction])
        scale = f"{unit.scale}/{unit.block}" if unit.scale else ""
        evidence = Text(unit.evidence, style={"hardware": "green", "inferred": "yellow"}.get(unit.evidence, ""))
        evidence.append(f" [{1 + sources.index(unit.source)}]", style="dim default")
        facts = str(unit.terms), str(unit.fraction_bits or ""), _rounding(unit), scale, evidence
        table.add_row(name, *facts, *([unit.instruction] if wide else []))
    console.print(table)
    for i, source in enumerate(sources):
        console.print(Text(f"[{i + 1}] {source}", style="dim"))
    console.print(Text(UNIT_WORDS, style="dim"))
    if len(rows) < len(found):
        console.print(
            Text(
                "<a>, <b>: the elements below the name, two different ones for <a>x<b>; --all lists every unit.",
                style="dim",
            )
        )


@command()
def diagnose(
    function: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION, which takes nothing and returns (model, batches, loss).")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for report.html, the table, the plan and what was measured.")
    ] = Path("out/diagnose"),
    recipes: Annotated[
        str | None, typer.Option("--recipes", help="a,b,c. [default: BF16, and the FP8 recipes that the chip has]")
    ] = None,
    on: Annotated[str, typer.Option("--on", help="The hardware that adds, such as H100 or 'H100 cuBLAS'.")] = "H100",
    bits: Annotated[float | None, typer.Option(help="Bits a value that the plan takes at most.")] = None,
    limit: Annotated[float, typer.Option(help="Relative error from which a product does not fit.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the draws of the model.")] = 0,
) -> None:
    """Say which layers of a model can go to few bits, which cannot and why. A call that was stopped goes on."""
    _refuse_bad_folder(out)
    model, batches, loss = _diagnosed(function)
    words = None if recipes is None else [word for word in recipes.split(",") if word]
    with _progress(Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=1.0)
        found = fpsim.analysis.diagnose(
            model, batches, loss, recipes=words, on=on, bits=bits, limit=limit, seed=seed, out=out,
            progress=lambda share, activity: bar.update(task, completed=share, description=_shown(activity, 60)),
        )  # fmt: skip
        files = found.save(out)
    _print_diagnosis(Console(), found, files)


def _diagnosed(path: str) -> tuple[Any, Any, Any]:
    """What the function of a path returns."""
    make = function_at(path, such_as="my_model:setup")
    try:
        found = make()
    except Exception as reason:  # whatever the user's own code raises
        raise ValueError(
            f"function must return (model, batches, loss); {path!r} raises {type(reason).__name__}: {reason}"
        ) from reason
    if not isinstance(found, tuple) or len(found) != 3:
        raise ValueError(
            f"function must return (model, batches, loss); got {path!r}, which returns {type(found).__name__}"
            + (f" of {len(found)}." if isinstance(found, tuple) else ".")
        )
    return found


def _print_diagnosis(console: Console, found: Any, files: list[Path]) -> None:
    """The answer, and a row a layer."""
    for i, line in enumerate(found.sentences):
        console.print(Text(_shown(line), style="" if i else "bold"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    ill = {name for name, *_, why in found.rows() if why}
    table.add_column("layer", overflow="fold")
    for head in ("fprop", "dgrad", "wgrad"):
        table.add_column(head)
    for name, *cells, _ in found.rows():
        table.add_row(Text(_shown(name), style="yellow" if name in ill else ""), *map(Text, cells))
    console.print(table)
    for line in found.notes:
        console.print(Text(_shown(line), style="dim"))
    page, *others = files
    console.print(Text(f"{_shown(str(page))}: the report", style="bold"), soft_wrap=True)
    names = ", ".join(file.name for file in others)
    console.print(Text(f"{_shown(str(page.parent))}: {names}"), soft_wrap=True)


@command()
def probe(
    function: Annotated[str, typer.Argument(help="MODULE:FUNCTION, of a module that Python finds from here.")],
    terms: Annotated[int, typer.Option("--terms", "-n", help="Terms of a sum.")] = 256,
    kind: Annotated[str, typer.Option(help="sum: fn(x); dot, matmul: fn(a, b).")] = "sum",
    a: Annotated[str, typer.Option("--a", help="What x or a holds, such as float32 or e4m3.")] = "float32",
    b: Annotated[str | None, typer.Option("--b", help="What b holds. [default: the same]")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the model, .json.")] = None,
) -> None:
    """Reveal how a function adds: in which order, what is rounded, which unit or schedule it equals; 1 if none fits."""
    if kind not in PROBES:
        raise unknown("kind", kind, PROBES)
    fn = function_at(function)
    if kind == "sum":
        model = fpsim.probe.sum(fn, terms, a)
    else:
        make = fpsim.probe.dot if kind == "dot" else fpsim.probe.matmul
        model = make(fn, terms, a=a, b=a if b is None else b)
    for line in model.explain().splitlines():
        typer.echo(_shown(line))
    if not model.found:
        raise typer.Exit(1)
    if out is not None:
        model.save(out)
        typer.echo(f"{_shown(str(out))}: the model")


PROBES = ("sum", "dot", "matmul")


WIDE = 100  # columns of a terminal that has room for instructions beside the facts
UNIT_WORDS = (
    "terms: products that a step adds. bits: fraction bits kept where they are aligned. result: RZ rounds toward zero "
    "(RZ13: to 13 mantissa bits), RNE to nearest even; RZ+RNE: steps toward zero, their sum to nearest even. hardware: "
    "compared with real chips; simulated: from a simulator; inferred: neither. The rules: docs/matrix-units.md."
)


def _alike(found: tuple[fpsim.MatrixUnit, ...]) -> list[list[fpsim.MatrixUnit]]:
    """Units that differ in their operands alone, together; equal and mixed operands apart."""
    classes: dict[tuple[object, ...], list[fpsim.MatrixUnit]] = {}
    arches = list(dict.fromkeys(unit.arch for unit in found))
    for unit in sorted(found, key=lambda unit: arches.index(unit.arch)):
        facts = (_named(unit, ""), unit.rule, unit.terms, unit.instruction, unit.evidence, unit.a == unit.b)
        classes.setdefault(facts, []).append(unit)
    return list(classes.values())


def _named(unit: fpsim.MatrixUnit, operands: str) -> str:
    """A unit's name with other words for its operands, where these take several elements."""
    mixed = f"_{unit.a.name}x{unit.b.name}_{unit.d.name}"
    same = f"_{unit.a.name}_{unit.d.name}"
    if unit.a.fmt.bits > 8 or not unit.name.endswith((mixed, same)):
        return unit.name
    return f"{unit.name.removesuffix(mixed).removesuffix(same)}_{operands}_{unit.d.name}"


def _names(row: list[fpsim.MatrixUnit], below: list[str]) -> Group:
    """The name of units that differ in their operands alone, over what they take and lines below that."""
    first, name = row[0], row[0].name
    if len(row) > 1:
        name = _named(first, "<a>" if first.a == first.b else "<a>x<b>")
        below = [" ".join(dict.fromkeys(x.name for unit in row for x in (unit.a, unit.b))), *below]
    return Group(Text(name), *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in below))


def _rounding(unit: fpsim.MatrixUnit) -> str:
    """How a unit rounds its result, in short."""
    if unit.rounding == "nearest_even":
        return "RNE"
    if unit.rule is Rule.TWO_PASSES:
        return "RZ+RNE"
    return "RZ" if unit.result_bits == unit.d.fmt.mantissa_bits else f"RZ{unit.result_bits}"


@command()
def validate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for validation.json and validation.txt.")] = Path(
        "out/validation"
    ),
    minutes: Annotated[float, typer.Option(help="For all parts together.")] = 7,
    part: Annotated[list[str] | None, typer.Option("--part", "-p", help="Only this part; may be repeated.")] = None,
) -> None:
    """Compare the emulator with the GPU of this machine, bit by bit; ends with 1 where something differs."""
    from fpsim.gpu.experiments.validate import main

    raise typer.Exit(main(["--out", str(out), "--minutes", str(minutes), *(["--parts", *part] if part else [])]))


@command(context_settings={"ignore_unknown_options": True})
def explain(
    value: Annotated[str, typer.Argument(help="A number: 0.3, -1e-4, inf, nan, 0x1.8p3.")],
    format: Annotated[str, typer.Argument(help="A format, such as e4m3.")],
    rounding: Annotated[str, typer.Option("--rounding", "-r", help="How it is rounded.")] = "nearest_even",
    overflow: Annotated[str, typer.Option(help="What becomes of values beyond the range.")] = "nonfinite",
    subnormals: Annotated[str, typer.Option(help="keep or flush.")] = "keep",
    seed: Annotated[int | None, typer.Option(help="Key of stochastic rounding.")] = None,
) -> None:
    """Explain how one value is rounded: its neighbours, what is dropped, the result and the reason."""
    typer.echo(
        str(
            fpsim.explain(
                _number(value), format, rounding=rounding, overflow=overflow, subnormals=subnormals, seed=seed
            )
        )
    )


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise ValueError(f"value must be a number such as 0.3, -1e-4, inf, nan or 0x1.8p3; got {text!r}.") from None
