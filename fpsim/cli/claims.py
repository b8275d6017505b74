"""`fpsim claims`: claims of the literature, with measured values and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpsim.cli.terminal import new_table, print_line, refuse_bad_folder
from fpsim.display.progress import bar
from fpsim.display.wording import plural
from fpsim.files import require_file, write_whole

DIFFERENT = 1  # exit code if an experiment failed or a value is not the expected one
STYLES = {"right": "green", "wrong": "red", "differs here": "bold red", "failed": "bold red"}


def claims(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Name or number of a claim, such as ring-bf16 or 69; repeat for several."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for finished rows, claims.json and claims.md.")
    ] = Path("out/claims"),
    workers: Annotated[int | None, typer.Option(help="Number of processes.", show_default="one for each core")] = None,
    page: Annotated[Path | None, typer.Option(help="One more file for the page in Markdown.")] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the names and numbers of the claims, without experiments.")
    ] = False,
) -> None:
    """Settle claims about low precision by experiments. Repeat a stopped call to resume it."""
    from fpsim.analysis.systems.claims.claims import claims as run_claims

    if listing:
        _print_names(Console())
        return
    refuse_bad_folder(out)
    if page is not None and (page.is_dir() or not page.resolve().parent.is_dir()):
        raise ValueError(
            f"--page must be a file in a folder that exists; got {page}. Make the folder, or name another."
        )
    if page is not None:
        require_file(page)
    with bar(lines=True) as progress:
        report = run_claims(only or None, out=out, workers=workers, progress=progress)
    console = Console()
    _print_report(console, report)
    if not only:
        report.save(out / "claims.json")
        write_whole(out / "claims.md", report.to_markdown())
        print_line(console, f"{out / 'claims.md'}: the page")
    if page is not None:
        write_whole(page, report.to_markdown())
    if not report.ok:
        raise typer.Exit(DIFFERENT)


def _print_names(console: Console) -> None:
    """Print number, name and statement of every claim of fpsim to rich's console."""
    from fpsim.analysis.systems.claims.catalogue import CLAIMS

    table = _table("number", "name", "claim")
    for claim in CLAIMS.values():
        table.add_row(claim.number, claim.name, Text(claim.claim))
    console.print(table)


def _print_report(console: Console, report: Any) -> None:
    """Print the verdict and the values of every row of a ClaimsReport, and the number of rows with each verdict.

    console: rich's console.
    """
    table = _table("number", "name", "verdict", "figures")
    for row in report:
        text = row.text if row.text and row.verdict not in ("differs here", "failed") else row.reason
        table.add_row(row.number, row.name, Text(row.verdict, style=STYLES.get(row.verdict, "yellow")), Text(text))
    console.print(table)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    console.print(Text(f"{plural(len(report), 'claim')}: {counts}", style="bold"))


def _table(*names: str) -> Table:
    """Return an empty table with the column heads `names`, whose last column wraps."""
    table = new_table()
    for name in names[:-1]:
        table.add_column(name, no_wrap=name == "number", overflow="fold")
    table.add_column(names[-1], overflow="fold", ratio=1)
    return table
