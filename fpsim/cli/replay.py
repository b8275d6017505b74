"""The command `fpsim replay`, which repeats a training run and checks that its bits are the same on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fpsim.cli.terminal import print_line
from fpsim.display.progress import bar


def replay(
    run: Annotated[Path, typer.Argument(help="A file that Run.save wrote, or the folder of a run.")],
    backend: Annotated[
        str | None,
        typer.Option(
            help="What multiplies: emulated, float32, gpu, hardware, cpu, or a chip such as B200.",
            show_default="the run's own",
        ),
    ] = None,
    arithmetic: Annotated[
        str | None,
        typer.Option(help="All but the products: specified or torch arithmetic.", show_default="the run's own"),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="The run's text, if its path differs on this machine.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps to compare.", show_default="all")] = None,
) -> None:
    """Train a run again, and name the first operation that differs. The exit code is 1 if one does."""
    from fpsim.train import replay as train_again

    with bar(lines=True) as progress:
        again = train_again(run, backend=backend, arithmetic=arithmetic, text=text, steps=steps, progress=progress)
    first, *lines = str(again).splitlines()
    console = Console()
    print_line(console, first, "bold green" if again.equal else "bold red")
    for line in lines:
        print_line(console, line)
    if not again.equal:
        raise typer.Exit(1)
