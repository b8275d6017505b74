"""`fpsim diagnose`: find the layers of a model that can use few bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import fpsim
from fpsim.cli.functions import function_at
from fpsim.cli.terminal import new_table, print_line, refuse_bad_folder, shown
from fpsim.display.optional import require
from fpsim.display.progress import bar

# Packages that the measurement and its files need.
NEEDED = ("torch", "tomli_w", "pandas", "jinja2", "matplotlib")


def diagnose(
    function: Annotated[
        str,
        typer.Argument(
            help="MODULE:FUNCTION without arguments, which returns (model, batches, loss), or (model, batches) to "
            "judge outputs alone."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for report.html, the table, the plan and the measurements.")
    ] = Path("out/diagnose"),
    recipes: Annotated[
        str | None,
        typer.Option(
            "--recipes",
            help="Recipes to compare, separated by commas, such as BF16,MXFP8.",
            show_default="BF16 and the FP8 recipes that the chip has",
        ),
    ] = None,
    hardware: Annotated[
        str,
        typer.Option(
            "--on", help="The chip that multiplies, such as H100, hopper or sm_90, also with a library: 'H100 cuBLAS'."
        ),
    ] = "H100",
    bits: Annotated[float | None, typer.Option(help="The most bits per value that the plan may use.")] = None,
    limit: Annotated[float, typer.Option(help="The relative error above which a product does not fit.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the model's random numbers.")] = 0,
) -> None:
    """Find the layers of a model that can use few bits, and why others cannot. Repeat a stopped call to resume it."""
    refuse_bad_folder(out)
    require(NEEDED, "diagnose")
    model, batches, loss = _diagnosed(function)
    words = None if recipes is None else [word for word in recipes.split(",") if word]
    with bar(lines=True) as progress:
        diagnosis = fpsim.analysis.diagnose(
            model, batches, loss, recipes=words, on=hardware, bits=bits, limit=limit, seed=seed, out=out,
            progress=progress,
        )  # fmt: skip
        files = diagnosis.save(out)
    _print_diagnosis(Console(), diagnosis, files)


def _diagnosed(path: str) -> tuple[Any, Any, Any]:
    """Call the user's function, at the path MODULE:FUNCTION, and return its model, its batches and its loss or None.

    Raises:
      ValueError: the function raises an error, or returns something else.
    """
    make = function_at(path, such_as="my_model:setup")
    try:
        returned = make()
    except (Exception, SystemExit) as reason:  # any error of the user's own code, or its end
        said = str(reason).rstrip(".")
        raise ValueError(
            f"function must return (model, batches, loss); {path!r} raises {type(reason).__name__}: {said}."
        ) from reason
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ValueError(
            "function must return (model, batches, loss), or (model, batches) to judge outputs alone; got "
            f"{path!r}, which returns {type(returned).__name__}"
            + (f" of {len(returned)}." if isinstance(returned, tuple) else ".")
        )
    model, batches, loss = (*returned, None)[:3]
    return model, batches, loss


def _print_diagnosis(console: Console, diagnosis: Any, files: list[Path]) -> None:
    """Print the answer of a diagnosis, a table with a row for each layer, and the names of the files that were written.

    diagnosis: the result of `fp.analysis.diagnose`. files: the page first, then the others.
    """
    for i, line in enumerate(diagnosis.sentences):
        console.print(Text(shown(line), style="" if i else "bold"))
    table = new_table()
    heads = diagnosis.heads[1:-1]
    table.add_column("layer", overflow="fold")
    for head in heads:
        table.add_column(head, no_wrap=True)
    widths = [
        max(map(len, column)) for column in zip(heads, *(cells for _, *cells, _ in diagnosis.rows()), strict=True)
    ]
    room = max(console.width - sum(width + 2 for width in widths) - 4, 20)  # columns that are left for names
    for name, *cells, why in diagnosis.rows():
        table.add_row(Text(shown(name, room), style="yellow" if why else ""), *map(Text, cells))
    console.print(table)
    for line in diagnosis.notes:
        console.print(Text(shown(line), style="dim"))
    page, *others = files
    print_line(console, f"{page}: the report", "bold")
    print_line(console, f"{page.parent}: {', '.join(file.name for file in others)}")
